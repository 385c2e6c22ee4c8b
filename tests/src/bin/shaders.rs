//! `cargo xtask shaders`: checks the kernels of the generator for Vulkan, DX12 and Metal, without such a device.

use clap::Parser;
use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread::available_parallelism,
    time::Instant,
};
use wgrad_tests::shaders::{ENTRY, Kernels, SpirvVal, Translated};

/// Validate the kernels of many programs, translate them for Vulkan, DX12 and Metal, and check the translations with
/// spirv-val and DXC
#[derive(Parser)]
#[command(name = "cargo xtask shaders")]
struct Args {
    /// The folder for the translations, and for the texts of kernels that fail
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Microsoft's shader compiler DXC, or a program with the same options
    #[arg(long, value_name = "PROGRAM")]
    dxc: Option<PathBuf>,
    /// Instead of the checks, write each kernel to a file in this folder, as HLSL for FXC, the predecessor of DXC,
    /// which runs on Windows only
    #[arg(long, value_name = "FOLDER")]
    hlsl: Option<PathBuf>,
    /// The validator of the SPIR-V tools
    #[arg(long, value_name = "PROGRAM", default_value = "spirv-val")]
    spirv_val: PathBuf,
    /// The number of random tapes whose kernels are checked too
    #[arg(long, value_name = "N", default_value_t = 400)]
    tapes: u32,
    /// Check these WGSL files instead
    files: Vec<PathBuf>,
}

/// The numbers of kernels that have passed each check.
#[derive(Default)]
struct Judged {
    /// The kernels that use matrix units.
    matrices: AtomicUsize,
    spirv: AtomicUsize,
    dxil: AtomicUsize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            println!("{failed} kernels fail");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("shaders: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the checks; returns the number of kernels that fail.
fn run(args: &Args) -> Result<usize, String> {
    std::fs::create_dir_all(&args.out).map_err(|error| format!("{}: {error}", args.out.display()))?;
    let start = Instant::now();
    let kernels = if args.files.is_empty() { Kernels::all(args.tapes) } else { read(&args.files)? };
    for why in &kernels.refused {
        println!("refused: {why}");
    }
    let texts: Vec<(&String, &String)> = kernels.texts.iter().collect();
    println!("{} kernels of {} programs, {:.0} s", texts.len(), kernels.programs, start.elapsed().as_secs_f64());
    if let Some(folder) = &args.hlsl {
        return write(&texts, folder);
    }
    let vulkan = SpirvVal::find(&args.spirv_val);
    let (next, judged) = (AtomicUsize::new(0), Judged::default());
    let work = || {
        let mut failed = vec![];
        while let Some((text, program)) = texts.get(next.fetch_add(1, Relaxed)) {
            let number = next.load(Relaxed);
            if let Err(why) = prove(text, args, vulkan.as_ref(), &judged) {
                failed.push((number, text.as_str(), program.as_str(), why));
            }
        }
        failed
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let failed: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no check panics")).collect()
    });
    for (number, text, program, why) in &failed {
        let file = args.out.join(format!("failed-{number}.wgsl"));
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("{} ({program}): {why}", file.display());
    }
    println!("naga: {} validated, and translated to SPIR-V, HLSL and MSL", texts.len() - failed.len());
    let matrices = judged.matrices.into_inner();
    if matrices > 0 {
        println!(
            "      {matrices} of these use matrix units: HLSL has none, MSL none of 16 by 16, so no translation to these"
        );
    }
    match vulkan {
        Some(_) => println!("spirv-val: {} modules are valid", judged.spirv.into_inner()),
        None => println!("spirv-val: not found, not checked (Debian's package spirv-tools)"),
    }
    if vulkan.is_some_and(|vulkan| !vulkan.knows_matrices) && matrices > 0 {
        println!("           it is too old to know cooperative matrices: {matrices} modules not checked");
    }
    match args.dxc {
        Some(_) => println!("DXC: {} shaders compile", judged.dxil.into_inner()),
        None => println!("DXC: not found, not checked"),
    }
    println!("{:.0} s", start.elapsed().as_secs_f64());
    Ok(failed.len() + kernels.refused.len())
}

fn read(files: &[PathBuf]) -> Result<Kernels, String> {
    let mut kernels = Kernels { programs: files.len(), ..Kernels::default() };
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        kernels.texts.insert(text, file.display().to_string());
    }
    Ok(kernels)
}

/// Writes the kernels for FXC; returns the number of kernels that cannot be translated.
fn write(texts: &[(&String, &String)], folder: &Path) -> Result<usize, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let (mut written, mut wrong) = (0, 0);
    for (number, (text, program)) in texts.iter().enumerate() {
        match Translated::new(text) {
            Err(why) => {
                println!("{program}: {why}");
                wrong += 1;
            }
            Ok(Translated { legacy_hlsl: Some(hlsl), .. }) => {
                std::fs::write(folder.join(format!("{number}.hlsl")), hlsl).map_err(failed)?;
                std::fs::write(folder.join(format!("{number}.wgsl")), text).map_err(failed)?;
                written += 1;
            }
            Ok(_) => {}
        }
    }
    println!("{written} kernels are written to {}", folder.display());
    Ok(wrong)
}

fn prove(text: &str, args: &Args, vulkan: Option<&SpirvVal>, judged: &Judged) -> Result<(), String> {
    let translated = Translated::new(text)?;
    let thread = format!("{:?}", std::thread::current().id());
    let file = |ending: &str| args.out.join(format!("{}.{ending}", thread.replace(['(', ')'], "")));
    judged.matrices.fetch_add(translated.matrices.into(), Relaxed);
    if let Some(vulkan) = vulkan {
        judged.spirv.fetch_add(vulkan.judge(&translated, &file("spv"))?.into(), Relaxed);
    }
    if let (Some(dxc), Some(hlsl)) = (&args.dxc, &translated.hlsl) {
        let model: &[&str] = if translated.native { &["cs_6_2", "-enable-16bit-types"] } else { &["cs_6_0"] };
        compile(dxc, &[model, &["-HV", "2018", "-no-warnings"]].concat(), hlsl, &file("hlsl"))?;
        judged.dxil.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Compiles a shader for a shader model with a compiler of Microsoft, with wgpu's settings.
fn compile(compiler: &Path, model: &[&str], hlsl: &str, file: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    std::fs::write(file, hlsl).map_err(failed)?;
    let mut command = Command::new(compiler);
    command.arg("-T").args(model).args(["-E", ENTRY, "-Ges"]);
    let output = command.arg("-Fo").arg(file.with_extension("object")).arg(file).output();
    let output = output.map_err(|error| format!("{}: {error}", compiler.display()))?;
    let said = || {
        format!("{}: {}", compiler.display(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim())
    };
    if output.status.success() { Ok(()) } else { Err(said()) }
}
