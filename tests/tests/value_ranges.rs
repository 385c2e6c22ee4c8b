//! The ranges of all values of a step, measured on its device, are those of the values read from it: of training programs on the
//! CPU and on a GPU, with NaN and infinities among them.

use wgrad::{
    Array, Backend, NodeId, Session, ValueRange,
    testing::{INJECTED_AT, INJECTED_NAN, INJECTED_NODE, injectable},
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::TrainerConfig;
use wgrad_tests::{
    gpu,
    steps::{Case, decoder, passes, recurrent, residual},
};
use wgrad_wgpu::WgpuBackend;

fn range(values: &[f64]) -> ValueRange {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    ValueRange {
        elements: values.len(),
        nan: values.iter().filter(|value| value.is_nan()).count(),
        infinite: values.iter().filter(|value| value.is_infinite()).count(),
        low: finite().fold(f64::INFINITY, f64::min),
        high: finite().fold(f64::NEG_INFINITY, f64::max),
    }
}

/// Kernels of the two programs may round otherwise.
fn agree(a: f64, b: f64, size: f64) -> bool {
    a == b || (a - b).abs() <= 1e-3 * size
}

/// Measures a step as it is, and with NaN and infinity put into some of its values; how many ranges had such an element.
fn check(case: Case, backend: Box<dyn Backend>, stride: usize) -> usize {
    let live = case.program.live();
    let (program, guarded) = injectable(&case.program, |node| live[node] && node % stride == 0);
    let mut session = Session::new(backend, case.store).expect("there is room");
    let all: Vec<NodeId> = program.ids().collect();
    let live = program.live();
    let mut odd = 0;
    let places = guarded.iter().map(|guard| guard.node).step_by(guarded.len().div_ceil(2));
    for node in places.chain([u32::MAX as usize]) {
        for nan in [0u32, 1] {
            let extra = [(INJECTED_NODE, node as u32), (INJECTED_AT, 0), (INJECTED_NAN, nan)]
                .map(|(name, value)| (name, Array::new([], vec![value])));
            let inputs: Vec<(&str, &Array)> =
                case.inputs.iter().chain(&extra).map(|(name, array)| (*name, array)).collect();
            let ranges = session.ranges(&program, &inputs).expect("it runs");
            let values = session.values(&program, &all, &inputs).expect("it runs");
            for (at, (found, value)) in ranges.iter().zip(&values).enumerate() {
                let node = &program.nodes()[at];
                let is_measured = live[at] && node.dtype.is_float() && node.shape.numel() > 0;
                assert_eq!(found.is_some(), is_measured, "{}: {at}", case.name);
                let Some(found) = found else { continue };
                let wanted = range(&value.to_f64());
                let counts = |range: &ValueRange| (range.elements, range.nan, range.infinite);
                assert_eq!(counts(found), counts(&wanted), "{}: {}", case.name, program.place(all[at]));
                let size = [wanted.low, wanted.high].iter().fold(1e-6, |most: f64, v| most.max(v.abs()));
                let ends = agree(found.low, wanted.low, size) && agree(found.high, wanted.high, size);
                assert!(ends, "{}: {}: {found:?}, and read {wanted:?}", case.name, program.place(all[at]));
                odd += usize::from(found.non_finite() > 0);
            }
        }
    }
    odd
}

#[test]
fn ranges_are_those_of_the_values_on_the_cpu() {
    for case in [decoder(passes()), recurrent(passes()), residual(passes())] {
        let name = case.name;
        let odd = check(case, Box::new(CpuBackend::new(1).expect("it opens")), 3);
        assert!(odd > 10, "{name}: {odd}");
    }
}

#[test]
fn ranges_are_those_of_the_values_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    let config = TrainerConfig { clip_norm: Some(0.5), check_loss: false, give_up: None, ..TrainerConfig::default() };
    let odd = check(recurrent(config), Box::new(WgpuBackend::on(gpu).expect("it is there")), 17);
    assert!(odd > 5, "{odd}");
}
