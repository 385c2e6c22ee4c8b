//! The gradient of a convolution's weights, in registers: an invocation has several filters of a channel, each with all
//! elements of the kernel or a row of them, and walks over images and positions. Where weights are few the walk is cut into
//! parts, whose sums are added up in order by a second kernel.

use super::{Scratch, Source, Tables, View, body::WIDTH, index::MOST_STEPS, launch::Launch, load, store};
use crate::error::Result;
use std::collections::BTreeSet;
use wgrad::op::Op;

/// The most filters that an invocation has, and the most positions of a row at once.
const FILTERS: usize = 8;
const POSITIONS: usize = 4;
/// Kernels of more elements than this are written out a row at a time; those with wider rows are not at all.
const MOST_TAPS: usize = 9;

/// Invocations that keep a device busy, the most parts, and the fewest iterations of one.
const BUSY: usize = 4096;
const MOST_PARTS: usize = 64;
const PART: usize = 16;

/// The kernels of the gradient of a convolution's weights. `None`: the op is another, or its kernel too wide to be written out.
/// All views are contiguous, and the result has an element.
pub(crate) fn weight_gradient(
    op: &Op,
    [image, weight, result]: [&[usize]; 3],
    reads: &[View],
    out: &View,
    tables: &mut Tables<'_>,
) -> Option<Result<Vec<Launch>>> {
    let Op::ConvWeightGrad(conv, _) = op else { return None };
    let (kh, kw) = (weight[2], weight[3]);
    if kw > MOST_TAPS {
        return None;
    }
    let (channels, of_group) = (weight[1], weight[0] / conv.groups);
    let filters = FILTERS.min(of_group);
    let blocks = of_group.div_ceil(filters);
    let rows = if kh * kw <= MOST_TAPS { kh } else { 1 };
    let positions = POSITIONS.min(result[3]);
    let (oh, ow) = (result[2], result[3]);
    let across = ow.div_ceil(positions);
    let strips = result[0] * oh * across;
    let points = conv.groups * blocks * (kh / rows) * channels;
    let parts = (BUSY / points).min(strips / PART).clamp(1, MOST_PARTS).max(strips.div_ceil(MOST_STEPS));
    let (part, count) = (strips.div_ceil(parts), out.shape.numel());
    let parts = strips.div_ceil(part.max(1)).max(1);
    let sums = match parts {
        1 => out.clone(),
        _ => {
            let memory = (tables.scratch)(Scratch::Parts, parts * count);
            View { memory, offset: 0, dtype: wgrad::DType::F32, ..out.clone() }
        }
    };
    let mut source = Source::default();
    let [go, xo, so] = [&reads[0], &reads[1], &sums].map(|view| source.param(view.offset as u32));
    source.line(format!("let point = (g / {parts}u) * {WIDTH}u + lid; let part = g % {parts}u;"));
    source.line(format!("if (point >= {points}u) {{ return; }}"));
    source.line(format!("let c = point % {channels}u; let rest = point / {channels}u;"));
    source.line(format!("let a0 = (rest % {}u) * {rows}u; let all = rest / {}u;", kh / rows, kh / rows));
    source.line(format!("let group = all / {blocks}u; let first = (all % {blocks}u) * {filters}u;"));
    let taps: Vec<(usize, usize)> = (0..rows).flat_map(|a| (0..kw).map(move |b| (a, b))).collect();
    for f in 0..filters {
        let near = match of_group.is_multiple_of(filters) {
            true => format!("first + {f}u"),
            false => format!("min(first + {f}u, {}u)", of_group - 1),
        };
        source.line(format!("let f{f} = group * {of_group}u + {near};"));
        taps.iter().for_each(|(a, b)| source.line(format!("var sum{f}_{a}_{b} = 0.0;")));
    }
    source.line(format!("let low = part * {part}u; let high = min(low + {part}u, {strips}u);"));
    source.line("for (var t = low; t < high; t = t + 1u) {");
    source.line(format!("let j = (t % {across}u) * {positions}u; let strip = t / {across}u;"));
    source.line(format!("let i = strip % {oh}u; let n = strip / {oh}u;"));
    let whole = ow.is_multiple_of(positions);
    for (f, q) in (0..filters).flat_map(|f| (0..positions).map(move |q| (f, q))) {
        let column = if whole { format!("(j + {q}u)") } else { format!("min(j + {q}u, {}u)", ow - 1) };
        let at = format!("{go} + ((n * {}u + f{f}) * {oh}u + i) * {ow}u + {column}", result[1]);
        let value = load(&mut source, &reads[0], &at);
        source.line(format!("let g{f}_{q} = {value};"));
    }
    let [stride, dilation, padding] = [conv.stride, conv.dilation, conv.padding];
    source.line(format!(
        "let plane = {xo} + (n * {}u + group * {channels}u + c) * {}u;",
        image[1],
        image[2] * image[3]
    ));
    // Columns that are read, relative to that of the first position; below 0 they wrap, and are beyond the border too.
    let place = |q: usize, b: usize| (q * stride[1] + b * dilation[1]) as isize - padding[1] as isize;
    let places: BTreeSet<isize> = (0..positions).flat_map(|q| (0..kw).map(move |b| place(q, b))).collect();
    let last = ((across - 1) * positions * stride[1]) as isize;
    for a in 0..rows {
        let shift = (a * dilation[0]) as isize - padding[0] as isize;
        source.line(format!("{{ let row = i * {}u + a0 * {}u + {}u;", stride[0], dilation[0], shift as i32 as u32));
        source.line(format!("if (row < {}u) {{ let line = plane + row * {}u;", image[2], image[3]));
        for (at, place) in places.iter().enumerate() {
            source.line(format!("let column{at} = j * {}u + {}u;", stride[1], *place as i32 as u32));
            let near = format!("min(column{at}, {}u)", image[3] - 1);
            let value = load(&mut source, &reads[1], &format!("line + {near}"));
            source.line(format!("let x{at} = {value};"));
        }
        for (b, q) in (0..kw).flat_map(|b| (0..positions).map(move |q| (b, q))) {
            let from = place(q, b);
            let at = places.iter().position(|known| *known == from).expect("every place is loaded");
            let inside = from >= 0 && last + from < image[3] as isize;
            let mut conditions = vec![];
            conditions.extend((!inside).then(|| format!("column{at} < {}u", image[3])));
            conditions.extend((!whole).then(|| format!("j + {q}u < {ow}u")));
            for f in 0..filters {
                let product = format!("g{f}_{q} * x{at}");
                let term = match conditions.is_empty() {
                    true => product,
                    false => format!("select(0.0, {product}, {})", conditions.join(" && ")),
                };
                source.line(format!("sum{f}_{a}_{b} = sum{f}_{a}_{b} + {term};"));
            }
        }
        source.line("} }");
    }
    source.line("}");
    for f in 0..filters {
        source.line(format!("if (first + {f}u < {of_group}u) {{"));
        for (a, b) in &taps {
            let at = format!("((f{f} * {channels}u + c) * {kh}u + a0 + {a}u) * {kw}u + {b}u");
            let at = if parts == 1 { format!("{so} + {at}") } else { format!("{so} + part * {count}u + {at}") };
            let stored = store(&mut source, &sums, &at, &format!("sum{f}_{a}_{b}"));
            source.line(stored);
        }
        source.line("}");
    }
    let groups = (points as u64).div_ceil(WIDTH.into()) * parts as u64;
    let launch = source.finish("a convolution", WIDTH, groups, part, tables);
    let launches = launch.and_then(|launch| match parts {
        1 => Ok(vec![launch]),
        _ => Ok(vec![launch, ends(&sums, out, parts, tables)?]),
    });
    Some(launches)
}

/// Adds up the parts of each element's sum, in order.
fn ends(sums: &View, out: &View, parts: usize, tables: &Tables<'_>) -> Result<Launch> {
    let count = out.shape.numel();
    let mut source = Source::default();
    let oo = source.param(out.offset as u32);
    source.line(format!("let i = g * {WIDTH}u + lid;\nif (i >= {count}u) {{ return; }}"));
    source.line(format!("var sum = 0.0;\nfor (var part = 0u; part < {parts}u; part = part + 1u) {{"));
    let value = load(&mut source, sums, &format!("part * {count}u + i"));
    source.line(format!("sum = sum + {value};\n}}"));
    let stored = store(&mut source, out, &format!("{oo} + i"), "sum");
    source.line(stored);
    source.finish("a convolution", WIDTH, (count as u64).div_ceil(WIDTH.into()), parts, tables)
}
