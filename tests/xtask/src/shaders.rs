//! `cargo xtask shaders`: the tools that prove kernels for devices which are not there, then the program that has them do it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::apt;
use crate::command::{cargo, run as run_command, target};
use crate::error::{Error, Result};

/// Debian's package of `spirv-val`.
const SPIRV_TOOLS: &str = "spirv-tools";

/// A source package of Python's that brings Microsoft's shader compiler as a library for Linux, with its headers.
const COMPUSHADY: (&str, &str) = ("compushady", "0.17.5");

/// The command over that library.
const DRIVER: &str = include_str!("dxc.cpp");

/// Proves all kernels, or these WGSL files.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    if !is_there("spirv-val") && apt::may_install() {
        apt::install(SPIRV_TOOLS)?;
    }
    let folder = target(root).join("shaders");
    let dxc = if is_there("dxc") { Ok("dxc".into()) } else { build_dxc(&target(root).join("dxc")) };
    let mut program = cargo(root, ["run", "--quiet", "--package", "wgrad-tests", "--bin", "shaders", "--"]);
    program.arg("--out").arg(folder);
    match dxc {
        Ok(dxc) => drop(program.arg("--dxc").arg(dxc)),
        Err(why) => eprintln!("xtask: DXC cannot be had: {why}"),
    }
    run_command(program.args(args))
}

/// Whether a program is on the path.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Builds the command `dxc` in a folder, unless it is there.
fn build_dxc(folder: &Path) -> Result<PathBuf> {
    let (package, version) = COMPUSHADY;
    let dxc = folder.join("dxc");
    if dxc.exists() {
        return Ok(dxc);
    }
    let library = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", arch @ ("x86_64" | "aarch64")) => format!("libdxcompiler_{arch}.so.3.7"),
        (os, arch) => return Err(Error::Failed(format!("the package {package} has none for {os} on {arch}"))),
    };
    let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let archive = folder.join(format!("{package}-{version}.tar.gz"));
    if !archive.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest"]);
        run_command(pip.arg(folder).arg(format!("{package}=={version}")))?;
    }
    run_command(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(folder))?;
    let backends = folder.join(format!("{package}-{version}/{package}/backends"));
    let source = folder.join("dxc.cpp");
    fs::write(&source, DRIVER).map_err(failed)?;
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-w", "-O1"]).arg(format!("-DLIBRARY=\"{}\"", backends.join(library).display()));
    run_command(compiler.arg("-I").arg(&backends).arg("-o").arg(&dxc).arg(&source).arg("-ldl"))?;
    Ok(dxc)
}
