//! Schedules, on the host and on the tape, against golden vectors.

use crate::{golden, open};
use approx::abs_diff_eq;
use wgrad::{DType, Store};
use wgrad_nn::Schedule;

fn schedule(case: &golden::Case) -> Schedule {
    let count = |name: &str| case.attr(name).as_u64().expect("a count") as u32;
    let (base, steps) = (case.number("base", f64::NAN), count("warmup"));
    match case.op() {
        "linear_warmup" => Schedule::Warmup { base, steps, offset: count("offset") },
        "linear_warmup_factor" => Schedule::WarmupFactor { base, steps, factor: case.number("start_factor", f64::NAN) },
        "warmup_linear" => {
            let end = case.number("end", f64::NAN);
            Schedule::WarmupLinear { base, steps, total: count("total"), init: 0.0, end }
        }
        "warmup_cosine" => {
            let (init, end) = (case.number("init", f64::NAN), case.number("end", f64::NAN));
            Schedule::WarmupCosine { base, steps, total: count("total"), init, end }
        }
        other => panic!("no schedule {other}"),
    }
}

#[test]
fn golden_on_host_and_tape() {
    let mut session = open(Store::new());
    // The scale of gradient noise is a pass' own.
    for case in golden::cases(|kind, op| kind == "schedule" && op != "noise_sigma") {
        let schedule = schedule(&case);
        let want = case.tensor("out/lr");
        let n = want.shape()[0];
        let host: Vec<f64> = (0..n as u32).map(|t| schedule.at(t)).collect();
        case.check("out/lr", &wgrad::Array::new([n], host));
        // The formula is elementwise, so a vector of counts gives the whole curve.
        let mut tape = |dtype| session.eval(&[], |t| schedule.lr(t.iota(n), dtype)).expect("runs");
        case.check("out/lr", &tape(DType::F64));
        let peak = want.to_f64().into_iter().fold(0.0, f64::max);
        for (have, want) in tape(DType::F32).to_f64().into_iter().zip(want.to_f64()) {
            assert!(abs_diff_eq!(have, want, epsilon = 1e-6 * peak), "{} in f32: {have} for {want}", case.id());
        }
    }
}
