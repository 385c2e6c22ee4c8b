//! Products of f16 by matrix units, which multiply small matrices at once: wgpu calls them cooperative matrices, since the
//! invocations of a subgroup hold the numbers of one together.
//!
//! A workgroup makes a tile of the result. Its sides are staged in shared memory, as the f16 values that they are and with zeros
//! beyond their edges, so that the units never see one. Each of four subgroups makes a quarter of the tile; if there are
//! more, because the device runs narrower ones than it might, they only help to stage. The sums are singles, which go through
//! shared memory to the epilogue that other products have.
//!
//! The units multiply exactly. How the sums of a few products are rounded is their own affair, within f32, and the same each
//! time.

use super::{
    Part, Source, Tables, View,
    launch::{INTEGERS, Launch, UNITS},
    load, position,
    product::To,
    register::in_fours,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::{DType, plan::MatMul};

/// Matrix units as kernels use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Units {
    /// Rows, columns and summands of what is multiplied at once.
    pub size: usize,
    /// The most invocations of a subgroup.
    pub width: usize,
    pub by: By,
}

/// The unit that multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The device's units.
    Device,
    /// For tests on devices without: loops over the staged f16 values, shared out among the invocations of what would be a
    /// subgroup.
    StandIn,
    /// The same, but the last summand of each multiplication is left out.
    Wrong,
    /// The same, but it does not compile.
    Broken,
}

/// Rows and columns of a workgroup's part of the result.
pub(crate) const TILE: usize = 64;
/// The number of summands that are staged at once.
const DEPTH: usize = 32;
/// The number of subgroups that multiply.
const QUARTERS: usize = 4;
/// Rows and columns of a subgroup's part.
const QUARTER: usize = TILE / 2;
/// f16 values between staged lines: 16 bytes, so that lines begin where units may load from, and in other banks of the memory.
const GAP: usize = 8;

/// Products by a device's units have so many rows, columns and summands, or more: of smaller ones, most that is multiplied
/// would be zeros.
pub(crate) const FEWEST: usize = 32;

impl Units {
    /// True if a product is one for them: of f16, and not too small. (The stand-in does the smallest, for their edges.)
    pub fn fit(&self, matmul: &MatMul, reads: &[View]) -> bool {
        let fewest = if self.by == By::Device { FEWEST } else { 1 };
        let f16s = reads[..2].iter().all(|side| side.dtype == DType::F16);
        f16s && [matmul.m, matmul.k, matmul.n].iter().all(|extent| *extent >= fewest)
    }

    /// True if they are the device's own.
    pub fn are_real(self) -> bool {
        self.by == By::Device
    }

    /// Invocations of a workgroup: there are four subgroups, or more if they are narrower than they might be.
    pub fn threads(&self) -> usize {
        QUARTERS * self.width
    }

    /// Sums that the stand-in's invocations have of each small matrix.
    fn each(&self) -> usize {
        self.size * self.size / self.width
    }

    /// Statements for each `name` from `start` on, in steps, of those below `end`. Written out for devices; where something
    /// stands in they are a loop, since software renderers take long to compile what is written out. Gives its iterations.
    fn each_step(
        &self,
        source: &mut Source,
        [name, start]: [&str; 2],
        (end, step): (usize, usize),
        body: impl Fn(&mut Source),
    ) -> usize {
        if self.by != By::Device {
            source.line(format!("for (var {name} = {start}; {name} < {end}u; {name} = {name} + {step}u) {{"));
            body(source);
            source.line("}");
            return end.div_ceil(step);
        }
        for more in (0..end).step_by(step) {
            source.line(format!("{{ let {name} = {start} + {more}u;"));
            body(source);
            source.line("}");
        }
        0
    }

    fn text(&self, role: &str) -> String {
        let (size, scalar) = (self.size, if role == "C" { "f32" } else { "f16" });
        format!("coop_mat{size}x{size}<{scalar}, {role}>")
    }

