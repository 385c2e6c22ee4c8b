//! Scalar programs as statements: what is loaded, computed and stored at a point of a kernel's index space.

use super::{
    Memory, Part, Source, Tables, View, collapse, coordinates, launch::Launch, load, position, store, type_name, zero,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::{
    DType, Shape, f16_from_f64,
    op::{Binary, Gate, Segments, Unary},
    plan::{Body, Instr, Level, Operand, Value},
};

/// Invocations per workgroup where they have nothing to do with each other.
pub(crate) const WIDTH: u32 = 64;

/// Invocations of a workgroup that is the only one: always as many, so that it can do what comes before and after too.
pub(crate) const ALONE: u32 = 256;
/// The most points of a map that one workgroup runs through.
const FEW: usize = 1024;

/// A strided view of a body: its offset, and strides for each block of dimensions that have coordinates of their own.
struct Look {
    offset: String,
    strides: Vec<Vec<isize>>,
}

/// The purpose of a view.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// The value that loads by it, or whose position it is.
    Value(usize),
    /// The store.
    Store(usize),
}

/// The names of the coordinates, for each block.
pub(crate) type Coordinates = Vec<Vec<String>>;

/// A body whose statements are written.
pub(crate) struct Emit<'a> {
    pub body: &'a Body,
    reads: &'a [View],
    writes: &'a [View],
    looks: Vec<(Use, Look)>,
    /// The extents of each block.
    pub blocks: Vec<Vec<usize>>,
    /// The condition of stores, if there is one.
    guard: Option<String>,
    /// A zero that compilers cannot know, where results are hidden from them.
    none: Option<String>,
    /// Tables of segments: their place in the arena, and how many.
    segments: Vec<(usize, String, usize)>,
}

impl<'a> Emit<'a> {
    /// Prepares a body whose dimensions are cut into blocks of so many; of a body with rows, the first block is what has
    /// rows. `guard` is the place of a word of the arena which, if it is not 0, keeps stores from happening.
    pub fn new(
        source: &mut Source,
        body: &'a Body,
        reads: &'a [View],
        writes: &'a [View],
        blocks: &[usize],
        guard: Option<usize>,
        tables: &mut Tables<'_>,
    ) -> Result<Self> {
        let cut = |all: &[isize], level: Level| -> Vec<Vec<isize>> {
            match (&body.segments, level) {
                (Some(_), Level::Row) => vec![all.to_vec(), vec![]],
                (Some(_), Level::Element) => vec![vec![0], all.to_vec()],
                (None, Level::Row) => vec![all.to_vec(), vec![]],
                (None, Level::Element) => {
                    // A row of one element may be viewed without the dimensions that are reduced.
                    let mut all = all.to_vec();
                    all.resize(body.space.rank(), 0);
                    let mut rest = &all[..];
                    let part = |n: &usize| {
                        let (part, after) = rest.split_at(*n);
                        rest = after;
                        part.to_vec()
                    };
                    blocks.iter().map(part).collect()
                }
            }
        };
        let mut looks: Vec<(Use, usize, Vec<Vec<isize>>, Level)> = vec![];
        for (i, value) in body.values.iter().enumerate() {
            let (offset, strides) = match &value.instr {
                Instr::Load(read) => (reads[*read].offset, &reads[*read].strides),
                Instr::Random { index: Operand { offset, strides, .. }, .. }
                | Instr::Lookup { index: Operand { offset, strides, .. }, .. } => (*offset, strides),
                _ => continue,
            };
            looks.push((Use::Value(i), offset, cut(strides, value.level), value.level));
        }
        for (k, (&value, write)) in body.stores.iter().zip(writes).enumerate() {
            let level = body.values[value].level;
            looks.push((Use::Store(k), write.offset, cut(&write.strides, level), level));
        }
        let extents: Vec<Vec<usize>> = match &body.segments {
            Some(segments) => vec![vec![segments.ranges.len()], vec![segments.total]],
            None => {
                let mut rest = &body.space[..];
                let part = |n: &usize| {
                    let (part, after) = rest.split_at(*n);
                    rest = after;
                    part.to_vec()
                };
                blocks.iter().map(part).collect()
            }
        };
        let collapsed = |(b, extents): (usize, &Vec<usize>)| {
            let mut strides: Vec<&mut Vec<isize>> = looks
                .iter_mut()
                .filter(|(.., level)| b == 0 || *level == Level::Element)
                .map(|(_, _, strides, _)| &mut strides[b])
                .collect();
            collapse(extents, &mut strides)
        };
        let blocks = extents.iter().enumerate().map(collapsed).collect();
        let looks = looks.into_iter().map(|(used, offset, strides, _)| {
            let offset = source.param(offset as u32);
            (used, Look { offset, strides })
        });
        let looks = looks.collect();
        let guard = guard.map(|word| {
            let (arena, word) = source.bind_word(word, false);
            source.line(format!("let allowed = {arena}[{word}] == 0u;"));
            "allowed".to_string()
        });
        let none = tables.wary.then(|| source.param(0));
        let mut emit = Self { body, reads, writes, looks, blocks, guard, none, segments: vec![] };
        for (i, value) in body.values.iter().enumerate() {
            if let Instr::Lookup { segments, .. } = &value.instr {
                let (place, count) = put_segments(segments, tables)?;
                let place = source.param(place as u32);
                emit.segments.push((i, place, count));
            }
        }
        // Bound at once, so that bindings have the same numbers whatever is written first.
        reads.iter().for_each(|read| drop(source.bind(read.memory, false)));
        writes.iter().for_each(|write| drop(source.bind(write.memory, false)));
        Ok(emit)
    }

