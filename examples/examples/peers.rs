//! Puts the tables of wgrad beside its peers into a text, as `cargo xtask peers` asks: `peers TEXT RESULTS..`.

use std::{fs, path::Path, process::ExitCode};
use wgrad_examples::bench::peers::{replaced, rows, tables};
use wgrad_nn::SaveFile;

fn run(text: &Path, results: &[String]) -> Result<(), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut all = vec![];
    for path in results {
        all.extend(rows(&read(Path::new(path))?).map_err(|error| format!("{path}: {error}"))?);
    }
    let new = replaced(&read(text)?, &tables(&all)?).map_err(|error| format!("{}: {error}", text.display()))?;
    let written = SaveFile::open(text).and_then(|file| file.write(|to| to.write_all(new.as_bytes())));
    written.map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (text, results) = (args.next(), args.collect::<Vec<_>>());
    let done = match text {
        Some(text) if !results.is_empty() => run(Path::new(&text), &results),
        _ => Err("expected a text and files of results".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}
