//! Runs every case of every example without and with each of its cures, as `cargo xtask cases` asks, and prints the table of
//! verdicts: without a cure no case may end healthy, with one each must, and so must the healthy case.
//!
//! `cases [SEEDS] [EXAMPLE..]`: how many seeds (1), and which examples (all). The command is the one built beside this program.

use serde_json::Value;
use std::{
    env,
    error::Error,
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};
use wgrad_examples::run::Case;

/// One run, and what became of it.
struct Row {
    name: [String; 3],
    seed: u64,
    report: Value,
    seconds: f64,
}

impl Row {
    /// Whether it ended as it should.
    fn as_expected(&self, case: &Case) -> bool {
        let uncured = !case.cures.is_empty() && self.name[2] == "none";
        (self.report["verdict"] == "healthy") != uncured
    }

    fn print(&self, good: bool) {
        let [example, case, fix] = &self.name;
        let number = |field: &str| self.report[field].as_f64().unwrap_or(f64::NAN);
        let text = |field: &str| self.report[field].as_str().unwrap_or("?").to_string();
        println!(
            "{example:<12} {case:<12} {fix:<12} {:>4}  {:<11} {:>8} {:>9.4} {:>6} {:>9.1e} {:>9.1e} {:>7.1} s{}",
            self.seed,
            text("verdict"),
            text("metric_name"),
            number("metric"),
            number("steps"),
            number("applied_norm_max"),
            number("flow_ratio"),
            self.seconds,
            if good { "" } else { "  NOT AS IT SHOULD BE" }
        );
    }
}

fn run(wgrad: &Path, case: &Case, fix: &str, seed: u64) -> Result<Row, Box<dyn Error>> {
    let start = Instant::now();
    let mut command = Command::new(wgrad);
    command.args([case.example, "--device", "cpu", "--json", "--quiet", "--seed", &seed.to_string()]);
    command.args(["--case", &case.case, "--fix", fix]);
    let output = command.stderr(Stdio::inherit()).output()?;
    let (seconds, name) = (start.elapsed().as_secs_f64(), [case.example, &case.case, fix].map(str::to_string));
    if !output.status.success() {
        return Err(format!("{} ended with {}", name.join(" "), output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let report = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    Ok(Row { name, seed, report, seconds })
}

/// The command, in the folder above this program's.
fn command() -> Result<PathBuf, Box<dyn Error>> {
    let here = env::current_exe()?;
    let folder = here.parent().and_then(Path::parent).ok_or("this program is in no folder")?;
    Ok(folder.join("wgrad").with_extension(env::consts::EXE_EXTENSION))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let wgrad = command()?;
    let seeds: u64 = args.next().map_or(Ok(1), |seeds| seeds.parse())?;
    let examples: Vec<String> = args.collect();
    let wanted = |case: &Case| examples.is_empty() || examples.iter().any(|example| example == case.example);
    println!(
        "{:<12} {:<12} {:<12} {:>4}  {:<11} {:>8} {:>9} {:>6} {:>9} {:>9}",
        "example", "case", "cure", "seed", "verdict", "metric", "", "steps", "norm", "flow"
    );
    let (start, mut failed) = (Instant::now(), 0);
    for case in wgrad_examples::cases().into_iter().filter(wanted) {
        for fix in std::iter::once("none").chain(case.cures.iter().map(String::as_str)) {
            for seed in 0..seeds {
                let row = run(&wgrad, &case, fix, seed)?;
                let good = row.as_expected(&case);
                row.print(good);
                stdout().flush()?;
                failed += usize::from(!good);
            }
        }
    }
    println!("{failed} not as they should be, in {:.1} minutes", start.elapsed().as_secs_f64() / 60.0);
    println!(
        "(norm: the largest that was applied; flow: mean |dL/dz| of the first third of layers over that of the last)"
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
