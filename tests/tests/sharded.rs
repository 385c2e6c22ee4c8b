//! Ranks that share out what an optimizer keeps: the same bits as without, in a part of the memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};
use wgrad::{
    ALIGN, Accumulator, Array, Collective, DType, DynamicScale, Error, Flat, InProcess, LossScaler, Noise, Optimizer,
    ParamSet, Scaled, Session, StateId, Store, Tape, Tensor, Weighting, collective::Difference, op::Share,
    plan::Grouping,
};
use wgrad_nn::{
    MonitorConfig, Precision, Trainer, TrainerConfig, checkpoint,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Ema, EmaConfig, Group, Lion, LionConfig, Muon,
        MuonConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig,
    },
};
use wgrad_tests::{Linear, Machine, Mlp, Tolerance, compare, gpu, named, same_bits};

/// The result of each rank, each on a thread of its own.
fn world<R: Send>(ranks: usize, f: impl Fn(InProcess) -> R + Sync) -> Vec<R> {
    let f = &f;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

fn message(f: impl FnOnce()) -> String {
    *catch_unwind(AssertUnwindSafe(f)).expect_err("it must be refused").downcast::<String>().expect("a message")
}

type Make = fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>;

/// All optimizers that can be shared out, with settings that declare all of their states.
const OPTIMIZERS: [(&str, Make); 8] = [
    ("sgd", |store, params| Box::new(Sgd::new(store, params, SgdConfig { lr: 0.05.into(), ..Default::default() }))),
    ("momentum", |store, params| {
        let config = SgdConfig { lr: 0.05.into(), momentum: 0.9, dampening: 0.1, ..Default::default() };
        Box::new(Sgd::new(store, params, config))
    }),
    ("nesterov", |store, params| {
        let config =
            SgdConfig { lr: 0.05.into(), momentum: 0.9, nesterov: true, weight_decay: 0.1, ..Default::default() };
        Box::new(Sgd::new(store, params, config))
    }),
    ("adam", |store, params| {
        let config = AdamConfig { lr: 0.01.into(), weight_decay: 0.1, amsgrad: true, ..Default::default() };
        Box::new(Adam::new(store, params, config))
    }),
    ("adamw", |store, params| {
        let own = params.iter().take(1).collect();
        let groups = vec![Group { params: own, lr: Some(0.02.into()), weight_decay: Some(0.0) }];
        Box::new(AdamW::new(store, params, AdamWConfig { lr: 0.01.into(), groups, ..Default::default() }))
    }),
    ("rmsprop", |store, params| {
        let config = RmsPropConfig { lr: 0.01.into(), centered: true, momentum: 0.5, ..Default::default() };
        Box::new(RmsProp::new(store, params, config))
    }),
    ("adagrad", |store, params| {
        let config = AdagradConfig { lr: 0.01.into(), initial_accumulator: 0.5, ..Default::default() };
        Box::new(Adagrad::new(store, params, config))
    }),
    ("lion", |store, params| Box::new(Lion::new(store, params, LionConfig { lr: 0.01.into(), ..Default::default() }))),
];

/// All states of a session, whole, with their names; and the number of elements of each on this rank.
fn whole(session: &mut Session) -> Vec<(String, Array, usize)> {
    let layout = session.layout().clone();
    let read = |(id, decl): (wgrad::StateId, &wgrad::StateDecl)| {
        (decl.name.clone(), session.read_whole(id).expect("all ranks read"), decl.shape.numel())
    };
    layout.states().map(read).collect()
}

/// Refuses ranks that have other values than those without shares, or more elements than their part.
fn agree(what: &str, ranks: usize, shared: &[Vec<(String, Array, usize)>], plain: &[Vec<(String, Array, usize)>]) {
    let mut parts = 0;
    for (rank, (shared, plain)) in shared.iter().zip(plain).enumerate() {
        for ((name, a, part), (other, b, len)) in shared.iter().zip(plain) {
            assert_eq!(name, other);
            assert!(same_bits(a, b), "{what}, rank {rank} of {ranks}: {name}\n{a:?}\n{b:?}");
            if part != len {
                assert_eq!(*part, len.div_ceil(ranks).next_multiple_of(ALIGN), "{what}: {name}");
                parts += 1;
            }
        }
    }
    assert!(parts > 0 || ranks == 1 || what.starts_with("sgd"), "{what}: nothing is shared out");
}

/// Five updates with every pass, of which the third overflows on one rank.
fn trained(
    rank: InProcess,
    dtype: DType,
    make: Make,
    shares: bool,
    grouping: Option<&Grouping>,
) -> Vec<(String, Array, usize)> {
    let (r, n) = (rank.rank(), rank.ranks());
    let mut store = Store::new();
    let model = Mlp::new(&mut store, dtype);
    let params = model.params();
    if shares {
        store.shard(n);
    }
    let acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let scaler = LossScaler::dynamic(&mut store, DynamicScale { interval: 2, ..DynamicScale::default() });
    let ema = Ema::new(&mut store, &params, EmaConfig::default());
    let optimizer = make(&mut store, &params);
    let mut cpu = Machine::poisoned(1, store);
    if let Some(grouping) = grouping {
        cpu = cpu.grouped(grouping);
    }
    let mut cpu = cpu.as_rank(rank);
    let add = cpu.session.record(|t| acc.add(scaler.scale(model.loss(t)).grad(&params)));
    let update = cpu.session.record(|t| {
        let g = acc.take(t).all_reduce().unscale(&scaler);
        optimizer.step(g.centralize().agc(0.1).clip_by_global_norm(0.5));
        ema.update(t, &*optimizer);
        scaler.update(t);
    });
    let [add, update] = [add, update].map(|step| step.expect("compiles"));
    for salt in 0..5 {
        for half in 0..2 {
            let mut batch = model.batch(salt + 10 * r + 100 * half);
            if salt == 2 && half == 1 && r == n - 1 {
                let y = &mut batch[1].1;
                let mut values = y.to_f64();
                values[0] = f64::INFINITY;
                *y = Array::new(y.shape(), values).cast(dtype);
            }
            cpu.session.run(&add, &named(&batch)).expect("all are there");
        }
        cpu.session.run(&update, &[]).expect("all are there");
    }
    cpu.session.check_replicas().expect("the ranks agree");
    whole(&mut cpu.session)
}

#[test]
fn every_optimizer_has_the_same_bits_in_a_part_of_the_memory() {
    for (name, make) in OPTIMIZERS {
        for dtype in [DType::F32, DType::F64] {
            for ranks in 1..=4 {
                let [shared, plain] =
                    [true, false].map(|shares| world(ranks, |rank| trained(rank, dtype, make, shares, None)));
                agree(&format!("{name} {dtype}"), ranks, &shared, &plain);
            }
        }
        let none = &Grouping::none();
        let [shared, plain] =
            [true, false].map(|shares| world(3, |rank| trained(rank, DType::F32, make, shares, Some(none))));
        agree(&format!("{name} unfused"), 3, &shared, &plain);
    }
}

/// Parameters of these lengths, of which the optimizer steps the first two, and the gradient reaches the first.
fn some(rank: InProcess, lens: &[usize], make: Make, shares: bool) -> Vec<(String, Array, usize)> {
    let (r, n) = (rank.rank(), rank.ranks());
    let mut store = Store::new();
    let values: Vec<Array> = lens.iter().map(|len| Array::new([*len], vec![0.5f32; *len])).collect();
    let model = Linear::new(&mut store, &values);
    let stepped: ParamSet = model.params.iter().take(2).copied().collect();
    let reached: ParamSet = model.params.iter().take(1).copied().collect();
    if shares {
        store.shard(n);
    }
    let optimizer = make(&mut store, &stepped);
    let mut cpu = Machine::splitting(2, store).as_rank(rank);
    let step = cpu.session.record(|t| {
        let all = t.param(model.params[0]);
        let loss = all.dot(t.input("g", all.shape(), DType::F32));
        optimizer.step(loss.grad(if stepped.len() > 1 { &stepped } else { &reached }).all_reduce());
    });
    let step = step.expect("compiles");
    for turn in 0..5 {
        let g: Vec<f32> = (0..lens[0]).map(|i| ((i + 3 * r + 7 * turn) % 11) as f32 - 5.0).collect();
        cpu.session.run(&step, &[("g", &Array::new([lens[0]], g))]).expect("all are there");
    }
    whole(&mut cpu.session)
}

#[test]
fn absent_and_frozen_parameters_and_short_arenas_are_as_without_shares() {
    for (name, make) in OPTIMIZERS {
        for lens in [&[1][..], &[3], &[130, 5, 7], &[700, 200, 1]] {
            for ranks in [2, 4] {
                let [shared, plain] = [true, false].map(|shares| world(ranks, |rank| some(rank, lens, make, shares)));
                let long = lens.len() > 1;
                if long {
                    agree(&format!("{name} {lens:?}"), ranks, &shared, &plain);
                } else {
                    let same = shared.iter().flatten().zip(plain.iter().flatten());
                    assert!(same.into_iter().all(|(a, b)| a.2 == b.2 && same_bits(&a.1, &b.1)), "{name} {lens:?}");
                }
            }
        }
    }
}

/// A vector as long as `len` on each rank, in `f64`.
fn given<'t>(t: &'t Tape, len: usize) -> Tensor<'t> {
    t.input("x", [len], DType::F64)
}