    fn at(&self, used: Use, at: &Coordinates) -> String {
        let (_, look) = self.looks.iter().find(|(u, _)| *u == used).expect("each has a look");
        let steps = look.strides.iter().zip(at).flat_map(|(strides, names)| strides.iter().zip(names));
        position(&look.offset, steps.map(|(stride, name)| (name.clone(), *stride)))
    }

    /// The values that these need: they themselves, and what they are computed from, as far as it is
    /// not known yet; ascending.
    pub fn needed(&self, wanted: &[usize], known: &[bool]) -> Vec<usize> {
        let mut needed = vec![false; self.body.values.len()];
        wanted.iter().for_each(|&i| needed[i] = !known[i]);
        for i in (0..needed.len()).rev().filter(|&i| !known[i]) {
            if needed[i] {
                self.body.values[i].instr.operands().filter(|&o| !known[o]).for_each(|o| needed[o] = true);
            }
        }
        (0..needed.len()).filter(|&i| needed[i]).collect()
    }

    /// The statements of a value that is no reduction.
    pub fn value(&self, source: &mut Source, i: usize, at: &Coordinates) -> String {
        let value = &self.body.values[i];
        let dtype = value.dtype;
        let of = |o: usize| format!("v{o}");
        let type_of = |o: usize| self.body.values[o].dtype;
        let expression = match &value.instr {
            Instr::Load(read) => load(source, &self.reads[*read], &self.at(Use::Value(i), at)),
            Instr::Const(c) => constant(source, dtype, *c),
            Instr::Product => "product".into(),
            Instr::Unary(op, a) => unary(source, *op, type_of(*a), &of(*a)),
            // A divisor is hidden, too: it may be what is divided.
            Instr::Binary(Binary::Div, a, b) if dtype.is_float() => {
                format!("({} / {})", of(*a), self.hidden(source, of(*b)))
            }
            Instr::Binary(op, a, b) => binary(source, *op, type_of(*a), &of(*a), &of(*b)),
            Instr::Select(c, a, b) => format!("select({}, {}, {})", of(*b), of(*a), of(*c)),
            Instr::Cast(a) => cast(source, type_of(*a), dtype, &of(*a)),
            Instr::Spread(a) => format!("select({}, {}, inside)", zero(dtype), of(*a)),
            Instr::Random { stream, key: [a, b, counter], .. } => {
                source.part(Part::Random);
                let (low, high) = (source.param(*stream as u32), source.param((*stream >> 32) as u32));
                let index = self.at(Use::Value(i), at);
                format!("word(stream_key(v{a}, v{b}, {low}, {high}), v{counter}, {index})")
            }
            Instr::Lookup { load, .. } => return self.lookup(source, i, *load, at),
            Instr::Reduce(..) => unreachable!("reductions are loops"),
        };
        let expression = match value.instr {
            Instr::Unary(..) | Instr::Binary(..) if dtype.is_float() => self.hidden(source, expression),
            _ => expression,
        };
        format!("let v{i}: {} = {expression};\n", type_name(dtype))
    }

