//! A browser, in which the tests open pages of runs.

use std::{
    env,
    process::{Command, Stdio},
};

use crate::apt;
use crate::error::{Error, Result};

/// Debian's package.
const PACKAGE: &str = "chromium";

/// Programs of the path that are one.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Sees to it that the tests find a browser, unless they are told to do without (`WGRAD_NO_BROWSER=1`), or which one to take
/// (`WGRAD_BROWSER`).
pub fn provide() -> Result<()> {
    let is_told =
        env::var_os("WGRAD_NO_BROWSER").is_some_and(|value| value == "1") || env::var_os("WGRAD_BROWSER").is_some();
    if is_told || NAMES.into_iter().any(starts) {
        return Ok(());
    }
    if !apt::may_install() {
        return Err(Error::Failed(format!(
            "the tests of pages open them in Chromium: install it, such as Debian's package {PACKAGE}, name another with \
             WGRAD_BROWSER, or leave these tests out with WGRAD_NO_BROWSER=1"
        )));
    }
    apt::install(PACKAGE)
}

fn starts(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
