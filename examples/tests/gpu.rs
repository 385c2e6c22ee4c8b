//! What the command is made of, on a GPU that tests can reach into: golden vectors in memory full of NaN, and a device that is
//! lost in the middle of a run. If the variable `WGRAD_NO_GPU` is 1, nothing is checked, which is said.

use clap::Parser;
use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use wgrad_examples::{
    Error, bench,
    cli::{Cli, Common},
    device::Place,
    rnn::Config,
    run::{Files, Finished, Watch, run},
    verify::{Outcome, rows},
};
use wgrad_nn::SaveFile;
use wgrad_wgpu::{Choice, Gpu, Options};

/// One test at a time: while vectors run, no panic is printed.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if std::env::var("WGRAD_NO_GPU").is_ok_and(|value| value == "1") {
        eprintln!("WGRAD_NO_GPU is 1: nothing is tested on a GPU");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn opened(options: Options) -> Gpu {
    Gpu::open(Choice::Best, options)
        .unwrap_or_else(|error| panic!("{error}. With WGRAD_NO_GPU=1 the tests run without a GPU."))
}

fn common(args: &str) -> Common {
    Cli::parse_from(["wgrad", "--quiet"].into_iter().chain(args.split_whitespace())).common
}

/// All vectors that are not f64, within the tolerance of the index: 327 of operations, 65 of passes, 32 of optimizers, 11 of the
/// loss scale, 6 of pipelines, and the 58 traces. Their schedules are f64.
#[test]
fn every_golden_vector_in_f32_passes() {
    let Some(_alone) = alone() else { return };
    let place = Place::Gpu(opened(Options { poison: true, ..Options::default() }));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let (rows, count) = rows(&golden, None, &place, |_| ()).expect("the set can be read");
    assert_eq!(rows.len(), count);
    let of = |outcome| rows.iter().filter(move |row| row.outcome == outcome);
    let failed: Vec<String> = of(Outcome::Failed).map(|row| format!("{}: {:?}", row.id, row.why)).collect();
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    assert!(of(Outcome::NotForThisDevice).all(|row| ["f64", "mixed"].contains(&&row.dtype[..])));
    assert_eq!(
        (of(Outcome::Passed).count(), of(Outcome::NotForThisDevice).count()),
        (327 + 65 + 32 + 11 + 6 + 58, 443)
    );
}

/// A run that does not end by itself, evaluated and saved every five steps.
fn endless() -> Config {
    let args = wgrad_examples::cli::RnnArgs { length: Some(10), ..Default::default() };
    let config = Config::new(&args, Some(1_000_000)).expect("the flags go together");
    Config { evaluate_every: 5, held_out: 10, solved: f64::NAN, ..config }
}

#[test]
fn a_device_that_is_lost_ends_the_run_which_can_be_gone_on_with() {
    let Some(_alone) = alone() else { return };
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let (config, common, gpu) = (endless(), common(""), opened(Options::default()));
    let files = Files { save: Some(SaveFile::open(&path).expect("a new file")), ..Files::default() };
    let error = thread::scope(|scope| {
        let (file, lost) = (path.clone(), gpu.clone());
        scope.spawn(move || {
            let start = Instant::now();
            while !file.exists() && start.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(5));
            }
            lost.destroy();
        });
        run(&config, &common, &Place::Gpu(gpu), &files, Watch::Silent).map(|_| ()).expect_err("the device is lost")
    });
    let Error::Saved { steps, .. } = &error else { panic!("{error}") };
    let text = error.to_string();
    for part in ["the GPU is lost", &format!("saved after {steps} steps"), "--resume", "run.st"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // On the CPU, say.
    let config = Config { steps: steps + 3, ..config };
    let files = Files { resume: Some(path), ..Files::default() };
    let place = Place::Cpu { threads: 1 };
    let Finished { history, .. } = run(&config, &common, &place, &files, Watch::Silent).expect("it goes on");
    assert_eq!(history.len(), steps + 3);
}

#[test]
fn a_model_above_the_budget_is_refused_with_both_figures() {
    let Some(_alone) = alone() else { return };
    let (budget, common) = (1 << 20, common(""));
    let place = Place::Gpu(opened(Options { budget: Some(budget), ..Options::default() }));
    let config = Config { batch: 2000, steps: 1, ..endless() };
    let error = run(&config, &common, &place, &Files::default(), Watch::Silent);
    let text = error.map(|_| ()).expect_err("it has no room").to_string();
    assert!(text.contains("bytes more are needed") && text.contains(&budget.to_string()), "{text}");
}

#[test]
fn a_profile_of_a_device_without_timestamps_is_refused() {
    let Some(_alone) = alone() else { return };
    let place = |floor: bool| Place::Gpu(opened(Options { floor, ..Options::default() }));
    let error = bench::profile::check(&place(true)).expect_err("no optional feature").to_string();
    assert!(error.contains("does not tell how long its kernels take") && error.contains("--device cpu"), "{error}");
    bench::profile::check(&place(false)).expect("this device has timestamps");
}