#[test]
fn ranks_gather_and_share_out_and_gradients_flow_back() {
    for ranks in 1..=3 {
        for grouping in [Grouping::default(), Grouping::none()] {
            let all = world(ranks, |rank| {
                let r = rank.rank();
                let mut cpu = Machine::poisoned(1, Store::new()).grouped(&grouping).as_rank(rank);
                let step = cpu.session.record(|t| {
                    let x = given(t, 2);
                    let all = (x * x).concat_over_ranks();
                    let weights = t.table(&(1..=2 * ranks).map(|i| i as f64).collect::<Vec<_>>(), DType::F64);
                    // The loss of rank r counts r + 1 times.
                    let loss = (all * weights * (r + 1) as f64).sum();
                    let dx = loss.grad_wrt(&[x])[0].expect("reached");
                    t.tap("all", all);
                    t.tap("dx", dx);
                    // The gradient of a stretch of the sum is all ranks' cotangents, one after the other.
                    t.tap("ddx", (dx * (r + 1) as f64).sum().grad_wrt(&[x])[0].expect("reached"));
                });
                let x = Array::new([2], vec![1.0 + r as f64, -2.0]);
                let out = cpu.run(&step.expect("compiles"), &[("x".into(), x)]);
                ["all", "dx", "ddx"].map(|tap| out.tap(tap).to_f64())
            });
            let total = (1..=ranks).sum::<usize>() as f64;
            let squares: Vec<f64> = (0..ranks).flat_map(|r| [(1.0 + r as f64).powi(2), 4.0]).collect();
            for (r, [gathered, dx, ddx]) in all.into_iter().enumerate() {
                let weights = [2 * r + 1, 2 * r + 2].map(|i| i as f64);
                let x = [1.0 + r as f64, -2.0];
                assert_eq!(gathered, squares);
                assert_eq!(dx, [0, 1].map(|i| 2.0 * x[i] * weights[i] * total));
                assert_eq!(ddx, [0, 1].map(|i| 2.0 * weights[i] * total * (r + 1) as f64));
            }
        }
    }
}

