//! A compiler for another target: the one at hand where it has the target's standard library, else Debian's, which brings
//! the library's source.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::apt;
use crate::command::target;
use crate::error::{Error, Result};

/// Debian's packages of a current Rust with the source of its standard library.
const PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "libstd-rust-web-dev", "rust-web-src"];

/// These packages put the compiler here.
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";

/// If this is there, they are.
const SOURCE: &str = "/usr/share/doc/rust-web-src";

/// The crates that compute, or record what does.
const COMPUTING: [&str; 9] =
    ["gemm", "gemm-common", "gemm-f16", "gemm-f32", "gemm-f64", "half", "pulp", "wgrad", "wgrad-cpu"];

/// A cargo that builds for a target.
pub struct Toolchain {
    triple: &'static str,
    /// The crates of the standard library that it builds, where it builds them.
    library: Option<&'static str>,
}

impl Toolchain {
    /// A toolchain for a target, with what else of the standard library's crates is needed to build it: `panic_abort` or
    /// `panic_unwind`, and `test` for tests.
    pub fn new(triple: &'static str, library: &'static str) -> Result<Self> {
        if has_library(triple) {
            return Ok(Self { triple, library: None });
        }
        if !Path::new(SOURCE).exists() {
            if !apt::may_install() {
                let packages = PACKAGES.join(", ");
                return Err(Error::Failed(format!(
                    "no standard library for {triple}: install it (rustup target add {triple}), or Debian's packages \
                     {packages}, which have its source"
                )));
            }
            apt::install_all(&PACKAGES)?;
        }
        Ok(Self { triple, library: Some(library) })
    }

    /// `cargo <subcommand>` for the target, in a target directory of its own.
    pub fn cargo(&self, root: &Path, subcommand: &str) -> Command {
        let mut command = Command::new(if self.library.is_some() { CARGO } else { "cargo" });
        command.current_dir(root).arg(subcommand).args(["--locked", "--target", self.triple]);
        // Compiling takes longer here than running: only what computes is optimized.
        command.args(["--config", "profile.dev.opt-level=0", "--config", "profile.dev.package.\"*\".opt-level=0"]);
        if subcommand != "check" {
            for package in COMPUTING {
                command.args(["--config", &format!("profile.dev.package.{package}.opt-level=1")]);
            }
        }
        command.env("CARGO_TARGET_DIR", folder(root)).env("CARGO_INCREMENTAL", "0");
        if let Some(library) = self.library {
            // Its source is a nightly's business; the compiler is a stable one.
            command.arg(format!("-Zbuild-std={library}")).env("RUSTC", RUSTC).env("RUSTC_BOOTSTRAP", "1");
            // Those that cargo starts are found by the path.
            command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env_remove("RUSTUP_TOOLCHAIN");
        }
        command
    }

    /// True if it is Debian's, which brings no linker for other targets.
    pub fn is_bare(&self) -> bool {
        self.library.is_some()
    }

    /// The folder of a profile's programs.
    pub fn built(&self, root: &Path, profile: &str) -> PathBuf {
        folder(root).join(self.triple).join(profile)
    }
}

/// The target directory of other hosts.
pub fn folder(root: &Path) -> PathBuf {
    target(root).join("hosts")
}

/// True if the compiler at hand has the standard library of a target.
fn has_library(triple: &str) -> bool {
    let output =
        Command::new("rustc").args(["--print", "target-libdir", "--target", triple]).stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        !path.trim().is_empty() && Path::new(path.trim()).is_dir()
    })
}

/// Sees to it that a program is there, or a file that is named by its whole path.
pub fn provide(program: &str, package: &'static str) -> Result<()> {
    let found = |folder: &str| Path::new(folder).join(program).exists();
    let on_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    if on_path || ["/usr/bin", "/usr/sbin", "/usr/local/bin"].into_iter().any(found) {
        return Ok(());
    }
    match apt::may_install() {
        true => apt::install(package),
        false => Err(Error::Failed(format!("no {program}: install it, such as Debian's package {package}"))),
    }
}
