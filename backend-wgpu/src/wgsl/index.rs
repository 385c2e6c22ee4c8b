//! Kernels of ops that move elements by index, or along an axis: gathers, scatter-adds, arg-max, fills.

use super::{
    MOST_ITERATIONS, Memory, Part, Scratch, Source, Tables, View,
    body::{WIDTH, search},
    collapse, coordinates, from_word,
    launch::Launch,
    load, position, raw_word, store, type_name, zero,
};
use crate::error::Result;
use wgrad::{DType, Shape};

/// The most steps along an axis that a kernel takes at once.
pub(crate) const MOST_STEPS: usize = MOST_ITERATIONS / 2;

/// Starts a kernel over so many points: `i`.
pub(super) fn points(source: &mut Source, count: usize) {
    source.line(format!("let i = g * {WIDTH}u + lid;"));
    source.line(format!("if (i >= {count}u) {{ return; }}"));
}

pub(super) fn finish(
    source: Source,
    what: &'static str,
    count: usize,
    steps: usize,
    tables: &Tables<'_>,
) -> Result<Launch> {
    source.finish(what, WIDTH, (count as u64).div_ceil(u64::from(WIDTH)), steps, tables)
}

/// Names the coordinates of point `i` of a shape, and gives the position in each view, whose strides are changed.
pub(super) fn positions(source: &mut Source, shape: &Shape, views: &mut [(usize, Vec<isize>)]) -> Vec<String> {
    let mut strides: Vec<&mut Vec<isize>> = views.iter_mut().map(|(_, strides)| strides).collect();
    let extents = collapse(shape, &mut strides);
    let (text, names) = coordinates("i", "c", &extents);
    source.main += &text;
    let at = |(offset, strides): &(usize, Vec<isize>)| {
        let offset = source.param(*offset as u32);
        position(&offset, names.iter().cloned().zip(strides.iter().copied()))
    };
    views.iter().map(at).collect()
}

pub(super) fn without_axis(strides: &[isize], axis: usize) -> Vec<isize> {
    let mut strides = strides.to_vec();
    strides[axis] = 0;
    strides
}

/// `out[i] = x[.., index[i], ..]`. `flag` is the place among the flags where an index outside the axis is noted.
pub(crate) fn gather(
    axis: usize,
    x: &View,
    index: &View,
    out: &View,
    flag: usize,
    tables: &Tables<'_>,
) -> Result<Option<Launch>> {
    let (count, extent) = (out.shape.numel(), x.shape[axis]);
    if count == 0 {
        return Ok(None);
    }
    let mut source = Source::default();
    points(&mut source, count);
    let mut views = [
        (x.offset, without_axis(&x.strides, axis)),
        (index.offset, index.strides.clone()),
        (out.offset, out.strides.clone()),
    ];
    let [ix, ii, io]: [String; 3] =
        positions(&mut source, &out.shape, &mut views).try_into().expect("one for each view");
    let from = source.bind_view(index, false);
    source.line(format!("let wanted = {from}[{ii}];"));
    note(&mut source, extent, flag);
    if extent > 0 {
        let step = position(&ix, [("found".to_string(), x.strides[axis])]);
        source.line(format!("let found = min(wanted, {}u);", extent - 1));
        let element = load(&mut source, x, &step);
        let stored = store(&mut source, out, &io, &element);
        source.line(stored);
    }
    finish(source, "a gather", count, 1, tables).map(Some)
}

/// Notes point `i` if `wanted` is outside of an axis: the first such point wins.
fn note(source: &mut Source, extent: usize, flag: usize) {
    let (flags, flag) = (source.bind(Memory::Flags, true), source.param(2 * flag as u32));
    source.line(format!("if (wanted >= {extent}u) {{ atomicMax(&{flags}[{flag}], 0xffffffffu - i); }}"));
}

/// Checks the indices of a scatter-add.
fn check(index: &View, extent: usize, flag: usize, tables: &Tables<'_>) -> Result<Launch> {
    let count = index.shape.numel();
    let mut source = Source::default();
    points(&mut source, count);
    let [ii]: [String; 1] = positions(&mut source, &index.shape, &mut [(index.offset, index.strides.clone())])
        .try_into()
        .expect("one for each view");
    let from = source.bind_view(index, false);
    source.line(format!("let wanted = {from}[{ii}];"));
    note(&mut source, extent, flag);
    finish(source, "a check of indices", count, 1, tables)
}