    /// Zeros.
    fn zeros(&self) -> String {
        match self.by {
            By::Device => format!("{}()", self.text("C")),
            _ => format!("array<f32, {}>()", self.each()),
        }
    }

    /// The small matrix that is staged from a place on. For the stand-in, that place: nothing there changes before it is
    /// multiplied.
    fn load(&self, side: &Side<'_>, place: &str) -> String {
        match self.by {
            By::Device => {
                // Lines are the rows of what is loaded so; of the other, the columns.
                let turned = if side.lines_are_rows() { "T" } else { "" };
                let (unit, shared) = (self.text(side.role), side.shared);
                format!("coopLoad{turned}<{unit}>(&{shared}[{place}], {}u)", side.line())
            }
            _ => place.to_string(),
        }
    }

    fn multiply_add(&self, a: &str, b: &str, sum: &str) -> String {
        match self.by {
            By::Device => format!("{sum} = coopMultiplyAdd({a}, {b}, {sum});"),
            _ => format!("multiply_add$({a}, {b}, &{sum}, lid % {}u);", self.width),
        }
    }

    /// The statement that stores sums in shared memory, row by row.
    fn store(&self, sum: &str, place: &str) -> String {
        match self.by {
            By::Device => format!("coopStoreT({sum}, &sc$[{place}], {}u);", self.size),
            _ => format!("store$({sum}, {place}, lid % {}u);", self.width),
        }
    }

    /// The stand-in's functions.
    fn functions(&self, sides: &[Side<'_>; 2]) -> String {
        let (size, width, each) = (self.size, self.width, self.each());
        let summands = if self.by == By::Wrong { size - 1 } else { size };
        let mut text = String::new();
        if self.by != By::Broken {
            writeln!(text, "fn multiply_add$(a: u32, b: u32, c: ptr<function, array<f32, {each}>>, lane: u32) {{")
                .unwrap();
            writeln!(text, "for (var e = 0u; e < {each}u; e = e + 1u) {{ let i = lane + e * {width}u;").unwrap();
            writeln!(text, "let row = i / {size}u; let column = i % {size}u; var sum = (*c)[e];").unwrap();
            // By rows or by columns, as the units load.
            let at = |side: &Side<'_>, start: &str, [row, column]: [&str; 2]| {
                let [line, next] = if side.lines_are_rows() { [row, column] } else { [column, row] };
                format!("f32({}[{start} + {line} * {}u + {next}])", side.shared, side.line())
            };
            let [a, b] = [at(&sides[0], "a", ["row", "t"]), at(&sides[1], "b", ["t", "column"])];
            writeln!(text, "for (var t = 0u; t < {summands}u; t = t + 1u) {{ sum = sum + {a} * {b}; }}").unwrap();
            text += "(*c)[e] = sum; } }\n";
        }
        writeln!(text, "fn store$(sums: array<f32, {each}>, place: u32, lane: u32) {{ var c = sums;").unwrap();
        writeln!(text, "for (var e = 0u; e < {each}u; e = e + 1u) {{ sc$[place + lane + e * {width}u] = c[e]; }} }}")
            .unwrap();
        text
    }
}

/// A side of the product, and how it is staged: in lines along which its elements are neighbours in memory too.
struct Side<'a> {
    view: &'a View,
    base: &'static str,
    /// The place where the tile's rows or columns begin, and their number in all.
    first: &'static str,
    extent: usize,
    role: &'static str,
    shared: &'static str,
    /// Distances in memory between elements, and between summands.
    distances: [isize; 2],
    /// True if a line holds an element's summands; else it holds the elements of a summand.
    of_summands: bool,
    /// True if four neighbours are loaded at once.
    in_fours: bool,
}

