//! The arguments of a run that is started again.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

/// A checkpoint that a run saves to, as it was before the run.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    before: Option<SystemTime>,
}

impl Checkpoint {
    /// The checkpoint that the run will write.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), before: saved_at(path) }
    }

    /// The file, if the run has written it: an older one is another run's.
    pub fn written(&self) -> Option<&Path> {
        let now = saved_at(&self.path);
        (now.is_some() && now != self.before).then_some(&self.path)
    }
}

fn saved_at(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The value of an option in arguments: `--name VALUE` or `--name=VALUE`.
fn value_of<'a>(args: &'a mut [String], name: &str) -> Option<(&'a mut String, &'static str)> {
    let at =
        args.iter().position(|arg| arg == name || arg.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))?;
    match args[at] == name {
        true => args.get_mut(at + 1).map(|value| (value, "")),
        false => Some((&mut args[at], "=")),
    }
}

/// Sets an option's value; adds the option if it is not there.
fn set(args: &mut Vec<String>, name: &str, value: &str) {
    match value_of(args, name) {
        Some((arg, "")) => *arg = value.into(),
        Some((arg, _)) => *arg = format!("{name}={value}"),
        None => args.extend([name.into(), value.into()]),
    }
}

/// The arguments of the `count`-th start after the first, from a checkpoint or from the beginning. Files that the run
/// before has begun, and that are not gone on with, get the number of the start in their name.
pub fn again(args: &[String], from: Option<&Path>, count: u32) -> Vec<String> {
    let mut args = args.to_vec();
    let goes_on = from.is_some();
    for name in [Some("--report"), Some("--metrics").filter(|_| !goes_on)].into_iter().flatten() {
        if let Some((arg, _)) = value_of(&mut args, name) {
            let path = Path::new(arg.as_str());
            let file = path.file_stem().unwrap_or_default().to_string_lossy();
            let ending = path.extension().map_or(String::new(), |ending| format!(".{}", ending.to_string_lossy()));
            let renamed = path.with_file_name(format!("{file}-{}{ending}", count + 1));
            *arg = renamed.display().to_string();
        }
    }
    if let Some(path) = from {
        set(&mut args, "--resume", &path.display().to_string());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn a_run_goes_on_from_its_checkpoint_and_keeps_its_other_arguments() {
        for (first, from, second) in [
            ("train a.toml --save s", Some("s"), "train a.toml --save s --resume s"),
            ("train a.toml --resume=old --save s", Some("s"), "train a.toml --resume=s --save s"),
            ("train a.toml --resume old --save s", Some("s"), "train a.toml --resume s --save s"),
            ("train a.toml --resume old --save s", None, "train a.toml --resume old --save s"),
            ("rnn --report d/page --metrics m.jsonl", Some("s"), "rnn --report d/page-2 --metrics m.jsonl --resume s"),
            ("rnn --report=page --metrics m.jsonl", None, "rnn --report=page-2 --metrics m-2.jsonl"),
        ] {
            assert_eq!(again(&words(first), from.map(Path::new), 1), words(second));
        }
    }

    #[test]
    fn a_checkpoint_of_an_earlier_run_does_not_count() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = dir.path().join("run.st");
        let new = Checkpoint::new(&path);
        assert_eq!(new.written(), None);
        std::fs::write(&path, "old").expect("can be written");
        assert_eq!(new.written(), Some(path.as_path()));
        let old = Checkpoint::new(&path);
        assert_eq!(old.written(), None);
        let file = std::fs::File::options().append(true).open(&path).expect("it is there");
        file.set_modified(SystemTime::now() + std::time::Duration::from_secs(9)).expect("it is ours");
        assert_eq!(old.written(), Some(path.as_path()));
    }
}
