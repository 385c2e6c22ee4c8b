//! Gradient passes: the gradients through them, what they leave alone, special values, and their order.

use approx::{abs_diff_eq, relative_eq};
use proptest::prelude::*;
use wgrad::{
    Agc, Array, Centralize, ClipGroups, ClipNorm, DType, Draw, Flat, Grads, Noise, NonFinite, Param, ParamSet, Session,
    Store, Tape, Tensor, testing::Gradcheck,
};
use wgrad_cpu::CpuBackend;
use wgrad_tests::{Linear, Machine, Tolerance, compare, proptest_config as config, reference, same_bits};

/// A pass, or several, given the parameters.
type Passes = for<'t> fn(&[Param], Grads<'t>) -> Grads<'t>;

fn set(params: &[Param]) -> ParamSet {
    params.iter().copied().collect()
}

/// Numbers without ties or zeros.
fn numbers(shape: &[usize], salt: f64, scale: f64) -> Array {
    let numel: usize = shape.iter().product();
    Array::new(shape, (0..numel).map(|i| scale * (1.3 * i as f64 + salt).sin()).collect::<Vec<f64>>())
}

/// A weight, a bias, a filter, a scalar and nothing.
const SHAPES: [&[usize]; 5] = [&[3, 4], &[3], &[2, 2, 3, 1], &[], &[0, 2]];

fn values(scale: f64) -> Vec<Array> {
    SHAPES.iter().enumerate().map(|(i, shape)| numbers(shape, i as f64 + 0.4, scale)).collect()
}

/// Normal numbers that are given, for the arena of some parameters.
fn given<'t>(grads: &Grads<'t>) -> Draw<'t> {
    let z =
        |(arena, g): &(wgrad::StateId, Tensor<'t>)| (*arena, (g.tape().iota(g.numel()).cast(g.dtype()) * 0.7).sin());
    let z = Flat::new(grads.flat().parts().iter().map(z).collect());
    Draw::Given { z, updates: grads.tape().scalar(3.0, DType::U32) }
}

/// Each pass where it acts.
const ACTING: [(&str, Passes); 21] = [
    ("clip 2", |_, g| g.clip_by_global_norm(0.7)),
    ("clip 1", |_, g| g.clip_by_global_norm(ClipNorm::new(0.7).p(1.0))),
    ("clip 1.5", |_, g| g.clip_by_global_norm(ClipNorm::new(0.7).p(1.5))),
    ("clip 0.5", |_, g| g.clip_by_global_norm(ClipNorm::new(0.7).p(0.5))),
    ("clip 3", |_, g| g.clip_by_global_norm(ClipNorm::new(0.7).p(3.0).eps(0.0))),
    ("clip inf", |_, g| g.clip_by_global_norm(ClipNorm::new(0.2).p(f64::INFINITY))),
    ("clip as in optax", |_, g| g.clip_by_global_norm(ClipNorm::new(0.7).eps(0.0))),
    ("group norm", |p, g| {
        let groups = ClipGroups::new().group(&set(&[p[0], p[3]]), 0.4).group(&set(&[p[2]]), 1e6).keep_rest();
        g.clip_by_group_norm(&groups)
    }),
    ("group norm 3", |p, g| {
        g.clip_by_group_norm(&ClipGroups::new().group(&set(&p[2..]), 0.4).group(&set(&p[..2]), 0.3).p(3.0).eps(0.0))
    }),
    ("parameter norm inf", |p, g| g.clip_by_group_norm(&ClipGroups::per_parameter(&set(p), 0.3).p(f64::INFINITY))),
    ("block rms", |_, g| g.clip_by_block_rms(0.5)),
    ("value", |_, g| g.clip_by_value(0.55)),
    ("agc", |_, g| g.agc(0.8)),
    ("agc 1", |_, g| g.agc(Agc::new(0.8).p(1.0))),
    ("agc 3", |_, g| g.agc(Agc::new(0.8).p(3.0))),
    ("agc inf", |_, g| g.agc(Agc::new(0.8).p(f64::INFINITY))),
    ("agc of others", |p, g| g.agc(Agc::new(0.5).exclude(&set(&p[..1])).unit_dims(&set(&[p[2]]), 2))),
    ("agc per tensor", |_, g| g.agc_per_tensor(0.5, 1e-6, 0.0)),
    ("centralize", |_, g| g.centralize()),
    ("noise", |_, g| {
        let draw = given(&g);
        g.add_noise(Noise::annealed(0.3), draw)
    }),
    ("all in turn", |p, g| {
        let draw = given(&g);
        let replica = g.clone().scale_grad(&set(&p[1..3]), 0.5);
        g.all_reduce_on_tape(&[replica])
            .check_finite()
            .add_noise(Noise::fixed(0.1), draw)
            .centralize()
            .agc(0.5)
            .clip_by_global_norm(0.6)
    }),
];

