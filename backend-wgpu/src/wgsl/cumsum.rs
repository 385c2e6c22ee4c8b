//! Sums up to each position of an axis. A line is walked by one invocation; few long lines are cut into parts, whose sums come
//! first, and then what is before each part.
//!
//! Sums of floats carry their rounding errors along, so that the last of many millions is as exact as the first.

use super::{
    MOST_ITERATIONS, Memory, Part, Scratch, Source, Tables, View,
    body::{WIDTH, binary},
    from_word,
    index::{positions, without_axis},
    launch::Launch,
    load, position, raw_word, store, type_name, zero,
};
use crate::error::Result;
use wgrad::{DType, Shape, op::Binary};

/// Lines of up to so many elements are not cut.
const LONG: usize = 512;
/// So many lines give a GPU enough to do.
const MANY: usize = 4096;

/// A kernel's share of the work.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// All of it.
    Whole,
    /// The sum of each part.
    Sums,
    /// The sum of all before each part, in its sum's place.
    Before,
    /// The elements of each part.
    Parts,
}

struct CumSum<'a> {
    axis: usize,
    reverse: bool,
    x: &'a View,
    out: &'a View,
    /// The shape of the lines' first elements.
    lines: Shape,
    /// The elements of a part.
    len: usize,
}

/// The sums up to each position of an axis, or from each on.
pub(crate) fn cumsum(axis: usize, reverse: bool, x: &View, out: &View, tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
    let (extent, lines) = (out.shape[axis], out.shape.with(axis, 1));
    if out.shape.numel() == 0 {
        return Ok(vec![]);
    }
    let whole = extent <= LONG || lines.numel() >= MANY && extent <= MOST_ITERATIONS;
    // As many parts as each has elements, about: the longest walk is the shortest then.
    let len = if whole { extent } else { extent.isqrt() };
    let sums = CumSum { axis, reverse, x, out, lines, len };
    if whole {
        return Ok(vec![sums.kernel(Work::Whole, None, tables)?]);
    }
    let scratch = Some((tables.scratch)(Scratch::Parts, sums.words() * sums.units()));
    [Work::Sums, Work::Before, Work::Parts].into_iter().map(|work| sums.kernel(work, scratch, tables)).collect()
}

impl CumSum<'_> {
    fn parts(&self) -> usize {
        self.out.shape[self.axis].div_ceil(self.len)
    }

    /// The parts of all lines.
    fn units(&self) -> usize {
        self.parts() * self.lines.numel()
    }

    fn is_float(&self) -> bool {
        self.out.dtype.is_float()
    }

    /// The words of a sum.
    fn words(&self) -> usize {
        if self.is_float() { 2 } else { 1 }
    }

    /// The statement that adds an element, or a sum, to `sum`.
    fn add(&self, source: &mut Source, other: &str, is_sum: bool) -> String {
        match (self.is_float(), is_sum) {
            (false, _) => format!("sum = {};", binary(source, Binary::Add, self.out.dtype, "sum", other)),
            (true, false) => format!("sum = plus(sum, {other}, none);"),
            (true, true) => format!("sum = plus(sum, {other}.x, none);\nsum.y = sum.y + {other}.y;"),
        }
    }

    /// The sum of unit `u` in scratch memory.
    fn kept(&self, buffer: &str) -> String {
        match self.is_float() {
            true => {
                let [x, y] = [0, self.units()].map(|at| from_word(DType::F32, &format!("{buffer}[{at}u + u]")));
                format!("vec2<f32>({x}, {y})")
            }
            false => from_word(self.out.dtype, &format!("{buffer}[u]")),
        }
    }

    /// The statements that put `sum` there.
    fn keep(&self, buffer: &str) -> String {
        match self.is_float() {
            true => {
                format!("{buffer}[u] = bitcast<u32>(sum.x);\n{buffer}[{}u + u] = bitcast<u32>(sum.y);", self.units())
            }
            false => format!("{buffer}[u] = {};", raw_word(self.out.dtype, "sum")),
        }
    }

    fn kernel(&self, work: Work, scratch: Option<Memory>, tables: &Tables<'_>) -> Result<Launch> {
        let (lines, extent, dtype) = (self.lines.numel(), self.out.shape[self.axis], self.out.dtype);
        let mut source = Source::default();
        let count = if work == Work::Before { lines } else { self.units() };
        source.line(format!("let u0 = g * {WIDTH}u + lid;\nif (u0 >= {count}u) {{ return; }}"));
        match self.is_float() {
            true => {
                source.part(Part::Sum);
                let none = source.param(0);
                source.line(format!("let none = {none};\nvar sum = vec2<f32>(0.0, 0.0);"));
            }
            false => source.line(format!("var sum: {} = {};", type_name(dtype), zero(dtype))),
        }
        let buffer = scratch.map(|memory| source.bind(memory, work != Work::Parts)).unwrap_or_default();
        if work == Work::Before {
            let (kept, keep) = (self.kept(&buffer), self.keep(&buffer));
            let add = self.add(&mut source, "own", true);
            source.line(format!("for (var part = 0u; part < {}u; part = part + 1u) {{", self.parts()));
            source.line(format!("let u = part * {lines}u + u0;\nlet own = {kept};\n{keep}\n{add}\n}}"));
        } else {
            source.line(format!("let u = u0;\nlet i = u % {lines}u;\nlet low = (u / {lines}u) * {}u;", self.len));
            source.line(format!("let high = min(low + {}u, {extent}u);", self.len));
            if work == Work::Parts {
                source.line(format!("sum = {};", self.kept(&buffer)));
            }
            let along = |view: &View| (view.offset, without_axis(&view.strides, self.axis));
            let [ix, io]: [String; 2] = positions(&mut source, &self.lines, &mut [along(self.x), along(self.out)])
                .try_into()
                .expect("one for each view");
            let n = if self.reverse { format!("({}u - n)", extent - 1) } else { "n".into() };
            let at = |base: &str, view: &View| position(base, [(n.clone(), view.strides[self.axis])]);
            let element = load(&mut source, self.x, &at(&ix, self.x));
            let add = self.add(&mut source, &element, false);
            source.line(format!("for (var n = low; n < high; n = n + 1u) {{\n{add}"));
            if work != Work::Sums {
                let value = if self.is_float() { "sum.x + sum.y" } else { "sum" };
                let stored = store(&mut source, self.out, &at(&io, self.out), value);
                source.line(stored);
            }
            source.line("}");
            if work == Work::Sums {
                source.line(self.keep(&buffer));
            }
        }
        let steps = if work == Work::Before { self.parts() } else { self.len };
        let groups = (count as u64).div_ceil(u64::from(WIDTH));
        source.finish("a cumulative sum", WIDTH, groups, steps, tables)
    }
}
