//! Plans as text: a line per kernel, repeated stretches folded, then memory and work.

use super::{Body, Form, Home, Instr, Kernel, Kind, Level, Operand, Plan};
use crate::{Shape, op::Op, program::Program};
use std::{cmp::Reverse, collections::BTreeMap, fmt};

/// The greatest widths of the lists of one line: a kernel's writes, its reads, its operations. Names that do not fit are left
/// out.
const WRITES: usize = 16;
const READS: usize = 32;
const COMPUTES: usize = 28;

/// The longest stretch of kernels whose repetition is noticed, and the fewest times that it must occur to be folded.
const STRETCH: usize = 12;
const TIMES: usize = 3;

/// A plan with the names of the program that it was made of.
pub struct Described<'a> {
    plan: &'a Plan,
    program: &'a Program,
}

impl Kernel {
    /// The kind of kernel: `map`, `reduce`, `row`, `matmul`, `fill`, or the name of the one op that it runs.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Loop(body) => match body.form() {
                Form::Map => "map",
                Form::Reduce => "reduce",
                Form::Row => "row",
            },
            Kind::MatMul(_) => "matmul",
            Kind::Fill(_) => "fill",
            Kind::Op(op) => op.name(),
        }
    }

    /// The arithmetic that it does, a multiplication being as much as an addition or an exponential. Of a fused op the
    /// matrix products are counted, and one operation for each element that it writes; of a convolution what it
    /// multiplies and adds, padding included.
    pub fn flops(&self) -> usize {
        let arithmetic = |body: &Body| -> usize {
            let each = |value: &super::Value| match &value.instr {
                Instr::Load(_) | Instr::Const(_) | Instr::Product | Instr::Lookup { .. } | Instr::Spread(_) => 0,
                Instr::Reduce(..) => body.space.numel(),
                _ => body.shape(value.level).numel(),
            };
            body.values.iter().map(each).sum()
        };
        let written = || self.writes.iter().map(|write| write.shape.numel()).sum::<usize>();
        match &self.kind {
            Kind::Loop(body) => arithmetic(body),
            Kind::MatMul(matmul) => {
                2 * matmul.batch.numel() * matmul.m * matmul.k * matmul.n + arithmetic(&matmul.epilogue)
            }
            Kind::Fill(_) | Kind::Op(Op::Gather(_) | Op::Assemble { .. } | Op::SegmentBroadcast(_)) => 0,
            // Every row of every time step is multiplied with the recurrent weights.
            Kind::Op(op @ (Op::Sequence { .. } | Op::SequenceGrad { .. })) => {
                let weights =
                    op.fused_inputs().iter().position(|(name, _)| *name == "w_hh").expect("every cell has some");
                let rows = self.writes[0].shape[..2].iter().product::<usize>();
                2 * rows * self.reads[weights].shape.numel() + written()
            }
            // Every query meets every key, in two products forwards and five backwards, and each has as many columns as a
            // key or a value.
            Kind::Op(op @ (Op::Attention(..) | Op::AttentionGrad(..))) => {
                let [q, k, v] = [0, 1, 2].map(|i| &self.reads[i].shape);
                let (last, rows) = (q.rank() - 1, q[..q.rank() - 1].iter().product::<usize>());
                let columns = match op {
                    Op::Attention(..) => k[last] + v[last],
                    _ => 3 * k[last] + 2 * v[last],
                };
                2 * rows * k[last - 1] * columns + written()
            }
            // Every element of the result, or of its cotangent, has met every weight of its group's channels.
            Kind::Op(Op::Conv2d(_)) => 2 * written() * self.reads[1].shape[1..].iter().product::<usize>(),
            Kind::Op(Op::ConvInputGrad(..)) => {
                2 * self.reads[0].shape.numel() * self.reads[1].shape[1..].iter().product::<usize>()
            }
            Kind::Op(Op::ConvWeightGrad(..)) => {
                2 * self.reads[0].shape.numel() * self.writes[0].shape[1..].iter().product::<usize>()
            }
            Kind::Op(Op::ScatterAdd { .. } | Op::SegmentReduce(..) | Op::ArgMax(_)) => self.reads[0].shape.numel(),
            Kind::Op(_) => written(),
        }
    }

    /// The elements that an operand shows, each once, however often it repeats them.
    fn elements(operand: &Operand) -> usize {
        let distinct = operand.shape.iter().zip(&operand.strides).filter(|(_, stride)| **stride != 0);
        distinct.map(|(n, _)| n).product()
    }
}

