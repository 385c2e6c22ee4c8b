//! Programs as data: passes, unreached parameters, state in single assignment, merged nodes, printed and drawn.

use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use wgrad::{
    Array, DType, LossScaler, Optimizer, Program, Session, StateId, Step, Store, Tape,
    plan::Plan,
    testing::{Mode, recipe},
};
use wgrad_nn::optim::{
    Adagrad, AdagradConfig, Adam, AdamConfig, Lion, LionConfig, Muon, MuonConfig, RmsProp, RmsPropConfig, Sgd,
    SgdConfig,
};
use wgrad_tests::{Linear, Machine, MakeOptimizer, Mlp, proptest_config as config, same_bits};

const F32: DType = DType::F32;

fn layout(store: &Store) -> Arc<wgrad::Layout> {
    Arc::new(store.layout().clone())
}

#[test]
fn programs_plans_and_sessions_can_be_sent_to_other_threads() {
    fn send<T: Send>() {}
    send::<Program>();
    send::<Plan>();
    send::<Session>();
    send::<Step>();
    send::<Store>();
}

#[test]
fn passes_are_listed_in_the_order_in_which_they_act() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, F32);
    let params = model.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.25.into(), ..SgdConfig::default() });
    let t = Tape::new(layout(&store));
    let scaler = LossScaler::fixed(8.0);
    sgd.step(scaler.scale(model.loss(&t)).grad(&params).unscale(&scaler).clip_by_global_norm(0.5));
    let program = t.finish();
    let passes = program.passes();
    assert_eq!(passes.iter().map(|p| p.name).collect::<Vec<_>>(), ["unscale", "clip_by_global_norm", "sgd"]);
    assert_eq!(passes[0].parameters, [("scale", "8".to_string())]);
    assert_eq!(passes[1].parameters, [("max_norm", "0.5".to_string())]);
    assert!(passes[2].parameters.contains(&("lr", "0.25".to_string())), "{:?}", passes[2].parameters);
    // Each works on what the one before it gives.
    assert_eq!(passes[1].inputs[..], passes[0].outputs[..1]);
    assert_eq!(passes[2].inputs[..], passes[1].outputs[..1]);
    assert!(passes.iter().all(|p| p.site.file() == file!()), "{passes:?}");
    assert!(passes.windows(2).all(|p| p[0].nodes.end <= p[1].nodes.start));
    let committed: Vec<_> = program.commits().iter().map(|(_, node)| *node).collect();
    assert!(committed.iter().all(|node| passes[2].outputs.contains(node)));
}

#[test]
fn an_optimizer_leaves_alone_what_the_loss_does_not_reach() {
    let optimizers: [MakeOptimizer; 7] = [
        |store, params| {
            let config = SgdConfig { momentum: 0.9, weight_decay: 0.1, ..SgdConfig::default() };
            Box::new(Sgd::new(store, params, config))
        },
        |store, params| Box::new(Adam::new(store, params, AdamConfig { weight_decay: 0.1, ..AdamConfig::default() })),
        |store, params| {
            let config = RmsPropConfig { momentum: 0.9, centered: true, weight_decay: 0.1, ..RmsPropConfig::default() };
            Box::new(RmsProp::new(store, params, config))
        },
        |store, params| {
            let config = AdamConfig { weight_decay: 0.1, amsgrad: true, ..AdamConfig::default() };
            Box::new(Adam::new(store, params, config))
        },
        |store, params| {
            let config = AdagradConfig { weight_decay: 0.1, lr_decay: 0.1, ..AdagradConfig::default() };
            Box::new(Adagrad::new(store, params, config))
        },
        |store, params| Box::new(Lion::new(store, params, LionConfig { weight_decay: 0.1, ..LionConfig::default() })),
        |store, params| Box::new(Muon::new(store, params, MuonConfig::default())),
    ];
    for optimizer in optimizers {
        let mut store = Store::new();
        let used = store.param("used", &Array::new([3], vec![1.0f32, 2.0, 3.0]));
        let unused = store.param("unused", &Array::new([2], vec![4.0f32, 5.0]));
        let params = store.params();
        let optimizer = optimizer(&mut store, &params);
        let offset = store.layout().param(unused).offset;
        let arena = store.layout().param(unused).arena;
        let mut cpu = Machine::poisoned(1, store);
        // Both once, so that states are no longer zero; then without the second parameter.
        for (both, steps) in [(true, 1), (false, 3)] {
            let mut absent = vec![];
            let step = cpu.session.record(|t| {
                let loss = t.param(used).square().sum();
                let loss = if both { loss + t.param(unused).square().sum() } else { loss };
                let grads = loss.grad(&params);
                absent = grads.absent().iter().collect();
                optimizer.step(grads);
            });
            let step = step.expect("the plan compiles");
            assert_eq!(step.unreached().to_vec(), if both { vec![] } else { vec![unused] });
            assert_eq!(step.unreached(), &absent[..]);
            assert_eq!(step.to_string().contains("no gradient reaches unused"), !both);
            let before = cpu.states();
            for _ in 0..steps {
                cpu.run(&step, &[]);
            }
            for (id, decl) in step.layout().states() {
                let (old, new) = (&before[id.index()], cpu.session.read(id).expect("readable"));
                // The elements that belong to the second parameter, and those that belong to the first.
                let (second, first) = match decl.shape.numel() {
                    n if n == step.layout().state(arena).shape.numel() => (offset..offset + 2, 0..3),
                    2 => (1..2, 0..1),
                    _ => continue,
                };
                let part = |a: &Array, range: std::ops::Range<usize>| a.to_f64()[range].to_vec();
                assert_ne!(part(old, first.clone()), part(&new, first), "{}: the first moves", decl.name);
                assert_eq!(part(old, second.clone()) == part(&new, second), !both, "{}: the second", decl.name);
            }
        }
    }
}