#[test]
fn a_part_is_a_stretch_and_its_gradient_lies_in_its_place() {
    for (len, ranks) in [(1, 3), (2, 4), (129, 2), (256, 2), (300, 3), (384, 3)] {
        let x: Vec<f64> = (0..len).map(|i| i as f64 + 1.0).collect();
        let share = Share { whole: len, ranks };
        let all = world(ranks, |rank| {
            let mut cpu = Machine::poisoned(1, Store::new()).as_rank(rank);
            let step = cpu.session.record(|t| {
                let x = given(t, len);
                let part = x.part_of_rank();
                t.tap("part", part);
                t.tap("dx", part.square().sum().grad_wrt(&[x])[0].expect("reached"));
                t.tap("again", part.concat_over_ranks().slice(0, 0, len));
            });
            let out = cpu.run(&step.expect("compiles"), &[("x".into(), Array::new([len], x.clone()))]);
            ["part", "dx", "again"].map(|tap| out.tap(tap).to_f64())
        });
        for (r, [part, dx, again]) in all.into_iter().enumerate() {
            let own = (r * share.part()).min(len)..((r + 1) * share.part()).min(len);
            let mut want = x[own.clone()].to_vec();
            want.resize(share.part(), 0.0);
            assert_eq!(part, want);
            assert_eq!(dx, (0..len).map(|i| if own.contains(&i) { 2.0 * x[i] } else { 0.0 }).collect::<Vec<_>>());
            assert_eq!(again, x);
        }
    }
}

