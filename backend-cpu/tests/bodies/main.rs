//! Bodies drawn at random, in every form that a planner may give them, against an evaluation point by point.

mod draw;
mod naive;

use draw::Draw;
use proptest::prelude::*;
use wgrad::{
    Array, Backend, DType, Data, StateId, Store, Tape,
    collective::Alone,
    plan::{Home, Kernel, Kind, Operand, Plan, Slot},
};
use wgrad_cpu::CpuBackend;

/// A kernel over slots with contents.
#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    reads: Vec<Operand>,
    writes: Vec<Operand>,
    slots: Vec<Data>,
}

impl Case {
    /// The contents of all slots after the kernel, each slot being a state.
    fn run(&self, mut device: CpuBackend) -> Vec<Data> {
        let mut store = Store::new();
        let name = |i: usize| format!("s{i}");
        let array = |data: &Data| Array::new([data.len()], data.clone());
        let states: Vec<StateId> =
            self.slots.iter().enumerate().map(|(i, data)| store.state(&name(i), &array(data))).collect();
        let slot =
            |(data, state): (&Data, &StateId)| Slot { dtype: data.dtype(), len: data.len(), home: Home::State(*state) };
        let slots = self.slots.iter().zip(&states).map(slot).collect();
        let kernel =
            Kernel { kind: self.kind.clone(), reads: self.reads.clone(), writes: self.writes.clone(), ..some() };
        let plan = Plan { kernels: vec![kernel], slots, ..Plan::default() };
        let buffers: Vec<_> = self.slots.iter().map(|data| device.alloc(data).expect("room")).collect();
        let executable = device.compile(&plan, &buffers).expect("compiles");
        device.run(executable, &[], 0, &mut Alone).expect("runs");
        buffers.iter().map(|&b| device.read(b).expect("read")).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let want = naive::run(self);
        let devices = [1, 2, 3].map(|threads| (threads, CpuBackend::splitting(threads)));
        let plain = [1, 2].map(|threads| (threads, CpuBackend::poisoned(threads)));
        for (number, (threads, device)) in devices.into_iter().chain(plain).enumerate() {
            for (slot, (have, want)) in self.run(device.expect("threads")).iter().zip(&want).enumerate() {
                if let Some(i) = (0..have.len()).find(|&i| !same(have, want, i)) {
                    let (have, want) = (have.slice(i..i + 1), want.slice(i..i + 1));
                    prop_assert!(
                        false,
                        "device {number}, {threads} threads, slot {slot}, element {i}: {have:?}, not {want:?}\n\
                         {:?}\n{:?}\n{:?}",
                        self.kind,
                        self.reads,
                        self.writes
                    );
                }
            }
        }
        Ok(())
    }
}

/// Whether an element has the same value: all that is drawn is exact, in whatever order it is added up.
fn same(a: &Data, b: &Data, i: usize) -> bool {
    let element = |d: &Data| d.slice(i..i + 1).to_f64()[0];
    let (x, y) = (element(a), element(b));
    // The norm of f64 scales what it adds, and products of fractions are added in any order.
    x == y || x.is_nan() && y.is_nan() || a.dtype().is_float() && (x - y).abs() <= 1e-6 * y.abs().max(1.0)
}

/// Some kernel.
fn some() -> Kernel {
    let tape = Tape::default();
    let x = tape.input("x", [1], DType::F32);
    tape.tap("y", x + x);
    Plan::new(&tape.finish()).kernels.remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn loops(seed in any::<u64>()) {
        Draw::new(seed).looped().check()?;
    }

    #[test]
    fn updates(seed in any::<u64>()) {
        Draw::new(seed).update().check()?;
    }

    #[test]
    fn products(seed in any::<u64>()) {
        Draw::new(seed).product().check()?;
    }
}
