//! Replicas that train together, as threads: the same parameters on all, and those of one that has the whole batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use wgrad::{
    Accumulator, Array, ClipNorm, Collective, DType, Data, DynamicScale, Error, FiniteGuard, Grads, InProcess,
    LossScaler, Noise, OnGiveUp, Optimizer, Param, ParamSet, Pitfall, Rng, Scaled, Store, Tape, Weighting,
    collective::{Difference, Exchange, Stamp, Way, exchange},
    op::Reduce,
    plan::Grouping,
};
use wgrad_nn::optim::{AdamW, AdamWConfig, Sgd, SgdConfig};
use wgrad_tests::{Linear, Machine, Mlp, Tolerance, compare, named, same_bits};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

/// The result of each rank, each on a thread of its own.
fn world<R: Send>(ranks: usize, f: impl Fn(InProcess) -> R + Sync) -> Vec<R> {
    let f = &f;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// Replaces data by its reduction over all ranks.
fn all_reduce(rank: &mut InProcess, reduce: Reduce, data: &mut Data) -> wgrad::Result<()> {
    let mut part = [Exchange { way: Way::Reduce(reduce), data: data.clone() }];
    exchange(rank, &mut part)?;
    let [Exchange { data: all, .. }] = part;
    *data = all;
    Ok(())
}

/// The number of the pitfall that recording is refused for.
fn refused(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it must be refused");
    panic.downcast::<String>().expect("a message").split(':').next().unwrap_or_default().to_string()
}

/// Five updates of a perceptron, of which each rank sees some rows, weighted by their number.
fn trained(rank: InProcess, dtype: DType, grouping: Option<Grouping>, scaler_first: bool) -> Vec<Array> {
    // As even as 7 rows allow, in order.
    let (r, n) = (rank.rank(), rank.ranks());
    let rows = 7 * r / n..7 * (r + 1) / n;
    let mut store = Store::new();
    let model = Mlp::new(&mut store, dtype);
    let params = model.params();
    let acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", Weighting::TokenWeighted);
    let scaler = LossScaler::dynamic(&mut store, DynamicScale { interval: 2, ..DynamicScale::default() });
    let noise = Rng::new(&mut store, "noise", 5);
    let adam = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let mut cpu = Machine::poisoned(1, store);
    if let Some(grouping) = grouping {
        cpu = cpu.grouped(&grouping);
    }
    let mut cpu = cpu.as_rank(rank);
    let add = cpu.session.record(|t| {
        let (x, y) = model.inputs(t);
        let [x, y] = [x, y].map(|all| all.slice(0, rows.start, rows.len()));
        let loss = model.loss_of(t, x, y);
        acc.add_tokens(scaler.scale(loss).grad(&params), t.scalar(rows.len() as f64, DType::U32));
    });
    let update = cpu.session.record(|t| {
        let g = acc.take(t);
        let g = match scaler_first {
            true => g.unscale(&scaler).all_reduce(),
            false => g.all_reduce().unscale(&scaler),
        };
        adam.step(g.add_noise(Noise::fixed(0.01), noise).centralize().clip_by_global_norm(0.5));
        scaler.update(t);
    });
    let [add, update] = [add, update].map(|step| step.expect("compiles"));
    for salt in 0..5 {
        cpu.run(&add, &model.batch(salt));
        cpu.run(&update, &[]);
    }
    cpu.session.check_replicas().expect("the ranks agree");
    cpu.states()
}

#[test]
fn ranks_are_one_session_with_the_large_batch() {
    for dtype in [DType::F32, DType::F64] {
        let tolerance = if dtype == DType::F64 { Tolerance(1e-12) } else { Tolerance(1e-5) };
        for scaler_first in [false, true] {
            let alone = world(1, |rank| trained(rank, dtype, None, scaler_first)).remove(0);
            for ranks in [1, 2, 3] {
                for grouping in [None, Some(Grouping::none())] {
                    let all = world(ranks, |rank| trained(rank, dtype, grouping.clone(), scaler_first));
                    for (i, state) in alone.iter().enumerate() {
                        assert!(all.iter().all(|states| same_bits(&states[i], &all[0][i])), "state {i} on all ranks");
                        compare(&format!("state {i}"), &all[0][i].to_f64(), &state.to_f64(), tolerance).unwrap();
                    }
                }
            }
        }
    }
}

/// In the order of the ranks, as on one tape: the same bits.
#[test]
fn ranks_add_up_as_replicas_on_one_tape_do() {
    let gradients: Vec<Array> =
        (0..3).map(|r| f32s(&[1.0e7 / (r + 1) as f32, 0.1 + r as f32, -3.0e-8 * r as f32])).collect();
    for weighting in [Weighting::Mean, Weighting::TokenWeighted] {
        // Adds rank r's gradient, of 3 r + 1 tokens.
        let add = |t: &Tape, acc: &Accumulator, g: Grads<'_>, r: usize| match weighting {
            Weighting::TokenWeighted => acc.add_tokens(g, t.scalar((3 * r + 1) as f64, DType::U32)),
            _ => acc.add(g),
        };
        let mut store = Store::new();
        let p = store.param("p", &f32s(&[0.0; 3]));
        let params = store.params();
        let accs: Vec<Accumulator> =
            (0..3).map(|r| Accumulator::new(&mut store, &params, &format!("acc{r}"), weighting)).collect();
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let rank = |(r, acc): (usize, &Accumulator)| {
                add(t, acc, t.param(p).dot(t.input(&format!("g{r}"), [3], DType::F32)).grad(&params), r);
            };
            accs.iter().enumerate().for_each(rank);
            let [a, b, c] = [0, 1, 2].map(|r| accs[r].take(t));
            t.tap("g", a.all_reduce_on_tape(&[b, c]).get(p).unwrap());
        });
        let on_tape = cpu.run(&step.unwrap(), &Linear::inputs(&gradients)).tap("g").clone();
        for threads in [1, 3] {
            let all = world(3, |rank| {
                let r = rank.rank();
                let mut store = Store::new();
                let model = Linear::new(&mut store, &[f32s(&[0.0; 3])]);
                let acc = {
                    let params = store.params();
                    Accumulator::new(&mut store, &params, "acc", weighting)
                };
                let mut cpu = Machine::splitting(threads, store).as_rank(rank);
                let step = cpu.session.record(|t| {
                    add(t, &acc, model.grads(t), r);
                    t.tap("g", acc.take(t).all_reduce().get(model.params[0]).unwrap());
                });
                cpu.run(&step.unwrap(), &Linear::inputs(&gradients[r..=r])).tap("g").clone()
            });
            assert!(all.iter().all(|g| same_bits(g, &on_tape)), "{all:?} {on_tape:?}");
        }
    }
}

