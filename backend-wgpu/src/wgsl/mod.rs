//! WGSL: the parts of kernels' texts. Texts hold shapes and strides, but no positions in memory, so kernels that differ only in
//! positions are one.

pub(crate) mod attention;
pub(crate) mod body;
pub(crate) mod convolution;
pub(crate) mod cooperative;
pub(crate) mod correlation;
pub(crate) mod cumsum;
pub(crate) mod index;
pub(crate) mod launch;
pub(crate) mod product;
pub(crate) mod register;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod sort;
pub(crate) mod weights;

use crate::error::{Error, Result};
use cooperative::Units;
use launch::{Binding, Body, Element, Launch, OWN, PARAMS};
use std::{collections::BTreeSet, fmt::Write, ops::Range};
use wgrad::{DType, Shape};

/// The most iterations of all loops of one invocation. Some drivers stop at 65,535 without a word, and others reset the
/// device when a kernel takes seconds.
pub(crate) const MOST_ITERATIONS: usize = 32 * 1024;

/// The most bytes that a workgroup's invocations share: what every device has.
pub(crate) const SHARED: usize = 16 * 1024;

/// The most workgroups along a dimension.
const MOST_GROUPS: u64 = 65_535;

/// The limits of a kernel's bindings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Memory {
    /// The arena.
    Arena,
    /// A buffer of the program's, by its number.
    Own(usize),
    /// The same, of f16: see [`F16Storage`].
    OwnF16(usize),
    /// A state's buffer.
    State(usize),
    /// The same, of f16.
    StateF16(usize),
    /// The place where kernels note indices that are out of range.
    Flags,
}

impl Memory {
    /// True if its elements are f16 values of 16 bits each, not words.
    pub fn holds_f16(self) -> bool {
        matches!(self, Memory::OwnF16(_) | Memory::StateF16(_))
    }
}

/// The way kernels store f16 values of 16 bits. They take those that they read out of words, two of which lie in each.
///
/// Neither is WGSL's own `f16`: it leaves open how numbers are rounded to it, and whether subnormal ones survive, and there
/// is no way to its bits on each driver (naga's HLSL converts where it should reinterpret). Integers have neither problem,
/// and devices that store the one store the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum F16Storage {
    /// As integers of 16 bits: `wgpu_int16`.
    Native,
    /// Two in a word, which is changed atomically: its other half may be another invocation's. That is the same whatever
    /// the order, and any device can do it.
    Packed,
}

/// A strided view of memory.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub memory: Memory,
    /// The first element, counted in elements of the memory: see [`Memory::holds_f16`].
    pub offset: usize,
    pub shape: Shape,
    pub strides: Vec<isize>,
    pub dtype: DType,
}

impl View {
    /// The same first element, seen as contiguous elements of a shape.
    pub fn contiguous(&self, shape: &Shape) -> Self {
        Self { shape: shape.clone(), strides: shape.strides(), ..self.clone() }
    }

    /// The elements of the memory from the first to the last that it shows.
    pub fn words(&self) -> Range<usize> {
        if self.shape.numel() == 0 {
            return self.offset..self.offset;
        }
        let reach = |(n, stride): (&usize, &isize)| (*n as isize - 1) * stride;
        let reaches = || self.shape.iter().zip(&self.strides).map(reach);
        let (down, up): (isize, isize) = (reaches().map(|r| r.min(0)).sum(), reaches().map(|r| r.max(0)).sum());
        self.offset.saturating_add_signed(down)..self.offset.saturating_add_signed(up) + 1
    }

    pub fn is_contiguous(&self) -> bool {
        let unit = self.shape.strides();
        self.shape.numel() == 0 || (0..self.shape.rank()).all(|d| self.shape[d] == 1 || self.strides[d] == unit[d])
    }
}

/// The target that kernels are cut up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Invocations that a CPU runs eight at a time: a load takes as long as dozens of additions, whether what is loaded is
    /// shared with other invocations or not.
    Software,
    /// Invocations that run at once, and wait for memory together.
    Hardware,
}

/// The place of constant tables that kernels read, and the options of kernels.
pub(crate) struct Tables<'a> {
    /// Puts words into the arena, for as long as the program lives; gives their place.
    pub put: &'a mut dyn FnMut(Vec<u32>) -> Result<usize>,
    /// Memory for so many words that kernels hand on at once.
    pub scratch: &'a mut dyn FnMut(Scratch, usize) -> Memory,
    /// The most bytes that a workgroup's invocations can share.
    pub shared: usize,
    pub target: Target,
    /// True if compilers compute as if floats were real numbers, so that results must be hidden from them.
    pub wary: bool,
    /// The units that multiply matrices of f16, if there are any.
    pub units: Option<Units>,
}

