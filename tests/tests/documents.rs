//! Documents name files that exist: links, and paths of code.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents: those of the root, and the folder `docs`.
fn documents() -> Vec<PathBuf> {
    let of = |folder: PathBuf| {
        let entries = std::fs::read_dir(&folder).expect("the folder is there");
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.extension().is_some_and(|e| e == "md"))
    };
    of(root()).chain(of(root().join("docs"))).collect()
}

/// The paths of all sources, from the root on.
fn sources() -> Vec<String> {
    let (mut all, mut folders) = (vec![], vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if [".rs", ".wgsl"].iter().any(|ending| name.ends_with(ending)) {
                all.push(path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/"));
            }
        }
    }
    all
}

#[test]
fn links_lead_to_files() {
    let mut links = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a text");
        let links_of = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links_of.filter(|link| !link.contains("://")) {
            let file = link.split('#').next().unwrap_or_default();
            let there = file.is_empty() || document.parent().expect("a folder").join(file).exists();
            assert!(there, "{}: {link}", document.display());
            links += 1;
        }
    }
    assert!(links > 20, "{links}");
}

#[test]
fn paths_of_code_exist() {
    let (sources, mut paths) = (sources(), 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a text");
        let code = text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
        for path in code.filter(|code| code.ends_with(".rs") || code.ends_with(".wgsl")) {
            let ends = |source: &String| source == path || source.ends_with(&format!("/{path}"));
            assert!(path.starts_with('.') || sources.iter().any(ends), "{}: {path}", document.display());
            paths += 1;
        }
    }
    assert!(paths > 40, "{paths}");
}

/// A comment's first words are its subject, not a question that stands for one.
#[test]
fn comments_of_libraries_put_the_subject_first() {
    const QUESTIONS: [&str; 5] = ["What", "How", "Whether", "Which", "Where"];
    let libraries = ["autograd/src/", "backend-cpu/src/", "backend-wgpu/src/", "collective-mpi/src/", "nn/src/"];
    let mut comments = 0;
    for path in sources().iter().filter(|path| libraries.iter().any(|library| path.starts_with(library))) {
        let text = std::fs::read_to_string(root().join(path)).expect("a text");
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = ["/// ", "//! ", "// "].iter().find_map(|mark| line.strip_prefix(mark));
            let question = |comment: &str| {
                comment.split(|c: char| !c.is_alphabetic()).next().is_some_and(|word| QUESTIONS.contains(&word))
            };
            assert!(!comment.is_some_and(question), "{path}:{}: {line}", at + 1);
            comments += usize::from(comment.is_some());
        }
    }
    assert!(comments > 5000, "{comments}");
}

/// The files that an elementwise operation is in are those of the checklist in CONTRIBUTING.md, at most eight. Random tapes
/// have kinds of their own.
#[test]
fn an_elementwise_operation_is_where_the_checklist_says() {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("a text");
    let section = text.split("## An elementwise operation").nth(1).and_then(|rest| rest.split("\n## ").next());
    let numbered = section.expect("the section is there").lines().filter(|line| line.starts_with(char::is_numeric));
    let listed: Vec<&str> = numbered.map(|line| line.split('`').nth(1).expect("a path")).collect();
    assert!((5..=8).contains(&listed.len()), "{listed:?}");
    let is_library = |path: &str| {
        ["autograd/src/", "backend-cpu/src/", "backend-wgpu/src/"].iter().any(|library| path.starts_with(library))
            && !path.starts_with("autograd/src/testing/")
    };
    for (variant, method) in [("Cos", "cos"), ("Log1p", "log1p"), ("NormalPdf", "normal_pdf")] {
        let names = |path: &str, word: &str| {
            let text = std::fs::read_to_string(root().join(path)).expect("a text");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
        };
        for path in sources().iter().filter(|path| is_library(path)) {
            assert!(!names(path, variant) || listed.contains(&path.as_str()), "{path} is not on the list: {variant}");
        }
        for path in &listed {
            assert!(names(path, variant) || names(path, method), "{path} is on the list, and does not name {variant}");
        }
    }
}

/// A user who comes from PyTorch finds every name that the page promises: a function, a type or a module of the libraries.
#[test]
fn names_for_those_who_come_from_pytorch_exist() {
    let libraries = sources().into_iter().filter(|path| path.starts_with("autograd/src") || path.starts_with("nn/src"));
    let texts: Vec<String> =
        libraries.map(|path| std::fs::read_to_string(root().join(path)).expect("a text")).collect();
    let exists = |name: &str| {
        let declared = ["fn", "struct", "enum", "trait", "mod"].map(|kind| format!("pub {kind} {name}"));
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        // Those of a table of functions are `name => Op`.
        let is_row = |line: &str| line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with(" => "));
        texts.iter().any(|text| {
            declared.iter().any(|declared| text.split(declared.as_str()).skip(1).any(ends)) || text.lines().any(is_row)
        })
    };
    let page = std::fs::read_to_string(root().join("docs/from-pytorch.md")).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with('|') && line.contains('`'));
    let names: Vec<&str> = rows
        .flat_map(|row| {
            row.trim_end_matches(['|', ' ']).rsplit('|').next().expect("a cell").split('`').skip(1).step_by(2)
        })
        .map(|name| name.rsplit("::").next().expect("a last part"))
        .collect();
    assert!(names.len() > 100, "{}", names.len());
    let missing: Vec<&&str> = names.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "docs/from-pytorch.md names {missing:?}");
    assert!(!exists("backward"), "a name that no library has is found out");
}