#[test]
fn a_nan_on_one_rank_skips_the_step_on_all() {
    type Pipeline = for<'t> fn(Grads<'t, Scaled>, &LossScaler, &FiniteGuard) -> Grads<'t>;
    let pipelines: [(&str, Pipeline); 4] = [
        ("reduce first", |g, scaler, _| g.all_reduce().unscale(scaler)),
        ("unscale first", |g, scaler, _| g.unscale(scaler).all_reduce()),
        ("a guard", |g, scaler, guard| g.unscale(scaler).skip_if_not_finite(guard).all_reduce()),
        ("the clip", |g, scaler, _| g.all_reduce().unscale(scaler).clip_by_global_norm(ClipNorm::new(1.0))),
    ];
    for (name, pipeline) in pipelines {
        for bad in [f32::NAN, f32::INFINITY] {
            let skipped = world(3, |rank| {
                let r = rank.rank();
                let mut store = Store::new();
                let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
                let params = store.params();
                let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
                let guard = FiniteGuard::new(&mut store, "guard", None, OnGiveUp::default());
                let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
                let mut cpu = Machine::poisoned(1, store).as_rank(rank);
                let step = cpu.session.record(|t| {
                    adam.step(pipeline(scaler.scale(model.loss(t)).grad(&params), &scaler, &guard));
                    scaler.update(t);
                });
                let step = step.unwrap();
                let mut run = |value: f32| cpu.run(&step, &Linear::inputs(&[f32s(&[value, 1.0])])).states;
                let first = run(1.0);
                let second = run(if r == 1 { bad } else { 1.0 });
                let third = run(1.0);
                (first, second, third)
            });
            for (first, second, third) in &skipped {
                let changed: Vec<usize> = (0..first.len()).filter(|&i| !same_bits(&first[i], &second[i])).collect();
                // The scale, its tracker; of a guard its counters.
                let most = if name == "a guard" { 5 } else { 2 };
                assert!(!changed.contains(&0) && (1..=most).contains(&changed.len()), "{name}: {changed:?}");
                assert!(!same_bits(&second[0], &third[0]), "{name}: then it goes on");
                let same = third.iter().zip(&skipped[0].2).all(|(a, b)| same_bits(a, b));
                assert!(same, "{name}: every state is the same on all ranks");
            }
        }
    }
}