#[test]
fn an_exchange_of_what_another_gives_is_a_stop_of_its_own() {
    for grouping in [Grouping::default(), Grouping::none()] {
        let sums = world(3, |rank| {
            let mut cpu = Machine::poisoned(1, Store::new()).grouped(&grouping).as_rank(rank);
            let step = cpu.session.record(|t| {
                let x = t.input("x", [2], DType::F32);
                t.tap("nine", x.sum_over_ranks().sum_over_ranks());
                t.tap("three", (x * 2.0).sum_over_ranks());
            });
            let step = step.expect("compiles");
            let stops: Vec<usize> = cpu.session.plan(&step).1.exchanges().iter().map(|stop| stop.len()).collect();
            assert_eq!(stops, [2, 1]);
            let out = cpu.run(&step, &[("x".into(), Array::new([2], vec![1.0f32, 2.0]))]);
            [out.tap("nine").to_f64(), out.tap("three").to_f64()]
        });
        assert!(sums.iter().all(|sums| *sums == [vec![9.0, 18.0], vec![6.0, 12.0]]), "{sums:?}");
    }
}

/// A rank's session that trains a perceptron by AdamW on the same data on all ranks, so that their number changes
/// nothing but the rounding.
struct Run {
    cpu: Machine,
    model: Mlp,
    step: wgrad::Step,
}

impl Run {
    fn new(rank: InProcess, shares: bool) -> Self {
        let ranks = rank.ranks();
        let mut store = Store::new();
        let model = Mlp::new(&mut store, DType::F32);
        if shares {
            store.shard(ranks);
        }
        let config = AdamWConfig { lr: 0.01.into(), amsgrad: true, ..Default::default() };
        let adamw = AdamW::new(&mut store, &model.params(), config);
        let mut cpu = Machine::poisoned(1, store).as_rank(rank);
        let step = cpu.session.record(|t| adamw.step(model.loss(t).grad(&model.params()).all_reduce()));
        let step = step.expect("compiles");
        Self { cpu, model, step }
    }

    fn train(&mut self) {
        for salt in 0..3 {
            self.cpu.session.run(&self.step, &named(&self.model.batch(salt))).expect("all are there");
        }
    }

    fn save(&mut self, path: &std::path::Path, rank: usize) {
        let metadata = checkpoint::Metadata::new();
        let saved = match rank {
            0 => checkpoint::save(&mut self.cpu.session, path, &metadata),
            _ => checkpoint::take_part(&mut self.cpu.session),
        };
        saved.expect("all ranks save");
    }
}

#[test]
fn a_checkpoint_goes_on_with_any_number_of_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let first = world(4, |rank| {
        let r = rank.rank();
        let mut run = Run::new(rank, true);
        run.train();
        run.save(&path("four"), r);
        whole(&mut run.cpu.session)
    });
    // Two ranks get what the four had, and go on as two would that share nothing out.
    let resume = |ranks: usize, shares: bool, from: &str, to: &str| {
        world(ranks, |rank| {
            let r = rank.rank();
            let mut run = Run::new(rank, shares);
            checkpoint::load(&mut run.cpu.session, path(from)).expect("it fits");
            let loaded = whole(&mut run.cpu.session);
            run.train();
            run.save(&path(to), r);
            (loaded, whole(&mut run.cpu.session))
        })
    };
    let same = |a: &[(String, Array, usize)], b: &[(String, Array, usize)]| {
        a.iter().zip(b).all(|(a, b)| a.0 == b.0 && same_bits(&a.1, &b.1))
    };
    let [two, plain] = [(true, "two"), (false, "plain")].map(|(shares, to)| resume(2, shares, "four", to));
    for ((loaded, after), (_, plain)) in two.iter().zip(&plain) {
        assert!(same(loaded, &first[0]) && same(after, plain));
        assert!(!same(loaded, after));
    }
    assert_eq!(std::fs::read(path("two")).unwrap(), std::fs::read(path("plain")).unwrap());
    let [one, alone] = [(true, "one"), (false, "alone")].map(|(shares, to)| resume(1, shares, "two", to));
    assert!(same(&one[0].0, &two[0].1) && same(&one[0].1, &alone[0].1));
    // A file that cannot be written leaves no rank waiting.
    world(2, |rank| {
        let r = rank.rank();
        let mut run = Run::new(rank, true);
        let nowhere = folder.path().join("no such folder/file");
        match r {
            0 => assert!(checkpoint::save(&mut run.cpu.session, nowhere, &checkpoint::Metadata::new()).is_err()),
            _ => checkpoint::take_part(&mut run.cpu.session).expect("its part has been read"),
        }
        run.train();
    });
}

