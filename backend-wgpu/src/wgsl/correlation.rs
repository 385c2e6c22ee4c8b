//! Convolutions and the gradients of their images, in registers: an invocation has several filters at several neighbouring
//! positions of a row, so that each number loaded serves many products.
//!
//! Both are correlations: position `q` along an axis is the sum of what is read at `q scale + tap`, over the kernel's taps. A
//! convolution is one correlation, whose scale is its stride. The gradient of its image is one for each phase of the stride
//! along either axis, of scale 1, with the taps that meet this phase; its results lie a stride apart.

use super::{Source, Tables, View, body::WIDTH, index::MOST_STEPS, launch::Launch, load, store};
use crate::error::Result;
use std::collections::BTreeMap;
use wgrad::{Conv2d, op::Op};

/// The most filters that an invocation has, and the most positions of a row.
const FILTERS: usize = 8;
const POSITIONS: usize = 8;
/// Kernels wider than this are not written out.
const MOST_TAPS: usize = 8;

/// A correlation along one axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Results.
    count: usize,
    /// The first one's place in the output, and the distance between places.
    to: [usize; 2],
    /// The extent of what is read, and how far apart neighbouring results read it.
    extent: usize,
    scale: usize,
    /// The number of the kernel's elements that take part, the first of them, and the distance between them.
    taps: usize,
    kernel: [usize; 2],
    /// The place where the first result reads for the first of them, and the step for each that follows.
    read: [isize; 2],
}

impl Axis {
    /// Of a convolution along axis `d`.
    fn forward(conv: &Conv2d, d: usize, extent: usize, count: usize, kernel: usize) -> Self {
        let read = [-(conv.padding[d] as isize), conv.dilation[d] as isize];
        Self { count, to: [0, 1], extent, scale: conv.stride[d], taps: kernel, kernel: [0, 1], read }
    }

    /// Of the gradient of its image, for the elements of the image at this phase of the stride; `extent` is that of what flows
    /// back. None where there are no such elements.
    fn backward(conv: &Conv2d, d: usize, phase: usize, image: usize, extent: usize, kernel: usize) -> Option<Self> {
        let (stride, dilation) = (conv.stride[d], conv.dilation[d]);
        let count = image.saturating_sub(phase).div_ceil(stride);
        let shifted = |a: usize| (phase + conv.padding[d]) as isize - (a * dilation) as isize;
        let mut taps = (0..kernel).filter(|a| shifted(*a).rem_euclid(stride as isize) == 0);
        let (first, second) = (taps.next(), taps.next());
        let number = first.iter().count() + second.iter().count() + taps.count();
        let at = |a: usize| shifted(a).div_euclid(stride as isize);
        let read = [first.map_or(0, at), second.map_or(0, |a| at(a) - first.map_or(0, at))];
        let kernel = [first.unwrap_or(0), second.map_or(0, |a| a - first.unwrap_or(0))];
        let axis = Self { count, to: [phase, stride], extent, scale: 1, taps: number, kernel, read };
        (count > 0).then_some(axis)
    }

    /// The place where position `q` reads for a tap.
    fn reads(&self, q: usize, tap: usize) -> isize {
        (q * self.scale) as isize + self.read[0] + tap as isize * self.read[1]
    }
}

/// The correlations that an op is; `None` where it is none, or too long or wide to be written out.
fn axes(op: &Op, image: &[usize], weight: &[usize], result: &[usize]) -> Option<Vec<[Axis; 2]>> {
    let axes: Vec<[Axis; 2]> = match op {
        Op::Conv2d(conv) => {
            vec![[0, 1].map(|d| Axis::forward(conv, d, image[2 + d], result[2 + d], weight[2 + d]))]
        }
        Op::ConvInputGrad(conv, _) => {
            let phases = |d: usize| {
                (0..conv.stride[d])
                    .filter_map(move |p| Axis::backward(conv, d, p, image[2 + d], result[2 + d], weight[2 + d]))
                    .collect::<Vec<_>>()
            };
            let columns = phases(1);
            phases(0).into_iter().flat_map(|row| columns.iter().map(move |column| [row, *column])).collect()
        }
        _ => return None,
    };
    axes.iter().all(|[_, columns]| columns.taps <= MOST_TAPS).then_some(axes)
}

/// The channels that are read, and those that are written, of a group; and how far apart they are among the weights.
struct Channels {
    read: usize,
    written: usize,
    /// The distance between weights of neighbouring channels that are read, and that are written.
    strides: [usize; 2],
}

