//! `cargo xtask hosts`: the machines that this one is not, one after the other, by whatever stands in for them here.

mod arm;
mod browser;
mod macos;
mod toolchain;
mod windows;

use std::ffi::OsString;
use std::path::Path;

use crate::error::{Error, Result};

/// Tries a host, from the root of the workspace.
type Try = fn(&Path) -> Result<()>;

/// The hosts by name, in the order in which they are tried.
const HOSTS: [(&str, Try); 5] = [
    ("macos", macos::run),
    ("arm", arm::run),
    ("wasm", browser::check),
    ("browser", browser::run),
    ("windows", windows::run),
];

/// Tries the hosts of these names; all of them where there is none. One that fails keeps no other from being tried.
pub fn run(root: &Path, names: &[OsString]) -> Result<()> {
    let known = HOSTS.map(|(name, _)| name).join(", ");
    if let Some(other) = names.iter().find(|name| HOSTS.iter().all(|(host, _)| name.as_os_str() != *host)) {
        return Err(Error::Usage(format!("no host `{}`: expected {known}", other.display())));
    }
    let wanted = |host: &str| names.is_empty() || names.iter().any(|name| name == host);
    let mut failed = vec![];
    for (host, run) in HOSTS.iter().filter(|(host, _)| wanted(host)) {
        match run(root) {
            Ok(()) => println!("{host}: passed"),
            Err(error) => {
                println!("{host}: failed: {error}");
                failed.push(*host);
            }
        }
    }
    match &failed[..] {
        [] => Ok(()),
        failed => Err(Error::Failed(format!("of the hosts, {} failed", failed.join(", ")))),
    }
}

/// Makes the page of the crate `web`.
pub fn web(root: &Path) -> Result<()> {
    browser::build(root).map(|folder| println!("{}: any static server serves it", folder.display()))
}
