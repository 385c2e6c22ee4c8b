//! Programs that a check needs and Debian has: installed where that is allowed.

use std::{path::Path, process::Command};

use crate::command::run;
use crate::error::Result;

/// Whether packages may be installed: on Debian, as root.
pub fn may_install() -> bool {
    let is_root = || Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    Path::new("/usr/bin/apt-get").exists() && is_root()
}

/// Installs a package.
pub fn install(package: &str) -> Result<()> {
    install_all(&[package])
}

/// Installs packages.
pub fn install_all(packages: &[&str]) -> Result<()> {
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
        command
    };
    run(&mut apt(&["update"]))?;
    run(apt(&["install", "-y", "--no-install-recommends"]).args(packages))
}