/// The kernels of a convolution or of the gradient of its image. `None`: it is none of these, or too long or wide to be written
/// out. All views are contiguous, and the result has an element.
pub(crate) fn correlation(
    op: &Op,
    [image, weight, result]: [&[usize]; 3],
    reads: &[View],
    out: &View,
    tables: &Tables<'_>,
) -> Option<Result<Vec<Launch>>> {
    let (Op::Conv2d(conv) | Op::ConvInputGrad(conv, _)) = op else { return None };
    let axes = axes(op, image, weight, result)?;
    let (taps, channels, filters) = (weight[2] * weight[3], weight[1], weight[0] / conv.groups);
    let (of_channel, of_filter) = (taps, channels * taps);
    let channels = match op {
        Op::Conv2d(_) => Channels { read: channels, written: filters, strides: [of_channel, of_filter] },
        _ => Channels { read: filters, written: channels, strides: [of_filter, of_channel] },
    };
    let group = weight[0] / conv.groups * of_filter;
    let sizes = Sizes { batch: image[0], groups: conv.groups, group, row: weight[3] };
    let fits = axes.iter().all(|[rows, _]| channels.read * rows.taps <= MOST_STEPS);
    fits.then(|| axes.iter().map(|axes| kernel(axes, &channels, &sizes, reads, out, tables)).collect())
}

/// Sizes of images and weights.
struct Sizes {
    batch: usize,
    groups: usize,
    /// The weights of a group, and of a row of the kernel.
    group: usize,
    row: usize,
}

fn kernel(
    [rows, columns]: &[Axis; 2],
    channels: &Channels,
    sizes: &Sizes,
    reads: &[View],
    out: &View,
    tables: &Tables<'_>,
) -> Result<Launch> {
    let filters = FILTERS.min(channels.written);
    let blocks = channels.written.div_ceil(filters);
    let positions = if columns.count > 4 { POSITIONS } else { 4.min(columns.count) };
    let across = columns.count.div_ceil(positions);
    let points = sizes.batch * rows.count * across;
    let mut source = Source::default();
    let [xo, wo, oo] = [&reads[0], &reads[1], out].map(|view| source.param(view.offset as u32));
    // Neighbouring invocations have neighbouring positions, and the same filters.
    source.line(format!("let block = g % {}u;", blocks * sizes.groups));
    source.line(format!("let point = (g / {}u) * {WIDTH}u + lid;", blocks * sizes.groups));
    source.line(format!("if (point >= {points}u) {{ return; }}"));
    source.line(format!("let j = (point % {across}u) * {positions}u; let strip = point / {across}u;"));
    source.line(format!("let i = strip % {}u; let n = strip / {}u;", rows.count, rows.count));
    source.line(format!("let group = block / {blocks}u; let first = (block % {blocks}u) * {filters}u;"));
    for f in 0..filters {
        let last = channels.written - 1;
        let near = match channels.written.is_multiple_of(filters) {
            true => format!("(first + {f}u)"),
            false => format!("min(first + {f}u, {last}u)"),
        };
        source.line(format!("let w{f} = {wo} + group * {}u + {near} * {}u;", sizes.group, channels.strides[1]));
        (0..positions).for_each(|q| source.line(format!("var sum{f}_{q} = 0.0;")));
    }
    let steps = channels.read * rows.taps;
    if steps * columns.taps > 0 {
        source.line(format!("for (var t = 0u; t < {steps}u; t = t + 1u) {{"));
        source.line(format!("let c = t / {}u; let a = t % {}u;", rows.taps, rows.taps));
        let [r0, r1] = rows.read.map(|read| read as i32 as u32);
        // Below 0 it wraps, and is beyond the border too.
        source.line(format!("let row = i * {}u + {r0}u + a * {r1}u;", rows.scale));
        source.line(format!("if (row < {}u) {{", rows.extent));
        let image = format!(
            "((n * {}u + group * {}u + c) * {}u + row)",
            channels.read * sizes.groups,
            channels.read,
            rows.extent
        );
        source.line(format!("let line = {xo} + {image} * {}u; let start = j * {}u;", columns.extent, columns.scale));
        let places = places(columns, positions, across);
        for (at, (place, inside)) in places.iter().enumerate() {
            let column = format!("(start + {}u)", *place as i32 as u32);
            source.line(format!("let column{at} = {column};"));
            match inside {
                true => {
                    let value = load(&mut source, &reads[0], &format!("line + column{at}"));
                    source.line(format!("let x{at} = {value};"));
                }
                false => {
                    let last = columns.extent - 1;
                    let value = load(&mut source, &reads[0], &format!("line + min(column{at}, {last}u)"));
                    source.line(format!("let x{at} = {value}; let in{at} = column{at} < {}u;", columns.extent));
                }
            }
        }
        let [k0, k1] = [rows.kernel[0] * sizes.row, rows.kernel[1] * sizes.row];
        source.line(format!("let tap = c * {}u + {k0}u + a * {k1}u;", channels.strides[0]));
        for (f, b) in (0..filters).flat_map(|f| (0..columns.taps).map(move |b| (f, b))) {
            let at = format!("w{f} + tap + {}u", columns.kernel[0] + b * columns.kernel[1]);
            let value = load(&mut source, &reads[1], &at);
            source.line(format!("{{ let w = {value};"));
            for q in 0..positions {
                let place = columns.reads(q, b);
                let at = places.keys().position(|known| *known == place).expect("every place is loaded");
                let term =
                    if places[&place] { format!("w * x{at}") } else { format!("select(0.0, w * x{at}, in{at})") };
                source.line(format!("sum{f}_{q} = sum{f}_{q} + {term};"));
            }
            source.line("}");
        }
        source.line("} }");
    }
    let [h, w] = [&out.shape[2], &out.shape[3]];
    for f in 0..filters {
        source.line(format!("if (first + {f}u < {}u) {{", channels.written));
        let plane =
            format!("(n * {}u + group * {}u + first + {f}u)", channels.written * sizes.groups, channels.written);
        let row = format!("i * {}u + {}u", rows.to[1], rows.to[0]);
        source.line(format!("let line = {oo} + ({plane} * {h}u + {row}) * {w}u + {}u;", columns.to[0]));
        for q in 0..positions {
            let stored =
                store(&mut source, out, &format!("line + (j + {q}u) * {}u", columns.to[1]), &format!("sum{f}_{q}"));
            match columns.count.is_multiple_of(positions) {
                true => source.line(stored),
                false => source.line(format!("if (j + {q}u < {}u) {{ {stored} }}", columns.count)),
            }
        }
        source.line("}");
    }
    let groups = (blocks * sizes.groups) as u64 * (points as u64).div_ceil(WIDTH.into());
    source.finish("a convolution", WIDTH, groups, steps, tables)
}