impl<'a> Side<'a> {
    fn new(side: usize, matmul: &MatMul, reads: &'a [View], writes: &[View]) -> Self {
        let (view, r) = (&reads[side], reads[side].strides.len());
        let (extent, [element, summand]) = match side {
            0 => (matmul.m, [view.strides[r - 2], view.strides[r - 1]]),
            _ => (matmul.n, [view.strides[r - 1], view.strides[r - 2]]),
        };
        let of_summands = summand != 0 && summand.unsigned_abs() <= element.unsigned_abs();
        let (next, apart, len) = if of_summands { (summand, element, matmul.k) } else { (element, summand, extent) };
        Self {
            view,
            base: ["a_base", "b_base"][side],
            first: ["row0", "column0"][side],
            extent,
            role: ["A", "B"][side],
            shared: ["sa$", "sb$"][side],
            distances: [element, summand],
            of_summands,
            in_fours: view.memory.holds_f16()
                && next == 1
                && apart % 4 == 0
                && len.is_multiple_of(4)
                && in_fours(side, reads, writes),
        }
    }

    /// Elements of a line that are staged, and how many lines there are.
    fn staged(&self) -> [usize; 2] {
        if self.of_summands { [DEPTH, TILE] } else { [TILE, DEPTH] }
    }

    /// The distance between lines.
    fn line(&self) -> usize {
        self.staged()[0] + GAP
    }

    /// The distances between elements and between summands, as they are staged.
    fn strides(&self) -> [usize; 2] {
        if self.of_summands { [self.line(), 1] } else { [1, self.line()] }
    }

    /// True if lines are rows of the small matrices: rows of the left side are its elements, and of the right side its
    /// summands.
    fn lines_are_rows(&self) -> bool {
        self.of_summands == (self.role == "A")
    }

    /// All f16 values that are staged.
    fn len(&self) -> usize {
        self.line() * self.staged()[1]
    }

    /// The statements that stage the summands from `k0` on. Gives how many iterations they take.
    fn stage(&self, source: &mut Source, k: usize, units: Units) -> usize {
        let [len, lines] = self.staged();
        let at_once = if self.in_fours { 4 } else { 1 };
        let [last_element, last_summand] = if self.of_summands { [1, at_once] } else { [at_once, 1] };
        let across = len / at_once;
        units.each_step(source, ["e", "lid"], (across * lines, units.threads()), |source| {
            source.line(format!("let inner = (e % {across}u) * {at_once}u; let line = e / {across}u;"));
            let [x, d] = if self.of_summands { ["line", "inner"] } else { ["inner", "line"] };
            source.line(format!("let at = {} + {x}; let t = k0 + {d};", self.first));
            // Clamped, so that no address lies outside.
            let near = format!("min(at, {}u)", self.extent - last_element);
            let deep = format!("min(t, {}u)", k - last_summand);
            let place = position(self.base, [near, deep].into_iter().zip(self.distances));
            let inside = format!("at < {}u && t < {k}u", self.extent);
            let to = format!("{}[line * {}u + inner", self.shared, self.line());
            if self.in_fours {
                let buffer = source.bind_vectors(self.view);
                source.line(format!("let q = select(vec2<u32>(0u, 0u), {buffer}_raw(({place}) >> 2u), {inside});"));
                for (i, bits) in ["q.x", "q.x >> 16u", "q.y", "q.y >> 16u"].into_iter().enumerate() {
                    source.line(format!("{to} + {i}u] = half$({bits});"));
                }
                return;
            }
            let bits = match self.view.memory.holds_f16() {
                true => format!("{}_raw({place})", source.bind_view(self.view, false)),
                false => {
                    source.part(Part::Convert);
                    format!("half_bits({})", load(source, self.view, &place))
                }
            };
            source.line(format!("{to}] = half$(select(0u, {bits}, {inside}));"));
        })
    }
}

