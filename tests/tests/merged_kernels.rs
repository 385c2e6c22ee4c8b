//! Kernels that one workgroup runs one after the other: as many dispatches fewer, and the same bits, whatever lies between
//! them.

use wgrad::{Array, DType, Program, Store, Tape, Tensor, plan::Grouping};
use wgrad_tests::{Machine, gpu, same_bits, separate_gpu};
use wgrad_wgpu::Imagined;

/// Elements of a vector: more than one workgroup has for a map.
const LEN: usize = 1500;
/// How many scalars and vectors are at hand.
const AT_HAND: usize = 3;

/// Knuth's linear congruential generator, of MMIX: a number below another.
fn below(random: &mut u64, end: usize) -> usize {
    *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*random >> 33) as usize % end
}

fn store() -> Store {
    let mut store = Store::new();
    for i in 0..AT_HAND {
        store.state(&format!("scalar{i}"), &Array::new([], vec![0.3 + i as f32]));
        let values = (0..LEN).map(|e| ((e * (i + 3)) % 101) as f32 / 50.0 - 1.0).collect::<Vec<f32>>();
        store.state(&format!("vector{i}"), &Array::new([LEN], values));
    }
    store
}

/// Steps that read and replace scalars and vectors at random, which are states in the end.
fn mixed(tape: &Tape, store: &Store, seed: u64) {
    let mut random = seed;
    let states: Vec<_> = store.layout().states().map(|(id, _)| id).collect();
    let mut scalars: Vec<Tensor<'_>> = states.iter().step_by(2).map(|id| tape.state(*id)).collect();
    let mut vectors: Vec<Tensor<'_>> = states.iter().skip(1).step_by(2).map(|id| tape.state(*id)).collect();
    for _ in 0..40 {
        let [to, a, b] = [0; 3].map(|_| below(&mut random, AT_HAND));
        match below(&mut random, 5) {
            0 => scalars[to] = (scalars[a] * 0.5 + scalars[b]).tanh(),
            1 => scalars[to] = (vectors[a] * vectors[b]).mean(),
            2 => scalars[to] = vectors[a].sum().tanh() + scalars[b],
            3 => vectors[to] = (vectors[a] * scalars[b]).tanh(),
            _ => vectors[to] = vectors[a] * 0.5 + vectors[b] * scalars[to],
        }
    }
    for (i, id) in states.iter().enumerate() {
        let value = if i % 2 == 0 { scalars[i / 2] } else { vectors[i / 2] };
        tape.tap(&format!("{i}"), value);
        tape.assign(*id, value);
    }
}

/// A kernel for each node, in memory that values share.
fn alone() -> Grouping {
    Grouping { in_place: true, reuse: true, ..Grouping::none() }
}

fn dispatches(program: &Program, grouping: &Grouping, separate: bool) -> usize {
    let device = Imagined { buffers: 8, software: false, separate, wary: false, native: false, units: None };
    wgrad_wgpu::kernels(program, grouping, device).expect("any GPU can run it").len()
}

#[test]
fn whatever_waits_finds_what_it_has_to() {
    let (Some(gpu), Some(separate)) = (gpu(), separate_gpu()) else { return };
    let mut all = [0, 0];
    for seed in 0..12 {
        for grouping in [alone(), Grouping::none(), Grouping::default()] {
            let run = |gpu| {
                let store = store();
                let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
                mixed(&tape, &store, seed);
                let program = tape.finish();
                let counts = [true, false].map(|separate| dispatches(&program, &grouping, separate));
                let mut machine = Machine::on_gpu(gpu, store).grouped(&grouping);
                let step = machine.session.compile(program).expect("it compiles");
                let runs: Vec<_> = (0..2).map(|_| machine.run(&step, &[])).collect();
                (runs, counts)
            };
            let ((merged, [before, after]), (each, _)) = (run(gpu), run(separate));
            all = [all[0] + before, all[1] + after];
            for (merged, each) in merged.iter().zip(&each) {
                assert!(merged.taps.iter().zip(&each.taps).all(|(a, b)| same_bits(&a.1, &b.1)), "taps of {seed}");
                assert!(merged.states.iter().zip(&each.states).all(|(a, b)| same_bits(a, b)), "states of {seed}");
            }
        }
    }
    println!("{} dispatches, of {}", all[1], all[0]);
    assert!(all[1] < all[0], "{} dispatches, of {}", all[1], all[0]);
}

