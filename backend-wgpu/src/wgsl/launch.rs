//! Kernels that are ready to be compiled: the text around what invocations do, for one body, or for several that one
//! workgroup runs one after the other.

use super::{F16Storage, MOST_ITERATIONS, Memory, Part};
use std::{collections::BTreeSet, fmt::Write, ops::Range};

/// Stands after what a body's text names outside of its function: it becomes the body's number.
pub(crate) const OWN: char = '$';
/// Stands after the number of a body's parameters: what the bodies before it have is added.
pub(crate) const PARAMS: char = '#';

/// WGSL's extension with integers of 16 bits.
pub(crate) const INTEGERS: &str = "wgpu_int16";
/// The one with matrix units.
pub(crate) const UNITS: &str = "wgpu_cooperative_matrix";

/// The longest text of bodies that become one: what compiles for long is compiled for many programs if it is by itself.
const MOST_TEXT: usize = 16 * 1024;

/// The bindings of a body.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// Its number in the body's text.
    pub number: usize,
    pub memory: Memory,
    pub written: bool,
    /// The element type of its memory.
    pub element: Element,
}

/// The element type of bound memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    /// A type of WGSL's.
    Plain(&'static str),
    /// f16 values, one by one: `b_at(i)` is the value of one, `b_raw(i)` a word whose lower 16 bits are its own, and `b_put(i, x)`
    /// stores one, of binding `b`.
    Half,
    /// f16 values that are only read, in fours: `b_at(i)` is the `i`-th vector, and `b_raw(i)` its two words.
    FourHalves,
}

impl Binding {
    /// The declaration as number `i` of a kernel that uses it so.
    fn declared(&self, i: usize, f16_storage: F16Storage, uses: impl Fn(&str) -> bool) -> String {
        let (element, raw) = match (self.element, self.written, f16_storage) {
            (Element::Plain(element), ..) => (element, None),
            (Element::FourHalves, ..) => ("vec2<u32>", Some("b[i]")),
            (Element::Half, false, _) => ("u32", Some("b[i >> 1u] >> ((i & 1u) << 4u)")),
            (Element::Half, true, F16Storage::Native) => ("u16", Some("u32(b[i])")),
            (Element::Half, true, F16Storage::Packed) => {
                ("atomic<u32>", Some("atomicLoad(&b[i >> 1u]) >> ((i & 1u) << 4u)"))
            }
        };
        let access = if self.written { "read_write" } else { "read" };
        let mut text = format!("@group(0) @binding({}) var<storage, {access}> b{i}: array<{element}>;\n", i + 1);
        let put = match f16_storage {
            F16Storage::Native => "b[i] = u16(half_bits(x));",
            F16Storage::Packed => PACKED_PUT,
        };
        let own = |text: &str| text.replace("b[", &format!("b{i}["));
        if let Some(raw) = raw {
            let (value, at, words) = match self.element {
                Element::FourHalves => ("vec4<f32>", FOUR_AT.to_string(), "vec2<u32>"),
                _ => ("f32", format!("from_half({raw})"), "u32"),
            };
            if uses(&format!("b{i}_at(")) {
                writeln!(text, "fn b{i}_at(i: u32) -> {value} {{ return {}; }}", own(&at)).unwrap();
            }
            if uses(&format!("b{i}_raw(")) {
                writeln!(text, "fn b{i}_raw(i: u32) -> {words} {{ return {}; }}", own(raw)).unwrap();
            }
        }
        if uses(&format!("b{i}_put(")) {
            writeln!(text, "fn b{i}_put(i: u32, x: f32) {{ {} }}", own(put)).unwrap();
        }
        text
    }
}

/// Four f16 values of two words.
const FOUR_AT: &str =
    "vec4<f32>(from_half(b[i].x), from_half(b[i].x >> 16u), from_half(b[i].y), from_half(b[i].y >> 16u))";

/// Changes a half of a word, and nothing of the other.
const PACKED_PUT: &str = "let shift = (i & 1u) << 4u; atomicAnd(&b[i >> 1u], 0xffff0000u >> shift); \
                          atomicOr(&b[i >> 1u], half_bits(x) << shift);";