#[test]
fn gradients_flow_through_each_pass_as_differences_say() {
    for (name, pass) in ACTING {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &values(0.9));
        let mut session = Session::new(Box::new(CpuBackend::new(1).unwrap()), store).unwrap();
        let check = Gradcheck::new().second_order().random_directions(3);
        let checked = check.check_params(&mut session, &set(&model.params), &values(1.1), |t, x| {
            let terms = model.params.iter().zip(x).map(|(param, g)| t.param(*param).dot(*g));
            let grads = terms.reduce(|a, b| a + b).unwrap().grad(&set(&model.params));
            let out = pass(&model.params, grads);
            let parts = model.params.iter().map(|param| out.get(*param).unwrap());
            Tensor::concat(&parts.map(|g| g.reshape([g.numel()])).collect::<Vec<_>>(), 0)
        });
        let checked = checked.unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(checked.compared > 0, "{name}: nothing compared");
    }
}

#[test]
fn gradients_flow_to_the_bounds() {
    type Bounded = for<'t> fn(&[Param], Grads<'t>, Tensor<'t>) -> Grads<'t>;
    let bounded: [(&str, Bounded); 6] = [
        ("clip", |_, g, bound| g.clip_by_global_norm(bound)),
        ("group", |p, g, bound| {
            g.clip_by_group_norm(&ClipGroups::new().group(&set(&p[..1]), bound).group(&set(&p[1..]), 0.3))
        }),
        ("rms", |_, g, bound| g.clip_by_block_rms(bound)),
        ("agc", |_, g, bound| g.agc(bound)),
        ("agc per tensor", |_, g, bound| g.agc_per_tensor(bound, 1e-6, 1e-3)),
        ("scale", |p, g, bound| g.scale_grad(&set(&p[1..]), bound)),
    ];
    for (name, pass) in bounded {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &values(0.9));
        let mut session = Session::new(Box::new(CpuBackend::new(1).unwrap()), store).unwrap();
        let mut inputs = values(1.1);
        inputs.push(Array::scalar(0.4));
        let checked =
            Gradcheck::new().random_directions(2).check_params(&mut session, &ParamSet::default(), &inputs, |t, x| {
                let terms = model.params.iter().zip(x).map(|(param, g)| t.param(*param).dot(*g));
                let grads = terms.reduce(|a, b| a + b).unwrap().grad(&set(&model.params));
                let out = pass(&model.params, grads, x[x.len() - 1]);
                model
                    .params
                    .iter()
                    .map(|param| (out.get(*param).unwrap() * 1.5).sin().sum())
                    .reduce(|a, b| a + b)
                    .unwrap()
            });
        checked.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

/// Runs passes on given gradients of parameters with given values.
fn run(
    values: &[Array],
    gradients: &[Array],
    pass: impl for<'t> FnOnce(&[Param], Grads<'t>) -> Grads<'t>,
) -> Vec<Array> {
    let mut store = Store::new();
    let model = Linear::new(&mut store, values);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let grads = pass(&model.params, model.grads(t));
        for (i, param) in model.params.iter().enumerate() {
            t.tap(&format!("out{i}"), grads.get(*param).unwrap());
        }
    });
    let out = cpu.run(&step.unwrap(), &Linear::inputs(gradients));
    (0..gradients.len()).map(|i| out.tap(&format!("out{i}")).clone()).collect()
}

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

/// Gradients of both types, with zeros of both signs and numbers that are hardly any.
fn awkward() -> Vec<Array> {
    vec![
        Array::new([2, 3], vec![0.1f32, -0.0, 1e-40, -3.3, 1.0 / 3.0, 7e-3]),
        f32s(&[]),
        Array::new([2, 2], vec![0.3f64, -0.0, 1e-310, -0.7]),
        f32s(&[0.0, 0.25]),
        Array::new([], vec![-0.1f64]),
    ]
}