/// A value that one kernel hands on to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scratch {
    /// The accumulators of parts of rows.
    Parts,
    /// A state's next value, if nothing has failed.
    Aside,
    /// A value that a sequence hands on from step to step, or attention's gradient from kernel to kernel.
    State,
    /// Weights in the order in which a kernel reads them.
    Weights,
}

/// The number of these kinds.
pub(crate) const SCRATCH: usize = 4;

/// Functions that kernels share, each a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// Conversions between types, and tests of bits.
    Convert,
    /// `exp`, `expm1`, `tanh`.
    Exp,
    /// `log`, `log1p`.
    Log,
    /// Powers.
    Pow,
    /// The error function.
    Erf,
    /// The sigmoid, the normal distribution, and what they gate.
    Gates,
    /// Sine and cosine.
    Trig,
    /// Random words.
    Random,
    /// Euclidean norms.
    Norm,
    /// Sums that remember what rounding takes.
    Sum,
    /// Numbers that compilers cannot know.
    Opaque,
}

impl Part {
    fn text(self) -> &'static str {
        match self {
            Part::Convert => include_str!("convert.wgsl"),
            Part::Exp => include_str!("exp.wgsl"),
            Part::Log => include_str!("log.wgsl"),
            Part::Pow => include_str!("pow.wgsl"),
            Part::Erf => include_str!("erf.wgsl"),
            Part::Gates => include_str!("gates.wgsl"),
            Part::Trig => include_str!("trig.wgsl"),
            Part::Random => include_str!("random.wgsl"),
            Part::Norm => include_str!("norm.wgsl"),
            Part::Sum => include_str!("sum.wgsl"),
            Part::Opaque => include_str!("opaque.wgsl"),
        }
    }

    /// The parts that this one uses.
    fn needs(self) -> &'static [Part] {
        match self {
            Part::Erf | Part::Pow => &[Part::Exp],
            Part::Gates => &[Part::Exp, Part::Opaque],
            Part::Sum => &[Part::Convert, Part::Opaque],
            Part::Log => &[Part::Opaque],
            _ => &[],
        }
    }
}

/// A kernel under construction.
#[derive(Default)]
pub(crate) struct Source {
    /// The bindings, each with true if it is written.
    bindings: Vec<(Memory, bool)>,
    /// The bindings that are vectors of four elements.
    vectors: Vec<Memory>,
    params: Vec<u32>,
    /// The number that is a float's sign bit, once there is one.
    sign: Option<String>,
    /// The words of the arena that it reads or writes, apart from constants.
    touched: Vec<(Range<usize>, bool)>,
    /// The element type of bound memory, if it is not words.
    element: Option<&'static str>,
    parts: BTreeSet<Part>,
    /// Declarations outside the function: shared memory.
    pub outside: String,
    /// Bytes of shared memory.
    pub shared: usize,
    /// True if invocations may still read shared memory: they must meet before it is overwritten.
    pub read: bool,
    /// The extensions of WGSL that it needs.
    pub enables: &'static [&'static str],
    /// True if no other kernel becomes one with it.
    pub alone: bool,
    /// The statements.
    pub main: String,
}

impl Source {
    /// The name of a binding: scratch memory, or constants in the arena.
    pub fn bind(&mut self, memory: Memory, written: bool) -> String {
        let found = self.bindings.iter().position(|(bound, _)| *bound == memory).unwrap_or_else(|| {
            self.bindings.push((memory, false));
            self.bindings.len() - 1
        });
        self.bindings[found].1 |= written;
        format!("b{found}{OWN}")
    }

    /// The name of a binding for what a view shows.
    pub fn bind_view(&mut self, view: &View, written: bool) -> String {
        if view.memory == Memory::Arena {
            self.touched.push((view.words(), written));
        }
        self.bind(view.memory, written)
    }

    /// The names of the arena and of the place of a word of it.
    pub fn bind_word(&mut self, place: usize, written: bool) -> (String, String) {
        self.touched.push((place..place + 1, written));
        (self.bind(Memory::Arena, written), self.param(place as u32))
    }

