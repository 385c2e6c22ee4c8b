//! Plans, element by element in f64: slow, and plain enough to tell whether a plan or the executor of it is at fault.

use super::{Outcome, binary, eval, indices, reduce, round, unary};
use wgrad::{
    Array, DType, Data, Node, Program, Result, Shape,
    op::Segments,
    plan::{Body, Home, Instr, Kernel, Kind, Level, MatMul, Operand, Plan},
    random,
};

/// Runs a plan of a program on the given values of the store's states, and inputs by name. Slots that a kernel has yet
/// to write hold NaN.
///
/// # Errors
/// If an input is missing, or an index is out of range.
pub fn run(plan: &Plan, program: &Program, states: &[Data], inputs: &[(&str, &Array)]) -> Result<Outcome> {
    let mut after: Vec<Vec<f64>> = states.iter().map(Data::to_f64).collect();
    let mut slots: Vec<Vec<f64>> = vec![];
    for slot in &plan.slots {
        slots.push(match slot.home {
            Home::Transient => vec![f64::NAN; slot.len],
            Home::Const(value) => vec![round(slot.dtype, value); slot.len],
            Home::Iota => (0..slot.len).map(|i| i as f64).collect(),
            Home::Table(i) => plan.tables[i].iter().map(|&bits| round(slot.dtype, f64::from_bits(bits))).collect(),
            Home::State(state) => after[state.index()].clone(),
            Home::Input(i) => {
                let decl = &program.inputs()[i];
                let given = inputs.iter().find(|(name, _)| *name == decl.name);
                given.map(|(_, array)| array.to_f64()).ok_or_else(|| decl.missing())?
            }
        });
    }
    for kernel in &plan.kernels {
        run_kernel(kernel, plan, program, &mut slots)?;
    }
    let read = |operand: &Operand| gather(operand, &slots[operand.slot]);
    let taps = program.taps().iter().zip(&plan.taps);
    let taps = taps.map(|(tap, operand)| (tap.name.clone(), operand.shape.clone(), read(operand))).collect();
    for (slot, values) in plan.slots.iter().zip(&slots) {
        if let Home::State(state) = slot.home {
            after[state.index()].clone_from(values);
        }
    }
    for (state, operand) in &plan.commits {
        after[state.index()] = read(operand);
    }
    Ok(Outcome { taps, states: after })
}

/// The position in its slot of the element at an index.
fn at(operand: &Operand, index: &[usize]) -> usize {
    let steps = operand.strides.iter().zip(index).map(|(stride, &i)| stride * i as isize);
    (operand.offset as isize + steps.sum::<isize>()) as usize
}

fn gather(operand: &Operand, slot: &[f64]) -> Vec<f64> {
    indices(&operand.shape).map(|index| slot[at(operand, &index)]).collect()
}

/// Stores values; f16 values are rounded here.
fn scatter(operand: &Operand, dtype: DType, values: &[f64], slot: &mut [f64]) {
    let stored = |value: f64| if dtype == DType::F16 { round(dtype, value) } else { value };
    indices(&operand.shape).zip(values).for_each(|(index, &value)| slot[at(operand, &index)] = stored(value));
}

fn run_kernel(kernel: &Kernel, plan: &Plan, program: &Program, slots: &mut [Vec<f64>]) -> Result<()> {
    let x: Vec<Vec<f64>> = kernel.reads.iter().map(|read| gather(read, &slots[read.slot])).collect();
    let results: Vec<Vec<f64>> = match &kernel.kind {
        Kind::Loop(body) => run_body(body, &x, &[]),
        Kind::MatMul(matmul) => run_body(&matmul.epilogue, &x, &product(matmul, &x[0], &x[1])),
        Kind::Fill(ranges) => {
            let write = &kernel.writes[0];
            for &(start, len) in ranges {
                slots[write.slot][write.offset + start..][..len].fill(0.0);
            }
            return Ok(());
        }
        Kind::Op(op) => {
            let x: Vec<&[f64]> = x.iter().map(|x| &x[..]).collect();
            let shapes: Vec<&Shape> = kernel.reads.iter().map(|read| &read.shape).collect();
            let one = |write: &Operand| {
                let (scope, site) = (kernel.scope, kernel.site);
                let dtype = plan.slots[write.slot].dtype;
                let node = Node { op: op.clone(), inputs: [].into(), shape: write.shape.clone(), dtype, scope, site };
                eval(&node, &x, &shapes)
            };
            kernel.writes.iter().map(one).collect::<Result<_>>()?
        }
    };
    debug_assert!(program.nodes().len() > kernel.nodes[0].index());
    for (write, values) in kernel.writes.iter().zip(&results) {
        assert_eq!(values.len(), write.shape.numel(), "a write has the shape of its value");
        scatter(write, plan.slots[write.slot].dtype, values, &mut slots[write.slot]);
    }
    Ok(())
}

