//! `cargo xtask size`: automatic differentiation stays small enough to read in one sitting, and free of `unsafe`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::core_crate;
use crate::error::{Error, Result};

/// The files that together are the whole of automatic differentiation.
const CORE: [&str; 3] = ["autograd/src/op.rs", "autograd/src/vjp.rs", "autograd/src/grad.rs"];

/// The most lines that the core may have in all.
const CORE_LINES: usize = 900;

/// A source file with more lines than this is listed, as a candidate for splitting.
const LONG_FILE: usize = 650;

/// Prints the size of the core and the long files; fails if the core is too big, has `unsafe` or depends too much.
pub fn run(root: &Path) -> Result<()> {
    let core: Vec<_> = CORE.into_iter().map(|name| Ok((name, read(&root.join(name))?))).collect::<Result<_>>()?;
    for (name, text) in &core {
        println!("{:6} {name}", text.lines().count());
    }
    println!("{:6} lines of automatic differentiation, of at most {CORE_LINES}", total_lines(&core));
    list_long_files(root)?;
    let mut complaints = complaints(&core);
    complaints.extend(core_crate::complaints(root)?);
    if complaints.is_empty() { Ok(()) } else { Err(Error::Failed(complaints.join("\nxtask: "))) }
}

/// What is wrong with the core, given as names and texts; nothing if all is well.
fn complaints(core: &[(&str, String)]) -> Vec<String> {
    let mut found = Vec::new();
    let lines = total_lines(core);
    if lines > CORE_LINES {
        found.push(format!("automatic differentiation has {lines} lines, over {CORE_LINES}"));
    }
    for (name, text) in core {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| has_unsafe(line)) {
            found.push(format!("{name}:{}: `unsafe` in automatic differentiation: {}", index + 1, line.trim()));
        }
    }
    found
}

/// The number of lines of all files together.
fn total_lines(files: &[(&str, String)]) -> usize {
    files.iter().map(|(_, text)| text.lines().count()).sum()
}

/// Whether the word `unsafe` is in a line; `unsafe_code`, a lint to forbid it, is another word.
fn has_unsafe(line: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

/// Prints the source files of the workspace that are over [`LONG_FILE`] lines, the longest first.
fn list_long_files(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    source_files(root, &mut files)?;
    let mut long = Vec::new();
    for file in files {
        let lines = read(&file)?.lines().count();
        if lines > LONG_FILE {
            long.push((lines, file));
        }
    }
    long.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    println!("{:6} source files over {LONG_FILE} lines", long.len());
    for (lines, file) in long {
        println!("{lines:6} {}", file.strip_prefix(root).unwrap_or(&file).display());
    }
    Ok(())
}

/// Collects the `.rs` files under a folder, without hidden folders and build outputs.
fn source_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let entry = entry.map_err(|error| unreadable(folder, &error))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(|error| unreadable(folder, &error))?);
        if kind.is_dir() {
            // Cargo marks a target folder, whatever its name, with this file.
            let skip = entry.file_name().to_string_lossy().starts_with('.') || path.join("CACHEDIR.TAG").exists();
            if !skip {
                source_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The text of a file.
fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

/// The error for a file or folder that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Failed(format!("{} cannot be read: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_over_all_files() {
        let core = |lines: usize| [("a.rs", "x\n".repeat(CORE_LINES - 1)), ("b.rs", "x\n".repeat(lines))];
        assert!(complaints(&core(1)).is_empty());
        assert_eq!(complaints(&core(2)), ["automatic differentiation has 901 lines, over 900"]);
    }

    #[test]
    fn the_word_unsafe_is_found_with_its_line() {
        let text = |line: &str| [("a.rs", format!("fn f() {{}}\n{line}\n"))];
        assert!(complaints(&text("#![forbid(unsafe_code)]")).is_empty());
        assert!(complaints(&text("    unsafe{ g() }"))[0].starts_with("a.rs:2: `unsafe`"));
    }
}
