//! Recurrent cells over sequences, forward and backward: a workgroup has some rows of the batch and walks through time with
//! them, so that no workgroup waits for another.
//!
//! A time step is a product with the recurrent weights and what follows from it element by element, with a barrier after
//! each. What goes from step to step lies in scratch memory: the states, and the product of the step. Long sequences are cut
//! into several launches, which go on where the one before has ended.

use super::{
    MOST_ITERATIONS, Memory, Part, Scratch, Source, Tables, Target, View, body::copy, index::fill, launch::Launch,
    vector_types,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::{
    Cell, DType, Shape,
    op::{Op, Typed},
};

/// The most recurrent weights where each workgroup is to read all of them in each step: beyond, the products of the
/// decomposition, which share them between more rows, are taken instead.
const MOST_WEIGHTS: usize = 256 * 1024;

/// A sequence op or its gradient, and how it is cut up.
struct Sequence {
    cell: Cell,
    backward: bool,
    time: usize,
    batch: usize,
    hidden: usize,
    tile: Tile,
}

/// The share of a workgroup. Columns are counted in vectors.
struct Tile {
    /// Numbers in a vector.
    width: usize,
    /// Invocations.
    lanes: usize,
    /// Rows of the batch.
    rows: usize,
    /// Columns of an invocation.
    columns: usize,
}

/// True if a device is given a kernel for a sequence op over inputs that fit it.
pub(crate) fn claims(op: &Op, inputs: &[Typed], target: Target) -> bool {
    let shapes: Vec<&Shape> = inputs.iter().map(|(shape, _)| shape).collect();
    let Some((cell, ..)) = extents(op, &shapes) else { return false };
    if cell == Cell::Gru || inputs[0].1 != DType::F32 {
        return false;
    }
    // Whatever the places in memory turn out to be: number by number takes the most iterations.
    let sequence = Sequence::new(op, &shapes, 1, target);
    let weights = cell.gates() * sequence.hidden * sequence.hidden;
    sequence.iterations() <= MOST_ITERATIONS && (target == Target::Software || weights <= MOST_WEIGHTS)
}

/// The cell, whether it is the gradient, and the shapes of what has a row for each step, and of the weights.
fn extents<'a>(op: &Op, inputs: &[&'a Shape]) -> Option<(Cell, bool, &'a Shape, &'a Shape)> {
    Some(match op {
        Op::Sequence { cell, .. } => (*cell, false, inputs[0], inputs[1]),
        Op::SequenceGrad { cell: cell @ (Cell::Lstm | Cell::Gru), .. } => (*cell, true, inputs[2], inputs[0]),
        Op::SequenceGrad { cell, .. } => (*cell, true, inputs[1], inputs[0]),
        _ => return None,
    })
}

/// The kernels of a sequence op. All views are contiguous.
pub(crate) fn sequence(op: &Op, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
    let shapes: Vec<&Shape> = reads.iter().map(|read| &read.shape).collect();
    let hidden = extents(op, &shapes).expect("a sequence").3[1];
    let in_fours = hidden.is_multiple_of(4) && reads.iter().chain(writes).all(|view| view.offset.is_multiple_of(4));
    let sequence = Sequence::new(op, &shapes, if in_fours { 4 } else { 1 }, tables.target);
    if sequence.batch * hidden == 0 {
        return Ok(vec![]);
    }
    if sequence.backward { sequence.backwards(reads, writes, tables) } else { sequence.forwards(reads, writes, tables) }
}

impl Sequence {
    fn new(op: &Op, inputs: &[&Shape], width: usize, target: Target) -> Self {
        let (cell, backward, steps, weight) = extents(op, inputs).expect("a sequence");
        let (time, batch, hidden) = (steps[0], steps[1], weight[1]);
        let columns = if backward { hidden } else { cell.gates() * hidden } / width;
        let (lanes, most_rows, most_columns) = match target {
            Target::Software => (8, 8, 16 / width),
            Target::Hardware => (columns.next_power_of_two().clamp(32, 256), 4, 4),
        };
        let tile = Tile {
            width,
            lanes,
            rows: batch.clamp(1, most_rows),
            columns: columns.div_ceil(lanes).clamp(1, most_columns),
        };
        Self { cell, backward, time, batch, hidden, tile }
    }

