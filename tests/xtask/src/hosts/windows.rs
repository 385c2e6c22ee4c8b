//! Windows, by Wine 10: the golden vectors on the CPU, by Vulkan and by DX12; the tour; files; random tapes on DX12.
//!
//! Wine is Debian 13's, in a system of its own under the target directory. It has everything but a compiler of DX12's kernels
//! that knows barriers and atomics: Microsoft's is taken from a package of npm's, and stays in that directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::toolchain::{Toolchain, folder, provide};
use crate::apt;
use crate::command::{cargo, output, run as run_command};
use crate::error::{Error, Result};

const TRIPLE: &str = "x86_64-pc-windows-gnu";

/// Wine's system, and what it needs: a display without a screen, and a renderer on the CPU.
const SUITE: &str = "trixie";
const INCLUDE: &str = "--include=wine64,wine,xvfb,xauth,libvulkan1,mesa-vulkan-drivers";

/// The package with `d3dcompiler_47.dll`, and where it is there.
const PACKAGE: &str = "webgpu@0.6.2";
const COMPILER: &str = "package/dist/win32-x64/d3dcompiler_47.dll";

/// A folder and a file that not every console can spell.
const FILE: &str = "ein Ordner größer/été 雪.safetensors";

/// The compiler of two small programs: one calls FXC, the other presses Ctrl-C.
const CXX: &str = "x86_64-w64-mingw32-g++";
const FXC: &str = include_str!("fxc.cpp");
const INTERRUPT: &str = include_str!("interrupt.cpp");

/// Random tapes that are compared with the reference on DX12.
const TAPES: &str = "500";

/// Runs what there is to run.
pub fn run(root: &Path) -> Result<()> {
    if !apt::may_install() {
        return Err(Error::Failed("Wine's system is made by debootstrap, as root on Debian".into()));
    }
    provide("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")?;
    provide(CXX, "g++-mingw-w64-x86-64")?;
    let toolchain = Toolchain::new(TRIPLE, "std,panic_unwind")?;
    let mut build = toolchain.cargo(root, "build");
    build.args([
        "--release",
        "--package",
        "wgrad-examples",
        "--package",
        "wgrad-tests",
        "--bin",
        "wgrad",
        "--bin",
        "fuzz",
    ]);
    run_command(&mut build)?;
    let wine = Wine::provide(root)?;
    wine.compiles_with_fxc(root)?;
    for program in ["wgrad.exe", "fuzz.exe"] {
        copy(&toolchain.built(root, "release").join(program), &wine.desk.join(program))?;
    }
    wine.run("wgrad", &["--version"])?;
    wine.verify("cpu", 942)?;
    // Colours are for terminals.
    if wine.said("wgrad", &["--quiet", "--device", "cpu"])?.contains('\u{1b}') {
        return Err(Error::Failed("the tour writes colours into a pipe".into()));
    }
    wine.saves_and_goes_on()?;
    wine.stops_at_ctrl_c()?;
    for (interface, count) in [("vulkan", 499), ("dx12", 499)] {
        let device = wine.device(interface)?;
        wine.run("wgrad", &["doctor", "--device", &device])?;
        wine.verify(&device, count)?;
    }
    wine.run("fuzz", &["--device", "gpu", "--tapes", TAPES])
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(|error| Error::Failed(format!("{}: {error}", from.display())))
}

/// Wine, with a folder that its programs run in.
struct Wine {
    system: PathBuf,
    /// The folder, as this machine sees it.
    desk: PathBuf,
}

impl Wine {
    /// Makes the system, unless it is there, and fills the folder.
    fn provide(root: &Path) -> Result<Self> {
        let system = folder(root).join("wine");
        let desk = system.join("desk");
        if !desk.exists() {
            provide("debootstrap", "debootstrap")?;
            if system.exists() {
                // An attempt that was broken off.
                run_command(Command::new("rm").args(["-r", "--one-file-system"]).arg(&system))?;
            }
            run_command(Command::new("debootstrap").args([INCLUDE, SUITE]).arg(&system))?;
            fs::create_dir_all(&desk).map_err(|error| Error::Failed(format!("{}: {error}", desk.display())))?;
        }
        let compiler = desk.join("d3dcompiler_47.dll");
        if !compiler.exists() {
            provide("npm", "npm")?;
            let packed = output(Command::new("npm").args(["pack", "--silent", PACKAGE]).current_dir(&desk))?;
            run_command(Command::new("tar").args(["-xzf", packed.trim(), COMPILER]).current_dir(&desk))?;
            copy(&desk.join(COMPILER), &compiler)?;
        }
        run_command(Command::new("cp").arg("-r").arg(root.join("tests/golden")).arg(&desk))?;
        Ok(Self { system, desk })
    }

