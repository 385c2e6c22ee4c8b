//! Attention as one op: the values and derivatives of the composition, on shapes and places in memory of all sorts, with
//! the bits that any number of threads gives; and what is decomposed instead.

use proptest::prelude::*;
use wgrad::{Array, Attention, DType, Data, Program, Shape, Store, Tape, Tensor, op::Op, plan::Kind};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, proptest_config as config, reference, same_bits};

/// How arguments come to lie in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    /// As they are.
    Plain,
    /// In a tensor of `[.., time, heads, width]`, as a linear layer gives it.
    Swapped,
    /// Every other element, backwards.
    Strided,
    /// One head and one batch element, repeated.
    Repeated,
    /// Computed, and used elsewhere too.
    Computed,
}

const PLACES: [Place; 5] = [Place::Plain, Place::Swapped, Place::Strided, Place::Repeated, Place::Computed];

/// The extents of attention.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    /// Heads of queries for each of keys.
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value: usize,
    causal: bool,
    place: Place,
    dtype: DType,
}

impl Case {
    fn square(heads: usize, time: usize, width: usize) -> Self {
        let (batch, group, causal, place) = (1, 1, true, Place::Plain);
        Self { batch, heads, group, queries: time, keys: time, width, value: width, causal, place, dtype: DType::F64 }
    }

    fn shapes(&self) -> [Shape; 3] {
        let Case { batch, heads, group, queries, keys, width, value, .. } = *self;
        [[batch, heads * group, queries, width], [batch, heads, keys, width], [batch, heads, keys, value]]
            .map(Shape::from)
    }

    /// An argument, and the input that it is made of.
    fn argument<'t>(&self, t: &'t Tape, name: &str, shape: &Shape) -> (Tensor<'t>, Tensor<'t>) {
        let declare = |shape: Shape| t.input(name, shape, self.dtype);
        match self.place {
            Place::Plain => {
                let x = declare(shape.clone());
                (x, x)
            }
            Place::Swapped => {
                let x = declare([shape[0], shape[2], shape[1], shape[3]].into());
                (x.swap_axes(1, 2), x)
            }
            Place::Strided => {
                let x = declare(shape.with(3, 2 * shape[3]));
                let start = (2 * shape[3]).saturating_sub(1);
                (x.slice_step(3, start, shape[3], -2), x)
            }
            Place::Repeated => {
                let x = declare([1, 1, shape[2], shape[3]].into());
                (x.broadcast_to(shape.clone()), x)
            }
            Place::Computed => {
                let x = declare(shape.clone());
                (x.sin(), x)
            }
        }
    }

    /// The result, the gradients of a loss that reads it, and where `order` is 2 those of the gradients' squares.
    fn program(&self, order: usize, options: impl for<'t> Fn(&'t Tape, &Case) -> Attention<'t>) -> Program {
        let t = Tape::default();
        let [q, k, v] = self.shapes();
        let ((q, x0), (k, x1), (v, x2)) =
            (self.argument(&t, "q", &q), self.argument(&t, "k", &k), self.argument(&t, "v", &v));
        let y = q.attention(k, v, &options(&t, self));
        t.tap("y", y);
        let elsewhere =
            if self.place == Place::Computed { (q * 0.5).sum() + v.cos().sum() } else { t.scalar(0.0, y.dtype()) };
        let mut scalar = (y * weights(y)).sum() + elsewhere;
        for _ in 0..order {
            let mut slope = t.scalar(0.0, self.dtype);
            for (name, g) in ["dq", "dk", "dv"].into_iter().zip(scalar.grad_wrt(&[x0, x1, x2])) {
                let Some(g) = g else { continue };
                t.tap_each(name, g);
                slope += (g * weights(g)).sum();
            }
            scalar = slope;
        }
        t.finish()
    }

    fn fused(&self, order: usize) -> Program {
        self.program(order, |_, case| Attention { causal: case.causal, ..Attention::default() })
    }

    /// With a mask that takes nothing away, nothing is fused.
    fn composed(&self, order: usize) -> Program {
        self.program(order, |t, case| {
            let mask = Some(t.full([1, 1, 1, 1], 1.0, DType::Bool));
            Attention { causal: case.causal, mask, ..Attention::default() }
        })
    }

    fn inputs(&self, program: &Program) -> Vec<(String, Array)> {
        let value = |which: usize, i: usize| ((i * 37 + which * 11) as f64 * 0.61).sin() * 1.5;
        let array = |(which, input): (usize, &wgrad::InputDecl)| {
            let values: Vec<f64> = (0..input.shape.numel()).map(|i| value(which, i)).collect();
            (input.name.clone(), Array::new(&input.shape, Data::from_f64(input.dtype, &values)))
        };
        program.inputs().iter().enumerate().map(array).collect()
    }
}