    /// A float unchanged. For compilers that rearrange arithmetic its origin is hidden.
    fn hidden(&self, source: &mut Source, float: String) -> String {
        match &self.none {
            None => float,
            Some(none) => {
                source.part(Part::Opaque);
                format!("opaque({float}, {none})")
            }
        }
    }

    /// The element of a vector for the segment that a position lies in.
    fn lookup(&self, source: &mut Source, i: usize, load: usize, at: &Coordinates) -> String {
        let (dtype, read) = (self.body.values[i].dtype, &self.reads[load]);
        let (_, place, count) = self.segments.iter().find(|(value, ..)| *value == i).expect("each has a table");
        if *count == 0 {
            return format!("let v{i}: {} = {};\n", type_name(dtype), zero(dtype));
        }
        let arena = source.bind(Memory::Arena, false);
        let mut text = format!("let q{i} = {};\n", self.at(Use::Value(i), at));
        text += &search(&arena, place, *count, &format!("q{i}"), &format!("s{i}"));
        let offset = source.param(read.offset as u32);
        let n = *count;
        let id = format!("{arena}[{place} + {}u + s{i}]", 2 * n);
        let element = position(&offset, [(id, read.strides.first().copied().unwrap_or(0))]);
        let loaded = self::load(source, read, &element);
        let inside = format!("q{i} >= {arena}[{place} + s{i}] && q{i} < {arena}[{place} + {n}u + s{i}]");
        writeln!(text, "let v{i}: {} = select({}, {loaded}, {inside});", type_name(dtype), zero(dtype)).unwrap();
        text
    }

    /// The statement of a store.
    pub fn store(&self, source: &mut Source, k: usize, at: &Coordinates) -> String {
        let write = &self.writes[k];
        let (at, value) = (self.at(Use::Store(k), at), format!("v{}", self.body.stores[k]));
        let stored = store(source, write, &at, &value);
        match &self.guard {
            None => format!("{stored}\n"),
            Some(guard) => format!("if ({guard}) {{ {stored} }}\n"),
        }
    }
}

/// The place of a table of segments: starts, ends and numbers of those that are not empty; and how many these are.
fn put_segments(segments: &Segments, tables: &mut Tables<'_>) -> Result<(usize, usize)> {
    let there: Vec<(usize, (usize, usize))> =
        segments.ranges.iter().copied().enumerate().filter(|(_, (_, len))| *len > 0).collect();
    let mut words: Vec<u32> = there.iter().map(|(_, (start, _))| *start as u32).collect();
    words.extend(there.iter().map(|(_, (start, len))| (start + len) as u32));
    words.extend(there.iter().map(|(id, _)| *id as u32));
    Ok(((tables.put)(words)?, there.len()))
}

/// Statements that find the last of `count` ascending words, from a place on, that is not larger than `wanted`; the first
/// if none is.
pub(crate) fn search(arena: &str, place: &str, count: usize, wanted: &str, found: &str) -> String {
    let mut text = format!("var {found} = 0u;\n");
    let mut step = count.next_power_of_two();
    while step > 0 {
        if step < count {
            let there = format!("{arena}[{place} + min({found} + {step}u, {}u)]", count - 1);
            writeln!(
                text,
                "if ({found} + {step}u < {count}u && {there} <= {wanted}) {{ {found} = {found} + {step}u; }}"
            )
            .unwrap();
        }
        step /= 2;
    }
    text
}

