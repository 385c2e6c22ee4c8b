//! Plans as text: a line per kernel, then memory and work.

use super::{Body, Form, Home, Instr, Kernel, Kind, Operand, Plan};
use crate::{Shape, program::Program};
use std::fmt;

/// How many operands, and how many operations, of one kernel are listed before the rest is counted.
const LISTED: usize = 6;

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

    /// The arithmetic that it does, a multiplication being as much as an addition or an exponential.
    pub fn flops(&self) -> usize {
        let arithmetic = |body: &Body| -> usize {
            let each = |value: &super::Value| match &value.instr {
                Instr::Load(_) | Instr::Const(_) | Instr::Product => 0,
                Instr::Reduce(..) => body.space.numel(),
                _ => body.shape(value.level).numel(),
            };
            body.values.iter().map(each).sum()
        };
        match &self.kind {
            Kind::Loop(body) => arithmetic(body),
            Kind::MatMul(matmul) => {
                2 * matmul.batch.numel() * matmul.m * matmul.k * matmul.n + arithmetic(&matmul.epilogue)
            }
            Kind::Fill(_) => 0,
            Kind::Op(_) => self.writes.iter().map(|write| write.shape.numel()).sum(),
        }
    }

    /// The elements that it reads and writes, each once, however often an operand repeats them.
    fn elements<'a>(operands: impl Iterator<Item = &'a Operand>) -> impl Iterator<Item = (usize, usize)> {
        operands.map(|operand| {
            let distinct = operand.shape.iter().zip(&operand.strides).filter(|(_, stride)| **stride != 0);
            (operand.slot, distinct.map(|(n, _)| n).product())
        })
    }
}

impl Plan {
    /// The plan as text, with the names of the program that it was made of.
    pub fn describe<'a>(&'a self, program: &'a Program) -> Described<'a> {
        Described { plan: self, program }
    }

    /// The bytes that a kernel reads and writes.
    pub fn traffic(&self, kernel: &Kernel) -> usize {
        let all = Kernel::elements(kernel.reads.iter().chain(&kernel.writes));
        all.map(|(slot, elements)| elements * self.slots[slot].dtype.size()).sum()
    }
}

impl Described<'_> {
    fn slot(&self, slot: usize) -> String {
        match self.plan.slots[slot].home {
            Home::Transient => format!("s{slot}"),
            Home::Input(i) => self.program.inputs()[i].name.clone(),
            Home::State(state) => self.program.layout().state(state).name.clone(),
            Home::Const(value) => format!("{value}"),
            Home::Iota => "iota".into(),
        }
    }

    fn list(&self, operands: &[Operand]) -> String {
        let mut names: Vec<String> = vec![];
        for operand in operands {
            let name = self.slot(operand.slot);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        shorten(names)
    }
}

/// The first few, and how many more there are.
fn shorten(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let list = names.join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}

fn operations(body: &Body) -> String {
    let name = |value: &super::Value| match &value.instr {
        Instr::Load(_) | Instr::Const(_) | Instr::Product => None,
        Instr::Random { .. } => Some("random"),
        Instr::Unary(op, _) => Some(op.name()),
        Instr::Binary(op, ..) => Some(op.name()),
        Instr::Select(..) => Some("select"),
        Instr::Cast(_) => Some("cast"),
        Instr::Reduce(kind, _) => Some(kind.name()),
    };
    let names: Vec<String> = body.values.iter().filter_map(name).map(str::to_string).collect();
    if names.is_empty() { "copy".into() } else { shorten(names) }
}

/// `[4096, 1024]` as `4096x1024`.
fn extents(shape: &Shape) -> String {
    if shape.rank() == 0 { "1".into() } else { shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x") }
}

/// A number with a prefix: `12.3 M`.
fn scaled(n: usize) -> String {
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(size, _)| n as f64 >= *size) {
        Some((size, prefix)) => format!("{:.1} {prefix}", n as f64 / size),
        None => format!("{n} "),
    }
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        writeln!(f, "kernels")?;
        for (k, kernel) in plan.kernels.iter().enumerate() {
            let (space, what) = match &kernel.kind {
                Kind::Loop(body) => (extents(&body.space), operations(body)),
                Kind::MatMul(matmul) => {
                    let space = format!("{} by {}", extents(&matmul.epilogue.space), matmul.k);
                    let after = operations(&matmul.epilogue);
                    (space, if after == "copy" { String::new() } else { format!("then {after}") })
                }
                _ => (extents(&kernel.writes[0].shape), String::new()),
            };
            let operands = format!("{} <- {}", self.list(&kernel.writes), self.list(&kernel.reads));
            let path = self.program.scope_path(kernel.scope);
            let scope = path.iter().map(|scope| match scope.turn {
                Some(turn) => format!("{}[{turn}]", scope.name),
                None => scope.name.clone(),
            });
            let scope = scope.collect::<Vec<_>>().join("/");
            let line = format!("  {k:>4}  {:<8} {space:<18} {operands:<40}  {what:<44}  {scope}", kernel.name());
            writeln!(f, "{}", line.trim_end())?;
        }
        let home = |wanted: fn(&Home) -> bool| -> (usize, usize) {
            let slots = plan.slots.iter().filter(|slot| wanted(&slot.home));
            slots.fold((0, 0), |(n, bytes), slot| (n + 1, bytes + slot.len * slot.dtype.size()))
        };
        let (transient, bytes) = home(|home| *home == Home::Transient);
        let (states, state_bytes) = home(|home| matches!(home, Home::State(_)));
        let traffic: usize = plan.kernels.iter().map(|kernel| plan.traffic(kernel)).sum();
        let flops: usize = plan.kernels.iter().map(Kernel::flops).sum();
        writeln!(f, "\n{} kernels for {} nodes", plan.kernels.len(), self.program.live().iter().filter(|l| **l).count())?;
        writeln!(f, "{transient} slots of {}B; {states} states of {}B", scaled(bytes), scaled(state_bytes))?;
        let copied = plan.commits.len();
        writeln!(f, "{copied} states are copied at the end, the others are written in place")?;
        write!(f, "{}B read and written, {}flop", scaled(traffic), scaled(flops))
    }
}