/// Says which index was noted at a flag, and that the run has failed: in a word of the arena, which the first report of a
/// run sets whether it has or not.
pub(crate) fn report(index: &View, flag: usize, failed: usize, first: bool, tables: &Tables<'_>) -> Result<Launch> {
    let mut source = Source::default();
    source.line("if (lid > 0u) { return; }");
    let (flags, flag) = (source.bind(Memory::Flags, true), source.param(2 * flag as u32));
    let (arena, failed) = source.bind_word(failed, true);
    source.line(format!("let noted = atomicLoad(&{flags}[{flag}]);"));
    if first {
        source.line(format!("{arena}[{failed}] = select(0u, 1u, noted != 0u);"));
    } else {
        source.line(format!("if (noted != 0u) {{ {arena}[{failed}] = 1u; }}"));
    }
    if index.shape.numel() == 0 {
        return source.finish("a report", 1, 1, 1, tables); // None is out of range.
    }
    source.line("if (noted == 0u) { return; }\nlet i = 0xffffffffu - noted;");
    let [ii]: [String; 1] = positions(&mut source, &index.shape, &mut [(index.offset, index.strides.clone())])
        .try_into()
        .expect("one for each view");
    let from = source.bind_view(index, false);
    source.line(format!("atomicStore(&{flags}[{flag} + 1u], {from}[{ii}]);"));
    source.finish("a report", 1, 1, 1, tables)
}

/// `out[.., index[i], ..] += x[i]`: each element of the result walks along the axis, and adds the elements with its index, in
/// order. Long axes are walked in several kernels.
pub(crate) fn scatter_add(
    axis: usize,
    x: &View,
    index: &View,
    out: &View,
    flag: usize,
    tables: &mut Tables<'_>,
) -> Result<Vec<Launch>> {
    let (count, steps) = (out.shape.numel(), x.shape[axis]);
    let mut launches = vec![];
    if index.shape.numel() > 0 {
        launches.push(check(index, out.shape[axis], flag, tables)?);
    }
    if count == 0 {
        return Ok(launches);
    }
    let starts: Vec<usize> = if steps == 0 { vec![0] } else { (0..steps).step_by(MOST_STEPS).collect() };
    let sums = unrounded(out, starts.len(), tables);
    for (n, &start) in starts.iter().enumerate() {
        let (first, last) = (n == 0, n + 1 == starts.len());
        let end = steps.min(start + MOST_STEPS);
        let mut source = Source::default();
        points(&mut source, count);
        let mut along = vec![0; out.shape.rank()];
        along[axis] = 1;
        let mut views = [
            (x.offset, without_axis(&x.strides, axis)),
            (index.offset, without_axis(&index.strides, axis)),
            (out.offset, out.strides.clone()),
            (sums.offset, sums.strides.clone()),
            (0, along),
        ];
        let [ix, ii, io, is, own]: [String; 5] =
            positions(&mut source, &out.shape, &mut views).try_into().expect("one for each view");
        let dtype = out.dtype;
        let start_value = if first { zero(dtype).to_string() } else { load(&mut source, &sums, &is) };
        source.line(format!("let own = {own};\nvar sum: {} = {start_value};", type_name(dtype)));
        if steps > 0 {
            let (low, high) = (source.param(start as u32), source.param(end as u32));
            let i_buffer = source.bind_view(index, false);
            let ii = position(&ii, [("n".to_string(), index.strides[axis])]);
            let ix = position(&ix, [("n".to_string(), x.strides[axis])]);
            let element = load(&mut source, x, &ix);
            source.line(format!("for (var n = {low}; n < {high}; n = n + 1u) {{"));
            source.line(format!("if ({i_buffer}[{ii}] == own) {{ sum = sum + {element}; }}\n}}"));
        }
        let (to, at) = if last { (out, &io) } else { (&sums, &is) };
        let stored = store(&mut source, to, at, "sum");
        source.line(stored);
        launches.push(finish(source, "a scatter-add", count, end - start, tables)?);
    }
    Ok(launches)
}

/// The place of sums that several launches add to, one after the other: those of f16 are rounded when they are complete.
pub(crate) fn unrounded(out: &View, launches: usize, tables: &mut Tables<'_>) -> View {
    if out.dtype != DType::F16 || launches == 1 {
        return out.clone();
    }
    let memory = (tables.scratch)(Scratch::Parts, out.shape.numel());
    View { memory, offset: 0, dtype: DType::F32, ..out.contiguous(&out.shape) }
}