#[test]
fn what_cannot_be_shared_out_is_refused_by_name() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    store.shard(2);
    let refused = message(|| drop(Muon::new(&mut store, &model.params(), MuonConfig::default())));
    assert!(refused.starts_with("muon: its rule needs whole parameters"), "{refused}");
    let adam = Adam::new(&mut store, &model.params(), AdamConfig::default());
    let t = Tape::for_ranks(Arc::new(store.layout().clone()), 3);
    let refused = message(|| adam.step(model.loss(&t).grad(&model.params()).all_reduce()));
    assert!(
        refused.starts_with(
            "\"adam/m/f32\" is shared out among 2 ranks, and here are 3 (recorded at tests/tests/sharded.rs"
        ),
        "{refused}"
    );
    let moment = adam.states().of(store.layout().param(model.params[0]).arena).expect("its arena")[0];
    let mut alone = Machine::new(1, store);
    let error = alone.session.read_whole(moment).expect_err("there are not 2 ranks");
    assert!(matches!(error, Error::OtherShares { shared: 2, ranks: 1, .. }), "{error}");
}

/// Ranks that read different states are told, and none waits.
#[test]
fn all_ranks_read_the_same_state() {
    world(2, |rank| {
        let r = rank.rank();
        let mut run = Run::new(rank, true);
        let layout = run.cpu.session.layout().clone();
        let shares: Vec<_> = layout.states().filter(|(_, decl)| decl.share.is_some()).map(|(id, _)| id).collect();
        assert!(matches!(run.cpu.session.read_whole(shares[r]), Err(Error::RanksDiffer { .. })));
        run.train();
    });
}

#[test]
fn a_gpu_shares_out_too() {
    let Some(gpu) = gpu() else { return };
    let run = |rank: InProcess, on_gpu: bool, shares: bool| {
        let (r, ranks) = (rank.rank(), rank.ranks());
        let mut store = Store::new();
        let model = Mlp::new(&mut store, DType::F32);
        if shares {
            store.shard(ranks);
        }
        let adamw = AdamW::new(&mut store, &model.params(), AdamWConfig { lr: 0.01.into(), ..Default::default() });
        let machine = if on_gpu { Machine::on_gpu(gpu, store) } else { Machine::poisoned(1, store) };
        let mut machine = machine.as_rank(rank);
        let step = machine.session.record(|t| {
            adamw.step(model.loss(t).grad(&model.params()).all_reduce().clip_by_global_norm(1.0));
            let x = t.input("h", [3], DType::F16);
            let all = x.concat_over_ranks();
            t.tap("all", all);
            t.tap("dx", all.square().sum().grad_wrt(&[x])[0].expect("reached"));
        });
        let step = step.expect("compiles");
        let half = Array::new([3], vec![1.0f32, 2.0, r as f32]).cast(DType::F16);
        let mut taps = vec![];
        for salt in 0..3 {
            let mut batch = model.batch(salt + 10 * r);
            batch.push(("h".into(), half.clone()));
            taps = machine.run(&step, &batch).taps;
        }
        (taps, whole(&mut machine.session))
    };
    for ranks in [2, 3] {
        let [on_gpu, plain, on_cpu] = [(true, true), (true, false), (false, true)]
            .map(|(on_gpu, shares)| world(ranks, |rank| run(rank, on_gpu, shares)));
        for (((taps, gpu), (_, plain)), (cpu_taps, cpu)) in on_gpu.iter().zip(&plain).zip(&on_cpu) {
            for ((name, gpu), (_, cpu)) in taps.iter().zip(cpu_taps) {
                compare(name, &gpu.to_f64(), &cpu.to_f64(), Tolerance(1e-4)).unwrap();
            }
            for ((gpu, plain), cpu) in gpu.iter().zip(plain).zip(cpu) {
                for other in [plain, cpu] {
                    compare(&gpu.0, &gpu.1.to_f64(), &other.1.to_f64(), Tolerance(1e-4)).unwrap();
                }
            }
        }
    }
}