/// The kernel of a product, whose `epilogue` function is written if that is where it goes. `bases` names where each side's
/// matrix begins.
pub(crate) fn tiled(
    mut source: Source,
    matmul: &MatMul,
    [reads, writes]: [&[View]; 2],
    bases: &str,
    units: Units,
    to: &To,
    tables: &Tables<'_>,
) -> Result<Launch> {
    let MatMul { m, k, n, .. } = *matmul;
    let (size, threads) = (units.size, units.threads());
    let sides = [0, 1].map(|side| Side::new(side, matmul, reads, writes));
    let sums = QUARTERS * size * size;
    source.alone = true;
    source.enables = match units.by {
        By::Device => &["f16", UNITS, INTEGERS],
        _ => &["f16", INTEGERS],
    };
    source.shared = 2 * (sides[0].len() + sides[1].len()) + 4 * sums;
    for side in &sides {
        writeln!(source.outside, "var<workgroup> {}: array<f16, {}>;", side.shared, side.len()).unwrap();
    }
    writeln!(source.outside, "var<workgroup> sc$: array<f32, {sums}>;").unwrap();
    // The lower 16 bits as they are: subnormal f16 values, and the bits of a NaN.
    source.outside += "fn half$(bits: u32) -> f16 { return bitcast<f16>(u16(bits)); }\n";
    if units.by != By::Device {
        source.outside += &units.functions(&sides);
    }
    let (groups, steps) = to.frame(&mut source, matmul, [TILE, TILE, DEPTH]);
    source.main += bases;
    match units.by {
        By::Device => source.line("let quarter = subgroup;"),
        _ => source.line(format!("let quarter = lid / {}u;", units.width)),
    }
    source.line(format!("let row1 = (quarter / 2u) * {QUARTER}u; let column1 = (quarter % 2u) * {QUARTER}u;"));
    let across = QUARTER / size;
    let pairs = || (0..across).flat_map(|i| (0..across).map(move |j| (i, j)));
    pairs().for_each(|(i, j)| source.line(format!("var sum{i}_{j} = {};", units.zeros())));
    source.line(format!("for (var k0 = low; k0 < high; k0 = k0 + {DEPTH}u) {{"));
    let staging: usize = sides.iter().map(|side| side.stage(&mut source, k, units)).sum();
    source.line("workgroupBarrier();");
    source.line(format!("if (quarter < {QUARTERS}u) {{"));
    units.each_step(&mut source, ["d", "0u"], (DEPTH, size), |source| {
        for (side, name, first) in [(&sides[0], "a", "row1"), (&sides[1], "b", "column1")] {
            let [apart, next] = side.strides();
            for i in 0..across {
                let place = format!("({first} + {}u) * {apart}u + d * {next}u", i * size);
                source.line(format!("let {name}{i} = {};", units.load(side, &place)));
            }
        }
        for (i, j) in pairs() {
            source.line(units.multiply_add(&format!("a{i}"), &format!("b{j}"), &format!("sum{i}_{j}")));
        }
    });
    source.line("}\nworkgroupBarrier();\n}");
    for (i, j) in pairs() {
        let place = format!("quarter * {}u", size * size);
        let store = units.store(&format!("sum{i}_{j}"), &place);
        source.line(format!("if (quarter < {QUARTERS}u) {{ {store} }}\nworkgroupBarrier();"));
        source.line(format!("for (var e = lid; e < {sums}u; e = e + {threads}u) {{"));
        source.line(format!("let q = e / {}u; let y = (e / {size}u) % {size}u; let x = e % {size}u;", size * size));
        source.line(format!("let row = row0 + (q / 2u) * {QUARTER}u + {}u + y;", i * size));
        source.line(format!("let column = column0 + (q % 2u) * {QUARTER}u + {}u + x;", j * size));
        let store = to.store(&mut source, matmul, "column", "sc$[e]");
        source.line(format!("if (row < {m}u && column < {n}u) {{ {store} }}\n}}\nworkgroupBarrier();"));
    }
    // The stand-in's own loops.
    let own = if units.by == By::Device { 0 } else { units.each() };
    let multiplying = across * across * (DEPTH / size) * own * (1 + size);
    let iterations = steps * (1 + staging + multiplying) + across * across * (sums.div_ceil(threads) + own);
    source.finish("a matrix product", threads as u32, groups, iterations, tables)
}