impl Plan {
    /// The plan as text, with the names of the program that it was made of.
    pub fn describe<'a>(&'a self, program: &'a Program) -> Described<'a> {
        Described { plan: self, program }
    }

    /// The bytes that a kernel reads and writes.
    pub fn traffic(&self, kernel: &Kernel) -> usize {
        let bytes = |slot: usize, elements: usize| elements * self.slots[slot].dtype.size();
        if let Kind::Fill(ranges) = &kernel.kind {
            return bytes(kernel.writes[0].slot, ranges.iter().map(|(_, len)| len).sum());
        }
        kernel.reads.iter().chain(&kernel.writes).map(|operand| bytes(operand.slot, Kernel::elements(operand))).sum()
    }
}

/// One kernel's line.
pub(super) struct Line {
    /// As [`HEADINGS`] names them.
    pub cells: [String; 7],
    /// Its scope without the turns of loops.
    pub scope: String,
    /// The part that is the same for a kernel that does the same to other memory, in another turn of a loop.
    alike: String,
    /// The same, where other parameters and inputs of the same shape are other memory too.
    pub same: String,
}

const HEADINGS: [&str; 7] = ["kernel", "over", "flop", "bytes", "writes <- reads", "computes", "recorded in"];

/// The columns that hold numbers, and are aligned to the right.
const NUMBERS: [usize; 2] = [2, 3];

