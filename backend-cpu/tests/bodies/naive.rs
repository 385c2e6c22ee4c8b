//! What a kernel means: its values at each point, one point after another, in f64 rounded to each value's type.

use crate::Case;
use wgrad::{
    DType, Data, Shape,
    op::{Binary, Reduce, Segments, Unary},
    plan::{Body, Instr, Kind, Level, MatMul, Operand},
};

/// All points of a shape, row-major.
fn points(shape: &[usize]) -> Vec<Vec<usize>> {
    let numel = shape.iter().product();
    (0..numel)
        .map(|mut flat| {
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = flat % shape[d];
                flat /= shape[d];
            }
            index
        })
        .collect()
}

/// Where a point of an operand is in its slot.
pub(crate) fn position(operand: &Operand, index: &[usize]) -> usize {
    let steps = index.iter().zip(&operand.strides).map(|(&i, &s)| i as isize * s);
    (operand.offset as isize + steps.sum::<isize>()) as usize
}

fn round(dtype: DType, v: f64) -> f64 {
    Data::from_f64(dtype, &[v]).to_f64()[0]
}

fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

fn unary(op: Unary, dtype: DType, x: f64) -> f64 {
    match op {
        Unary::Neg if dtype == DType::I32 => (x as i32).wrapping_neg() as f64,
        Unary::Neg => -x,
        Unary::Sqrt => x.sqrt(),
        Unary::IsFinite => x.is_finite() as u8 as f64,
        op => panic!("{op:?} is not drawn"),
    }
}

fn binary(op: Binary, dtype: DType, a: f64, b: f64) -> f64 {
    let wrap = |v: i128| if dtype == DType::U32 { v as u32 as f64 } else { v as i32 as f64 };
    let (i, j) = (a as i128, b as i128);
    match (op, dtype) {
        (Binary::Max, _) => larger(a, b),
        (Binary::Lt, _) => (a < b) as u8 as f64,
        (Binary::Eq, _) => (a == b) as u8 as f64,
        (Binary::Add, DType::U32 | DType::I32) => wrap(i + j),
        (Binary::Sub, DType::U32 | DType::I32) => wrap(i - j),
        (Binary::Mul, DType::U32 | DType::I32) => wrap(i * j),
        (Binary::Div, DType::U32 | DType::I32) => wrap(if j == 0 { 0 } else { i / j }),
        (Binary::Add, _) => a + b,
        (Binary::Sub, _) => a - b,
        (Binary::Mul, _) => a * b,
        (Binary::Div, _) => a / b,
        (op, _) => panic!("{op:?} is not drawn"),
    }
}

fn reduce(kind: Reduce, dtype: DType, values: &[f64]) -> f64 {
    match kind {
        Reduce::Sum => values
            .iter()
            .fold(0.0, |a, &b| binary(Binary::Add, if dtype.is_float() { DType::F64 } else { dtype }, a, b)),
        Reduce::Max => {
            let least = match dtype {
                DType::F64 | DType::F32 | DType::F16 => f64::NEG_INFINITY,
                DType::I32 => i32::MIN as f64,
                DType::U32 | DType::Bool => 0.0,
            };
            values.iter().fold(least, |a, &b| larger(a, b))
        }
        Reduce::Norm => values.iter().map(|v| v * v).sum::<f64>().sqrt(),
    }
}

/// Threefry-2x32, round by round.
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for round in 0..20 {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left([13, 15, 26, 6, 17, 29, 16, 24][round % 8]) ^ x[0];
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            x[0] = x[0].wrapping_add(keys[injection % 3]);
            x[1] = x[1].wrapping_add(keys[(injection + 1) % 3]).wrapping_add(injection as u32);
        }
    }
    x
}

/// The index of a row, if it is one, and those of its points.
type Row = (Option<Vec<usize>>, Vec<Vec<usize>>);

/// The segment that a position lies in.
fn segment(segments: &Segments, position: usize) -> Option<usize> {
    segments.ranges.iter().position(|(start, len)| (*start..start + len).contains(&position))
}

