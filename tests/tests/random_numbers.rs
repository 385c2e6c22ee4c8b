//! Random numbers: what they depend on, and what they do not; distributions; dropout; lints of numbers that repeat.

use approx::{abs_diff_eq, assert_abs_diff_eq};
use wgrad::{
    Array, DType, InProcess, Optimizer, Pitfall, Rng, Session, Step, Store, Tape, Tensor,
    op::Op,
    random::{fnv1a, stream_key, word},
};
use wgrad_nn::optim::{Sgd, SgdConfig};
use wgrad_tests::{Linear, Machine, reference};

const F32: DType = DType::F32;

/// What the CPU taps in each of some runs of a program over a store that holds one generator.
fn runs(seed: u64, runs: usize, record: impl Fn(&Tape, Rng)) -> Vec<Vec<(String, Array)>> {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", seed);
    let mut cpu = Machine::poisoned(2, store);
    let step = cpu.session.record(|t| record(t, rng)).expect("the plan compiles");
    (0..runs).map(|_| cpu.run(&step, &[]).taps).collect()
}

/// The values of one tensor in one run.
fn values(seed: u64, f: impl for<'t> Fn(&'t Tape, Rng) -> Tensor<'t>) -> Vec<f64> {
    runs(seed, 1, |t, rng| t.tap("y", f(t, rng)))[0][0].1.to_f64()
}

#[test]
fn words_are_a_function_of_key_stream_counter_and_index() {
    const N: usize = 100_003;
    let seed = 0x0123_4567_89ab_cdef;
    let taps = runs(seed, 3, |t, rng| {
        t.scoped("net", || t.scoped_turn("layer", 1, || t.tap("bits", rng.bits(t, [N]))));
        t.tap("square", rng.bits(t, [3, 3]));
        rng.advance(t);
    });
    for (counter, taps) in taps.iter().enumerate() {
        let key = |path: &str| stream_key([0x89ab_cdef, 0x0123_4567], fnv1a(path));
        for (k, path) in ["rng:net/layer[1]:0", "rng::0"].into_iter().enumerate() {
            let want = (0..[N, 9][k]).map(|i| word(key(path), counter as u32, i)).collect::<Vec<u32>>();
            assert_eq!(*taps[k].1.data(), want.into(), "{path}, run {counter}");
        }
    }
}

#[test]
fn the_reference_and_strided_keys_agree() {
    let t = Tape::default();
    let keys = t.input("keys", [5, 2], DType::U32);
    let counters = t.input("counters", [3], DType::U32);
    let key = keys.slice_step(0, 3, 2, -2).index(1, 1);
    t.tap("bits", t.random(key, counters.index(0, 2), 5, [2, 3]));
    let (program, range) = (t.finish(), |n: u32| (0..n).map(|i| i * 0x1357_9bdf).collect::<Vec<u32>>());
    let inputs =
        [("keys".to_string(), Array::new([5, 2], range(10))), ("counters".to_string(), Array::new([3], range(3)))];
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program.clone()).expect("the plan compiles");
    let have = cpu.run(&step, &inputs);
    let key = stream_key([range(10)[7], range(10)[3]], 5);
    let want: Vec<u32> = (0..6).map(|i| word(key, range(3)[2], i)).collect();
    assert_eq!(have.tap("bits").to_f64(), reference(&program, &[], &inputs).taps[0].2);
    assert_eq!(*have.tap("bits").data(), want.into());
}