fn product(shape: &MatMul, a: &[f64], b: &[f64]) -> Vec<f64> {
    let MatMul { m, k, n, .. } = *shape;
    let mut out = vec![];
    for batch in 0..shape.batch.numel() {
        for i in 0..m {
            for j in 0..n {
                out.push((0..k).map(|l| a[(batch * m + i) * k + l] * b[(batch * k + l) * n + j]).sum());
            }
        }
    }
    out
}

/// The segment that a position lies in.
fn lookup(segments: &Segments, position: usize) -> Option<usize> {
    segments.ranges.iter().position(|(start, len)| (*start..start + len).contains(&position))
}

/// The values of a body's stores.
fn run_body(body: &Body, x: &[Vec<f64>], product: &[f64]) -> Vec<Vec<f64>> {
    let (rows, row) = (body.shape(Level::Row).numel(), body.row_len());
    let range = |r: usize| body.segments.as_ref().map_or((r * row, row), |segments| segments.ranges[r]);
    let mut values: Vec<Vec<f64>> = vec![];
    for value in &body.values {
        let len = if value.level == Level::Row { rows } else { body.space.numel() };
        // An operand's element for this value's element `i`.
        let of = |o: usize, i: usize| {
            let same = body.values[o].level == value.level;
            let across = body.values[o].level == Level::Row && body.segments.is_none();
            assert!(same || across, "a row's value follows from an element's");
            values[o][if same { i } else { i / row }]
        };
        let dtype = |o: usize| body.values[o].dtype;
        let map = |f: &dyn Fn(usize) -> f64| (0..len).map(f).collect();
        values.push(match &value.instr {
            Instr::Load(read) => {
                assert_eq!(x[*read].len(), len, "a load has the shape of its level");
                x[*read].clone()
            }
            Instr::Const(c) => vec![round(value.dtype, *c); len],
            Instr::Product => product.to_vec(),
            Instr::Unary(op, a) => map(&|i| unary(*op, value.dtype, of(*a, i))),
            Instr::Binary(op, a, b) => map(&|i| binary(*op, dtype(*a), of(*a, i), of(*b, i))),
            Instr::Select(c, a, b) => map(&|i| if of(*c, i) != 0.0 { of(*a, i) } else { of(*b, i) }),
            Instr::Cast(a) => map(&|i| round(value.dtype, of(*a, i))),
            Instr::Reduce(kind, a) => {
                assert_eq!(body.values[*a].level, Level::Element, "reductions are of elements");
                map(&|r| {
                    let (start, len) = range(r);
                    reduce(*kind, value.dtype, &values[*a][start..][..len])
                })
            }
            Instr::Spread(a) => {
                let segments = body.segments.as_ref().expect("rows that are segments");
                assert_eq!(body.values[*a].level, Level::Row, "what is spread is a row's");
                map(&|i| lookup(segments, i).map_or(0.0, |s| values[*a][s]))
            }
            Instr::Lookup { load, segments, index } => {
                assert_eq!(x[*load].len(), segments.ranges.len(), "a vector of one element per segment");
                let positions: Vec<usize> = indices(&index.shape).map(|i| at(index, &i)).collect();
                map(&|i| lookup(segments, positions[i]).map_or(0.0, |s| x[*load][s]))
            }
            Instr::Random { stream, key, index } => {
                let positions: Vec<usize> = indices(&index.shape).map(|i| at(index, &i)).collect();
                let word = |i: usize| key.map(|k| of(k, i) as u32);
                map(&|i| {
                    let [k0, k1, counter] = word(i);
                    f64::from(random::word(random::stream_key([k0, k1], *stream), counter, positions[i]))
                })
            }
        });
    }
    body.stores.iter().map(|&value| values[value].clone()).collect()
}
