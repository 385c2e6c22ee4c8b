//! The positions that sort an axis. Each element counts those before it in the sorted order, which is its place there: n^2
//! comparisons, and no exchange between invocations.

use super::{
    Memory, Scratch, Source, Tables, View,
    index::{MOST_STEPS, points, positions, without_axis},
    launch::Launch,
    load, position, store, type_name,
};
use crate::error::Result;
use wgrad::DType;

/// Statements that give a word as `name`, whose order as an integer is that of the values: NaN is the largest, and zeros
/// are equal.
fn key(source: &mut Source, x: &View, value: &str, name: &str, descending: bool) {
    let word = match type_name(x.dtype) {
        "f32" => {
            source.line(format!(
                "let {name}_bits = bitcast<u32>({value});\nlet {name}_size = {name}_bits & 0x7fffffffu;"
            ));
            source.line(format!(
                "let {name}_number = select({name}_bits | 0x80000000u, ~{name}_bits, {name}_bits > 0x80000000u);"
            ));
            format!("select({name}_number, 0xffffffffu, {name}_size > 0x7f800000u)")
        }
        "i32" => format!("(bitcast<u32>({value}) ^ 0x80000000u)"),
        "bool" => format!("select(0u, 1u, {value})"),
        _ => format!("({value})"),
    };
    source.line(format!("let {name} = {}{word};", if descending { "~" } else { "" }));
}

/// The positions that sort an axis, from the largest on if `descending`. Long axes are walked in several kernels.
pub(crate) fn argsort(
    axis: usize,
    descending: bool,
    x: &View,
    out: &View,
    tables: &mut Tables<'_>,
) -> Result<Vec<Launch>> {
    let (count, extent) = (out.shape.numel(), out.shape[axis]);
    if count == 0 {
        return Ok(vec![]);
    }
    let starts: Vec<usize> = (0..extent).step_by(MOST_STEPS).collect();
    let ranks = match starts.len() {
        1 => out.clone(),
        _ => {
            let memory: Memory = (tables.scratch)(Scratch::Parts, count);
            View { memory, offset: 0, dtype: DType::U32, ..out.contiguous(&out.shape) }
        }
    };
    let mut launches = vec![];
    for (n, &start) in starts.iter().enumerate() {
        let (first, last) = (n == 0, n + 1 == starts.len());
        let end = extent.min(start + MOST_STEPS);
        let mut source = Source::default();
        points(&mut source, count);
        let mut along = vec![0; out.shape.rank()];
        along[axis] = 1;
        let mut views = [
            (x.offset, without_axis(&x.strides, axis)),
            (out.offset, without_axis(&out.strides, axis)),
            (ranks.offset, ranks.strides.clone()),
            (0, along),
        ];
        let [ix, io, ir, own]: [String; 4] =
            positions(&mut source, &out.shape, &mut views).try_into().expect("one for each view");
        source.line(format!("let own = {own};"));
        let mine = load(&mut source, x, &position(&ix, [("own".to_string(), x.strides[axis])]));
        source.line(format!("let own_value = {mine};"));
        key(&mut source, x, "own_value", "own_key", descending);
        let before = if first { "0u".to_string() } else { load(&mut source, &ranks, &ir) };
        source.line(format!("var rank: u32 = {before};"));
        let (low, high) = (source.param(start as u32), source.param(end as u32));
        source.line(format!("for (var n = {low}; n < {high}; n = n + 1u) {{"));
        let other = load(&mut source, x, &position(&ix, [("n".to_string(), x.strides[axis])]));
        source.line(format!("let value = {other};"));
        key(&mut source, x, "value", "key", descending);
        source.line("if (key < own_key || (key == own_key && n < own)) { rank = rank + 1u; }\n}");
        let stored = match last {
            true => store(&mut source, out, &position(&io, [("rank".to_string(), out.strides[axis])]), "own"),
            false => store(&mut source, &ranks, &ir, "rank"),
        };
        source.line(stored);
        launches.push(super::index::finish(source, "a sort", count, end - start, tables)?);
    }
    Ok(launches)
}
