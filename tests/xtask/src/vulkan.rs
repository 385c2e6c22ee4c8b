//! A Vulkan adapter for the tests of the wgpu backend: where the machine has no driver, Mesa's renderer on the CPU.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::apt;
use crate::command::target;
use crate::error::{Error, Result};

/// Debian's package of the renderer, and of the loader that finds it.
const PACKAGE: &str = "mesa-vulkan-drivers";

/// Where drivers say that they are there.
const DRIVERS: [&str; 4] =
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/local/etc/vulkan/icd.d"];

/// Sees to it that the tests find an adapter, unless they are told to do without (`WGRAD_NO_GPU=1`). Elsewhere than on
/// Linux the system has one.
pub fn provide() -> Result<()> {
    if !cfg!(target_os = "linux") || env::var_os("WGRAD_NO_GPU").is_some_and(|value| value == "1") || has_driver() {
        return Ok(());
    }
    if !apt::may_install() {
        return Err(Error::Failed(format!(
            "the tests of the wgpu backend need a Vulkan driver: install one, such as Debian's package {PACKAGE} for a \
             renderer on the CPU, or leave these tests out with WGRAD_NO_GPU=1"
        )));
    }
    apt::install(PACKAGE)
}

/// Where the renderer keeps what it has compiled.
pub fn cache(root: &Path) -> PathBuf {
    target(root).join("mesa")
}

fn has_driver() -> bool {
    let named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().any(|name| env::var_os(name).is_some());
    let any = |folder: &&str| Path::new(folder).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    named || DRIVERS.iter().any(any)
}
