//! Attention on the GPU in tiles: the values and gradients of the reference for shapes, places in memory and types of all
//! sorts, by the kernels of real GPUs; and which attention is decomposed instead.

use proptest::prelude::*;
use wgrad::{Array, Attention, DType, Data, Program, Store, Tape, op::Op, plan::Kind};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, gpus, reference, same_bits};
use wgrad_wgpu::Gpu;

/// What attention is computed of.
#[derive(Clone, Debug)]
struct Case {
    batch: Vec<usize>,
    kv_heads: usize,
    /// Heads of queries for each of keys.
    shared: usize,
    queries: usize,
    keys: usize,
    width: usize,
    values: usize,
    causal: bool,
    /// Whether queries, keys and values lie side by side in one tensor, positions before heads, as a layer gives them.
    strided: bool,
    dtype: DType,
}

impl Case {
    /// One head of so many queries and keys.
    fn new(queries: usize, keys: usize, width: usize, values: usize, causal: bool) -> Self {
        let (batch, dtype) = (vec![], DType::F32);
        Self { batch, kv_heads: 1, shared: 1, queries, keys, width, values, causal, strided: false, dtype }
    }

    /// The results, and the gradients of a loss that reads them.
    fn program(&self) -> Program {
        let t = Tape::default();
        let heads = self.kv_heads * self.shared;
        let input = |name: &str, heads: usize, rows: usize, columns: usize| {
            let r = self.batch.len();
            if !self.strided {
                let x = t.input(name, [&self.batch[..], &[heads, rows, columns]].concat(), self.dtype);
                return (x, x);
            }
            // Positions come first, and there is something before and after each row.
            let x = t.input(name, [&self.batch[..], &[rows, heads, columns + 3]].concat(), self.dtype);
            let axes: Vec<usize> = (0..r).chain([r + 1, r, r + 2]).collect();
            (x, x.slice(r + 2, 1, columns).permute(&axes))
        };
        let (q_input, q) = input("q", heads, self.queries, self.width);
        let (k_input, k) = input("k", self.kv_heads, self.keys, self.width);
        let (v_input, v) = input("v", self.kv_heads, self.keys, self.values);
        let o = q.attention(k, v, &Attention { causal: self.causal, ..Attention::default() });
        t.tap("o", o);
        let loss = (o * o.sin()).cast(DType::F32).sum();
        for (name, g) in ["dq", "dk", "dv"].iter().zip(loss.grad_wrt(&[q_input, k_input, v_input])) {
            t.tap(name, g.expect("the loss depends on it"));
        }
        t.finish()
    }
}

fn inputs(program: &Program) -> Vec<(String, Array)> {
    let value = |which: usize, i: usize| ((i * 37 + which * 11) as f64 * 0.61).sin() * 1.5;
    let inputs = program.inputs().iter().enumerate().map(|(which, input)| {
        let values: Vec<f64> = (0..input.shape.numel()).map(|i| value(which, i)).collect();
        (input.name.clone(), Array::new(input.shape.clone(), Data::from_f64(input.dtype, &values)))
    });
    inputs.collect()
}

fn run(gpu: &Gpu, program: &Program, inputs: &[(String, Array)]) -> Outputs {
    let mut machine = Machine::on_gpu(gpu, Store::new());
    let step = machine.session.compile(program.clone()).expect("the plan compiles");
    machine.run(&step, inputs)
}

/// How many kernels of a program are attention.
fn kernels(gpu: &Gpu, program: &Program) -> usize {
    let machine = Machine::on_gpu(gpu, Store::new());
    let (_, plan) = machine.session.plan(program);
    let is_attention = |kind: &Kind| matches!(kind, Kind::Op(Op::Attention(..) | Op::AttentionGrad(..)));
    plan.kernels.iter().filter(|kernel| is_attention(&kernel.kind)).count()
}

/// On these GPUs as on the reference. Numbers of f16 are compared with what comes of the same numbers in f32: they may be twice as
/// far from that as the reference.
fn agrees(case: &Case, gpus: &[&Gpu]) -> Result<(), String> {
    let program = case.program();
    let inputs = inputs(&program);
    let mut want: Vec<(Vec<f64>, Tolerance)> =
        reference(&program, &[], &inputs).taps.into_iter().map(|(.., values)| (values, Tolerance::F32)).collect();
    if case.dtype == DType::F16 {
        let wide = |x: &Array| Array::new(x.shape().clone(), Data::from_f64(DType::F32, &x.to_f64()));
        let inputs: Vec<(String, Array)> = inputs.iter().map(|(name, x)| (name.clone(), wide(x))).collect();
        let exact = reference(&Case { dtype: DType::F32, ..case.clone() }.program(), &[], &inputs);
        for ((rounded, tolerance), (.., exact)) in want.iter_mut().zip(exact.taps) {
            let scale = exact.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
            let far = rounded.iter().zip(&exact).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            *tolerance = Tolerance(2.0 * far / scale + 2e-3);
            *rounded = exact;
        }
    }
    for gpu in gpus {
        for ((name, have), (want, tolerance)) in run(gpu, &program, &inputs).taps.iter().zip(&want) {
            compare(name, &have.to_f64(), want, *tolerance).map_err(|why| format!("{case:?}: {why}"))?;
        }
    }
    Ok(())
}

