//! The browser: the crate `web` as WebAssembly, in a folder with its page; and the page's test in Chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::toolchain::{Toolchain, folder, provide};
use crate::command::{cargo, output, run as run_command, target};
use crate::error::{Error, Result};

const TRIPLE: &str = "wasm32-unknown-unknown";

/// The program that links where the compiler brings none, and Debian's package of it.
const LINKER: (&str, &str) = ("wasm-ld-19", "lld-19");

/// Every browser with WebGPU has these instructions.
const FEATURES: &str = "-Ctarget-feature=+simd128";

/// The most that the page and its program may weigh, compressed.
const MOST_BYTES: usize = 4_000_000;

fn toolchain(root: &Path, subcommand: &str) -> Result<(Toolchain, Command)> {
    let toolchain = Toolchain::new(TRIPLE, "std,panic_abort")?;
    let mut command = toolchain.cargo(root, subcommand);
    command.env("RUSTFLAGS", FEATURES);
    if toolchain.is_bare() {
        provide(LINKER.0, LINKER.1)?;
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", LINKER.0);
    }
    Ok((toolchain, command))
}

/// Checks the libraries and the crate `web` for WebAssembly.
pub fn check(root: &Path) -> Result<()> {
    let (_, mut check) = toolchain(root, "check")?;
    run_command(check.args(["--package", "wgrad-web"]))
}

/// Makes the folder that a static server serves, and gives it.
pub fn build(root: &Path) -> Result<PathBuf> {
    let (toolchain, mut build) = toolchain(root, "build")?;
    run_command(build.args(["--package", "wgrad-web", "--profile", "web"]))?;
    let out = target(root).join("web");
    let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", out.display()));
    if out.exists() {
        fs::remove_dir_all(&out).map_err(failed)?;
    }
    fs::create_dir_all(&out).map_err(failed)?;
    let mut bindgen = Command::new(bindgen(root)?);
    bindgen.args(["--target", "web", "--no-typescript", "--remove-name-section", "--out-dir"]).arg(&out);
    run_command(bindgen.arg(toolchain.built(root, "web").join("wgrad_web.wasm")))?;
    for file in fs::read_dir(root.join("web/page")).map_err(failed)? {
        let file = file.map_err(failed)?;
        fs::copy(file.path(), out.join(file.file_name())).map_err(failed)?;
    }
    weigh(&out)?;
    Ok(out)
}

/// Fails if the folder weighs too much.
fn weigh(out: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::Failed(format!("gzip of {}: {error}", out.display()));
    let mut tar =
        Command::new("tar").args(["-c", "-C"]).arg(out).arg(".").stdout(Stdio::piped()).spawn().map_err(failed)?;
    let packed = tar.stdout.take().expect("it is piped");
    let gzip = Command::new("gzip").arg("-9").stdin(packed).output().map_err(failed)?;
    tar.wait().map_err(failed)?;
    let bytes = gzip.stdout.len();
    println!("{}: {:.2} MB compressed", out.display(), bytes as f64 / 1e6);
    match bytes {
        0 => Err(Error::Failed("gzip gives nothing".into())),
        _ if bytes > MOST_BYTES => {
            Err(Error::Failed(format!("the page weighs {bytes} bytes compressed, of {MOST_BYTES}")))
        }
        _ => Ok(()),
    }
}

/// The program `wasm-bindgen`, of the version that the lock file has.
fn bindgen(root: &Path) -> Result<PathBuf> {
    let lock =
        fs::read_to_string(root.join("Cargo.lock")).map_err(|error| Error::Failed(format!("Cargo.lock: {error}")))?;
    let version = lock.split("name = \"wasm-bindgen\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.ok_or_else(|| Error::Failed("Cargo.lock names no wasm-bindgen".into()))?;
    let fits = |program: &Path| {
        let output = Command::new(program).arg("--version").stderr(Stdio::null()).output();
        output
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).split_whitespace().any(|word| word == version))
    };
    let tools = folder(root).join("tools");
    let own = tools.join("bin/wasm-bindgen");
    if let Some(found) = [PathBuf::from("wasm-bindgen"), own.clone()].into_iter().find(|program| fits(program)) {
        return Ok(found);
    }
    let mut install = cargo(root, ["install", "wasm-bindgen-cli", "--no-default-features", "--version"]);
    run_command(install.arg(version).arg("--root").arg(&tools).env("CARGO_TARGET_DIR", folder(root)))?;
    Ok(own)
}

/// Makes the page, and has Chromium train on it.
pub fn run(root: &Path) -> Result<()> {
    crate::browser::provide()?;
    let page = build(root)?;
    let mut test = cargo(root, ["test", "--package", "wgrad-web", "--test", "browser", "--", "--ignored"]);
    let said = output(test.arg("--nocapture").env("WGRAD_WEB", page))?;
    print!("{said}");
    Ok(())
}