#[test]
fn padding_stays_zero() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[Array::new([3], vec![1.0f32; 3]), Array::new([130], vec![2.0f32; 130])]);
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..AdamConfig::default() });
    let segments = store.layout().segments(store.layout().param(model.params[0]).arena);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| adam.step(model.grads(t).clip_by_global_norm(1.0))).expect("the plan compiles");
    let gradients = [Array::new([3], vec![0.5f32; 3]), Array::new([130], vec![-0.5f32; 130])];
    for _ in 0..3 {
        cpu.run(&step, &Linear::inputs(&gradients));
    }
    let mut checked = 0;
    for state in cpu.states().iter().filter(|s| s.shape().numel() == segments.total) {
        let inside = |i: usize| segments.ranges.iter().any(|&(start, len)| (start..start + len).contains(&i));
        let values = state.to_f64();
        assert!(values.iter().enumerate().all(|(i, v)| (*v != 0.0) == inside(i)), "{values:?}");
        checked += 1;
    }
    assert_eq!(checked, 3, "the parameters and both moments");
}

#[test]
fn a_state_read_after_an_assignment_is_what_was_assigned() {
    let mut store = Store::new();
    let s = store.state("s", &Array::new([2], vec![1.0f32, 2.0]));
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        t.tap("before", t.state(s));
        t.assign(s, t.state(s) * 10.0);
        t.tap("between", t.state(s));
        t.assign(s, t.state(s) + 1.0);
        t.tap("after", t.state(s));
    });
    let step = step.expect("the plan compiles");
    assert_eq!(step.commits().len(), 1);
    for first in [1.0, 11.0] {
        let out = cpu.run(&step, &[]);
        assert_eq!(out.tap("before").item(0), first, "a tap shows what was, whatever is committed");
        assert_eq!(out.tap("between").item(0), first * 10.0);
        assert_eq!(out.tap("after").item(0), first * 10.0 + 1.0);
        assert_eq!(out.states[0].item(0), first * 10.0 + 1.0);
    }
}