/// A rank with a model whose gradient is given, and a program that reduces it and steps.
struct Rank {
    cpu: Machine,
    step: wgrad::Step,
    param: Param,
}

impl Rank {
    fn new(rank: InProcess) -> Self {
        let mut store = Store::new();
        let param = store.param("p", &f32s(&[0.5, 0.25]));
        let params = store.params();
        let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
        let mut cpu = Machine::poisoned(1, store).as_rank(rank);
        let step = cpu.session.record(|t| {
            let p = t.param(param);
            let loss = p.dot(t.input("g", [2], DType::F32)) + p.gather(t.input("i", [1], DType::U32), 0).sum();
            adam.step(loss.grad(&params).all_reduce().clip_by_global_norm(1.0));
        });
        Self { cpu, step: step.expect("compiles"), param }
    }

    fn run(&mut self, index: u32) -> wgrad::Result<u64> {
        let inputs = [("g".to_string(), f32s(&[1.0, 2.0])), ("i".to_string(), Array::new([1], vec![index]))];
        self.cpu.session.run(&self.step, &named(&inputs))
    }
}

#[test]
fn a_rank_that_is_lost_is_an_error_on_the_others_and_nothing_changes() {
    for lost in 0..3 {
        world(3, |rank| {
            let r = rank.rank();
            let mut rank = Rank::new(rank);
            rank.run(0).expect("all are there");
            if r == lost {
                return;
            }
            let before = rank.cpu.states();
            for _ in 0..2 {
                assert!(matches!(rank.run(0), Err(Error::RankLost { rank }) if rank == lost));
            }
            assert!(rank.cpu.states_are(&before));
            assert!(matches!(rank.cpu.session.check_replicas(), Err(Error::RankLost { .. })));
        });
    }
}

#[test]
fn a_run_that_fails_on_one_rank_fails_on_all_and_then_they_go_on() {
    let states = world(3, |rank| {
        let r = rank.rank();
        let mut rank = Rank::new(rank);
        rank.run(0).expect("all are there");
        let before = rank.cpu.states();
        for bad in [1, 0, 2] {
            // Out of range, before the exchange.
            let result = rank.run(if r == bad { 9 } else { 0 });
            match result {
                Err(Error::IndexOutOfRange { .. }) => assert_eq!(r, bad),
                Err(Error::RankFailed { rank }) => assert!(r != bad && rank == bad, "{rank}"),
                other => panic!("{other:?}"),
            }
            assert!(rank.cpu.states_are(&before), "nothing has changed");
        }
        // Refused before anything runs, on one rank, and on all.
        let step = rank.step.clone();
        let missing = rank.cpu.session.run(&step, &[]);
        assert!(matches!(missing, Err(Error::MissingInput { .. })));
        let result = if r == 0 { rank.cpu.session.run(&step, &[]) } else { rank.run(0) };
        assert!(matches!(result, Err(Error::MissingInput { .. } | Error::RankFailed { rank: 0 })), "{result:?}");
        assert!(rank.cpu.states_are(&before));
        rank.run(1).expect("all are well");
        rank.cpu.states()
    });
    assert!(states.iter().all(|rank| rank.iter().zip(&states[0]).all(|(a, b)| same_bits(a, b))));
}