#[test]
fn what_does_not_act_changes_no_bit() {
    let passes: [(&str, Passes); 14] = [
        ("clip", |_, g| g.clip_by_global_norm(1e6)),
        ("clip, no bound", |_, g| g.clip_by_global_norm(f64::INFINITY)),
        ("clip 1", |_, g| g.clip_by_global_norm(ClipNorm::new(1e6).p(1.0))),
        ("clip 3", |_, g| g.clip_by_global_norm(ClipNorm::new(1e6).p(3.0).eps(0.0))),
        ("clip inf", |_, g| g.clip_by_global_norm(ClipNorm::new(1e6).p(f64::INFINITY))),
        ("groups", |p, g| g.clip_by_group_norm(&ClipGroups::new().group(&set(&p[..3]), 1e6).keep_rest())),
        ("groups inf", |p, g| g.clip_by_group_norm(&ClipGroups::per_parameter(&set(p), 1e6).p(f64::INFINITY))),
        ("rms", |_, g| g.clip_by_block_rms(1e6)),
        ("value", |_, g| g.clip_by_value(1e6)),
        ("agc", |_, g| g.agc(1e9)),
        ("agc per tensor", |_, g| g.agc_per_tensor(1e9, 1e-6, 1e-3)),
        ("centralize", |_, g| g.centralize_with(&Centralize::new().min_ndim(3))),
        ("scale", |p, g| g.scale_grad(&set(&p[..0]), 0.5)),
        ("checks", |_, g| g.check_finite()),
    ];
    for (name, pass) in passes {
        let out = run(&awkward(), &awkward(), pass);
        assert!(out.iter().zip(&awkward()).all(|(a, b)| same_bits(a, b)), "{name}: {out:?}");
    }
}

#[test]
fn what_is_left_out_keeps_even_what_is_not_finite() {
    let spoilt = [f32s(&[f32::NAN, 1.0]), Array::new([2, 2], vec![f32::INFINITY, -1.0, 0.5, 1.0]), f32s(&[3.0, 4.0])];
    let ones = spoilt.clone().map(|g| Array::new(g.shape(), vec![1.0f32; g.shape().numel()]));
    let passes: [(&str, Passes); 4] = [
        ("agc", |p, g| g.agc(Agc::new(0.01).exclude(&set(&p[..2])))),
        ("centralize", |p, g| g.centralize_with(&Centralize::new().exclude(&set(&p[..2])))),
        ("groups", |p, g| g.clip_by_group_norm(&ClipGroups::new().group(&set(&p[2..]), 1.0).keep_rest())),
        ("scale", |p, g| g.scale_grad(&set(&p[2..]), 0.5)),
    ];
    for (name, pass) in passes {
        let out = run(&ones, &spoilt, pass);
        assert!(out.iter().zip(&spoilt).take(2).all(|(a, b)| same_bits(a, b)), "{name}: {out:?}");
        assert!(name == "centralize" || !same_bits(&out[2], &spoilt[2]), "{name}: it acts on the others");
    }
}

#[test]
fn what_is_not_finite_spoils_what_the_table_says() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let g = [Array::new([3, 2], vec![nan, 1.0, inf, 1.0, 1.0, 2.0])];
    let w = [Array::new([3, 2], vec![1.0f32; 6])];
    let finite = |out: &[Array]| -> Vec<bool> { out[0].to_f64().iter().map(|v| v.is_finite()).collect() };
    // Adaptive clipping: a NaN its unit; an infinity becomes NaN, and the rest of its unit 0.
    let out = run(&w, &g, |_, g| g.agc(0.01));
    assert_eq!(finite(&out), [false, false, false, true, true, true]);
    let out = run(&w, &g, |_, g| g.centralize());
    assert_eq!(finite(&out), [false, false, false, false, true, true]);
    assert_eq!(out[0].to_f64()[4..], [-0.5, 0.5]);
    let out = run(&w, &g, |_, g| g.clip_by_value(0.5));
    assert!(out[0].to_f64()[0].is_nan());
    assert_eq!(out[0].to_f64()[1..], [0.5, 0.5, 0.5, 0.5, 0.5]);
    // A clip by norm spreads a NaN to all, and an infinity as zeros.
    let propagate = |g: &Array| {
        run(&w, std::slice::from_ref(g), |_, g| {
            g.clip_by_global_norm(ClipNorm::new(1.0).non_finite(NonFinite::Propagate))
        })
    };
    assert_eq!(finite(&propagate(&g[0])), [false; 6]);
    let infinite = Array::new([3, 2], vec![1.0f32, 1.0, inf, 1.0, 1.0, 2.0]);
    assert_eq!(finite(&propagate(&infinite)), [true, true, false, true, true, true]);
}