    /// The name of a binding of vectors of four elements, which nobody binds as single ones and nobody writes.
    pub fn bind_vectors(&mut self, view: &View) -> String {
        if !self.vectors.contains(&view.memory) {
            self.vectors.push(view.memory);
        }
        self.bind_view(view, false)
    }

    /// A number that does not become part of the text.
    pub fn param(&mut self, value: u32) -> String {
        self.params.push(value);
        let i = self.params.len() - 1;
        format!("p[{}{PARAMS}].{}", i / 4, ["x", "y", "z", "w"][i % 4])
    }

    /// A float's sign bit, of which compilers do not know that it is.
    pub fn sign(&mut self) -> String {
        if self.sign.is_none() {
            self.sign = Some(self.param(0x8000_0000));
        }
        self.sign.clone().expect("there is one now")
    }

    /// Has a part included.
    pub fn part(&mut self, part: Part) {
        if self.parts.insert(part) {
            part.needs().iter().for_each(|other| self.part(*other));
        }
    }

    /// A statement.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.main.push_str(text.as_ref());
        self.main.push('\n');
    }

    /// The kernel, for this many invocations per workgroup and so many workgroups, whose invocations make so many
    /// iterations at most. `g` is the workgroup's number in its text, `lid` the invocation's within it, and `subgroup` that of
    /// the invocation's subgroup.
    pub fn finish(
        self,
        what: &'static str,
        width: u32,
        groups: u64,
        iterations: usize,
        tables: &Tables<'_>,
    ) -> Result<Launch> {
        if self.shared > tables.shared {
            let why = format!("{what} shares {} bytes per workgroup, of {}", self.shared, tables.shared);
            return Err(Error::Validation(why));
        }
        if iterations > MOST_ITERATIONS {
            return Err(Error::TooLong { what, iterations: iterations as u64, limit: MOST_ITERATIONS as u64 });
        }
        let mut parts = self.parts;
        if self.bindings.iter().any(|(memory, _)| memory.holds_f16()) {
            parts.insert(Part::Convert);
        }
        let x = groups.min(MOST_GROUPS);
        let y = groups.div_ceil(x.max(1));
        if y > MOST_GROUPS {
            return Err(Error::TooLong { what, iterations: groups, limit: MOST_GROUPS * MOST_GROUPS });
        }
        let uses = |name: &str| self.main.contains(name) || self.outside.contains(name);
        let mut params = self.params;
        if !uses("p[") {
            params.clear();
        }
        params.resize(params.len().next_multiple_of(4), 0);
        // A binding that a text does not use is no part of its pipeline's layout.
        let used = |(number, &(memory, written)): (usize, &(Memory, bool))| {
            let element = match (memory.holds_f16(), self.vectors.contains(&memory)) {
                (true, vectors) => {
                    if vectors {
                        Element::FourHalves
                    } else {
                        Element::Half
                    }
                }
                (false, true) => Element::Plain("vec4<u32>"),
                (false, false) if memory == Memory::Flags => Element::Plain("atomic<u32>"),
                (false, false) => Element::Plain(self.element.unwrap_or("u32")),
            };
            let name = format!("b{number}{OWN}");
            let used = uses(&format!("{name}[")) || uses(&format!("{name}_"));
            used.then_some(Binding { number, memory, written, element })
        };
        let body = Body {
            bindings: self.bindings.iter().enumerate().filter_map(used).collect(),
            params,
            touched: self.touched,
            parts,
            shared: self.shared,
            width,
            iterations,
            enables: self.enables,
            alone: self.alone || self.element.is_some(),
            outside: self.outside,
            main: self.main,
        };
        Ok(Launch::new(body, [x as u32, y as u32, 1]))
    }
}

/// Has all that is bound be floats, or vectors of four: `V`; as many words are `U`.
pub(crate) fn vector_types(source: &mut Source, width: usize) {
    let (floats, words) = if width == 4 { ("vec4<f32>", "vec4<u32>") } else { ("f32", "u32") };
    source.element = Some(floats);
    writeln!(source.outside, "alias V = {floats};\nalias U = {words};").unwrap();
}

/// The name of a type's values in kernels. f16 values are computed with in f32.
pub(crate) fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 => "f32",
        DType::U32 => "u32",
        DType::I32 => "i32",
        DType::Bool => "bool",
        DType::F64 => unreachable!("f64 is refused before"),
    }
}