    /// The width of all gates together.
    fn wide(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Summands and columns of a step's product, in numbers.
    fn product_extents(&self) -> (usize, usize) {
        if self.backward { (self.wide(), self.hidden) } else { (self.hidden, self.wide()) }
    }

    /// The iterations of all loops in one time step.
    fn iterations(&self) -> usize {
        let Tile { width, lanes, rows, columns } = self.tile;
        let (summands, across) = self.product_extents();
        let blocks = (across / width).div_ceil(lanes * columns);
        1 + blocks * (1 + summands / width) + (rows * self.hidden / width).div_ceil(lanes)
    }

    /// The numbers of a state of the whole batch.
    fn state(&self) -> usize {
        self.batch * self.hidden
    }

    /// A state in scratch memory.
    fn held(&self, memory: Memory, i: usize) -> View {
        let shape: Shape = [self.batch, self.hidden].into();
        View { memory, offset: i * self.state(), strides: shape.strides(), shape, dtype: DType::F32 }
    }

    /// From the first step to the last: the product of a step, then what follows from it.
    fn forwards(&self, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        let states = if self.cell == Cell::Lstm { 2 } else { 1 };
        let memory = (tables.scratch)(Scratch::State, states * self.state() + self.batch * self.wide());
        let turned = (tables.scratch)(Scratch::Weights, self.hidden * self.wide());
        // The rows of the weights become columns, so that neighbouring invocations read neighbours.
        let shape: Shape = [self.hidden, self.wide()].into();
        let to = View { memory: turned, offset: 0, strides: shape.strides(), shape: shape.clone(), dtype: DType::F32 };
        let from = View { strides: vec![1, self.hidden as isize], shape, ..reads[1].clone() };
        let mut launches: Vec<Launch> = copy(&from, &to, None, tables)?.into_iter().collect();
        for i in 0..states {
            launches.extend(copy(&reads[2 + i], &self.held(memory, i), None, tables)?);
        }
        self.walk(&mut launches, tables, |source| {
            source.line("let t = n;");
            let [h, c, product] = [0, 1, states].map(|i| self.place(source, memory, i * self.state(), true));
            let weights = self.place(source, turned, 0, false);
            self.product(source, (&h, "0u"), &weights, &product);
            let z = self.place_of(source, &reads[0], false);
            let out: Vec<Place> = writes.iter().map(|write| self.place_of(source, write, true)).collect();
            let sum = |gate: usize| {
                let from = gate * self.hidden / self.tile.width;
                format!("{} + {}", z.at(&format!("gates + {from}u")), product.at(&format!("row_gates + {from}u")))
            };
            self.element_by_element(source, |source| {
                if self.cell == Cell::Lstm {
                    for (gate, (name, function)) in GATES.into_iter().enumerate() {
                        source.line(format!("let {name} = {function}({});", sum(gate)));
                        source.line(format!("{} = {name};", out[2].at(&self.of_gate(gate))));
                    }
                    let memory = c.at("state");
                    source.line(format!("let c = f * {memory} + i * g;\nlet h = o * squash(c);"));
                    source.line(format!("{memory} = c;\n{} = c;", out[1].at("element")));
                } else {
                    let function = match self.cell {
                        Cell::Sigmoid => "gate",
                        Cell::Irnn => "positive",
                        _ => "squash",
                    };
                    source.line(format!("let h = {function}({});", sum(0)));
                }
                source.line(format!("{} = h;\n{} = h;", h.at("state"), out[0].at("element")));
            });
        })?;
        Ok(launches)
    }

    /// From the last step to the first: what follows from the gradient of a state, then its product, which is part of the
    /// gradient of the state before.
    fn backwards(&self, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        let states = if self.cell == Cell::Lstm { 2 } else { 1 };
        let memory = (tables.scratch)(Scratch::State, states * self.state());
        let all = [(0, states * self.state())];
        let mut launches: Vec<Launch> = fill(&all, &self.held(memory, 0), tables)?.into_iter().collect();
        self.walk(&mut launches, tables, |source| {
            let last = source.param(self.time as u32 - 1);
            source.line(format!("let t = {last} - n;"));
            let [carry, memory_carry] = [0, 1].map(|i| self.place(source, memory, i * self.state(), true));
            let read: Vec<Place> = reads.iter().map(|read| self.place_of(source, read, false)).collect();
            let dz = self.place_of(source, &writes[0], true);
            self.element_by_element(source, |source| {
                if self.cell == Cell::Lstm {
                    let [c0, c, gates, dh] = [1, 2, 3, 4].map(|i| &read[i]);
                    for (gate, (name, _)) in GATES.into_iter().enumerate() {
                        source.line(format!("let {name} = {};", gates.at(&self.of_gate(gate))));
                    }
                    // The memory before the first step is another tensor's.
                    let before = format!("(max(t, 1u) - 1u) * {}u + state", self.state() / self.tile.width);
                    source.line(format!("let before = select({}, {}, t == 0u);", c.at(&before), c0.at("state")));
                    source.line(format!("let squashed = squash({});", c.at("element")));
                    source.line(format!("let dh = {} + {};", dh.at("element"), carry.at("state")));
                    let given = read.get(5).map_or(String::new(), |dc| format!(" + {}", dc.at("element")));
                    let carry = memory_carry.at("state");
                    source.line(format!(
                        "let dc = dh * o * squash_slope(squashed){given} + {carry};\n{carry} = flushed(dc * f);"
                    ));
                    let parts = [
                        "dc * g * gate_slope(i)",
                        "dc * before * gate_slope(f)",
                        "dc * i * squash_slope(g)",
                        "dh * squashed * gate_slope(o)",
                    ];
                    for (gate, part) in parts.into_iter().enumerate() {
                        source.line(format!("{} = flushed({part});", dz.at(&self.of_gate(gate))));
                    }
                } else {
                    source.line(format!("let h = {};", read[1].at("element")));
                    source.line(format!("let dh = {} + {};", read[2].at("element"), carry.at("state")));
                    let slope = match self.cell {
                        Cell::Sigmoid => "dh * gate_slope(h)",
                        Cell::Irnn => "where_positive(h, dh)",
                        _ => "dh * squash_slope(h)",
                    };
                    source.line(format!("{} = flushed({slope});", dz.at("element")));
                }
            });
            let step = format!("t * {}u", self.batch * self.wide() / self.tile.width);
            self.product(source, (&dz, &step), &read[0], &carry);
        })?;
        for (i, write) in writes[1..].iter().enumerate() {
            launches.extend(copy(&self.held(memory, i), write, None, tables)?);
        }
        Ok(launches)
    }

    /// The launches that make time step `n` of as many as there are, in whatever direction.
    fn walk(&self, launches: &mut Vec<Launch>, tables: &Tables<'_>, step: impl Fn(&mut Source)) -> Result<()> {
        let Tile { width, lanes, rows, .. } = self.tile;
        for first in (0..self.time).step_by(MOST_ITERATIONS / self.iterations()) {
            let mut source = Source::default();
            vector_types(&mut source, width);
            source.part(Part::Exp);
            for name in ["exp", "tanh"] {
                let each = match width {
                    1 => format!("f{name}(x)"),
                    _ => format!("vec4<f32>(f{name}(x.x), f{name}(x.y), f{name}(x.z), f{name}(x.w))"),
                };
                writeln!(source.outside, "fn each_{name}(x: V) -> V {{ return {each}; }}").unwrap();
            }
            source.outside += include_str!("cell.wgsl");
            source.line(format!("let row0 = g * {rows}u;"));
            let end = self.time.min(first + MOST_ITERATIONS / self.iterations());
            let iterations = (end - first) * self.iterations();
            let (first, end) = (source.param(first as u32), source.param(end as u32));
            source.line(format!("for (var n = {first}; n < {end}; n = n + 1u) {{"));
            step(&mut source);
            source.line("}");
            let groups = self.batch.div_ceil(rows) as u64;
            launches.push(source.finish("a sequence", lanes as u32, groups, iterations, tables)?);
        }
        Ok(())
    }

    /// Some memory from a number on.
    fn place(&self, source: &mut Source, memory: Memory, offset: usize, written: bool) -> Place {
        let buffer = source.bind(memory, written);
        Place { buffer, offset: source.param((offset / self.tile.width) as u32) }
    }

    fn place_of(&self, source: &mut Source, view: &View, written: bool) -> Place {
        source.bind_view(view, written);
        self.place(source, view.memory, view.offset, written)
    }

    /// The place where a gate's vector is among those of all steps.
    fn of_gate(&self, gate: usize) -> String {
        format!("gates + {}u", gate * self.hidden / self.tile.width)
    }

    /// Statements for each vector of the workgroup's rows of a state, and a barrier. They find named: `state`, where it is
    /// in a state; `element`, among the states of all steps; `gates`, the first gate's among the gates of all steps;
    /// `row_gates`, among those of this one.
    fn element_by_element(&self, source: &mut Source, statements: impl FnOnce(&mut Source)) {
        let Tile { width, lanes, rows, .. } = self.tile;
        let (hidden, wide, batch) = (self.hidden / width, self.wide() / width, self.batch);
        source.line(format!("for (var v = lid; v < {}u; v = v + {lanes}u) {{", rows * hidden));
        source.line(format!("let row = row0 + v / {hidden}u; let j = v % {hidden}u;\nif (row < {batch}u) {{"));
        source.line(format!("let state = row * {hidden}u + j; let element = t * {}u + state;", batch * hidden));
        source.line(format!("let row_gates = row * {wide}u + j; let gates = t * {}u + row_gates;", batch * wide));
        statements(source);
        source.line("} }\nstorageBarrier();");
    }

    /// The product of the workgroup's rows of a matrix, from a place on, with weights; and a barrier.
    fn product(&self, source: &mut Source, (from, start): (&Place, &str), weights: &Place, to: &Place) {
        let Tile { width, lanes, rows, columns } = self.tile;
        let (summands, across) = self.product_extents();
        let (summands, across) = (summands / width, across / width);
        let block = lanes * columns;
        let (ragged_rows, ragged) = (!self.batch.is_multiple_of(rows), !across.is_multiple_of(block));
        match across <= block {
            true => source.line("{ let j0 = lid;"),
            false => source
                .line(format!("for (var j0 = lid; j0 < {}u; j0 = j0 + {block}u) {{", across.next_multiple_of(block))),
        }
        for c in 0..columns {
            let j = format!("j0 + {}u", c * lanes);
            let near = if ragged { format!("min({j}, {}u)", across - 1) } else { j };
            source.line(format!("let j_{c} = {near};"));
            (0..rows).for_each(|r| source.line(format!("var a{r}_{c} = V(0.0);")));
        }
        for r in 0..rows {
            let row = format!("row0 + {r}u");
            let near = if ragged_rows { format!("min({row}, {}u)", self.batch - 1) } else { row };
            source.line(format!("let x_{r} = {start} + ({near}) * {summands}u;"));
        }
        source.line(format!("for (var k = 0u; k < {summands}u; k = k + 1u) {{"));
        (0..rows).for_each(|r| source.line(format!("let x{r} = {};", from.at(&format!("x_{r} + k")))));
        for (i, part) in [".x", ".y", ".z", ".w"].into_iter().take(width).enumerate() {
            let part = if width == 1 { "" } else { part };
            source.line("{");
            for c in 0..columns {
                let at = format!("(k * {width}u + {i}u) * {across}u + j_{c}");
                source.line(format!("let w{c} = {};", weights.at(&at)));
                (0..rows).for_each(|r| source.line(format!("a{r}_{c} = a{r}_{c} + x{r}{part} * w{c};")));
            }
            source.line("}");
        }
        source.line("}");
        for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            let store = format!("{} = a{r}_{c};", to.at(&format!("(row0 + {r}u) * {across}u + j_{c}")));
            let mut inside = vec![];
            inside.extend(ragged_rows.then(|| format!("row0 + {r}u < {}u", self.batch)));
            inside.extend(ragged.then(|| format!("j0 + {}u < {across}u", c * lanes)));
            match inside.is_empty() {
                true => source.line(store),
                false => source.line(format!("if ({}) {{ {store} }}", inside.join(" && "))),
            }
        }
        source.line("}\nstorageBarrier();");
    }
}

/// An LSTM's gates, and the function of each.
const GATES: [(&str, &str); 4] = [("i", "gate"), ("f", "gate"), ("g", "squash"), ("o", "gate")];

/// Vectors in memory, from some place on.
struct Place {
    buffer: String,
    offset: String,
}

impl Place {
    fn at(&self, index: &str) -> String {
        format!("{}[{} + {index}]", self.buffer, self.offset)
    }
}