#[test]
fn commits_happen_all_at_once() {
    let mut store = Store::new();
    let values = [[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
    let ids: Vec<StateId> =
        values.iter().enumerate().map(|(i, v)| store.state(&format!("s{i}"), &Array::new([2], v.to_vec()))).collect();
    let mut cpu = Machine::poisoned(1, store);
    // A cycle of three, one of them reversed on the way.
    let step = cpu.session.record(|t| {
        let [a, b, c] = [0, 1, 2].map(|i| t.state(ids[i]));
        t.assign(ids[0], b);
        t.assign(ids[1], c.slice_step(0, 1, 2, -1));
        t.assign(ids[2], a);
    });
    let step = step.expect("the plan compiles");
    let out = cpu.run(&step, &[]);
    let states: Vec<Vec<f64>> = out.states.iter().map(Array::to_f64).collect();
    assert_eq!(states, [[3.0, 4.0], [6.0, 5.0], [1.0, 2.0]]);
    let out = cpu.run(&step, &[]);
    let states: Vec<Vec<f64>> = out.states.iter().map(Array::to_f64).collect();
    assert_eq!(states, [[6.0, 5.0], [2.0, 1.0], [3.0, 4.0]]);
}

#[test]
fn commits_that_change_nothing_vanish() {
    let mut store = Store::new();
    let (a, b) = (store.state("a", &Array::zeros([2], F32)), store.state("b", &Array::zeros([2], F32)));
    let t = Tape::new(layout(&store));
    let (first, second) = (t.state(a), t.state(b));
    t.assign(a, second);
    t.assign(b, second * 2.0);
    t.assign(a, first);
    let program = t.finish();
    assert_eq!(program.commits().iter().map(|(state, _)| *state).collect::<Vec<_>>(), [b]);
}

#[test]
fn equal_nodes_are_one_and_barriers_are_not() {
    let t = Tape::default();
    let x = t.input("x", [2, 2], F32);
    let record = || t.scoped("again", || ((x * 2.0).sin() + x.transpose()).sum_axes(&[1]));
    assert_eq!(record().id(), record().id());
    assert_ne!(t.scalar(1.0, F32).id(), t.scalar(1.0, DType::F64).id(), "another type is another value");
    assert_ne!((x * 2.0).id(), (x * -2.0).id());
    assert_ne!(t.scalar(0.0, F32).id(), t.scalar(-0.0, F32).id(), "the zeros differ in their bits");
    let (a, b) = (x.barrier(), x.barrier());
    assert_ne!(a.id(), b.id());
    assert_ne!(a.sin().id(), b.sin().id());
    let merged = t.finish();
    let keys: BTreeSet<String> =
        merged.nodes().iter().map(|n| format!("{:?} {:?} {:?}", n.op, n.inputs, n.dtype)).collect();
    assert_eq!(keys.len(), merged.nodes().len());
}

#[test]
fn the_printer_folds_turns_that_are_alike() {
    let t = Tape::default();
    let x = t.input("x", [4], F32);
    let mut h = x;
    for k in 0..6 {
        h = t.scoped_turn("step", k, || if k == 3 { h.exp() } else { (h * x).tanh() });
    }
    t.tap("h", h);
    let text = t.finish().to_string();
    assert!(text.contains("step[0 .. 2]: 3 turns alike"), "{text}");
    assert!(text.contains("\nstep[3]\n"), "{text}");
    assert!(text.contains("step[4 .. 5]: 2 turns alike"), "{text}");
    assert_eq!(text.matches("tanh").count(), 2, "one turn of each is shown\n{text}");
}

#[test]
fn a_printed_step_names_parameters_passes_and_commits() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, F32);
    let params = model.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let t = Tape::new(layout(&store));
    let loss = model.loss(&t);
    t.tap("loss", loss);
    sgd.step(loss.grad(&params).clip_by_global_norm(0.5));
    let text = t.finish().to_string();
    for expected in [
        "input  x: f32[7, 4]",
        "param  first/weight: f32[5, 4]",
        "first\n",
        "backward/first",
        "-- pass clip_by_global_norm(max_norm = 0.5)",
        "commit params/f32 <- ",
        "commit sgd/updates <- ",
        "tap    loss <- ",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing from\n{text}");
    }
}

/// Checks Graphviz text: balanced braces and quotes, every node declared once, every edge between declared nodes.
fn well_formed(dot: &str) -> Result<(), String> {
    let mut depth = 0i32;
    let (mut quoted, mut escaped) = (false, false);
    for c in dot.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return Err("a brace too many".into());
        }
    }
    if depth != 0 || quoted {
        return Err(format!("{depth} braces and quote {quoted} are open at the end"));
    }
    let mut declared: BTreeMap<&str, u32> = BTreeMap::new();
    for line in dot.lines().map(str::trim).filter(|line| line.contains(" [label") && !line.contains(" -> ")) {
        *declared.entry(line.split(' ').next().expect("not empty")).or_default() += 1;
    }
    for line in dot.lines().map(str::trim).filter(|line| line.contains(" -> ")) {
        let (from, to) = line.split_once(" -> ").expect("an edge");
        let to = to.split([' ', ';']).next().expect("not empty");
        if declared.get(from) != Some(&1) || declared.get(to) != Some(&1) {
            return Err(format!("{line}: an end is not declared exactly once"));
        }
    }
    Ok(())
}