/// The position of the first largest element along an axis; NaN counts as largest.
pub(crate) fn argmax(axis: usize, x: &View, out: &View, tables: &Tables<'_>) -> Result<Option<Launch>> {
    let (count, extent) = (out.shape.numel(), x.shape[axis]);
    if count == 0 {
        return Ok(None);
    }
    let lanes: u32 = if extent <= 256 { 1 } else { 256 };
    let mut source = Source::default();
    if lanes == 1 {
        points(&mut source, count);
        source.line("let lane = 0u;");
    } else {
        source.line("let i = g; let lane = lid;");
    }
    let kept = |v: &[isize]| [&v[..axis], &v[axis + 1..]].concat();
    let mut views = [(x.offset, kept(&x.strides)), (out.offset, out.strides.clone())];
    let [ix, io]: [String; 2] = positions(&mut source, &out.shape, &mut views).try_into().expect("one for each view");
    let o_buffer = source.bind_view(out, true);
    let name = type_name(x.dtype);
    let beats = |source: &mut Source, a: &str, b: &str| match name {
        "f32" => {
            source.part(Part::Convert);
            format!("(({a} > {b}) | (is_nan({a}) & !is_nan({b})))")
        }
        "bool" => format!("({a} && !{b})"),
        _ => format!("({a} > {b})"),
    };
    let [first, now] =
        ["best", "n"].map(|at| load(&mut source, x, &position(&ix, [(at.to_string(), x.strides[axis])])));
    // Invocations without an element of their own begin with the first: it is the first of all.
    source.line(format!("var best = select(0u, lane, lane < {extent}u);\nvar most: {name} = {first};"));
    let better = beats(&mut source, "now", "most");
    source.line(format!("for (var n = lane + {lanes}u; n < {extent}u; n = n + {lanes}u) {{"));
    source.line(format!("let now: {name} = {now};\nif ({better}) {{ best = n; most = now; }}\n}}"));
    if lanes > 1 {
        let n = lanes as usize;
        source.shared = 8 * n;
        source.outside =
            format!("var<workgroup> places$: array<u32, {n}>;\nvar<workgroup> values$: array<u32, {n}>;\n");
        let put = format!("places$[lane] = best; values$[lane] = {};", raw_word(x.dtype, "most"));
        source.line(&put);
        let mut half = n / 2;
        let same = match name {
            "f32" => "((best_is_better | now_is_better) == false)",
            _ => "(now == most)",
        };
        while half > 0 {
            source.line(format!("workgroupBarrier();\nif (lane < {half}u) {{\nlet other = places$[lane + {half}u];"));
            source.line(format!("let now: {name} = {};", from_word(x.dtype, &format!("values$[lane + {half}u]"))));
            let now_better = beats(&mut source, "now", "most");
            let best_better = beats(&mut source, "most", "now");
            source.line(format!("let now_is_better = {now_better}; let best_is_better = {best_better};"));
            source.line(format!("if (now_is_better | ({same} & (other < best))) {{ best = other; most = now; }}"));
            source.line(format!("{put}\n}}"));
            half /= 2;
        }
        source.line(format!("if (lane == 0u) {{ {o_buffer}[{io}] = best; }}"));
        return source.finish("an arg-max", lanes, count as u64, extent.div_ceil(lanes as usize), tables).map(Some);
    }
    source.line(format!("{o_buffer}[{io}] = best;"));
    finish(source, "an arg-max", count, extent, tables).map(Some)
}

/// The statement that makes an element 0, whatever its type.
fn cleared(source: &mut Source, out: &View, at: &str) -> String {
    let buffer = source.bind_view(out, true);
    if out.memory.holds_f16() { format!("{buffer}_put({at}, 0.0);") } else { format!("{buffer}[{at}] = 0u;") }
}

/// Zeros in some ranges of memory, counted from a view's first element.
pub(crate) fn fill(ranges: &[(usize, usize)], out: &View, tables: &mut Tables<'_>) -> Result<Option<Launch>> {
    let there: Vec<(usize, usize)> = ranges.iter().copied().filter(|(_, len)| *len > 0).collect();
    let count: usize = there.iter().map(|(_, len)| len).sum();
    if count == 0 {
        return Ok(None);
    }
    let mut source = Source::default();
    points(&mut source, count);
    let offset = source.param(out.offset as u32);
    if let [(start, _)] = there[..] {
        let start = source.param(start as u32);
        let stored = cleared(&mut source, out, &format!("{offset} + {start} + i"));
        source.line(stored);
    } else {
        // The number of zeros that come before each range, and where it begins.
        let mut before = 0;
        let mut words: Vec<u32> = vec![];
        for (_, len) in &there {
            words.push(before as u32);
            before += len;
        }
        words.extend(there.iter().map(|(start, _)| *start as u32));
        let place = (tables.put)(words)?;
        let (arena, place) = (source.bind(Memory::Arena, false), source.param(place as u32));
        let mut text = search(&arena, &place, there.len(), "i", "range");
        let start = format!("{arena}[{place} + {}u + range]", there.len());
        let at = format!("{offset} + {start} + i - {arena}[{place} + range]");
        text += &cleared(&mut source, out, &at);
        source.line(text);
    }
    finish(source, "a fill", count, 1, tables).map(Some)
}