#[test]
fn ranks_that_differ_are_found_out_on_all() {
    world(2, |rank| {
        let r = rank.rank();
        let mut store = Store::new();
        let [a, b] = ["a", "b"].map(|name| store.param(name, &f32s(&[0.5, 0.25])));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let mut cpu = Machine::poisoned(1, store).as_rank(rank);
        let mut refused = |record: &dyn Fn(&Tape)| {
            let step = cpu.session.record(record).expect("compiles");
            let before = cpu.states();
            let result = cpu.session.run(&step, &[]);
            assert!(cpu.states_are(&before));
            result.expect_err("the ranks differ")
        };
        let of = |t: &Tape, present: Param| sgd.step(t.param(present).sum().grad(&params).all_reduce());
        let error = refused(&|t| of(t, if r == 0 { a } else { b }));
        assert!(matches!(error, Error::Pitfall { pitfall: Pitfall::MissingGradient, .. }), "{error}");
        let error = refused(&|t| match r {
            0 => of(t, a),
            _ => t.tap("sum", t.scalar(1.0, DType::F32).sum_over_ranks()),
        });
        assert_eq!(error.to_string(), "rank 1 runs another program than rank 0");
        let step = cpu.session.record(|t| of(t, a)).expect("compiles");
        cpu.session.run(&step, &[]).expect("they agree");
    });
}

/// A parameter's name, length and first value on a rank, and the learning rate there.
type Of = fn(usize) -> (&'static str, usize, f32, f64);

/// Two ranks that differ in one thing, from their first run on.
#[test]
fn a_wrong_world_is_refused_by_name() {
    let cases: [(&str, Of); 5] = [
        ("rank 1 declares other parameters than rank 0", |r| (["p", "q"][r], 2, 0.5, 0.1)),
        ("rank 1 declares other parameters than rank 0", |r| ("p", 2 + r, 0.5, 0.1)),
        ("rank 1 runs another program than rank 0", |r| ("p", 2, 0.5, [0.1, 0.2][r])),
        (
            "P45: replicas have drifted apart; make the verdict, the clip and the noise equal on all ranks (rank 1 has other \
         values of parameters than rank 0)",
            |r| ("p", 2, [0.5, 0.25][r], 0.1),
        ),
        ("", |_| ("p", 2, 0.5, 0.1)),
    ];
    for (want, of) in cases {
        let errors = world(2, |rank| {
            let (name, len, value, lr) = of(rank.rank());
            let mut store = Store::new();
            let p = store.param(name, &f32s(&vec![value; len]));
            let params = store.params();
            let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() });
            let mut cpu = Machine::poisoned(1, store).as_rank(rank);
            let step = cpu.session.record(|t| sgd.step(t.param(p).sum().grad(&params).all_reduce().check_finite()));
            let before = cpu.states();
            let result = cpu.session.run(&step.expect("compiles"), &[]);
            assert_eq!(result.is_err(), cpu.states_are(&before));
            result.err().map_or(String::new(), |error| error.to_string())
        });
        assert_eq!(errors, [want, want]);
    }
}

