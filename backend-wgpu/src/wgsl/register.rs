//! Matrix products in registers, for software renderers: an invocation has many elements of the result and shares nothing.
//! A load costs as much there as dozens of additions, from shared memory too, so what counts is how often each loaded number
//! is used.
//!
//! A workgroup's invocations lie side by side along one side of the product, its lanes, each with several columns (or rows:
//! the sides may be swapped) in fours; along the other they all have the same few.

use super::{Memory, Source, Tables, View, launch::Launch, load, position};
use crate::error::Result;
use wgrad::plan::MatMul;

/// Invocations of a workgroup: as many as the renderer runs at once.
const LANES: usize = 8;
/// An invocation's elements along the side that the lanes share, and the most fours of its own, for products of so many
/// summands or more: the more it has, the fewer loads, and the longer the compiler takes.
const TILES: [(usize, usize, usize); 3] = [(512, 8, 4), (64, 8, 2), (0, 4, 1)];

/// The numbers of a vector.
const PARTS: [&str; 4] = ["x", "y", "z", "w"];

/// The way the elements of a side are loaded.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Load {
    /// Four summands of an element at once.
    Summands,
    /// Four elements at once.
    Elements,
    /// One by one.
    Single,
}

/// A side of the product.
struct Side<'a> {
    view: &'a View,
    base: &'static str,
    extent: usize,
    /// The distance between elements, and between summands.
    strides: [isize; 2],
    load: Load,
}

impl<'a> Side<'a> {
    /// Side 0 or 1 of a product.
    fn new(side: usize, matmul: &MatMul, reads: &'a [View], writes: &[View]) -> Self {
        let MatMul { m, k, n, .. } = *matmul;
        let view = &reads[side];
        let r = view.strides.len();
        let (extent, strides) = match side {
            0 => (m, [view.strides[r - 2], view.strides[r - 1]]),
            _ => (n, [view.strides[r - 1], view.strides[r - 2]]),
        };
        let in_fours = in_fours(side, reads, writes);
        let aligned = |stride: &isize| stride % 4 == 0;
        let load = match strides {
            [element, 1] if in_fours && aligned(&element) && k.is_multiple_of(4) => Load::Summands,
            [1, summand] if in_fours && aligned(&summand) && extent.is_multiple_of(4) => Load::Elements,
            _ => Load::Single,
        };
        Self { view, base: ["a_base", "b_base"][side], extent, strides, load }
    }

    /// The element or vector of four from a position on.
    fn at(&self, source: &mut Source, element: &str, summand: &str) -> String {
        let steps = [(element.to_string(), self.strides[0]), (summand.to_string(), self.strides[1])];
        let at = position(self.base, steps);
        match self.load {
            Load::Single => load(source, self.view, &at),
            _ => {
                let buffer = source.bind_vectors(self.view);
                match self.view.memory.holds_f16() {
                    true => format!("{buffer}_at(({at}) >> 2u)"),
                    false => format!("bitcast<vec4<f32>>({buffer}[({at}) >> 2u])"),
                }
            }
        }
    }

    /// The nearest element that there is; of four together, the first.
    fn near(&self, element: String, tile: usize) -> String {
        if self.extent.is_multiple_of(tile) {
            return element;
        }
        let last = if self.load == Load::Elements { self.extent - 4 } else { self.extent - 1 };
        format!("min({element}, {last}u)")
    }
}

/// True if each matrix of side 0 or 1 can be bound as vectors of four.
pub(crate) fn in_fours(side: usize, reads: &[View], writes: &[View]) -> bool {
    let view = &reads[side];
    // A buffer is bound once, as vectors or as numbers.
    let alone = view.memory != Memory::Arena
        && reads[0].memory != reads[1].memory
        && reads[2..].iter().chain(writes).all(|other| other.memory != view.memory);
    let batches = &view.strides[..view.strides.len() - 2];
    alone && view.offset.is_multiple_of(4) && batches.iter().all(|stride| stride % 4 == 0)
}

/// True if a product is worth it: a lane for each of eight elements.
pub(crate) fn fits(matmul: &MatMul) -> bool {
    matmul.m.max(matmul.n) >= LANES
}