#[test]
fn a_drawn_step_is_well_formed() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, F32);
    let odd = store.state("a \"quoted\" \\ name", &Array::zeros([], F32));
    let params = model.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { momentum: 0.5, ..SgdConfig::default() });
    let t = Tape::new(layout(&store));
    sgd.step(t.scoped("a \"scope\"", || model.loss(&t)).grad(&params).clip_by_global_norm(0.5));
    t.assign(odd, t.state(odd) + 1.0);
    let program = t.finish();
    let dot = program.to_dot();
    well_formed(&dot).unwrap_or_else(|why| panic!("{why}\n{dot}"));
    let live = program.live().iter().filter(|live| **live).count();
    assert_eq!(dot.lines().filter(|l| l.trim_start().starts_with('n') && l.contains(" [label")).count(), live);
    assert!(well_formed("digraph { n1 -> n2; }").is_err() && well_formed("digraph { \"").is_err());
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn any_program_is_drawn_well_formed_and_printed_whole(recipe in recipe(12)) {
        let t = Tape::default();
        let recorded = recipe.record(&t, Mode::Plain);
        t.tap("loss", recorded.loss);
        for (i, g) in recorded.loss.grad_wrt(&recorded.leaves).iter().enumerate() {
            g.iter().for_each(|g| t.tap(&format!("dx{i}"), *g));
        }
        let program = t.finish();
        prop_assert_eq!(well_formed(&program.to_dot()), Ok(()));
        let text = program.to_string();
        prop_assert!(program.inputs().iter().all(|input| text.contains(&input.name)));
        // Id order is a topological order.
        for (i, node) in program.nodes().iter().enumerate() {
            prop_assert!(node.inputs.iter().all(|input| input.index() < i));
        }
    }
}

#[test]
fn values_survive_a_round_trip_through_the_session() {
    let mut store = Store::new();
    let first = store.param("first", &Array::new([2], vec![f32::NAN, -0.0]));
    let second = store.param("second", &Array::new([1], vec![3.0f32]));
    let flags = store.state("flags", &Array::new([2], vec![true, false]));
    let mut cpu = Machine::new(1, store);
    let read = cpu.session.read_param(first).expect("readable");
    assert!(same_bits(&read, &Array::new([2], vec![f32::NAN, -0.0])));
    cpu.session.write_param(second, &Array::new([1], vec![7.0f32])).expect("writable");
    assert_eq!(cpu.session.read_param(second).expect("readable").item(0), 7.0);
    assert!(same_bits(&cpu.session.read_param(first).expect("readable"), &read), "its neighbour is untouched");
    cpu.session.write(flags, &Array::new([2], vec![false, true])).expect("writable");
    assert_eq!(cpu.session.read(flags).expect("readable").to_f64(), [0.0, 1.0]);
    let sum = cpu.session.eval(&[], |t| t.param(second) * 2.0).expect("evaluated");
    assert_eq!(sum.to_f64(), [14.0]);
}

#[test]
fn rows_of_nothing_are_no_elements_of_nothing() {
    // No rows of two elements each: as many elements as rows.
    let t = Tape::default();
    let x = t.input("x", [1, 5], DType::F64);
    let y = x.permute(&[1, 0]).slice(0, 0, 2).slice(1, 0, 0).var_axes(&[0]);
    t.tap("dx", ((y * y).sum() + y.sin().sum()).grad_wrt(&[x])[0].expect("reached"));
    let program = t.finish();
    let inputs = [("x".to_string(), Array::new([1, 5], vec![1.0, 2.0, 3.0, 4.0, 5.0]))];
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program).expect("the plan compiles");
    assert_eq!(cpu.run(&step, &inputs).tap("dx").to_f64(), [0.0; 5]);
}