/// A drift is found in the run that compares, and not before.
#[test]
fn parameters_are_compared_now_and_then() {
    for every in [1, 3] {
        world(2, |rank| {
            let r = rank.rank();
            let mut rank = Rank::new(rank);
            rank.cpu.session.check_replicas_every(every);
            rank.run(0).expect("the same bits");
            if r == 1 {
                rank.cpu.session.write_param(rank.param, &f32s(&[0.5, 0.125])).expect("writable");
            }
            for run in 1..=every {
                let result = rank.run(0);
                match result {
                    Ok(_) => assert!(run < every, "run {run}"),
                    Err(Error::Pitfall { pitfall: Pitfall::ReplicaDrift, .. }) => assert_eq!(run, every),
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }
}

/// An exchange that differs changes no value, and names the first difference; after it the ranks go on.
#[test]
fn stamps_are_compared_before_values() {
    for difference in Difference::ALL {
        world(3, |mut rank| {
            let data = Data::F32(vec![rank.rank() as f32]);
            let mut part = [Exchange { way: Way::Gather(3), data: data.clone() }];
            let mut stamp = Stamp::default();
            stamp.set(difference, 1 + u64::from(rank.rank() == 2));
            let error = rank.exchange(stamp, &mut part).expect_err("they differ").to_string();
            assert!(error.contains(&format!("rank 2 {difference} rank 0")), "{error}");
            part[0].data = data;
            exchange(&mut rank, &mut part).expect("they agree");
            assert_eq!(part[0].data, Data::F32(vec![0.0, 1.0, 2.0]));
        });
    }
}

/// The stretches of a sum, and all values of the ranks.
#[test]
fn sums_are_scattered_and_values_gathered() {
    let all = world(2, |mut rank| {
        let r = rank.rank() as f32;
        let data = Data::F32(vec![r, 1.0, 2.0 * r, 3.0]);
        let mut parts = [Way::Scatter(2), Way::Gather(2)].map(|way| Exchange { way, data: data.clone() });
        exchange(&mut rank, &mut parts).expect("all have met");
        parts.map(|part| part.data.to_f64())
    });
    let whole = vec![0.0, 1.0, 0.0, 3.0, 1.0, 1.0, 2.0, 3.0];
    assert_eq!(all, [[vec![1.0, 2.0], whole.clone()], [vec![2.0, 6.0], whole]]);
}

#[test]
fn noise_has_one_seed_on_all_ranks() {
    world(2, |rank| {
        let r = rank.rank() as u64;
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
        let params = store.params();
        let rngs = [Rng::new(&mut store, "own", r), Rng::new(&mut store, "common", 7)];
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let mut cpu = Machine::poisoned(1, store).as_rank(rank);
        let mut run = |rng: Rng| {
            let step = cpu.session.record(|t| {
                sgd.step(model.loss(t).grad(&params).all_reduce().check_finite().add_noise(Noise::fixed(0.1), rng));
            });
            let step = step.expect("compiles");
            let inputs = Linear::inputs(&[f32s(&[1.0, 2.0])]);
            let before = cpu.states();
            let results = [(); 2].map(|()| cpu.session.run(&step, &named(&inputs)));
            (results.into_iter().collect::<wgrad::Result<Vec<u64>>>(), cpu.states_are(&before))
        };
        let (result, same) = run(rngs[0]);
        assert!(
            matches!(result, Err(Error::Pitfall { pitfall: Pitfall::NoiseOfOneReplica, .. })) && same,
            "{result:?}"
        );
        assert!(run(rngs[1]).0.is_ok());
    });
}

/// More ranks than there is data: those without have nothing to say.
#[test]
fn ranks_without_tokens_do_not_count() {
    for (tokens, want) in [([2u32, 0, 6], Some(2.5)), ([0, 0, 1], Some(3.0)), ([0, 0, 0], None)] {
        let all = world(3, |rank| {
            let r = rank.rank();
            let mut store = Store::new();
            let model = Linear::new(&mut store, &[f32s(&[0.0])]);
            let params = store.params();
            let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::TokenWeighted);
            let mut cpu = Machine::poisoned(1, store).as_rank(rank);
            let step = cpu.session.record(|t| {
                acc.add_tokens(model.grads(t), t.input("n", [], DType::U32));
                let g = acc.take(t).check_finite().all_reduce();
                t.tap("g", g.get(model.params[0]).unwrap());
                t.tap("verdict", g.verdict().unwrap());
            });
            // A mean over nothing is NaN.
            let value = if tokens[r] == 0 { f32::NAN } else { (r + 1) as f32 };
            let mut inputs = Linear::inputs(&[f32s(&[value])]);
            inputs.push(("n".into(), Array::new([], vec![tokens[r]])));
            let out = cpu.run(&step.expect("compiles"), &inputs);
            (out.tap("g").item(0), out.tap("verdict").item(0) == 1.0)
        });
        for (g, verdict) in all {
            assert_eq!(verdict.then_some(g), want, "{tokens:?}");
        }
    }
}

#[test]
fn replicas_that_drift_apart_are_found_out_on_all() {
    world(3, |rank| {
        let r = rank.rank();
        let mut rank = Rank::new(rank);
        rank.run(0).expect("all are there");
        rank.cpu.session.check_replicas().expect("the same bits");
        let mut value = rank.cpu.session.read_param(rank.param).expect("readable").to_f64();
        if r == 2 {
            value[1] += 1e-7;
        }
        let value = f32s(&value.iter().map(|v| *v as f32).collect::<Vec<f32>>());
        rank.cpu.session.write_param(rank.param, &value).expect("writable");
        let error = rank.cpu.session.check_replicas().expect_err("they differ");
        assert!(matches!(error, Error::Pitfall { pitfall: Pitfall::ReplicaDrift, .. }), "{error}");
        assert!(error.to_string().starts_with("P45: "), "{error}");
    });
}

/// A parameter of two elements, with its optimizer.
fn two() -> (Store, Param, ParamSet, Sgd) {
    let mut store = Store::new();
    let p = store.param("p", &f32s(&[1.0, -2.0]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    (store, p, params, sgd)
}

#[test]
fn what_works_on_local_gradients_is_refused_while_it_is_recorded() {
    let (store, p, params, sgd) = two();
    let layout = std::sync::Arc::new(store.layout().clone());
    let t = Tape::for_ranks(layout.clone(), 2);
    let g = || t.param(p).square().sum().grad(&params);
    assert_eq!(refused(|| sgd.step(g())), "P49");
    assert_eq!(refused(|| drop(g().clip_by_global_norm(1.0))), "P8");
    assert_eq!(refused(|| drop(g().agc(0.1))), "P8");
    sgd.step(g().all_reduce().agc(0.1).clip_by_global_norm(1.0));
    sgd.step(g().local_clip().clip_by_global_norm(1.0).all_reduce());
    assert_eq!(refused(|| sgd.step(g().local_clip().clip_by_global_norm(1.0))), "P49");
    // On one tape, the replicas are judged when they meet.
    let t = Tape::new(layout);
    let g = || t.param(p).square().sum().grad(&params);
    assert_eq!(refused(|| drop(g().all_reduce_on_tape(&[g().clip_by_global_norm(1.0)]))), "P8");
    assert_eq!(refused(|| drop(g().clip_by_global_norm(1.0).all_reduce_on_tape(&[g()]))), "P8");
    let clipped = || g().local_clip().clip_by_global_norm(1.0);
    sgd.step(clipped().all_reduce_on_tape(&[clipped()]));
}

#[test]
fn gradients_flow_through_the_exchange() {
    let slopes = world(2, |rank| {
        let r = rank.rank() as f64;
        let mut cpu = Machine::poisoned(1, Store::new()).as_rank(rank);
        let step = cpu.session.record(|t| {
            let x = t.input("x", [2], DType::F64);
            // Each rank has a loss of its own: y is 4, and the slopes of the losses by it are 1 and 2.
            let y = (x * x).sum_over_ranks();
            let loss = (y * (r + 1.0)).sum();
            t.tap("y", y);
            t.tap("dx", loss.grad_wrt(&[x])[0].expect("reached"));
        });
        let out = cpu.run(&step.unwrap(), &[("x".into(), Array::new([2], vec![r + 1.0, 3.0]))]);
        (out.tap("y").to_f64(), out.tap("dx").to_f64())
    });
    // d(sum of losses)/dx_r = (1 + 2) 2 x_r
    assert_eq!(slopes, [(vec![5.0, 18.0], vec![6.0, 18.0]), (vec![5.0, 18.0], vec![12.0, 18.0])]);
}

#[test]
fn every_type_is_reduced_and_f16_is_rounded_once() {
    let half = |values: &[f64]| Data::from_f64(DType::F16, values);
    let brought = [
        (
            Reduce::Sum,
            half(&[40000.0, 2048.0]),
            half(&[-40000.0, 1.0]),
            half(&[30000.0, 1.0]),
            half(&[30000.0, 2050.0]),
        ),
        (
            Reduce::Max,
            Data::F32(vec![1.0, f32::NAN]),
            Data::F32(vec![3.0, 0.0]),
            Data::F32(vec![f32::NAN, 1.0]),
            Data::F32(vec![f32::NAN; 2]),
        ),
        (Reduce::Sum, Data::I32(vec![-4]), Data::I32(vec![1]), Data::I32(vec![1]), Data::I32(vec![-2])),
        (Reduce::Max, Data::U32(vec![4]), Data::U32(vec![7]), Data::U32(vec![1]), Data::U32(vec![7])),
        (
            Reduce::Max,
            Data::Bool(vec![false; 2]),
            Data::Bool(vec![true, false]),
            Data::Bool(vec![false; 2]),
            Data::Bool(vec![true, false]),
        ),
    ];
    for (reduce, a, b, c, want) in brought {
        let all = world(3, |mut rank| {
            let mut data = [&a, &b, &c][rank.rank()].clone();
            all_reduce(&mut rank, reduce, &mut data).expect("all have met");
            data
        });
        for data in all {
            assert!(
                same_bits(&Array::new([data.len()], data.clone()), &Array::new([want.len()], want.clone())),
                "{data:?}"
            );
        }
    }
    let failed = world(2, |mut rank| {
        let mut data = if rank.rank() == 0 { Data::F32(vec![1.0]) } else { Data::F32(vec![1.0, 2.0]) };
        all_reduce(&mut rank, Reduce::Sum, &mut data).is_err()
    });
    assert_eq!(failed, [true, true]);
}

#[test]
fn programs_are_for_a_number_of_ranks() {
    world(2, |rank| {
        let mut cpu = Machine::poisoned(1, Store::new());
        let alone = cpu.session.record(|t| t.tap("one", t.scalar(1.0, DType::F32))).expect("compiles");
        let mut cpu = cpu.as_rank(rank);
        assert_eq!(cpu.session.ranks(), 2);
        assert!(matches!(cpu.session.run(&alone, &[]), Err(Error::ForeignProgram { .. })));
        let t = Tape::default();
        t.tap("one", t.scalar(1.0, DType::F32));
        let foreign = cpu.session.compile(t.finish()).err();
        assert!(matches!(foreign, Some(Error::OtherRanks { recorded: 1, ranks: 2 })), "{foreign:?}");
    });
}

/// What one printed program shows: values go out together, once.
#[test]
fn everything_is_exchanged_at_one_stop() {
    let mut store = Store::new();
    let params = [DType::F32, DType::F64].map(|dtype| store.param(&format!("{dtype}"), &f32s(&[1.0, 2.0]).cast(dtype)));
    let all = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &all, "acc", Weighting::TokenWeighted);
    let sgd = Sgd::new(&mut store, &all, SgdConfig::default());
    let t = Tape::for_ranks(std::sync::Arc::new(store.layout().clone()), 4);
    let loss = t.param(params[0]).sum() + t.param(params[1]).cast(DType::F32).sum();
    acc.add_tokens(loss.grad(&all), t.scalar(3.0, DType::U32));
    sgd.step(acc.take(&t).all_reduce().clip_by_global_norm(1.0));
    let program = t.finish();
    let text = program.to_string();
    assert!(text.contains("all_reduce by sum of"), "{text}");
    for grouping in [Grouping::default(), Grouping::none()] {
        let plan = wgrad::plan::Plan::with(&program, &grouping);
        let exchanges = plan.exchanges();
        // Two arenas, the verdict and the number of tokens.
        let stops: Vec<usize> = exchanges.iter().map(|parts| parts.len()).collect();
        assert_eq!(stops, [4], "{}", plan.describe(&program));
        // States are written in place only after the last exchange.
        let states: Vec<usize> =
            (0..plan.slots.len()).filter(|&s| matches!(plan.slots[s].home, wgrad::plan::Home::State(_))).collect();
        for kernel in &plan.kernels[..exchanges[0].end] {
            assert!(kernel.writes.iter().all(|write| !states.contains(&write.slot)));
        }
    }
}

/// A rank asks when it likes. All know of it after the same run.
#[test]
fn all_ranks_are_told_after_the_same_run_that_one_asks_to_stop() {
    for (ranks, asking) in [(1, 0), (2, 1), (3, 0)] {
        let stopped = world(ranks, |rank| {
            let own = rank.rank();
            let (store, p, params, sgd) = two();
            let mut cpu = Machine::poisoned(1, store).as_rank(rank);
            let step = cpu.session.record(|t| sgd.step(t.param(p).square().sum().grad(&params).all_reduce()));
            let local = cpu.session.record(|t| t.tap("loss", t.param(p).sum())).expect("compiles");
            let step = step.expect("compiles");
            let mut runs = 0;
            while !cpu.session.asked_to_stop() {
                if own == asking && runs == 2 {
                    cpu.session.ask_to_stop();
                    // A run that exchanges nothing tells nobody.
                    cpu.run(&local, &[]);
                    assert_eq!(cpu.session.asked_to_stop(), ranks == 1);
                    if ranks == 1 {
                        break;
                    }
                }
                cpu.run(&step, &[]);
                runs += 1;
            }
            runs
        });
        assert_eq!(stopped, vec![if ranks == 1 { 2 } else { 3 }; ranks]);
    }
}
