//! The crate `wgrad` must stay free of device and thread libraries; this reads its dependencies from cargo.

use std::path::Path;

use crate::command::{cargo, output};
use crate::error::Result;

/// Libraries that belong to a backend or to a program. Their parts (`rayon-core`, `wgpu-hal`) are refused as well.
const REFUSED: [&str; 5] = ["rayon", "wgpu", "gemm", "crossbeam", "tokio"];

/// What is wrong with the dependencies of crate `wgrad`; nothing if all is well.
pub fn complaints(root: &Path) -> Result<Vec<String>> {
    // With every feature: a dependency that only some builds have is one too.
    let tree = ["tree", "-p", "wgrad", "-e", "normal", "--prefix", "none", "--all-features"];
    let tree = output(&mut cargo(root, tree))?;
    let found: Vec<_> = refused(&tree).into_iter().map(|name| format!("crate `wgrad` depends on `{name}`")).collect();
    if found.is_empty() {
        println!("{:6} device or thread libraries under crate `wgrad`", 0);
    }
    Ok(found)
}

/// The refused packages in the output of `cargo tree --prefix none`, each once.
fn refused(tree: &str) -> Vec<&str> {
    let is_refused = |name: &&str| REFUSED.iter().any(|library| name.split('-').next() == Some(library));
    let mut names: Vec<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).filter(is_refused).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_their_parts_are_refused() {
        let tree =
            "wgrad v0.1.0 (x)\nlibm v0.2.0\nrayon v1.12.0\nrayon-core v1.13.0\nrayon v1.12.0 (*)\nwgpu v30.0.0\n";
        assert_eq!(refused(tree), ["rayon", "rayon-core", "wgpu"]);
        assert!(refused("wgrad v0.1.0 (x)\nserde v1.0.0\nthiserror v2.0.0\n").is_empty());
    }
}