#[test]
fn each_call_run_seed_and_generator_has_numbers_of_its_own() {
    let record = |t: &Tape, rng: Rng| {
        t.tap("a", rng.bits(t, [4]));
        t.tap("b", rng.bits(t, [4]));
        t.scoped("s", || t.tap("c", rng.bits(t, [4])));
        rng.advance(t);
        t.tap("d", rng.bits(t, [4]));
    };
    let mut seen: Vec<Array> = vec![];
    for seed in [1, 2, 1 << 32] {
        for taps in runs(seed, 2, record) {
            seen.extend(taps.into_iter().map(|(_, value)| value));
        }
    }
    let mut store = Store::new();
    let (first, second) = (Rng::new(&mut store, "first", 1), Rng::new(&mut store, "second", 1));
    let mut cpu = Machine::poisoned(1, store);
    seen.push(cpu.session.eval(&[], |t| first.bits(t, [4])).expect("runs"));
    seen.push(cpu.session.eval(&[], |t| second.bits(t, [4])).expect("runs"));
    for (i, a) in seen.iter().enumerate() {
        assert!(seen[..i].iter().all(|b| a != b), "{i}: {a:?}");
    }
    assert_eq!(runs(5, 2, record), runs(5, 2, record), "and they repeat");
}

#[test]
fn numbers_do_not_depend_on_what_else_is_on_the_tape() {
    let layer = |t: &Tape, rng: Rng| t.scoped("net", || t.scoped("layer", || t.tap("y", rng.bits(t, [5]))));
    let alone = runs(3, 2, |t, rng| {
        layer(t, rng);
        rng.advance(t);
    });
    let among = runs(3, 2, |t, rng| {
        t.scoped("net", || t.scoped("new", || t.tap("other", rng.normal(t, [3], F32))));
        t.tap("root", rng.bits(t, [5]));
        layer(t, rng);
        t.scoped("net", || t.tap("more", rng.bits(t, [5])));
        rng.advance(t);
    });
    for (alone, among) in alone.iter().zip(&among) {
        assert_eq!(alone[0], among[2]);
    }
}

#[test]
fn a_counter_that_is_written_back_repeats_a_run() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", 9);
    let mut cpu = Machine::poisoned(1, store);
    let record = |t: &Tape| {
        t.tap("y", rng.bits(t, [7]));
        rng.advance(t);
    };
    let step = cpu.session.record(record).expect("the plan compiles");
    cpu.run(&step, &[]);
    let saved = cpu.states();
    let next = cpu.run(&step, &[]).taps;
    assert_ne!(cpu.run(&step, &[]).taps, next);
    let ids: Vec<_> = cpu.session.layout().states().map(|(id, _)| id).collect();
    for (id, value) in ids.iter().zip(&saved) {
        cpu.session.write(*id, value).expect("written");
    }
    assert_eq!(cpu.run(&step, &[]).taps, next);
    // After the last count comes the first.
    cpu.session.write(ids[1], &Array::new([], vec![u32::MAX])).expect("written");
    assert_eq!(cpu.run(&step, &[]).states[1], Array::new([], vec![0u32]));
}

#[test]
fn a_checkpoint_recomputes_the_same_mask() {
    let record = |checkpointed: bool| {
        move |t: &Tape, rng: Rng| {
            let x = t.iota(12).cast(F32) * 0.3 - 1.0;
            let body = || x.sin().dropout(0.5, rng).exp().dropout(0.25, rng).tanh();
            let y = if checkpointed { t.checkpoint(body) } else { body() };
            rng.advance(t);
            t.tap("y", y);
            t.tap("dx", y.sum().grad_wrt(&[x])[0].expect("reached"));
        }
    };
    assert_eq!(runs(4, 3, record(true)), runs(4, 3, record(false)));
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", 4);
    let t = Tape::new(store.into_parts().0);
    record(true)(&t, rng);
    let program = t.finish();
    let live = program.live();
    let streams: Vec<u64> = (0..program.nodes().len())
        .filter(|&i| live[i])
        .filter_map(|i| match program.nodes()[i].op {
            Op::Random { stream, .. } => Some(stream),
            _ => None,
        })
        .collect();
    assert!(streams.len() == 4 && streams[..2] == streams[2..], "drawn once more, not kept: {streams:x?}");
    assert!(program.to_string().contains(&format!("random stream {:016x} rng/key, rng/counter", streams[0])));
}

fn moments(x: &[f64]) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64)
}

