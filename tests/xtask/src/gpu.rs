//! `cargo xtask floor` and `cargo xtask widths`: the tests of the wgpu backend on devices other than the one at hand.

use std::{ffi::OsStr, fs, path::Path};

use crate::command::{cargo, run as run_command};
use crate::error::{Error, Result};
use crate::vulkan;

/// The tests that run on a GPU: these programs, and these tests of theirs.
const SUITE: [&[&str]; 2] = [&["--test", "wgpu_*"], &["--test", "random_tapes", "the_gpu"]];

/// The subgroups of Mesa's renderer, and the bits of the vectors that it computes with.
const WIDTHS: [(&str, &str); 3] = [("4", "128"), ("8", "256"), ("16", "512")];

/// Runs the tests on the least of what devices offer: wgpu's default limits, and no optional feature.
pub fn floor(root: &Path) -> Result<()> {
    vulkan::provide()?;
    suite(root, &[("WGRAD_GPU_FLOOR", "1"), ("MESA_SHADER_CACHE_DIR", path(&vulkan::cache(root))?)])
}

/// Runs the tests with subgroups of 4, 8 and 16 invocations, on Mesa's renderer.
pub fn widths(root: &Path) -> Result<()> {
    vulkan::provide()?;
    if !uses_subgroups(&root.join("backend-wgpu/src/wgsl"))? {
        println!("no kernel uses subgroups but those of matrix units, which the renderer has none of:");
        println!("what follows are all tests at these widths of the renderer");
    }
    for (width, bits) in WIDTHS {
        println!("subgroups of {width}");
        let renderer = [("LP_NATIVE_VECTOR_WIDTH", bits), ("MESA_SHADER_CACHE_DISABLE", "true")];
        suite(root, &[&renderer[..], &[("WGRAD_GPU_WIDTH", width)]].concat())?;
    }
    Ok(())
}

/// Runs the tests in an environment.
fn suite(root: &Path, environment: &[(&str, &str)]) -> Result<()> {
    for tests in SUITE {
        let mut command = cargo(root, ["test", "--package", "wgrad-tests"]);
        run_command(command.args(tests).envs(environment.iter().copied()))?;
    }
    Ok(())
}

/// Whether a file of a folder has a function of subgroups in it, such as `subgroupAdd`.
fn uses_subgroups(folder: &Path) -> Result<bool> {
    let unreadable = |error: std::io::Error| Error::Failed(format!("{} cannot be read: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let text = fs::read_to_string(entry.map_err(unreadable)?.path()).map_err(unreadable)?;
        if text.split("subgroup").skip(1).any(|rest| rest.starts_with(char::is_uppercase)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn path(path: &Path) -> Result<&str> {
    let name: &OsStr = path.as_os_str();
    name.to_str().ok_or_else(|| Error::Failed(format!("{} is no text", path.display())))
}
