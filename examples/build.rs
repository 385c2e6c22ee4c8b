//! Gathers the sources of this crate into one text, which `wgrad transformer` learns where it is given no other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// The Rust files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    let (folder, out) = (Path::new("src"), env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut files = vec![];
    sources(folder, &mut files)?;
    // By components, so that the order is the same on every system.
    files.sort_by(|a, b| a.components().cmp(b.components()));
    let texts = files.iter().map(fs::read_to_string).collect::<io::Result<Vec<String>>>()?;
    fs::write(Path::new(&out).join("sources.txt"), texts.join("\n").replace('\r', ""))
}