#[test]
fn uniform_numbers_are_uniform_in_every_float_type() {
    const N: usize = 40_000;
    for (dtype, digits) in [(DType::F16, 11), (F32, 24), (DType::F64, 32)] {
        let x = values(11, |t, rng| rng.uniform(t, [N], dtype));
        assert!(x.iter().all(|v| (0.0..1.0).contains(v) && (v * 2f64.powi(digits)).fract() == 0.0), "{dtype}");
        assert!(x.iter().any(|v| (v * 2f64.powi(digits - 1)).fract() != 0.0), "{dtype} has {digits} digits");
        let (mean, variance) = moments(&x);
        assert!(
            abs_diff_eq!(mean, 0.5, epsilon = 4.0 / (12.0 * N as f64).sqrt() + 2f64.powi(-digits)),
            "{dtype}: mean {mean}"
        );
        assert!(
            abs_diff_eq!(variance, 1.0 / 12.0, epsilon = 4.0 / (180.0 * N as f64).sqrt()),
            "{dtype}: variance {variance}"
        );
    }
}

#[test]
fn normal_numbers_are_normal() {
    const N: usize = 40_000;
    for dtype in [DType::F16, F32, DType::F64] {
        let x = values(12, |t, rng| rng.normal(t, [N], dtype));
        let (mean, variance) = moments(&x);
        assert!(abs_diff_eq!(mean, 0.0, epsilon = 4.0 / (N as f64).sqrt()), "{dtype}: mean {mean}");
        assert!(abs_diff_eq!(variance, 1.0, epsilon = 4.0 * (2.0 / N as f64).sqrt()), "{dtype}: variance {variance}");
        let along = x.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / (N as f64).sqrt();
        assert!(along.abs() < 4.0, "{dtype}: neighbours correlate, {along} deviations");
        for (bound, share) in [(1.0, 0.682_689), (2.0, 0.954_500), (3.0, 0.997_300)] {
            let have = x.iter().filter(|v| v.abs() < bound).count() as f64 / N as f64;
            let deviation = (share * (1.0 - share) / N as f64).sqrt();
            assert!(abs_diff_eq!(have, share, epsilon = 4.0 * deviation + 1e-3), "{dtype}: {have} within {bound}");
        }
        assert!(x.iter().all(|v| v.abs() < 6.7));
    }
}

#[test]
fn truth_has_its_probability() {
    const N: usize = 40_000;
    for p in [0.0, 1e-3, 0.25, 0.9, 1.0] {
        let mean = moments(&values(13, |t, rng| rng.bernoulli(t, p, [N]).cast(F32))).0;
        assert!(abs_diff_eq!(mean, p, epsilon = 4.0 * (p * (1.0 - p) / N as f64).sqrt()), "{p}: {mean}");
    }
}

#[test]
fn dropout_keeps_the_mean_and_its_gradient_has_the_mask() {
    const N: usize = 40_000;
    let taps = runs(14, 1, |t, rng| {
        let x = t.iota(N).cast(F32) * 0.0 + 3.0;
        let y = x.dropout(0.2, rng);
        t.tap("y", y);
        t.tap("dx", y.sum().grad_wrt(&[x])[0].expect("reached"));
    });
    let [y, dx] = [0, 1].map(|k| taps[0][k].1.to_f64());
    assert!(y.iter().all(|&v| v == 0.0 || abs_diff_eq!(v, 3.75, epsilon = 1e-6)));
    assert_abs_diff_eq!(moments(&y).0, 3.0, epsilon = 4.0 * 1.5 / (N as f64).sqrt());
    assert!(y.iter().zip(&dx).all(|(y, d)| abs_diff_eq!(y / 3.0, *d, epsilon = 1e-6)));
    assert!(
        values(14, |t, rng| t.iota(9).cast(F32).dropout(0.0, rng))
            .iter()
            .eq((0..9).map(f64::from).collect::<Vec<_>>().iter())
    );
}