/// A trainer's run with every pass, measured at each update.
fn run_of_a_trainer(rank: InProcess, shares: bool) -> Vec<(String, Array, usize)> {
    let (r, n) = (rank.rank(), rank.ranks());
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    if shares {
        store.shard(n);
    }
    let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..Default::default() });
    let config = TrainerConfig {
        accumulate: 2,
        precision: Precision::F16,
        noise: Some(Noise::fixed(1e-3)),
        centralize: true,
        agc: Some(0.1),
        clip_norm: Some(0.5),
        clip_value: Some(0.2),
        ema: Some(0.9),
        monitor: Some(MonitorConfig { every: 1, ..Default::default() }),
        ..Default::default()
    };
    let model = Rc::new(model);
    let own = model.clone();
    let mut trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
        own.loss_of(batch.get("x").tape(), batch.get("x"), batch.get("y")).into()
    });
    let mut cpu = Machine::poisoned(1, store).as_rank(rank);
    for salt in 0..7 {
        trainer.step(&mut cpu.session, &named(&model.batch(salt + 10 * r))).expect("it runs");
    }
    trainer.flush(&mut cpu.session).expect("the rest of a window");
    whole(&mut cpu.session)
}

#[test]
fn a_trainer_has_the_same_bits() {
    for ranks in [2, 3] {
        let [shared, plain] = [true, false].map(|shares| world(ranks, |rank| run_of_a_trainer(rank, shares)));
        agree("trainer", ranks, &shared, &plain);
    }
}

/// Adam on parameters of one arena whose gradients are inputs.
struct Given {
    cpu: Machine,
    step: wgrad::Step,
    len: usize,
    moments: Vec<StateId>,
}

impl Given {
    fn new(rank: InProcess, len: usize, shares: bool) -> Self {
        let ranks = rank.ranks();
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[Array::new([len], vec![0.5f32; len])]);
        let params: ParamSet = model.params.iter().copied().collect();
        if shares {
            store.shard(ranks);
        }
        let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..Default::default() });
        let arena = store.layout().param(model.params[0]).arena;
        let moments = adam.states().of(arena).expect("its arena")[..2].to_vec();
        let mut cpu = Machine::poisoned(1, store).as_rank(rank);
        let step = cpu.session.record(|t| adam.step(model.grads(t).all_reduce())).expect("compiles");
        Self { cpu, step, len, moments }
    }

    fn train(&mut self, turn: usize) {
        let g = (0..self.len).map(|i| ((i + turn) % 7) as f32 - 2.5).collect::<Vec<_>>();
        self.cpu.session.run(&self.step, &[("g0", &Array::new([self.len], g))]).expect("all are there");
    }
}

/// A rank whose part of a moment is lost spoils its stretch of the parameters, on all ranks, and no other.
#[test]
fn each_stretch_comes_from_the_rank_that_has_it() {
    let run = |loser: Option<usize>| {
        world(3, move |rank| {
            let r = rank.rank();
            let mut given = Given::new(rank, 700, true);
            given.train(0);
            if loser == Some(r) {
                let part = given.cpu.session.read(given.moments[0]).expect("this rank's");
                given.cpu.session.write(given.moments[0], &Array::zeros(part.shape(), DType::F32)).expect("it fits");
            }
            given.train(1);
            whole(&mut given.cpu.session)[0].1.to_f64()
        })
    };
    let right = run(None);
    for loser in 0..3 {
        let part = Share { whole: 768, ranks: 3 }.part();
        let stretch = loser * part..(loser * part + part).min(700);
        for (right, wrong) in right.iter().zip(run(Some(loser))) {
            let differ: Vec<usize> = (0..700).filter(|i| right[*i] != wrong[*i]).collect();
            assert!(!differ.is_empty() && differ.iter().all(|i| stretch.contains(i)), "rank {loser}: {differ:?}");
        }
    }
}