/// How many dispatches some nodes are, without fusion.
fn of(record: impl Fn(&Tape)) -> usize {
    let tape = Tape::default();
    record(&tape);
    dispatches(&tape.finish(), &Grouping::none(), false)
}

#[test]
fn one_workgroup_runs_what_follows_from_what_it_has_done() {
    // Maps of a workgroup each, however long the chain.
    assert_eq!(of(|t| t.tap("y", t.input("x", [900], DType::F32).sin().cos().tanh())), 1);
    // What has more workgroups is by itself.
    assert_eq!(of(|t| t.tap("y", t.input("x", [LEN], DType::F32).sin().cos().tanh())), 3);
    // A scalar waits for another past a vector that it has nothing to do with.
    let scalar = |t: &Tape, name: &str| t.tap(name, t.input(name, [], DType::F32).tanh());
    assert_eq!(
        of(|t| {
            scalar(t, "a");
            t.tap("y", t.input("x", [LEN], DType::F32).tanh());
            scalar(t, "b");
        }),
        2
    );
    // It does not wait past one that is computed from it.
    assert_eq!(
        of(|t| {
            let a = t.input("a", [], DType::F32).tanh();
            t.tap("y", t.input("x", [LEN], DType::F32) * a);
            t.tap("b", t.input("b", [], DType::F32).tanh() * a);
        }),
        3
    );
}

/// Matrices, convolutions and indices of one workgroup too: their functions, tables and flags are each body's own.
#[test]
fn all_sorts_of_kernels_merge() {
    let (Some(gpu), Some(separate)) = (gpu(), separate_gpu()) else { return };
    let inputs = [("a".to_string(), Array::new([6, 7], (0..42).map(|i| (i % 11) as f32 / 7.0).collect::<Vec<f32>>()))];
    let index = ("i".to_string(), Array::new([3, 7], (0..21u32).map(|i| i % 6).collect::<Vec<u32>>()));
    let inputs = [inputs[0].clone(), index];
    let record = |t: &Tape| {
        let (a, i) = (t.input_like("a", &inputs[0].1), t.input_like("i", &inputs[1].1));
        let product = a.matmul(a.transpose());
        let other = a.transpose().matmul(a);
        let gathered = a.gather(i, 0);
        t.tap("max", gathered.argmax(1));
        let all = product.sum() + other.square().mean() + gathered.tanh().sum();
        t.tap("sums", a.cumsum(1));
        t.tap("all", all);
        let grads = all.grad_wrt(&[a]);
        t.tap("grad", grads[0].expect("it depends on it"));
    };
    let run = |gpu| {
        let mut machine = Machine::on_gpu(gpu, Store::new());
        let step = machine.session.record(|t| record(t)).expect("it compiles");
        machine.run(&step, &inputs)
    };
    let (merged, each) = (run(gpu), run(separate));
    for (a, b) in merged.taps.iter().zip(&each.taps) {
        assert!(same_bits(&a.1, &b.1), "{}: {:?} instead of {:?}", a.0, a.1, b.1);
    }
    let tape = Tape::default();
    record(&tape);
    let program = tape.finish();
    let [before, after] = [true, false].map(|separate| dispatches(&program, &Grouping::default(), separate));
    assert!(2 * after < before, "{after} dispatches of {before}");
}

/// A sum of a state does not wait past the kernel that writes the state in place.
#[test]
fn what_is_read_is_not_overwritten_before() {
    let Some(gpu) = gpu() else { return };
    let mut store = Store::new();
    let state = store.state("x", &Array::new([LEN], vec![1.0f32; LEN]));
    let mut machine = Machine::on_gpu(gpu, store).grouped(&alone());
    let step = machine.session.record(|t| {
        let x = t.state(state);
        t.tap("sum", x.sum());
        t.assign(state, x * 0.5);
    });
    let step = step.expect("it compiles");
    let sums = [0, 1].map(|_| machine.run(&step, &[]).taps[0].1.item(0));
    assert_eq!(sums, [LEN as f64, LEN as f64 / 2.0]);
}