#[test]
fn what_is_no_probability_is_refused() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", 4);
    let t = Tape::new(store.into_parts().0);
    let x = t.input("x", [2], F32);
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| _ = rng.bernoulli(&t, 1.5, [2])));
    assert!(panics(&|| _ = rng.bernoulli(&t, f64::NAN, [2])));
    assert!(panics(&|| _ = x.dropout(1.0, rng)));
    assert!(panics(&|| _ = rng.uniform(&t, [2], DType::U32)));
    assert!(panics(&|| _ = rng.normal(&t, [2], DType::Bool)));
}

/// The lints of what one session is given: of each program recorded, and of the session.
fn lints(
    record: impl Fn(&mut Session, Rng, &dyn Fn(&Tape, Tensor<'_>)) -> Vec<Step>,
) -> (Vec<Vec<Pitfall>>, Vec<Pitfall>) {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[Array::new([2], vec![0.5f32, 0.25])]);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let rng = Rng::new(&mut store, "rng", 7);
    let mut session = Machine::new(1, store).session;
    let step = |t: &Tape, noise: Tensor<'_>| sgd.step((model.loss(t) * noise.sum()).grad(&params).check_finite());
    let steps = record(&mut session, rng, &step);
    let pitfalls = |lints: &[wgrad::Lint]| {
        for lint in lints {
            assert!(lint.message.starts_with("\"rng\" "), "{lint}");
            assert!(lint.site.expect("a line").file().ends_with("random_numbers.rs"), "{lint}");
        }
        lints.iter().map(|lint| lint.pitfall).collect::<Vec<_>>()
    };
    (steps.iter().map(|step| pitfalls(step.lints())).collect(), pitfalls(session.lints()))
}

#[test]
fn a_training_program_that_draws_and_does_not_advance_is_told_of() {
    let told = |train: bool, advance: fn(Rng, &Tape)| {
        let record = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
            let program = session.record(|t| {
                let noise = rng.normal(t, [2], F32);
                if train {
                    step(t, noise)
                } else {
                    t.tap("noise", noise)
                }
                advance(rng, t);
            });
            vec![program.expect("compiles")]
        };
        lints(record).0.remove(0)
    };
    assert_eq!(told(true, |_, _| {}), [Pitfall::RepeatedDraws]);
    assert_eq!(told(true, |rng, t| rng.advance(t)), []);
    assert_eq!(told(true, |rng, t| rng.advance_if(t.input("odd", [], DType::Bool))), []);
    assert_eq!(told(false, |_, _| {}), [], "what only looks may look again");
    // Meant.
    let meant = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        vec![session.record(|t| step(t, rng.repeating().normal(t, [2], F32))).expect("compiles")]
    };
    assert_eq!(lints(meant), (vec![vec![]], vec![]));
    // Another program moves it on.
    let elsewhere = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        let moves = session.record(|t| rng.advance(t)).expect("compiles");
        vec![moves, session.record(|t| step(t, rng.normal(t, [2], F32))).expect("compiles")]
    };
    assert_eq!(lints(elsewhere), (vec![vec![], vec![]], vec![]));
    // What nothing needs is not drawn.
    let unused = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        let program = session.record(|t| {
            let _ = rng.normal(t, [2], F32);
            step(t, t.full([2], 1.0, F32));
        });
        vec![program.expect("compiles")]
    };
    assert_eq!(lints(unused), (vec![vec![]], vec![]));
}