/// A constant of a type. Those that compilers like to fold, or refuse, are no part of the text.
pub(crate) fn constant(source: &mut Source, dtype: DType, value: f64) -> String {
    match dtype {
        DType::F32 | DType::F16 => {
            let value = if dtype == DType::F16 { f16_from_f64(value).to_f32() } else { value as f32 };
            match value.is_normal() {
                true => format!("{value:e}f"),
                false => format!("bitcast<f32>({})", source.param(value.to_bits())),
            }
        }
        DType::U32 => format!("{}u", value as u32),
        DType::I32 if value as i32 == i32::MIN => format!("bitcast<i32>({})", source.param(i32::MIN as u32)),
        DType::I32 => format!("({}i)", value as i32),
        DType::Bool => (value != 0.0).to_string(),
        DType::F64 => unreachable!("f64 is refused before"),
    }
}

fn unary(source: &mut Source, op: Unary, from: DType, a: &str) -> String {
    let (part, name) = match op {
        Unary::Neg if from.is_float() => return negative(source, a),
        Unary::Neg => return format!("-({a})"),
        Unary::Recip => return format!("(1.0 / {a})"),
        Unary::Sqrt => return format!("sqrt({a})"),
        Unary::Floor => return format!("floor({a})"),
        Unary::Round => return format!("round({a})"),
        Unary::IsFinite => {
            source.part(Part::Convert);
            return match from {
                DType::F16 => format!("is_finite(round_half({a}))"),
                _ => format!("is_finite({a})"),
            };
        }
        Unary::Exp => (Part::Exp, "fexp"),
        Unary::Expm1 => (Part::Exp, "fexpm1"),
        Unary::Tanh => (Part::Exp, "ftanh"),
        Unary::Log => (Part::Log, "flog"),
        Unary::Sin => (Part::Trig, "fsin"),
        Unary::Cos => (Part::Trig, "fcos"),
        Unary::Erf => (Part::Erf, "ferf"),
        Unary::Sigmoid => (Part::Gates, "fsigmoid"),
        Unary::NormalCdf => (Part::Gates, "fnormal_cdf"),
        Unary::NormalPdf => (Part::Gates, "fnormal_pdf"),
        Unary::Gated(Gate::Sigmoid) => (Part::Gates, "fsilu"),
        Unary::GatedSlope(Gate::Sigmoid) => (Part::Gates, "fsilu_slope"),
        Unary::Gated(Gate::Normal) => (Part::Gates, "fgelu"),
        Unary::GatedSlope(Gate::Normal) => (Part::Gates, "fgelu_slope"),
        Unary::Log1p => (Part::Log, "flog1p"),
        Unary::Gated(Gate::NormalTanh) => (Part::Gates, "fgelu_tanh"),
        Unary::GatedSlope(Gate::NormalTanh) => (Part::Gates, "fgelu_tanh_slope"),
    };
    source.part(part);
    match op {
        // These sum their rounding errors.
        Unary::Log1p | Unary::Gated(Gate::NormalTanh) | Unary::GatedSlope(Gate::NormalTanh) => {
            format!("{name}({a}, {})", source.param(0))
        }
        _ => format!("{name}({a})"),
    }
}

/// A float negated, in integer arithmetic with a bit that compilers do not know. Otherwise they replace the difference of two equal
/// values by 0, even where these are infinite or NaN.
fn negative(source: &mut Source, a: &str) -> String {
    format!("bitcast<f32>(bitcast<u32>({a}) ^ {})", source.sign())
}

/// An elementwise function of two values of a type.
pub(crate) fn binary(source: &mut Source, op: Binary, dtype: DType, a: &str, b: &str) -> String {
    let float = dtype.is_float();
    let call = |source: &mut Source, part: Part, name: &str| {
        source.part(part);
        format!("{name}({a}, {b})")
    };
    match op {
        Binary::Add => format!("({a} + {b})"),
        Binary::Sub if float => format!("({a} + {})", negative(source, b)),
        Binary::Sub => format!("({a} - {b})"),
        Binary::Mul => format!("({a} * {b})"),
        Binary::Div if float => format!("({a} / {b})"),
        Binary::Div if dtype == DType::I32 => call(source, Part::Convert, "quotient_i32"),
        Binary::Div => call(source, Part::Convert, "quotient_u32"),
        Binary::Pow => call(source, Part::Pow, "fpow"),
        Binary::Max if float => call(source, Part::Convert, "larger"),
        // No `||`: see `larger` in convert.wgsl.
        Binary::Max if dtype == DType::Bool => format!("({a} | {b})"),
        Binary::Max => format!("max({a}, {b})"),
        Binary::Lt => format!("({a} < {b})"),
        Binary::Eq => format!("({a} == {b})"),
    }
}