/// The work of a workgroup's invocations.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub bindings: Vec<Binding>,
    pub params: Vec<u32>,
    /// The words of the arena that are read, or written, apart from constants.
    pub touched: Vec<(Range<usize>, bool)>,
    pub parts: BTreeSet<Part>,
    /// Declarations outside the function.
    pub outside: String,
    /// Bytes of shared memory.
    pub shared: usize,
    pub main: String,
    /// Invocations per workgroup.
    pub width: u32,
    /// The most iterations of an invocation's loops.
    pub iterations: usize,
    /// The extensions of WGSL that it needs.
    pub enables: &'static [&'static str],
    /// True if it becomes one with no other, because its names may be another's too or it needs all its subgroups.
    pub alone: bool,
}

impl Body {
    fn has_barriers(&self) -> bool {
        self.main.contains("Barrier()")
    }

    /// A text of the body's, as part of a kernel of which it is body number `own`.
    fn named(&self, text: &str, own: usize, bindings: &[Binding], params: usize) -> String {
        let mut text = text.to_string();
        for binding in &self.bindings {
            let place = bindings.iter().position(|b| b.memory == binding.memory).expect("all are bound");
            text = text.replace(&format!("b{}{OWN}", binding.number), &format!("b{place}"));
        }
        let more = |n: usize, text: String| if n == 0 { String::new() } else { text };
        text.replace(PARAMS, &more(params, format!(" + {params}"))).replace(OWN, &more(own, format!("_{own}")))
    }
}

/// The limits of merged kernels.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    /// Storage buffers.
    pub buffers: usize,
    /// Bytes that the invocations of a workgroup share.
    pub shared: usize,
}

/// A kernel, and how many workgroups run it.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The bodies of each workgroup, in order. If these are several, there is one workgroup.
    bodies: Vec<Body>,
    /// Of each body, the position in the plan of the kernel that it is of; `None` for what copies to be shown or to commit.
    kernels: Vec<Option<usize>>,
    groups: [u32; 3],
}

/// A kernel to be compiled, and what it is run on.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub text: String,
    /// Its bindings, from binding 1 on.
    pub bindings: Vec<Memory>,
    /// The words of its uniform binding, number 0.
    pub params: Vec<u32>,
    pub groups: [u32; 3],
    /// The kernels of the plan that it runs, one for each of its bodies.
    pub kernels: Vec<Option<usize>>,
}

impl Launch {
    pub fn new(body: Body, groups: [u32; 3]) -> Self {
        Self { bodies: vec![body], kernels: vec![None], groups }
    }

    /// The same, as a part of a kernel of the plan.
    pub fn of(self, kernel: usize) -> Self {
        Self { kernels: vec![Some(kernel); self.bodies.len()], ..self }
    }

    /// True if one workgroup does all of it.
    pub fn is_single(&self) -> bool {
        self.groups == [1, 1, 1]
    }

    /// The bindings of all bodies. None if two bind the same memory as different things.
    fn bindings(&self) -> Option<Vec<Binding>> {
        let mut all: Vec<Binding> = vec![];
        for binding in self.bodies.iter().flat_map(|body| &body.bindings) {
            match all.iter_mut().find(|known| known.memory == binding.memory) {
                None => all.push(binding.clone()),
                Some(known) if known.element == binding.element => known.written |= binding.written,
                Some(_) => return None,
            }
        }
        Some(all)
    }

    /// True if this or the other launch writes what both have to do with.
    pub fn conflicts(&self, other: &Self) -> bool {
        let pairs = || self.bodies.iter().flat_map(|a| other.bodies.iter().map(move |b| (a, b)));
        let bound = |(a, b): (&Body, &Body)| {
            let meet = |a: &Binding, b: &Binding| {
                a.memory == b.memory && a.memory != Memory::Arena && (a.written || b.written)
            };
            a.bindings.iter().any(|a| b.bindings.iter().any(|b| meet(a, b)))
        };
        // In the arena are many values.
        let touched = |(a, b): (&Body, &Body)| {
            let meet = |(a, a_written): &(Range<usize>, bool), (b, b_written): &(Range<usize>, bool)| {
                (*a_written || *b_written) && a.start < b.end && b.start < a.end
            };
            a.touched.iter().any(|a| b.touched.iter().any(|b| meet(a, b)))
        };
        pairs().any(bound) || pairs().any(touched)
    }