#[test]
fn programs_that_draw_the_same_are_told_of() {
    let trained = |t: &Tape, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        step(t, rng.normal(t, [2], F32));
        rng.advance(t);
    };
    let looked_first = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        session.eval(&[], |t| rng.normal(t, [2], F32)).expect("runs");
        vec![session.record(|t| trained(t, rng, step)).expect("compiles")]
    };
    // Two words make a normal number.
    assert_eq!(lints(looked_first).1.first(), Some(&Pitfall::SharedDraws));
    assert_eq!(lints(looked_first).0, [[Pitfall::SharedDraws]]);
    let trained_first = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
        let program = session.record(|t| trained(t, rng, step)).expect("compiles");
        for _ in 0..3 {
            session.eval(&[], |t| rng.normal(t, [2], F32)).expect("runs");
        }
        vec![program]
    };
    assert_eq!(lints(trained_first), (vec![vec![]], vec![Pitfall::SharedDraws]));
    type Look = for<'t> fn(&'t Tape, Rng) -> Tensor<'t>;
    let sound: [Look; 3] = [
        |t, rng| {
            let seen = rng.normal(t, [2], F32);
            rng.advance(t);
            seen
        },
        |t, rng| t.scoped("look", || rng.normal(t, [2], F32)),
        |t, rng| rng.repeating().normal(t, [2], F32),
    ];
    for look in sound {
        let record = |session: &mut Session, rng: Rng, step: &dyn Fn(&Tape, Tensor<'_>)| {
            session.eval(&[], |t| look(t, rng)).expect("runs");
            let programs = [0, 1].map(|_| session.record(|t| trained(t, rng, step)).expect("compiles"));
            session.eval(&[], |t| look(t, rng)).expect("runs");
            programs.into()
        };
        assert_eq!(lints(record), (vec![vec![], vec![]], vec![]));
    }
    // Two looks may see the same.
    let twice = |session: &mut Session, rng: Rng, _: &dyn Fn(&Tape, Tensor<'_>)| {
        (0..2).for_each(|_| drop(session.eval(&[], |t| rng.normal(t, [2], F32)).expect("runs")));
        vec![]
    };
    assert_eq!(lints(twice), (vec![], vec![]));
}

/// Dropout with one seed for all ranks drops the same units; noise must be the same.
#[test]
fn ranks_that_draw_the_same_are_told_of_by_their_first_run() {
    type Draw = for<'t> fn(&'t Tape, Rng, usize) -> Tensor<'t>;
    let told = |seed: fn(usize) -> u64, draw: Draw| {
        let told: Vec<_> = std::thread::scope(|scope| {
            let run = |rank: InProcess| {
                let r = wgrad::Collective::rank(&rank);
                let mut store = Store::new();
                let model = Linear::new(&mut store, &[Array::new([2], vec![0.5f32, 0.25])]);
                let params = store.params();
                let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
                let (rng, noise) = (Rng::new(&mut store, "rng", seed(r)), Rng::new(&mut store, "noise", 7));
                let mut cpu = Machine::new(1, store).as_rank(rank);
                let step = cpu.session.record(|t| {
                    let g = (model.loss(t) * draw(t, rng, r).sum()).grad(&params);
                    sgd.step(g.all_reduce().check_finite().add_noise(wgrad::Noise::fixed(0.1), noise));
                    rng.advance(t);
                });
                let step = step.expect("compiles");
                assert_eq!(step.lints(), []);
                for _ in 0..2 {
                    let inputs = Linear::inputs(&[Array::new([2], vec![1.0f32, 2.0])]);
                    cpu.session.run(&step, &wgrad_tests::named(&inputs)).expect("runs");
                }
                assert_eq!(step.lints(), cpu.session.lints());
                step.lints().iter().map(|lint| lint.pitfall).collect::<Vec<_>>()
            };
            let ranks: Vec<_> = InProcess::world(2).into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        assert_eq!(told[0], told[1]);
        told[0].clone()
    };
    let plain: Draw = |t, rng, _| rng.normal(t, [2], F32);
    assert_eq!(told(|_| 7, plain), [Pitfall::SameDrawsOnRanks]);
    assert_eq!(told(|rank| 7 + rank as u64, plain), []);
    assert_eq!(told(|_| 7, |t, rng, _| rng.repeating().normal(t, [2], F32)), []);
    assert_eq!(told(|_| 7, |t, rng, rank| t.scoped(&format!("rank{rank}"), || rng.normal(t, [2], F32))), []);
}