/// Sizes about those of tiles, and others.
fn extents() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..10, 30usize..35, 60usize..75]
}

fn widths() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..10, 14usize..18, 31usize..34, 60usize..70, Just(100), Just(128), Just(129)]
}

fn cases() -> impl Strategy<Value = Case> {
    let batch = prop_oneof![Just(vec![]), Just(vec![2]), Just(vec![2, 3])];
    let dtype = prop_oneof![3 => Just(DType::F32), 1 => Just(DType::F16)];
    let flags = (any::<bool>(), any::<bool>(), dtype);
    (batch, (1usize..3, 1usize..4), extents(), extents(), widths(), widths(), flags).prop_map(
        |(batch, (kv_heads, shared), queries, keys, width, values, (causal, strided, dtype))| Case {
            batch,
            kv_heads,
            shared,
            queries,
            keys,
            width,
            values,
            causal,
            strided,
            dtype,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_agrees_with_the_reference(case in cases()) {
        agrees(&case, &gpus()).map_err(TestCaseError::fail)?;
    }
}

/// Every place of a tile's edge, with tiles that are skipped.
#[test]
fn attention_of_several_tiles_agrees_with_the_reference() {
    let Some(hardware) = gpus().pop() else { return };
    for (queries, keys, width, values) in
        [(8, 1, 1, 1), (33, 70, 17, 33), (96, 64, 16, 32), (100, 40, 64, 64), (40, 100, 128, 128), (65, 65, 5, 90)]
    {
        let plain = Case::new(queries, keys, width, values, false);
        let shared = Case { batch: vec![2], kv_heads: 2, shared: 2, strided: true, causal: true, ..plain.clone() };
        for case in [plain, shared] {
            agrees(&case, &[hardware]).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
fn attention_is_its_decomposition_and_repeats_its_bits() {
    for dtype in [DType::F32, DType::F16] {
        let case = Case { batch: vec![2], kv_heads: 2, shared: 2, dtype, ..Case::new(70, 70, 24, 40, true) };
        let program = case.program();
        let inputs = inputs(&program);
        let tolerance = if dtype == DType::F16 { Tolerance(2e-2) } else { Tolerance::F32 };
        for gpu in gpus() {
            let (one, two) = (run(gpu, &program, &inputs), run(gpu, &program, &inputs));
            let steps = run(gpu, &program.lowered(true, |_, _| false), &inputs);
            for (((name, one), (_, two)), (_, steps)) in one.taps.iter().zip(&two.taps).zip(&steps.taps) {
                assert!(same_bits(one, two), "{name} of {dtype}");
                compare(name, &one.to_f64(), &steps.to_f64(), tolerance).unwrap();
            }
        }
    }
}

/// Numbers of f16 in whose gradients much cancels.
#[test]
fn f16_are_as_near_as_what_is_rounded_allows() {
    for (heads, queries) in [(2, 60), (1, 70)] {
        let case = Case { batch: vec![2], kv_heads: heads, dtype: DType::F16, ..Case::new(queries, 3, 14, 32, false) };
        agrees(&case, &gpus()).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Scores beyond what exponentials reach, and what is not finite.
#[test]
fn large_scores_and_nan_are_what_they_are() {
    let case = Case::new(40, 70, 8, 8, true);
    let program = case.program();
    let mut inputs = inputs(&program);
    for (_, x) in &mut inputs[..2] {
        *x = Array::new(x.shape().clone(), x.to_f64().iter().map(|x| (60.0 * x) as f32).collect::<Vec<f32>>());
    }
    let want = reference(&program, &[], &inputs);
    for gpu in gpus() {
        let have = run(gpu, &program, &inputs);
        compare("o", &have.taps[0].1.to_f64(), &want.taps[0].2, Tolerance(2e-3)).unwrap();
    }
    // Query 5 is NaN: its row is, and no other.
    let mut q: Vec<f32> = inputs[0].1.to_f64().iter().map(|x| *x as f32).collect();
    q[5 * 8] = f32::NAN;
    inputs[0].1 = Array::new([1, 40, 8], q);
    for gpu in gpus() {
        let o = run(gpu, &program, &inputs).taps[0].1.to_f64();
        assert!(o.iter().enumerate().all(|(i, x)| x.is_nan() == (i / 8 == 5)), "{o:?}");
    }
}

#[test]
fn what_has_no_kernel_is_decomposed() {
    // The first is a software renderer, if there is no other.
    let Some(hardware) = gpus().pop() else { return };
    let count = |case: Case| kernels(hardware, &case.program());
    assert_eq!(count(Case::new(8, 5, 128, 1, true)), 2, "forward and backward");
    assert_eq!(count(Case { dtype: DType::F16, ..Case::new(64, 64, 64, 64, false) }), 2);
    // Too wide, too few queries, nothing at all.
    for case in [
        Case::new(64, 64, 129, 64, false),
        Case::new(64, 64, 64, 129, false),
        Case::new(7, 64, 64, 64, false),
        Case::new(64, 0, 64, 64, false),
    ] {
        assert_eq!(count(case.clone()), 0, "{case:?}");
    }
    let software = gpus()[0];
    if software.summary().is_software() {
        assert_eq!(kernels(software, &Case::new(64, 64, 64, 64, true).program()), 0);
    }
}
