//! Bodies drawn at random, in every form that a planner may give them, against an evaluation point by point.

mod draw;
mod naive;

use approx::relative_eq;
use draw::Draw;
use proptest::prelude::*;
use std::sync::Arc;
use wgrad::{
    Array, Backend, DType, Data, Shape, StateId, Store, Tape,
    collective::Alone,
    op::{Binary, Reduce, Segments},
    plan::{Body, Home, Instr, Kernel, Kind, Level, MatMul, Operand, Plan, Slot, Value},
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
    x == y
        || x.is_nan() && y.is_nan()
        || a.dtype().is_float() && relative_eq!(x, y, epsilon = 1e-6, max_relative = 1e-6)
}

/// Some kernel.
fn some() -> Kernel {
    let tape = Tape::default();
    let x = tape.input("x", [1], DType::F32);
    tape.tap("y", x + x);
    Plan::new(&tape.finish()).kernels.remove(0)
}

/// A product that would be summed by halves, if its places did not have to be told of both.
#[test]
fn a_product_goes_to_several_places() -> Result<(), TestCaseError> {
    let shapes: [Shape; 3] = [[17, 8].into(), [8, 2].into(), [17, 2].into()];
    let at = |slot: usize, offset: usize, shape: &Shape, strides: [isize; 2]| Operand {
        slot,
        offset,
        shape: shape.clone(),
        strides: strides.into(),
    };
    let [lhs, rhs, out] = &shapes;
    let product = Value { instr: Instr::Product, dtype: DType::F32, level: Level::Element };
    let epilogue = Body { space: out.clone(), reduced: 0, segments: None, values: vec![product], stores: vec![0; 3] };
    let numbers = |len: usize| Data::F32((0..len).map(|i| (i * 7 % 11) as f32 - 5.0).collect());
    let case = Case {
        kind: Kind::MatMul(MatMul { batch: [].into(), m: 17, k: 8, n: 2, epilogue }),
        reads: vec![at(0, 0, lhs, [1, 17]), at(1, 0, rhs, [2, 1])],
        writes: vec![at(2, 0, out, [2, 1]), at(2, 40, out, [2, 1]), at(3, 1, out, [1, 20])],
        slots: [17 * 8, 8 * 2, 80, 40].map(numbers).into(),
    };
    case.check()
}

/// A vector, longer than a block, that is filled with one number.
#[test]
fn a_number_fills_a_long_vector() -> Result<(), TestCaseError> {
    let space = Shape::from([40_000]);
    let number = Value { instr: Instr::Const(2.0), dtype: DType::F32, level: Level::Element };
    let body = Body { space: space.clone(), reduced: 0, segments: None, values: vec![number], stores: vec![0] };
    let case = Case {
        kind: Kind::Loop(body),
        reads: vec![],
        writes: vec![Operand { slot: 0, offset: 0, shape: space, strides: [1].into() }],
        slots: vec![Data::F32(vec![0.0; 40_000])],
    };
    case.check()
}

/// A condition of each segment, which chooses among its elements.
#[test]
fn segments_choose() -> Result<(), TestCaseError> {
    let space = Shape::from([17]);
    let value = |instr: Instr, dtype: DType, level: Level| Value { instr, dtype, level };
    let (float, any) = (|instr| value(instr, DType::F32, Level::Element), Instr::Reduce(Reduce::Max, 0));
    let values = vec![
        value(Instr::Load(0), DType::Bool, Level::Element),
        float(Instr::Load(1)),
        value(any, DType::Bool, Level::Row),
        value(Instr::Spread(2), DType::Bool, Level::Element),
        float(Instr::Binary(Binary::Add, 1, 1)),
        float(Instr::Binary(Binary::Mul, 1, 1)),
        float(Instr::Select(3, 4, 5)),
    ];
    let segments = Some(Arc::new(Segments { total: 17, ranges: [(0, 4), (5, 3), (8, 9)].into() }));
    let all = |slot| Operand { slot, offset: 0, shape: space.clone(), strides: [1].into() };
    let case = Case {
        kind: Kind::Loop(Body { space: space.clone(), reduced: 1, segments, values, stores: vec![6] }),
        reads: vec![all(0), all(1)],
        writes: vec![all(2)],
        slots: vec![
            Data::Bool((0..17).map(|i| i == 2 || i == 12).collect()),
            Data::F32((0..17).map(|i| i as f32 - 6.0).collect()),
            Data::F32(vec![0.0; 17]),
        ],
    };
    case.check()
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