/// The kernel of a product whose `epilogue` function is written. `bases` names where each side's matrix begins.
pub(crate) fn product(
    mut source: Source,
    matmul: &MatMul,
    reads: &[View],
    writes: &[View],
    bases: &str,
    tables: &Tables<'_>,
) -> Result<Launch> {
    let MatMul { m, k, n, .. } = *matmul;
    let sides = [0, 1].map(|side| Side::new(side, matmul, reads, writes));
    let swapped = n < 4 * LANES && m > n;
    let [shared, own] = if swapped { [&sides[1], &sides[0]] } else { [&sides[0], &sides[1]] };
    let (_, count, fours) = TILES.into_iter().find(|(summands, ..)| k >= *summands).expect("the last one has any");
    let fours = fours.min((own.extent / (4 * LANES)).max(1).next_power_of_two());
    // Of four elements at once, all have a place.
    let count = if shared.load == Load::Elements { count } else { count.min(shared.extent) };
    let (down, across) = (shared.extent.div_ceil(count), own.extent.div_ceil(4 * LANES * fours));
    let step = if sides.iter().any(|side| side.load == Load::Summands) || k.is_multiple_of(4) { 4 } else { 1 };
    let iterations = k / step;
    source.line(format!("let tile = g % {}u; let batch = g / {}u;", down * across, down * across));
    source.line(format!(
        "let first_x = (tile / {across}u) * {count}u; let first_y = (tile % {across}u) * {}u + lid * 4u;",
        4 * LANES * fours
    ));
    source.main += bases;
    for i in (0..count).step_by(if shared.load == Load::Elements { 4 } else { 1 }) {
        let near = shared.near(format!("(first_x + {i}u)"), count);
        source.line(format!("let x{i} = {near};"));
    }
    for q in 0..fours {
        for j in (0..4).take(if own.load == Load::Elements { 1 } else { 4 }) {
            let near = own.near(format!("(first_y + {}u)", 4 * LANES * q + j), 4 * LANES * fours);
            source.line(format!("let y{q}_{j} = {near};"));
        }
        (0..count).for_each(|i| source.line(format!("var sum{i}_{q} = vec4<f32>(0.0, 0.0, 0.0, 0.0);")));
    }
    source.line(format!("for (var t = 0u; t < {k}u; t = t + {step}u) {{"));
    if shared.load == Load::Summands {
        for i in 0..count {
            let value = shared.at(&mut source, &format!("x{i}"), "t");
            source.line(format!("let s{i} = {value};"));
        }
    }
    if own.load == Load::Summands {
        for (q, j) in (0..fours).flat_map(|q| (0..4).map(move |j| (q, j))) {
            let value = own.at(&mut source, &format!("y{q}_{j}"), "t");
            source.line(format!("let o{q}_{j} = {value};"));
        }
    }
    for (d, part) in PARTS.into_iter().enumerate().take(step) {
        source.line(format!("{{ let d = t + {d}u;"));
        let factor: Vec<String> = match shared.load {
            Load::Summands => (0..count).map(|i| format!("s{i}.{part}")).collect(),
            Load::Elements => {
                for i in (0..count).step_by(4) {
                    let value = shared.at(&mut source, &format!("x{i}"), "d");
                    source.line(format!("let s{i} = {value};"));
                }
                (0..count).map(|i| format!("s{}.{}", i / 4 * 4, PARTS[i % 4])).collect()
            }
            Load::Single => (0..count).map(|i| shared.at(&mut source, &format!("x{i}"), "d")).collect(),
        };
        for q in 0..fours {
            let value = match own.load {
                Load::Elements => own.at(&mut source, &format!("y{q}_0"), "d"),
                Load::Summands => format!("vec4<f32>(o{q}_0.{part}, o{q}_1.{part}, o{q}_2.{part}, o{q}_3.{part})"),
                Load::Single => {
                    let parts: Vec<String> = (0..4).map(|j| own.at(&mut source, &format!("y{q}_{j}"), "d")).collect();
                    format!("vec4<f32>({})", parts.join(", "))
                }
            };
            source.line(format!("let own{q} = {value};"));
        }
        for (i, factor) in factor.iter().enumerate() {
            source.line(format!("let f{i} = {factor};"));
            (0..fours).for_each(|q| source.line(format!("sum{i}_{q} = sum{i}_{q} + f{i} * own{q};")));
        }
        source.line("}");
    }
    source.line("}");
    for (i, q, j) in (0..count).flat_map(|i| (0..4 * fours).map(move |e| (i, e / 4, e % 4))) {
        let (x, y) = (format!("first_x + {i}u"), format!("first_y + {}u", 4 * LANES * q + j));
        let at = if swapped { format!("{y}, {x}") } else { format!("{x}, {y}") };
        let mut inside = vec![];
        inside.extend((!shared.extent.is_multiple_of(count)).then(|| format!("{x} < {}u", shared.extent)));
        inside.extend((!own.extent.is_multiple_of(4 * LANES * fours)).then(|| format!("{y} < {}u", own.extent)));
        let call = format!("epilogue$(batch, {at}, sum{i}_{q}.{});", PARTS[j]);
        match inside.is_empty() {
            true => source.line(call),
            false => source.line(format!("if ({}) {{ {call} }}", inside.join(" && "))),
        }
    }
    let groups = (matmul.batch.numel() * down * across) as u64;
    source.finish("a matrix product", LANES as u32, groups, iterations, tables)
}
