//! Puts the tables of wgrad beside its peers into two texts, the summary into the first and all figures into the second, as
//! `cargo xtask peers` asks: `peers SUMMARY FIGURES RESULTS..`.

use std::{fs, path::Path, process::ExitCode};
use wgrad_examples::bench::peers::{replaced, rows, summary, tables};
use wgrad_nn::SaveFile;

fn run(texts: [&Path; 2], results: &[String]) -> Result<(), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut all = vec![];
    for path in results {
        all.extend(rows(&read(Path::new(path))?).map_err(|error| format!("{path}: {error}"))?);
    }
    for (text, made) in texts.into_iter().zip([summary(&all)?, tables(&all)?]) {
        let new = replaced(&read(text)?, &made).map_err(|error| format!("{}: {error}", text.display()))?;
        let written = SaveFile::open(text).and_then(|file| file.write(|to| to.write_all(new.as_bytes())));
        written.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [summary, figures, results @ ..] if !results.is_empty() => {
            run([Path::new(summary), Path::new(figures)], results)
        }
        _ => Err("expected two texts and files of results".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}