/// A word as a value of a type.
pub(crate) fn from_word(dtype: DType, word: &str) -> String {
    match dtype {
        DType::F32 | DType::F16 => format!("bitcast<f32>({word})"),
        DType::I32 => format!("bitcast<i32>({word})"),
        DType::Bool => format!("({word} != 0u)"),
        _ => word.to_string(),
    }
}

/// The element of a view at a position.
pub(crate) fn load(source: &mut Source, view: &View, at: &str) -> String {
    let buffer = source.bind_view(view, false);
    match view.memory.holds_f16() {
        true => format!("{buffer}_at({at})"),
        false => from_word(view.dtype, &format!("{buffer}[{at}]")),
    }
}

/// The statement that stores a value at a position of a view.
pub(crate) fn store(source: &mut Source, view: &View, at: &str, value: &str) -> String {
    let buffer = source.bind_view(view, true);
    if view.memory.holds_f16() {
        return format!("{buffer}_put({at}, {value});");
    }
    let word = to_word(source, view.dtype, value);
    format!("{buffer}[{at}] = {word};")
}

/// A value as a word; f16 values as they are.
pub(crate) fn raw_word(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F32 | DType::F16 | DType::I32 => format!("bitcast<u32>({value})"),
        DType::Bool => format!("select(0u, 1u, {value})"),
        _ => value.to_string(),
    }
}

/// The word that memory of words holds for a value of a type.
fn to_word(source: &mut Source, dtype: DType, value: &str) -> String {
    if dtype == DType::F16 {
        source.part(Part::Convert);
        return format!("bitcast<u32>(round_half({value}))");
    }
    raw_word(dtype, value)
}

/// A type's zero.
pub(crate) fn zero(dtype: DType) -> &'static str {
    match type_name(dtype) {
        "f32" => "0.0",
        "u32" => "0u",
        "i32" => "0i",
        _ => "false",
    }
}

/// `offset + sum of coordinate * stride`, in arithmetic modulo 2^32.
pub(crate) fn position(offset: &str, steps: impl IntoIterator<Item = (String, isize)>) -> String {
    let mut text = offset.to_string();
    for (coordinate, stride) in steps {
        match stride {
            0 => {}
            1 => write!(text, " + {coordinate}").unwrap(),
            _ => write!(text, " + {coordinate} * {}u", stride as i32 as u32).unwrap(),
        }
    }
    text
}

/// Shapes of as few dimensions as possible: those of extent 1 vanish, and neighbours merge that all strides walk through
/// alike. Changes the strides of all views that share the shape.
pub(crate) fn collapse(shape: &[usize], strides: &mut [&mut Vec<isize>]) -> Vec<usize> {
    let mut extents: Vec<usize> = vec![];
    let mut kept: Vec<Vec<isize>> = vec![vec![]; strides.len()];
    for d in (0..shape.len()).filter(|&d| shape[d] != 1) {
        let follows = |(kept, strides): (&Vec<isize>, &&mut Vec<isize>)| {
            kept.last().is_some_and(|before| *before == strides[d] * shape[d] as isize)
        };
        if !extents.is_empty() && kept.iter().zip(strides.iter()).all(follows) {
            *extents.last_mut().expect("there is one") *= shape[d];
            kept.iter_mut().zip(strides.iter()).for_each(|(kept, s)| *kept.last_mut().expect("as many") = s[d]);
        } else {
            extents.push(shape[d]);
            kept.iter_mut().zip(strides.iter()).for_each(|(kept, s)| kept.push(s[d]));
        }
    }
    strides.iter_mut().zip(kept).for_each(|(s, kept)| **s = kept);
    extents
}

/// Statements that name the coordinates of a linear index, and the names. The last dimension varies fastest.
pub(crate) fn coordinates(linear: &str, name: &str, extents: &[usize]) -> (String, Vec<String>) {
    let mut text = String::new();
    let mut names = vec![String::new(); extents.len()];
    let mut rest = linear.to_string();
    for d in (0..extents.len()).rev() {
        if d == 0 {
            names[d] = rest.clone();
            break;
        }
        names[d] = format!("{name}{d}");
        // Of what is empty there is no point, but compilers refuse to divide by 0.
        let (n, next) = (extents[d].max(1), format!("{name}_{d}"));
        writeln!(text, "let {} = {rest} % {n}u; let {next} = {rest} / {n}u;", names[d]).unwrap();
        rest = next;
    }
    (text, names)
}