/// Numbers of either sign, another one for each element. (In f32 the arguments of hundreds of elements would be too coarse.)
fn weights(y: Tensor<'_>) -> Tensor<'_> {
    (y.tape().iota(y.numel()).cast(DType::F64) * 0.7 + 0.3).cos().cast(y.dtype()).reshape(y.shape())
}

fn run(mut machine: Machine, program: &Program, inputs: &[(String, Array)]) -> Outputs {
    let step = machine.session.compile(program.clone()).expect("the plan compiles");
    machine.run(&step, inputs)
}

/// How many kernels of a plan on the CPU are attention, or its gradient.
fn kernels(program: &Program) -> usize {
    let (_, plan) = Machine::new(1, Store::new()).session.plan(program);
    let is_attention = |kind: &Kind| matches!(kind, Kind::Op(Op::Attention(..) | Op::AttentionGrad(..)));
    plan.kernels.iter().filter(|kernel| is_attention(&kernel.kind)).count()
}

/// The CPU against the reference, which decomposes: on one thread and on several, cut up as usual and as finely as can be.
fn agrees(case: &Case) -> Result<(), TestCaseError> {
    let program = case.fused(1);
    let inputs = case.inputs(&program);
    let want = reference(&program, &[], &inputs);
    prop_assert_eq!(kernels(&program), 2);
    for make in [Machine::poisoned, Machine::splitting] {
        let one = run(make(1, Store::new()), &program, &inputs);
        for ((name, have), (.., want)) in one.taps.iter().zip(&want.taps) {
            if let Err(why) = compare(name, &have.to_f64(), want, Tolerance::of(case.dtype)) {
                return Err(TestCaseError::fail(format!("{case:?}: {why}")));
            }
        }
        for threads in [2, 3] {
            let several = run(make(threads, Store::new()), &program, &inputs);
            for ((name, have), (_, want)) in several.taps.iter().zip(&one.taps) {
                prop_assert!(same_bits(have, want), "{:?}: {} on {} threads", case, name, threads);
            }
        }
    }
    Ok(())
}

fn case() -> impl Strategy<Value = Case> {
    let few = || prop_oneof![Just(1usize), 0..4usize];
    let many = || prop_oneof![2 => 0..5usize, 2 => 5..40usize];
    let of = (any::<bool>(), prop::sample::select(&PLACES[..]), prop::sample::select(vec![DType::F32, DType::F64]));
    (few(), few(), 1..3usize, many(), many(), 0..9usize, 0..9usize, of).prop_map(
        |(batch, heads, group, queries, keys, width, value, (causal, place, dtype))| Case {
            batch,
            heads,
            group,
            queries,
            keys,
            width,
            value,
            causal,
            place,
            dtype,
        },
    )
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn the_kernel_computes_what_the_op_decomposes_into(case in case()) {
        agrees(&case)?;
    }
}

/// More keys than a block has, on either side of the block's edge; and so few heads that they are shared among tasks.
#[test]
fn long_sequences_are_met_block_by_block() {
    for (queries, keys, causal) in [(3, 513, false), (520, 515, true), (140, 512, true), (130, 1030, false)] {
        for dtype in [DType::F32, DType::F64] {
            let case = Case { queries, keys, causal, dtype, value: 3, ..Case::square(1, 0, 2) };
            agrees(&case).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
fn one_op_has_the_derivatives_of_the_composition() {
    let square = Case::square(2, 3, 2);
    let cases = [
        square,
        Case { causal: false, ..square },
        Case { group: 2, place: Place::Computed, ..square },
        Case { keys: 5, value: 1, ..square },
        Case { queries: 1, keys: 1, width: 1, value: 1, ..square },
        Case { keys: 0, ..square },
        Case { queries: 0, ..square },
        Case { batch: 0, ..square },
    ];
    for case in cases {
        let (fused, composed) = (case.fused(2), case.composed(2));
        let ops = |p: &Program| p.nodes().iter().filter(|node| node.op.is_fused()).count();
        assert!(ops(&fused) > 0 && ops(&composed) == 0, "{fused}{composed}");
        let inputs = case.inputs(&fused);
        let (have, want) = (reference(&fused, &[], &inputs), reference(&composed, &[], &inputs));
        assert_eq!(have.taps.len(), 7);
        for ((name, _, have), (.., want)) in have.taps.iter().zip(&want.taps) {
            compare(name, have, want, Tolerance::F64).unwrap_or_else(|why| panic!("{case:?}: {why}"));
        }
    }
}

#[test]
fn another_scale_or_mask_is_found_out() {
    let case = Case::square(2, 4, 3);
    let right = case.fused(1);
    let inputs = case.inputs(&right);
    let want = reference(&right, &[], &inputs);
    let scaled = case.program(1, |_, _| Attention { causal: true, scale: Some(0.58), ..Attention::default() });
    for wrong in [scaled, Case { causal: false, ..case }.fused(1)] {
        let have = run(Machine::poisoned(1, Store::new()), &wrong, &inputs);
        for ((name, have), (.., want)) in have.taps.iter().zip(&want.taps) {
            assert!(compare(name, &have.to_f64(), want, Tolerance::F32).is_err(), "{name} does not depend on it");
        }
    }
}

#[test]
fn first_derivatives_need_no_decomposition() {
    let program = Case::square(2, 4, 3).fused(1);
    let count = |name: &str| program.nodes().iter().filter(|node| node.op.name() == name).count();
    assert_eq!([count("attention"), count("attention_grad"), count("matmul")], [2, 3, 0], "{program}");
}

#[test]
fn what_is_masked_or_dropped_is_decomposed_and_f16_is_widened() {
    let case = Case::square(2, 4, 3);
    assert_eq!(kernels(&case.fused(1)), 2);
    assert_eq!(kernels(&case.composed(1)), 0);
    assert_eq!(kernels(&Case { dtype: DType::F16, ..case }.fused(1)), 2);
}

/// Heads are read where a linear layer has put them, side by side, and are written so for the next: nothing is copied.
#[test]
fn heads_stay_where_they_lie() {
    for dtype in [DType::F32, DType::F64] {
        let t = Tape::default();
        let (batch, time, heads, width) = (2, 35, 3, 16);
        let model = heads * width;
        let x = t.input("x", [batch, time, 3 * model], dtype);
        let w = t.input("w", [model, 7], dtype);
        let part = |i: usize| x.slice(2, i * model, model).reshape([batch, time, heads, width]).swap_axes(1, 2);
        let attended = part(0).attention(part(1), part(2), &Attention { causal: true, ..Attention::default() });
        let y = attended.swap_axes(1, 2).reshape([batch * time, model]).matmul(w);
        t.tap("y", y);
        (y * weights(y)).sum().grad_wrt(&[x, w]).into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
        let program = t.finish();
        let (_, plan) = Machine::new(1, Store::new()).session.plan(&program);
        let copies = |kind: &Kind| matches!(kind, Kind::Loop(body) if body.values.len() == 1);
        assert_eq!(plan.kernels.iter().filter(|kernel| copies(&kernel.kind)).count(), 0, "{:?}", plan.kernels);
        let value = |i: usize| ((i * 37) as f64 * 0.61).sin();
        let array = |input: &wgrad::InputDecl| {
            let values: Vec<f64> = (0..input.shape.numel()).map(value).collect();
            (input.name.clone(), Array::new(&input.shape, Data::from_f64(dtype, &values)))
        };
        let inputs: Vec<(String, Array)> = program.inputs().iter().map(array).collect();
        let want = reference(&program, &[], &inputs);
        for threads in [1, 3] {
            let have = run(Machine::poisoned(threads, Store::new()), &program, &inputs);
            for ((name, have), (.., want)) in have.taps.iter().zip(&want.taps) {
                compare(name, &have.to_f64(), want, Tolerance::of(dtype)).unwrap_or_else(|why| panic!("{why}"));
            }
        }
    }
}

/// Of f16 numbers, results are those of f32, rounded. (What the loss weighs results by is rounded, too.)
#[test]
fn f16_is_close_to_f32() {
    let case = Case { dtype: DType::F16, ..Case::square(2, 5, 4) };
    let program = case.fused(1);
    let inputs = case.inputs(&program);
    let exact = Case { dtype: DType::F32, ..case }.fused(1);
    let want = reference(&exact, &[], &inputs);
    let have = run(Machine::poisoned(2, Store::new()), &program, &inputs);
    for ((name, have), (.., want)) in have.taps.iter().zip(&want.taps) {
        assert_eq!(have.dtype(), DType::F16);
        compare(name, &have.to_f64(), want, Tolerance(2e-2)).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Scores of hundreds, of which the largest comes last: the sums of the blocks before are scaled down, and nothing
/// overflows.
#[test]
fn scores_may_be_large() {
    for (first, last) in [(-300.0, 300.0), (300.0, -300.0)] {
        let t = Tape::default();
        let (keys, dtype) = (700, DType::F32);
        let [q, k, v] = [("q", 1), ("k", keys), ("v", keys)].map(|(name, rows)| t.input(name, [1, rows, 1], dtype));
        let y = q.attention(k, v, &Attention { scale: Some(1.0), ..Attention::default() });
        t.tap("y", y);
        y.sum().grad_wrt(&[q, k, v]).into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
        let program = t.finish();
        let line = |i: usize| (first + (last - first) * i as f64 / (keys - 1) as f64) as f32;
        let array = |n: usize, f: &dyn Fn(usize) -> f32| Array::new([1, n, 1], (0..n).map(f).collect::<Vec<f32>>());
        let inputs = [("q", array(1, &|_| 1.0)), ("k", array(keys, &line)), ("v", array(keys, &|i| i as f32 * 0.01))];
        let inputs = inputs.map(|(name, array)| (name.to_string(), array));
        let want = reference(&program, &[], &inputs);
        for make in [Machine::poisoned, Machine::splitting] {
            for ((name, have), (.., want)) in run(make(2, Store::new()), &program, &inputs).taps.iter().zip(&want.taps)
            {
                compare(name, &have.to_f64(), want, Tolerance::F32).unwrap_or_else(|why| panic!("{first}: {why}"));
            }
        }
    }
}

/// What is not finite in one query stays in its row, of values and of the queries' gradient.
#[test]
fn a_query_that_is_not_finite_spoils_its_own_row() {
    for bad in [f64::NAN, f64::INFINITY] {
        let case = Case { causal: false, ..Case::square(1, 40, 2) };
        let program = case.fused(1);
        let mut inputs = case.inputs(&program);
        let mut q = inputs[0].1.to_f64();
        q[7 * 2] = bad;
        inputs[0].1 = Array::new(inputs[0].1.shape(), q);
        let have = run(Machine::poisoned(2, Store::new()), &program, &inputs);
        for name in ["y", "dq"] {
            let rows = have.tap(name).to_f64();
            for (i, row) in rows.chunks(2).enumerate() {
                assert!(row.iter().all(|x| x.is_nan() == (i == 7)), "{bad}: {name} of query {i}: {row:?}");
            }
        }
    }
}

#[test]
fn checkpointed_attention_is_recomputed() {
    let gradients = |checkpoint: bool| {
        let t = Tape::default();
        let [q, k, v] = ["q", "k", "v"].map(|name| t.input(name, [2, 4, 3], DType::F64));
        let attend = || q.sin().attention(k, v, &Attention { causal: true, ..Attention::default() }).square();
        let y = if checkpoint { t.checkpoint(attend) } else { attend() };
        y.sum().grad_wrt(&[q, k, v]).into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
        t.finish()
    };
    let [kept, recomputed] = [false, true].map(gradients);
    let count = |p: &Program| p.nodes().iter().filter(|n| matches!(n.op, Op::Attention(_, 0))).count();
    assert!(count(&recomputed) > count(&kept));
    let inputs = Case::square(1, 1, 1).inputs(&kept);
    assert_eq!(reference(&recomputed, &[], &inputs).taps, reference(&kept, &[], &inputs).taps);
}