impl Described<'_> {
    /// The source of an operand: a slot, or by name what is there before the plan runs.
    fn name(&self, operand: &Operand) -> String {
        match self.plan.slots[operand.slot].home {
            Home::Transient => format!("s{}", operand.slot),
            Home::Input(i) => self.program.inputs()[i].name.clone(),
            Home::State(state) => {
                let layout = self.program.layout();
                let mut params = layout.params().map(|(_, param)| param).filter(|param| param.arena == state);
                let elements = Kernel::elements(operand);
                let shown = params.find(|p| p.offset == operand.offset && p.shape.numel() == elements);
                shown.map_or_else(|| layout.state(state).name.clone(), |param| param.path.clone())
            }
            // In the type of its slot: f32 shows 0.1 as 0.1.
            Home::Const(value) if f64::from(value as f32) == value => format!("{}", value as f32),
            Home::Const(value) => format!("{value}"),
            Home::Iota => "iota".into(),
            Home::Table(_) => "table".into(),
        }
    }

    fn names(&self, operands: &[Operand]) -> Vec<String> {
        let mut names: Vec<String> = vec![];
        for name in operands.iter().map(|operand| self.name(operand)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    pub(super) fn line(&self, kernel: &Kernel) -> Line {
        let (over, computes) = match &kernel.kind {
            Kind::Loop(body) => (space(body), fit(&operations(body), COMPUTES)),
            Kind::MatMul(matmul) => {
                let (m, k, n) = (matmul.m, matmul.k, matmul.n);
                let product = format!("{m}x{k} by {k}x{n}");
                let batch = matmul.batch.numel();
                let over = if batch == 1 { product } else { format!("{batch} of {product}") };
                let after = operations(&matmul.epilogue);
                (over, if after.is_empty() { String::new() } else { format!("then {}", fit(&after, COMPUTES - 5)) })
            }
            Kind::Fill(ranges) => (ranges.iter().map(|(_, len)| len).sum::<usize>().to_string(), "zeros".into()),
            Kind::Op(_) => (extents(&kernel.writes[0].shape), String::new()),
        };
        let reads = self.names(&kernel.reads);
        let from = if reads.is_empty() { String::new() } else { format!(" <- {}", fit(&reads, READS)) };
        // A write that is no slot of the plan's own comes first: where a kernel writes a state, that is shown.
        let mut writes = kernel.writes.clone();
        writes.sort_by_key(|write| self.plan.slots[write.slot].home == Home::Transient);
        let operands = format!("{}{from}", fit(&self.names(&writes), WRITES));
        let scope = |loose: bool| {
            let path = self.program.scope_path(kernel.scope).into_iter().map(|scope| match scope.turn {
                Some(_) if loose => format!("{}[]", scope.name),
                Some(turn) => format!("{}[{turn}]", scope.name),
                None => scope.name.clone(),
            });
            path.collect::<Vec<_>>().join("/")
        };
        let does = format!("{};{over};{computes};{}", kernel.name(), scope(true));
        let looks = |named: bool| {
            let look = |operand: &Operand| match self.plan.slots[operand.slot].home {
                Home::Transient => extents(&operand.shape),
                _ if named => self.name(operand),
                _ => extents(&operand.shape),
            };
            kernel.writes.iter().chain(&kernel.reads).map(look).collect::<Vec<_>>().join(",")
        };
        let [alike, same] = [true, false].map(|named| format!("{does};{}", looks(named)));
        let (flops, bytes) = (scaled(kernel.flops(), ""), scaled(self.plan.traffic(kernel), ""));
        let cells = [kernel.name().into(), over, flops, bytes, operands, computes, scope(false)];
        Line { cells, scope: scope(true), alike, same }
    }
}

/// The way the lines go on: a stretch of so many occurs so many times.
fn repetition(lines: &[Line]) -> (usize, usize) {
    let times = |stretch: usize| {
        let repeated = (stretch..lines.len()).take_while(|&i| lines[i].alike == lines[i - stretch].alike);
        1 + repeated.count() / stretch
    };
    let candidates = (1..=STRETCH).map(|stretch| (stretch, times(stretch))).filter(|(_, times)| *times >= TIMES);
    candidates.max_by_key(|(stretch, times)| (stretch * times, Reverse(*stretch))).unwrap_or((1, 1))
}

/// The names that fit into so many characters.
fn fit(names: &[String], width: usize) -> String {
    let whole = names.join(", ");
    if names.len() == 1 || whole.chars().count() <= width {
        return whole;
    }
    let shortened = |n: usize| format!("{}, ..", names[..n].join(", "));
    let fits = |n: &usize| shortened(*n).chars().count() <= width;
    shortened((1..names.len()).rev().find(fits).unwrap_or(1))
}

/// The operations of a body, each with how often it occurs; nothing for the epilogue that just stores.
fn operations(body: &Body) -> Vec<String> {
    let mut counted: Vec<(&str, usize)> = vec![];
    for value in &body.values {
        let name = match &value.instr {
            Instr::Load(_) | Instr::Const(_) | Instr::Product => continue,
            Instr::Random { .. } => "random",
            Instr::Lookup { .. } | Instr::Spread(_) => "segment_broadcast",
            Instr::Unary(op, _) => op.name(),
            Instr::Binary(op, ..) => op.name(),
            Instr::Select(..) => "select",
            Instr::Cast(_) => "cast",
            Instr::Reduce(kind, _) => kind.name(),
        };
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => *times += 1,
            None => counted.push((name, 1)),
        }
    }
    let product = body.values.iter().any(|value| value.instr == Instr::Product);
    if counted.is_empty() && !product {
        return vec!["copy".into()];
    }
    let text = |(name, times): &(&str, usize)| if *times == 1 { name.to_string() } else { format!("{times} {name}") };
    counted.iter().map(text).collect()
}