    /// This launch of one workgroup and then another, as one. None if that cannot be.
    pub fn then(&self, other: &Self, most: Most) -> Option<Self> {
        let bodies: Vec<Body> = self.bodies.iter().chain(&other.bodies).cloned().collect();
        let kernels = self.kernels.iter().chain(&other.kernels).copied().collect();
        let merged = Self { bodies, kernels, groups: [1, 1, 1] };
        let sum = |of: fn(&Body) -> usize| merged.bodies.iter().map(of).sum::<usize>();
        // All invocations come to a body's barrier.
        let width = merged.width();
        let good = self.is_single()
            && other.is_single()
            && merged.bodies.iter().all(|body| !body.alone && (body.width == width || !body.has_barriers()))
            && sum(|body| body.shared) <= most.shared
            && sum(|body| body.iterations) <= MOST_ITERATIONS
            && sum(|body| body.main.len() + body.outside.len()) <= MOST_TEXT
            && merged.bindings()?.len() <= most.buffers;
        good.then_some(merged)
    }

    fn width(&self) -> u32 {
        self.bodies.iter().map(|body| body.width).max().unwrap_or(1)
    }

    /// The kernel's text, and what it takes to run it.
    pub fn dispatch(&self, f16_storage: F16Storage) -> Dispatch {
        let bindings = self.bindings().expect("bodies are merged if they agree");
        let params: Vec<u32> = self.bodies.iter().flat_map(|body| body.params.iter().copied()).collect();
        let mut text = String::new();
        let mut enables: BTreeSet<&str> = self.bodies.iter().flat_map(|body| body.enables).copied().collect();
        if f16_storage == F16Storage::Native && bindings.iter().any(|b| b.written && b.element == Element::Half) {
            enables.insert(INTEGERS);
        }
        enables.iter().for_each(|name| writeln!(text, "enable {name};").unwrap());
        if enables.contains(UNITS) {
            // They take what is uniform in a subgroup; naga asks for uniformity in the workgroup, by this rule.
            text += "diagnostic(off, derivative_uniformity);\n";
        }
        if !params.is_empty() {
            writeln!(text, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {}>;", params.len() / 4).unwrap();
        }
        let (mut outside, mut mains, mut before) = (String::new(), vec![], 0);
        for (own, body) in self.bodies.iter().enumerate() {
            outside += &body.named(&body.outside, own, &bindings, before);
            mains.push(body.named(&body.main, own, &bindings, before));
            before += body.params.len() / 4;
        }
        for (i, binding) in bindings.iter().enumerate() {
            let uses = |name: &str| outside.contains(name) || mains.iter().any(|main| main.contains(name));
            text += &binding.declared(i, f16_storage, uses);
        }
        text += &outside;
        let parts: BTreeSet<Part> = self.bodies.iter().flat_map(|body| body.parts.iter().copied()).collect();
        parts.iter().for_each(|part| text += part.text());
        let (width, [x, y, _]) = (self.width(), self.groups);
        if let [main] = &mains[..] {
            writeln!(text, "@compute @workgroup_size({width})").unwrap();
            text += "fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32";
            if enables.contains(UNITS) {
                text += ", @builtin(subgroup_id) subgroup: u32";
            }
            text += ") {\n";
            match y {
                0 | 1 => text += "let g = wg.x;\n",
                _ => writeln!(text, "let g = wg.y * {x}u + wg.x;").unwrap(),
            }
            writeln!(text, "{main}}}").unwrap();
        } else {
            for (own, main) in mains.iter().enumerate() {
                writeln!(text, "fn body_{own}(lid: u32) {{\nlet g = 0u;\n{main}}}").unwrap();
            }
            writeln!(text, "@compute @workgroup_size({width})").unwrap();
            text += "fn main(@builtin(local_invocation_index) lid: u32) {\n";
            for (own, body) in self.bodies.iter().enumerate() {
                if own > 0 {
                    text += "storageBarrier();\n";
                }
                match body.width == width {
                    true => writeln!(text, "body_{own}(lid);").unwrap(),
                    false => writeln!(text, "if (lid < {}u) {{ body_{own}(lid); }}", body.width).unwrap(),
                }
            }
            text += "}\n";
        }
        let (bindings, kernels) = (bindings.iter().map(|b| b.memory).collect(), self.kernels.clone());
        Dispatch { text, bindings, params, groups: self.groups, kernels }
    }
}
