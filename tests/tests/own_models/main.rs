//! Models as a user writes them, healthy and broken: the diagnosis names the fault, and proves a cure.

mod diffusion;
mod equation;
mod gan;

use wgrad::{Array, Session, Store, random::fnv1a};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Error,
    diagnosis::{Diagnosis, MicroBatch, Opened, Setup, Study},
};

/// A run in parts: what it learns, and the batch of each step.
fn study<'a>(
    steps: usize,
    build: impl Fn(&Setup, &mut Store) -> wgrad_nn::Trainer + 'a,
    batch: impl Fn(usize) -> MicroBatch + Copy + 'static,
) -> Study<impl FnMut(&Setup) -> Result<Opened<Error>, Error> + 'a> {
    Study::new(steps, move |setup: &Setup| {
        let mut store = Store::new();
        let trainer = build(setup, &mut store);
        let session = Session::new(Box::new(CpuBackend::new(2)?), store)?;
        let mut step = 0;
        let batches = move || {
            step += 1;
            Ok(vec![batch(step - 1)])
        };
        Ok(Opened { trainer, session, batches: Box::new(batches), judge: None })
    })
}

/// Diagnoses a run, and proves what it can.
fn told(mut study: Study<impl FnMut(&Setup) -> Result<Opened<Error>, Error>>) -> Diagnosis {
    let mut diagnosis = study.diagnose().expect("it runs");
    study.prove(&mut diagnosis).expect("it runs again");
    diagnosis
}

/// Asserts that a run is healthy.
fn is_healthy(diagnosis: &Diagnosis) {
    assert_eq!(diagnosis.fault(), "healthy", "{diagnosis}");
}

/// Asserts that a fault has been found, and that a remedy is proven.
fn is_cured(diagnosis: &Diagnosis, fault: &str, remedy: &str) {
    assert_eq!(diagnosis.fault(), fault, "{diagnosis}");
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.proof.as_ref().map(|proof| proof.remedy), Some(remedy), "{diagnosis}");
}

/// Numbers in [0, 1) that a name and a step decide.
fn uniform(name: &str, step: usize, shape: [usize; 2]) -> Vec<f32> {
    let number = |i: usize| {
        // Two rounds: the hash of texts that differ in their last digit alone differs little in its first bits.
        let once = fnv1a(&format!("{name} {step} {i}"));
        (fnv1a(&format!("{once} {i}")) >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..shape[0] * shape[1]).map(number).collect()
}

/// Normal numbers, by Box and Muller.
fn normal(name: &str, step: usize, shape: [usize; 2]) -> Array {
    let (a, b) = (uniform(name, 2 * step, shape), uniform(name, 2 * step + 1, shape));
    let of = |(a, b): (&f32, &f32)| (-2.0 * (1.0 - a).ln()).sqrt() * (std::f32::consts::TAU * b).cos();
    Array::new(shape, a.iter().zip(&b).map(of).collect::<Vec<_>>())
}

/// Points on a circle of radius 1.
fn circle(step: usize, rows: usize) -> Array {
    let angles = uniform("circle", step, [rows, 1]);
    let point = |turn: &f32| [(turn * std::f32::consts::TAU).cos(), (turn * std::f32::consts::TAU).sin()];
    Array::new([rows, 2], angles.iter().flat_map(point).collect::<Vec<_>>())
}