/// The bytes of Adam's two moments on a rank, and those of all states and values of a step.
fn bytes(rank: InProcess, len: usize, shares: bool) -> (usize, usize) {
    let ranks = rank.ranks();
    let mut store = Store::new();
    let p = store.param("p", &Array::new([len], vec![0.5f32; len]));
    let params = store.params();
    if shares {
        store.shard(ranks);
    }
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    let mut cpu = Machine::new(1, store).as_rank(rank);
    let step = cpu.session.record(|t| adam.step(t.param(p).square().sum().grad(&params).all_reduce()));
    let bytes = |len: usize, dtype: DType| len * dtype.size();
    let plan = cpu.session.plan(&step.expect("compiles")).1;
    let layout = cpu.session.layout();
    let moments = layout.states().filter(|(_, decl)| ["adam/m/f32", "adam/v/f32"].contains(&&*decl.name));
    (
        moments.map(|(_, decl)| bytes(decl.shape.numel(), decl.dtype)).sum(),
        plan.slots.iter().map(|slot| bytes(slot.len, slot.dtype)).sum(),
    )
}

#[test]
fn each_rank_holds_its_part_of_the_moments() {
    let len = 1 << 20;
    for ranks in 1..=4 {
        let [shared, plain] = [true, false].map(|shares| world(ranks, |rank| bytes(rank, len, shares)));
        for (r, ((part, all), (whole, without))) in shared.into_iter().zip(plain).enumerate() {
            println!("rank {r} of {ranks}: moments {part} of {whole} bytes, a step {all} of {without}");
            assert_eq!(whole, 8 * len);
            assert_eq!(part, 8 * len.div_ceil(ranks).next_multiple_of(ALIGN));
            // A gather can fail, so the new moments lie beside the old ones until it is over.
            assert!(ranks < 4 || all < without, "rank {r} of {ranks}: {all} and {without}");
        }
    }
}

/// The gradient of the sum of all ranks' losses after an update, in the parameters before it.
fn through_an_update(rank: InProcess, shares: bool) -> Vec<f64> {
    let (r, n) = (rank.rank(), rank.ranks());
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F64);
    let params = model.params();
    if shares {
        store.shard(n);
    }
    let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.1.into(), ..Default::default() });
    let mut cpu = Machine::poisoned(1, store).as_rank(rank);
    let step = cpu.session.record(|t| {
        let arenas = params.arenas(t.layout());
        let start = Flat::new(arenas.into_iter().map(|arena| (arena, t.state(arena))).collect());
        let grads = t.with_params(&start, || model.loss(t).grad(&params)).all_reduce().clip_by_global_norm(0.5);
        let (new, _) = adamw.update(&start, &grads, &adamw.current(t, grads.flat()));
        let loss = t.with_params(&new, || model.loss(t));
        let d = loss.grad_wrt(&[start.tensors()[0]])[0].expect("the start matters");
        t.tap("d", d.sum_over_ranks());
    });
    cpu.run(&step.expect("compiles"), &model.batch(3 * r)).tap("d").to_f64()
}

#[test]
fn gradients_flow_through_a_shared_update() {
    let [shared, plain] = [true, false].map(|shares| world(3, |rank| through_an_update(rank, shares)));
    for (shared, plain) in shared.iter().zip(&plain) {
        compare("the gradient", shared, plain, Tolerance(1e-10)).unwrap();
        assert!(plain.iter().any(|d| d.abs() > 1e-3));
    }
}

#[test]
fn a_rank_that_shares_nothing_out_is_refused_before_anything_changes() {
    world(2, |rank| {
        let r = rank.rank();
        let mut given = Given::new(rank, 300, r == 0);
        let before = given.cpu.states();
        let g = Array::new([300], vec![1.0f32; 300]);
        let error = given.cpu.session.run(&given.step, &[("g0", &g)]).expect_err("the ranks differ");
        assert!(matches!(error, Error::RanksDiffer { rank: 1, difference: Difference::Program }), "{error}");
        assert!(given.cpu.states_are(&before));
    });
}