/// The columns that neighbouring positions read, relative to the first one's place, and whether each is always within the
/// image.
fn places(columns: &Axis, positions: usize, across: usize) -> BTreeMap<isize, bool> {
    let last = ((across - 1) * positions * columns.scale) as isize;
    let all = (0..positions).flat_map(|q| (0..columns.taps).map(move |b| columns.reads(q, b)));
    all.map(|place| (place, place >= 0 && last + place < columns.extent as isize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair of an element of the image and one of the kernel meets a result in one phase, where the convolution says.
    #[test]
    fn phases_meet_what_the_convolution_meets() {
        for (stride, padding, dilation, kernel, image) in
            [(1, 0, 1, 1, 5), (2, 1, 1, 3, 8), (3, 2, 2, 4, 11), (2, 0, 1, 1, 7), (4, 3, 3, 2, 9), (3, 1, 3, 3, 13)]
        {
            let conv = Conv2d { stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2], groups: 1 };
            let result = (image + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
            let forward = Axis::forward(&conv, 0, image, result, kernel);
            let mut met = vec![];
            for (q, a) in (0..result).flat_map(|q| (0..kernel).map(move |a| (q, a))) {
                let at = forward.reads(q, a);
                met.extend((0..image as isize).contains(&at).then_some((at as usize, a, q)));
            }
            let mut back = vec![];
            for axis in (0..stride).filter_map(|phase| Axis::backward(&conv, 0, phase, image, result, kernel)) {
                for (q, tap) in (0..axis.count).flat_map(|q| (0..axis.taps).map(move |tap| (q, tap))) {
                    let at = axis.reads(q, tap);
                    let inside = (0..result as isize).contains(&at);
                    let element = axis.to[0] + q * axis.to[1];
                    back.extend(inside.then(|| (element, axis.kernel[0] + tap * axis.kernel[1], at as usize)));
                }
            }
            met.sort_unstable();
            back.sort_unstable();
            assert_eq!(met, back, "stride {stride}, padding {padding}, dilation {dilation}, kernel {kernel}");
        }
    }
}