fn cast(source: &mut Source, from: DType, to: DType, a: &str) -> String {
    source.part(Part::Convert);
    let single = |dtype: DType| if dtype == DType::F16 { DType::F32 } else { dtype };
    let value = match (single(from), single(to)) {
        (from, to) if from == to => a.to_string(),
        (DType::F32, DType::U32) => format!("to_u32({a})"),
        (DType::F32, DType::I32) => format!("to_i32({a})"),
        (DType::F32, DType::Bool) => format!("is_nonzero({a})"),
        (DType::U32, DType::I32) => format!("i32(min({a}, 2147483647u))"),
        (DType::I32, DType::U32) => format!("u32(max({a}, 0i))"),
        (DType::U32, DType::Bool) => format!("({a} != 0u)"),
        (DType::I32, DType::Bool) => format!("({a} != 0i)"),
        (DType::Bool, DType::F32) => format!("select(0.0, 1.0, {a})"),
        (DType::Bool, DType::U32) => format!("select(0u, 1u, {a})"),
        (DType::Bool, DType::I32) => format!("select(0i, 1i, {a})"),
        (_, _) => format!("f32({a})"),
    };
    if to == DType::F16 && from != DType::F16 { format!("round_half({value})") } else { value }
}

/// The kernel of a body without rows.
pub(crate) fn map(
    body: &Body,
    reads: &[View],
    writes: &[View],
    guard: Option<usize>,
    tables: &mut Tables<'_>,
) -> Result<Option<Launch>> {
    let count = body.space.numel();
    if count == 0 {
        return Ok(None);
    }
    let mut source = Source::default();
    // A row that fits into a workgroup takes no loop.
    let looped = (WIDTH as usize + 1..=FEW).contains(&count);
    if looped {
        source.line(format!("for (var i = lid; i < {count}u; i = i + {ALONE}u) {{"));
    } else {
        source.line(format!("let i = g * {WIDTH}u + lid;"));
        source.line(format!("if (i >= {count}u) {{ return; }}"));
    }
    let emit = Emit::new(&mut source, body, reads, writes, &[body.space.rank()], guard, tables)?;
    let (text, names) = coordinates("i", "c", &emit.blocks[0]);
    source.main += &text;
    let at = vec![names];
    for i in emit.needed(&body.stores, &vec![false; body.values.len()]) {
        let text = emit.value(&mut source, i, &at);
        source.main += &text;
    }
    for k in 0..body.stores.len() {
        let text = emit.store(&mut source, k, &at);
        source.main += &text;
    }
    if looped {
        source.line("}");
        return source.finish("a map", ALONE, 1, count.div_ceil(ALONE as usize), tables).map(Some);
    }
    source.finish("a map", WIDTH, (count as u64).div_ceil(u64::from(WIDTH)), 1, tables).map(Some)
}

/// A body of one value for each point.
pub(crate) fn elementwise(space: &Shape, values: Vec<Value>) -> Body {
    let stores = vec![values.len() - 1];
    Body { space: space.clone(), reduced: 0, segments: None, values, stores }
}

/// A copy from one view to another.
pub(crate) fn copy(from: &View, to: &View, guard: Option<usize>, tables: &mut Tables<'_>) -> Result<Option<Launch>> {
    let load = Value { instr: Instr::Load(0), dtype: from.dtype, level: Level::Element };
    let body = elementwise(&from.shape, vec![load]);
    map(&body, std::slice::from_ref(from), std::slice::from_ref(to), guard, tables)
}