/// `[4096, 1024]` as `4096x1024`.
fn extents(shape: &[usize]) -> String {
    if shape.is_empty() { "1".into() } else { shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x") }
}

/// A body's index space, the rows that it reduces told apart.
fn space(body: &Body) -> String {
    let rows: Shape = body.shape(Level::Row);
    match rows.numel() {
        _ if body.segments.is_some() => format!("{} segments of {}", extents(&rows), extents(&body.space)),
        _ if body.reduced == 0 => extents(&body.space),
        1 => format!("1 row of {}", extents(&body.space[rows.rank()..])),
        _ => format!("{} rows of {}", extents(&rows), extents(&body.space[rows.rank()..])),
    }
}

/// A number with a prefix: `12.3M`, with a space `12.3 M`.
fn scaled(n: usize, space: &str) -> String {
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(size, _)| n as f64 >= *size) {
        Some((size, prefix)) => format!("{:.1}{space}{prefix}", n as f64 / size),
        None => format!("{n}{space}"),
    }
}

/// `1 state`, `2 states`.
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        let lines: Vec<Line> = plan.kernels.iter().map(|kernel| self.line(kernel)).collect();
        // The lines that are shown, and after which ones how many times more they occur.
        let (mut shown, mut folds) = (vec![], BTreeMap::new());
        let mut at = 0;
        while at < lines.len() {
            let (stretch, times) = repetition(&lines[at..]);
            shown.extend(at..at + stretch);
            if times > 1 {
                folds.insert(at + stretch - 1, (stretch, times - 1));
            }
            at += stretch * times;
        }
        let mut widths = HEADINGS.map(str::len);
        for (c, width) in widths.iter_mut().enumerate() {
            let cells = shown.iter().map(|&k| lines[k].cells[c].chars().count());
            *width = cells.chain([*width]).max().unwrap_or(0);
        }
        let row = |number: &str, cells: [&str; 7]| {
            let cell = |(c, text): (usize, &str)| {
                let width = widths[c];
                if NUMBERS.contains(&c) { format!("{text:>width$}") } else { format!("{text:<width$}") }
            };
            let cells = cells.into_iter().enumerate().map(cell).collect::<Vec<_>>();
            format!("{number:>4}  {}", cells.join("  ")).trim_end().to_string()
        };
        writeln!(f, "{}", row("", HEADINGS))?;
        for k in shown {
            writeln!(f, "{}", row(&k.to_string(), lines[k].cells.each_ref().map(String::as_str)))?;
            if let Some((stretch, times)) = folds.get(&k) {
                let last = k + stretch * times;
                let what = if *stretch == 1 { "the same".into() } else { format!("these {stretch}") };
                writeln!(f, "      .. {what}, {} more, to {last}: {}", count(*times, "time"), lines[last].cells[6])?;
            }
        }
        self.totals(f)
    }
}

impl Described<'_> {
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        plan.kernels.iter().for_each(|kernel| *kinds.entry(kernel.name()).or_default() += 1);
        let mut kinds: Vec<(&str, usize)> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, n)| Reverse(*n));
        let kinds = kinds.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ");
        let home = |wanted: fn(&Home) -> bool| -> (usize, usize) {
            let slots = plan.slots.iter().filter(|slot| wanted(&slot.home));
            slots.fold((0, 0), |(n, bytes), slot| (n + 1, bytes + slot.len * slot.dtype.size()))
        };
        let (transient, bytes) = home(|home| *home == Home::Transient);
        let (states, state_bytes) = home(|home| matches!(home, Home::State(_)));
        let traffic: usize = plan.kernels.iter().map(|kernel| plan.traffic(kernel)).sum();
        let flops: usize = plan.kernels.iter().map(Kernel::flops).sum();
        let nodes = self.program.live().iter().filter(|live| **live).count();
        writeln!(f, "\n{} for {}: {kinds}", count(plan.kernels.len(), "kernel"), count(nodes, "node"))?;
        let (bytes, state_bytes) = (scaled(bytes, " "), scaled(state_bytes, " "));
        writeln!(f, "{} of {bytes}B; {} of {state_bytes}B", count(transient, "slot"), count(states, "state"))?;
        let copied = plan.commits.len();
        let in_place = self.program.commits().len() - copied;
        writeln!(f, "{} written in place, {copied} by a copy at the end", count(in_place, "state"))?;
        write!(f, "{}B read and written, {}flop", scaled(traffic, " "), scaled(flops, " "))
    }
}