    /// A program of the folder, as a command. What it needs of this machine is seen by it alone.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        const ENTER: &str = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" \
                             /usr/bin/env -i HOME=/root USER=root LANG=C.UTF-8 PATH=/usr/bin:/bin WINEDEBUG=-all \
                             WINEDLLOVERRIDES='d3dcompiler_47=n;mscoree=;mshtml=' \
                             sh -c 'cd /desk && exec xvfb-run -a /usr/lib/wine/wine64 \"$@\"' sh \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]).arg(&self.system);
        command.arg(format!("{program}.exe")).args(args);
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        run_command(&mut self.command(program, args))
    }

    fn said(&self, program: &str, args: &[&str]) -> Result<String> {
        output(&mut self.command(program, args))
    }

    /// Builds a small program of ours.
    fn build(&self, program: &str, text: &str) -> Result<()> {
        let source = self.desk.join(format!("{program}.cpp"));
        fs::write(&source, text).map_err(|error| Error::Failed(format!("{}: {error}", source.display())))?;
        let built = self.desk.join(format!("{program}.exe"));
        run_command(Command::new(CXX).args(["-O1", "-static", "-o"]).arg(built).arg(source))
    }

    /// Has FXC compile the kernels of many programs.
    fn compiles_with_fxc(&self, root: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", self.desk.display()));
        let kernels = self.desk.join("kernels");
        self.build("fxc", FXC)?;
        if kernels.exists() {
            fs::remove_dir_all(&kernels).map_err(failed)?;
        }
        let mut write = cargo(root, ["run", "--quiet", "--package", "wgrad-tests", "--bin", "shaders", "--", "--out"]);
        run_command(write.arg(&kernels).arg("--hlsl").arg(&kernels))?;
        let names =
            fs::read_dir(&kernels).map_err(failed)?.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let list: String =
            names.filter(|name| name.ends_with(".hlsl")).map(|name| format!("kernels/{name}\n")).collect();
        fs::write(self.desk.join("list"), list).map_err(failed)?;
        self.run("fxc", &["list"])
    }

    /// Has golden vectors verified on a device: all that there are for it.
    fn verify(&self, device: &str, count: usize) -> Result<()> {
        let said = self.said("wgrad", &["verify", "golden", "--device", device])?;
        let last = said.lines().last().unwrap_or_default().to_string();
        println!("golden vectors on {device}: {last}");
        match last.starts_with(&format!("{count} passed, 0 failed")) {
            true => Ok(()),
            false => Err(Error::Failed(format!("{device}: expected {count} golden vectors to pass: {last}"))),
        }
    }

    /// The name of the first device of an interface, as `doctor` tells it.
    fn device(&self, interface: &str) -> Result<String> {
        let said = self.said("wgrad", &["doctor"])?;
        let mut name = "";
        for line in said.lines() {
            if line.starts_with("gpu:") {
                name = line.split_whitespace().next().unwrap_or_default();
            }
            if line.contains(&format!(", by {interface}")) {
                return Ok(name.into());
            }
        }
        Err(Error::Failed(format!("no adapter is reached by {interface}:\n{said}")))
    }

    /// Saves a run over itself, and goes on with it.
    fn saves_and_goes_on(&self) -> Result<()> {
        let file = self.desk.join(FILE);
        let folder = file.parent().expect("it has one");
        fs::create_dir_all(folder).map_err(|error| Error::Failed(format!("{}: {error}", folder.display())))?;
        let rnn = ["rnn", "--device", "cpu", "--quiet", "--save", FILE];
        for more in [&["--steps", "20"][..], &["--steps", "20"], &["--steps", "30", "--resume", FILE]] {
            self.run("wgrad", &[&rnn[..], more].concat())?;
        }
        match fs::read_dir(folder).map(|entries| entries.count()) {
            Ok(1) => Ok(()),
            found => Err(Error::Failed(format!("{}: expected one file, found {found:?}", folder.display()))),
        }
    }

    /// Presses Ctrl-C in a run that never ends: it saves, says how to go on, and ends well.
    fn stops_at_ctrl_c(&self) -> Result<()> {
        const RUN: &str =
            "run.safetensors wgrad.exe rnn --case vanishing --length 30 --device cpu --steps 100000000 --save";
        self.build("interrupt", INTERRUPT)?;
        let file = self.desk.join("run.safetensors");
        if file.exists() {
            fs::remove_file(&file).map_err(|error| Error::Failed(format!("{}: {error}", file.display())))?;
        }
        let words: Vec<&str> = RUN.split(' ').chain(["run.safetensors"]).collect();
        let said = self.said("interrupt", &words)?;
        let line = said.lines().next().unwrap_or_default();
        println!("Ctrl-C: {line}");
        match line.ends_with("go on with --resume run.safetensors") {
            true => Ok(()),
            false => Err(Error::Failed(format!("after Ctrl-C: {said}"))),
        }
    }
}
