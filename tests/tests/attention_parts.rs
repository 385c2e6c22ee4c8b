//! Gradients of queries, keys and values that are parts of one tensor, as one linear layer gives all three: attention writes
//! them side by side, and nothing is copied together.

use proptest::prelude::*;
use wgrad::{Array, Attention, DType, Data, Program, Store, Tape, op::Op, plan::Kind};
use wgrad_tests::{Machine, Tolerance, compare, gpus, proptest_config as config, reference, same_bits};

/// Three parts of each row of a tensor `[batch, rows, ..]`.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    rows: usize,
    kv_heads: usize,
    /// Heads of queries for each of keys.
    shared: usize,
    width: usize,
    value: usize,
    /// Which of queries, keys and values comes first, and which next.
    order: [usize; 3],
    causal: bool,
    dtype: DType,
    /// What keeps the gradients from being written side by side.
    hindrance: Option<Hindrance>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Hindrance {
    /// One of them is tapped.
    Tapped,
    /// The rows have elements that nobody attends to.
    Gap,
    /// These have a gradient from elsewhere.
    Other,
}

impl Case {
    fn program(&self) -> Program {
        let t = Tape::default();
        let heads = [self.kv_heads * self.shared, self.kv_heads, self.kv_heads];
        let widths = [self.width, self.width, self.value];
        let more = if matches!(self.hindrance, Some(Hindrance::Gap | Hindrance::Other)) { 3 } else { 0 };
        let all = (0..3).map(|i| heads[i] * widths[i]).sum::<usize>() + more;
        let input = t.input("x", [self.batch, self.rows, all], self.dtype);
        let x = input.sin();
        let (mut parts, mut start) = ([x; 3], 0);
        for i in self.order {
            let part = x.slice(2, start, heads[i] * widths[i]);
            parts[i] = part.reshape([self.batch, self.rows, heads[i], widths[i]]).swap_axes(1, 2);
            start += heads[i] * widths[i];
        }
        let [q, k, v] = parts;
        let o = q.attention(k, v, &Attention { causal: self.causal, ..Attention::default() });
        t.tap("o", o);
        let mut loss = (o * o.sin()).cast(DType::F64).sum();
        if self.hindrance == Some(Hindrance::Other) {
            loss += x.slice(2, start, more).square().cast(DType::F64).sum();
        }
        let mut of = vec![input];
        of.extend((self.hindrance == Some(Hindrance::Tapped)).then_some(k));
        for (name, g) in ["dx", "dk"].iter().zip(loss.grad_wrt(&of)) {
            t.tap(name, g.expect("the loss depends on it"));
        }
        t.finish()
    }

    fn inputs(&self, program: &Program) -> Vec<(String, Array)> {
        let shape = &program.inputs()[0].shape;
        let values: Vec<f64> = (0..shape.numel()).map(|i| (i as f64 * 0.61).sin() * 1.5).collect();
        vec![("x".into(), Array::new(shape, Data::from_f64(self.dtype, &values)))]
    }

    /// Whether the plan for a machine has attention, and whether it puts anything together.
    fn planned(&self, machine: &Machine) -> [bool; 2] {
        let (_, plan) = machine.session.plan(&self.program());
        let any =
            |is: fn(&Op) -> bool| plan.kernels.iter().any(|kernel| matches!(&kernel.kind, Kind::Op(op) if is(op)));
        [any(|op| matches!(op, Op::AttentionGrad(..))), any(|op| matches!(op, Op::Assemble { .. }))]
    }

    /// A machine against the reference; on several threads the same bits.
    fn agrees(&self, machines: Vec<Machine>) -> Result<(), TestCaseError> {
        let program = self.program();
        let inputs = self.inputs(&program);
        let want = reference(&program, &[], &inputs);
        let mut first = None;
        for mut machine in machines {
            let [attention, assembled] = self.planned(&machine);
            // Of a single row, parts are stretches of memory, which are copied otherwise.
            let rows = self.batch * self.rows;
            let expected = self.hindrance.is_some() && rows > 1;
            prop_assert!(!attention || rows == 0 || assembled == expected, "{self:?}");
            let step = machine.session.compile(program.clone()).expect("the plan compiles");
            let have = machine.run(&step, &inputs);
            for ((name, have), (.., want)) in have.taps.iter().zip(&want.taps) {
                if let Err(why) = compare(name, &have.to_f64(), want, Tolerance::of(self.dtype)) {
                    return Err(TestCaseError::fail(format!("{self:?}: {why}")));
                }
            }
            let first = first.get_or_insert(have.clone());
            for ((name, one), (_, other)) in first.taps.iter().zip(&have.taps) {
                prop_assert!(same_bits(one, other), "{self:?}: {name}");
            }
        }
        Ok(())
    }
}

fn cases(rows: impl Strategy<Value = usize>, dtypes: Vec<DType>) -> impl Strategy<Value = Case> {
    let orders = vec![[0, 1, 2], [1, 2, 0], [2, 1, 0]];
    let hindrances = vec![None, None, None, Some(Hindrance::Tapped), Some(Hindrance::Gap), Some(Hindrance::Other)];
    let of = (prop::sample::select(orders), any::<bool>(), prop::sample::select(dtypes));
    (0..3usize, rows, (1..3usize, 1..3usize), (1..9usize, 1..9usize), of, prop::sample::select(hindrances)).prop_map(
        |(batch, rows, (kv_heads, shared), (width, value), (order, causal, dtype), hindrance)| Case {
            batch,
            rows,
            kv_heads,
            shared,
            width,
            value,
            order,
            causal,
            dtype,
            hindrance,
        },
    )
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn the_cpu_writes_gradients_where_they_belong(case in cases(0..20usize, vec![DType::F32, DType::F64])) {
        let threads = [1, 2, 3].map(|threads| Machine::poisoned(threads, Store::new()));
        case.agrees(threads.into())?;
        case.agrees(vec![Machine::splitting(2, Store::new())])?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gpus_write_gradients_where_they_belong(case in cases(8..40usize, vec![DType::F32])) {
        for gpu in gpus() {
            case.agrees(vec![Machine::on_gpu(gpu, Store::new())])?;
        }
    }
}