#[test]
fn a_policy_decides_whether_a_norm_makes_a_verdict() {
    for (policy, verdict) in [(NonFinite::Error, true), (NonFinite::Skip, true), (NonFinite::Propagate, false)] {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[1.0])]);
        let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
        let grads = model.grads(&tape).clip_by_global_norm(ClipNorm::new(1.0).non_finite(policy));
        assert_eq!(grads.verdict().is_some(), verdict);
    }
}

#[test]
fn nodes_of_a_pass_name_the_line_that_asks_for_it() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &values(1.0));
    let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let grads = model.grads(&tape);
    let line = line!() + 1;
    tape.tap("g", grads.agc(0.01).flat().tensors()[0]);
    let program = tape.finish();
    let pass = program.passes().iter().find(|pass| pass.name == "agc").expect("recorded");
    let nodes = &program.nodes()[pass.nodes.start as usize..pass.nodes.end as usize];
    assert!(!nodes.is_empty() && nodes.iter().all(|node| node.site.file() == file!() && node.site.line() == line));
}

#[test]
fn norms_of_any_order_neither_overflow_nor_vanish() {
    for p in [0.5, 1.0, 1.5, 2.0, 3.0, 8.0, f64::INFINITY] {
        for size in [1e30f32, 1e-30, 1e-42] {
            let gradients = [f32s(&[size, -size, size]), f32s(&[-size])];
            let mut store = Store::new();
            let model = Linear::new(&mut store, &gradients);
            let mut cpu = Machine::poisoned(1, store);
            let step = cpu.session.record(|t| t.tap("norm", model.grads(t).p_norm(p))).unwrap();
            let norm = cpu.run(&step, &Linear::inputs(&gradients)).tap("norm").item(0);
            let want = f64::from(size) * if p == f64::INFINITY { 1.0 } else { 4f64.powf(1.0 / p) };
            // The least that f32 can hold is 1.4e-45.
            assert!(relative_eq!(norm, want, epsilon = 3e-45, max_relative = 1e-5), "{p}, {size}: {norm} and {want}");
        }
    }
}