/// The contents of all slots after the kernel has read everything, and then written everything.
pub(crate) fn run(case: &Case) -> Vec<Data> {
    let slots: Vec<Vec<f64>> = case.slots.iter().map(Data::to_f64).collect();
    let read = |operand: &Operand, index: &[usize]| slots[operand.slot][position(operand, index)];
    let (body, product): (&Body, Option<&MatMul>) = match &case.kind {
        Kind::Loop(body) => (body, None),
        Kind::MatMul(matmul) => (&matmul.epilogue, Some(matmul)),
        kind => panic!("{kind:?} is not drawn"),
    };
    let (kept, reduced): (Shape, Shape) = {
        let split = body.space.rank() - body.reduced;
        (body.space[..split].into(), body.space[split..].into())
    };
    let mut after = slots.clone();
    // The index of each row, and those of its points; of points between segments there is none.
    let whole = |row: Vec<usize>| {
        let columns = points(&reduced).into_iter().map(|tail| [&row[..], &tail].concat()).collect();
        (Some(row), columns)
    };
    let rows: Vec<Row> = match &body.segments {
        None => points(&kept).into_iter().map(whole).collect(),
        Some(segments) => {
            let row = |(s, &(start, len)): (usize, &(usize, usize))| {
                (Some(vec![s]), (start..start + len).map(|i| vec![i]).collect())
            };
            let between = (0..segments.total).filter(|i| segment(segments, *i).is_none());
            let rows = segments.ranges.iter().enumerate().map(row);
            rows.chain([(None, between.map(|i| vec![i]).collect())]).collect()
        }
    };
    for (row, columns) in rows {
        // Of each value, one element per column, or one for the row.
        let mut values: Vec<Vec<f64>> = vec![];
        for value in &body.values {
            let count = match (&row, value.level) {
                (row, Level::Row) => usize::from(row.is_some()),
                _ => columns.len(),
            };
            let of = |v: usize, c: usize| *values[v].get(c).unwrap_or_else(|| &values[v][0]);
            let point = |c: usize| match (&row, value.level) {
                (Some(row), Level::Row) => row.clone(),
                _ => columns[c].clone(),
            };
            let one = |c: usize| match &value.instr {
                Instr::Load(i) => read(&case.reads[*i], &point(c)),
                Instr::Const(v) => *v,
                Instr::Product => {
                    let (matmul, index) = (product.expect("an epilogue"), point(c));
                    let (batch, at) = index.split_at(index.len() - 2);
                    let factor =
                        |i: usize, row: usize, column: usize| read(&case.reads[i], &[batch, &[row, column]].concat());
                    (0..matmul.k).map(|k| factor(0, at[0], k) * factor(1, k, at[1])).sum()
                }
                Instr::Unary(op, a) => unary(*op, value.dtype, of(*a, c)),
                Instr::Binary(op, a, b) => binary(*op, body.values[*a].dtype, of(*a, c), of(*b, c)),
                Instr::Select(i, a, b) => {
                    if of(*i, c) != 0.0 {
                        of(*a, c)
                    } else {
                        of(*b, c)
                    }
                }
                Instr::Cast(a) => of(*a, c),
                Instr::Reduce(kind, x) => {
                    let dtype = body.values[*x].dtype;
                    reduce(*kind, dtype, &(0..columns.len()).map(|c| of(*x, c)).collect::<Vec<_>>())
                }
                Instr::Spread(a) => {
                    if row.is_some() {
                        values[*a][0]
                    } else {
                        0.0
                    }
                }
                Instr::Lookup { load, segments, index } => {
                    let found = segment(segments, position(index, &point(c)));
                    found.map_or(0.0, |s| read(&case.reads[*load], &[s]))
                }
                Instr::Random { stream, key, index } => {
                    let [a, b, counter] = key.map(|k| of(k, c) as u32);
                    let key = threefry([a, b], [*stream as u32, (stream >> 32) as u32]);
                    let word = position(index, &point(c));
                    threefry(key, [(word >> 1) as u32, counter])[word & 1] as f64
                }
            };
            values.push((0..count).map(|c| round(value.dtype, one(c))).collect());
        }
        for (write, &v) in case.writes.iter().zip(&body.stores) {
            let points = match (&row, body.values[v].level) {
                (row, Level::Row) => row.iter().cloned().collect(),
                _ => columns.clone(),
            };
            for (c, point) in points.iter().enumerate() {
                after[write.slot][position(write, point)] = values[v][c];
            }
        }
    }
    after.iter().zip(&case.slots).map(|(v, slot)| Data::from_f64(slot.dtype(), v)).collect()
}