#[test]
fn misuse_is_refused_with_the_pass_and_the_parameter() {
    let refused = |pass: Passes, words: &[&str]| {
        let caught = std::panic::catch_unwind(|| {
            let mut store = Store::new();
            let model = Linear::new(&mut store, &[Array::zeros([2, 0], DType::F32), f32s(&[1.0])]);
            let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
            drop(pass(&model.params, model.grads(&tape)));
        });
        let message = caught.expect_err("it must panic").downcast::<String>().expect("a message");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refused(|_, g| g.clip_by_global_norm(ClipNorm::new(1.0).p(0.0)), &["clip_by_global_norm", "0-norm"]);
    refused(|_, g| g.clip_by_global_norm(ClipNorm::new(1.0).eps(-1.0)), &["eps", "-1"]);
    refused(|_, g| g.clip_by_value(-1.0), &["clip_by_value", "-1"]);
    refused(|_, g| g.clip_by_block_rms(0.0), &["threshold"]);
    refused(|_, g| g.agc(-1.0), &["agc", "clipping"]);
    refused(|p, g| g.agc(Agc::new(1.0).unit_dims(&set(p), 2)), &["p1", "2 dimensions"]);
    refused(|_, g| g.centralize(), &["p0", "no mean"]);
    refused(|_, g| g.centralize_with(&Centralize::new().min_ndim(1)), &["min_ndim"]);
    refused(|_, g| g.clip_by_group_norm(&ClipGroups::new()), &["no group"]);
    refused(|p, g| g.clip_by_group_norm(&ClipGroups::new().group(&set(&p[..1]), 1.0)), &["p1", "keep_rest"]);
    let twice: Passes = |p, g| g.clip_by_group_norm(&ClipGroups::new().group(&set(p), 1.0).group(&set(&p[1..]), 1.0));
    refused(twice, &["p1", "groups 0 and 1"]);
    let negative: Passes = |_, g| {
        let draw = given(&g);
        g.add_noise(Noise::fixed(-0.1), draw)
    };
    refused(negative, &["add_noise", "-0.1"]);
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn bounds_hold_in_the_order_that_the_passes_have(
        a in proptest::collection::vec(-3.0..3.0f64, 12),
        b in proptest::collection::vec(-3.0..3.0f64, 5),
        max_norm in 0.1..5.0f64,
    ) {
        let gradients = [Array::new([3, 4], a), Array::new([5], b)];
        let norm = |out: &[Array]| out.iter().flat_map(Array::to_f64).map(|v| v * v).sum::<f64>().sqrt();
        let largest = |out: &[Array]| out.iter().flat_map(Array::to_f64).fold(0.0, |a: f64, v| a.max(v.abs()));
        let clipped = |pass: Passes| run(&gradients, &gradients, pass);
        // Noise before the clip is bounded with the rest; a projection after it only shortens.
        let noisy = run(&gradients, &gradients, move |_, g| {
            let draw = given(&g);
            g.add_noise(Noise::fixed(2.0), draw).clip_by_global_norm(max_norm)
        });
        prop_assert!(norm(&noisy) <= max_norm);
        let centred = run(&gradients, &gradients, move |_, g| g.clip_by_global_norm(max_norm).centralize());
        prop_assert!(norm(&centred) <= max_norm * (1.0 + 1e-12));
        for row in centred[0].to_f64().chunks(4) {
            prop_assert!(abs_diff_eq!(row.iter().sum::<f64>(), 0.0, epsilon = 1e-12));
        }
        // Two clips leave both bounds in force.
        let both = clipped(|_, g| g.agc(0.1).clip_by_value(0.05));
        prop_assert!(largest(&both) <= 0.05);
        // Clipping twice by the same bound is clipping once, up to the eps.
        let once = run(&gradients, &gradients, move |_, g| g.clip_by_global_norm(ClipNorm::new(max_norm).eps(0.0)));
        let twice = run(&gradients, &gradients, move |_, g| {
            let clip = ClipNorm::new(max_norm).eps(0.0);
            g.clip_by_global_norm(clip).clip_by_global_norm(clip)
        });
        for (once, twice) in once.iter().zip(&twice) {
            compare("twice", &twice.to_f64(), &once.to_f64(), Tolerance(1e-14)).map_err(TestCaseError::fail)?;
        }
    }
}

#[test]
fn the_plan_gives_what_the_reference_gives() {
    for (name, pass) in ACTING {
        let mut store = Store::new();
        let (values, gradients) = (values(0.9), values(1.1));
        let model = Linear::new(&mut store, &values);
        let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
        let grads = pass(&model.params, model.grads(&tape));
        grads.flat().tensors().iter().for_each(|g| tape.tap("flat", *g));
        let (program, states) = (tape.finish(), store.layout().clone());
        assert_eq!(states.params().count(), SHAPES.len());
        let want = reference(&program, store.values(), &Linear::inputs(&gradients));
        let mut cpu = Machine::poisoned(2, store);
        let step = cpu.session.compile(program).unwrap();
        let have = cpu.run(&step, &Linear::inputs(&gradients)).outcome();
        for ((tap, _, have), (_, _, want)) in have.taps.iter().zip(&want.taps) {
            compare(&format!("{name}: {tap}"), have, want, Tolerance::F64).unwrap();
        }
    }
}

/// What clipping, adaptive clipping and centralization cost does not grow with the number of parameters.
#[test]
fn the_number_of_kernels_does_not_grow_with_the_parameters() {
    let kernels = |count: usize, passes: Passes| {
        let mut store = Store::new();
        let values: Vec<Array> = (0..count)
            .map(|i| if i % 2 == 0 { Array::zeros([8, 16], DType::F32) } else { Array::zeros([8], DType::F32) })
            .collect();
        let model = Linear::new(&mut store, &values);
        let arena = store.params().arenas(store.layout())[0];
        let gradient = store.state("gradient", &Array::zeros(&store.layout().state(arena).shape, DType::F32));
        let session = Session::new(Box::new(CpuBackend::new(1).unwrap()), store).unwrap();
        let tape = Tape::new(session.layout().clone());
        let loss = (tape.state(arena) * tape.state(gradient)).sum();
        let grads = passes(&model.params, loss.grad(&set(&model.params)));
        tape.assign(gradient, grads.flat().tensors()[0]);
        let (_, plan) = session.plan(&tape.finish());
        plan.kernels.len()
    };
    let added = |count: usize| {
        let all: Passes = |_, g| g.centralize().agc(0.01).clip_by_global_norm(1.0);
        kernels(count, all) - kernels(count, |_, g| g)
    };
    let (few, many) = (added(200), added(400));
    assert_eq!(few, many);
    assert!(many <= 10, "{many} kernels");
}
