//! The choice of steps that run as chains.
//!
//! Steps are put in layers. Layers of steps that can be in chains alternate with layers of steps that cannot, and each step is
//! as early as its operands allow. The steps of a layer with one float type become one chain, or several where they are many.

use super::{
    Chain, Code, Input, Instruction, Output,
    compute::FEW,
    fuse::fuse,
    pieces::in_pieces,
    run::{INPUTS, LONGEST},
    sink::{ask_norms, make, sink},
};
use crate::{
    loops::{
        program::{Acc, Action, Cell, Extent, Home, Step},
        view::View,
    },
    memory::elements::Source,
};
use wgrad::{DType, op::Binary};

/// Joins the steps of a walk. `file` gives a chain its register. Chains read contiguous pieces of at least `piece` elements
/// where they lie in memory. Chains fill some of the given accumulators themselves.
pub(crate) fn join(
    steps: Vec<Step>,
    cells: &[Cell],
    views: &mut [View],
    piece: usize,
    accs: Option<&[Acc]>,
    mut file: impl FnMut(DType, usize) -> usize,
) -> Vec<Step> {
    let joiner = Joiner::new(&steps, cells);
    let layers = joiner.layers();
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&i| (layers[i], joiner.code[i].map(|(dtype, _)| dtype.size())));
    let together = |&i: &usize, &j: &usize| {
        layers[i] == layers[j] && joiner.code[i].is_some() && joiner.dtype(i) == joiner.dtype(j)
    };
    let parts: Vec<&[usize]> = order.chunk_by(together).flat_map(|steps| joiner.parts(steps)).collect();
    let chains =
        |part: &&[usize]| part.len() > 1 || joiner.is_stored(part[0]) || accs.is_some() && joiner.is_folded(part[0]);
    let spread: Vec<usize> =
        parts.iter().filter(|part| chains(part)).flat_map(|part| joiner.spread_within(part)).collect();
    let mut joined = vec![];
    for part in parts {
        match part {
            part if chains(&part) => joined.push(joiner.chain(part, &mut file)),
            [alone] if spread.contains(alone) => {}
            part => joined.extend(part.iter().map(|&i| steps[i].clone())),
        }
    }
    if let Some(accs) = accs {
        joined = sink(joined, cells, accs);
    }
    write_at_once(&mut joined, cells);
    for step in &mut joined {
        if let Action::Chain(chain) = &mut step.action {
            make(chain);
            ask_norms(chain);
            for i in 0..chain.outputs.len() {
                chain.outputs[i].alone = joiner.stands_alone(chain, chain.outputs[i], views);
            }
        }
    }
    in_pieces(&joined, cells, views, piece);
    joined
}

/// Lets the last chain overwrite its own inputs if only stores of its results come after it. Results that a later walk reads
/// from registers are written there first.
fn write_at_once(steps: &mut [Step], cells: &[Cell]) {
    let stores = steps.iter().rev().take_while(|step| matches!(step.action, Action::Store(..))).count();
    let (steps, stores) = steps.split_at_mut(steps.len() - stores);
    let Some(Step { action: Action::Chain(chain), .. }) = steps.last_mut() else { return };
    let stores = || {
        stores.iter().map(|step| match step.action {
            Action::Store(view, from) => (view, from),
            _ => unreachable!("only stores were counted"),
        })
    };
    if stores().all(|(_, from)| chain.outputs.iter().any(|output| output.cell == from)) {
        for (view, from) in stores().filter(|&(_, from)| !cells[from].is_resident()) {
            let output = chain.outputs.iter_mut().find(|output| output.cell == from).expect("it is one of them");
            output.direct = output.direct.or(Some(view));
        }
    }
}

struct Joiner<'a> {
    steps: &'a [Step],
    cells: &'a [Cell],
    /// The step that computes each cell, and those that use it.
    made: Vec<Option<usize>>,
    users: Vec<Vec<usize>>,
    /// The form of each step in a chain, and its type.
    code: Vec<Option<(DType, Code)>>,
}

impl<'a> Joiner<'a> {
    fn new(steps: &'a [Step], cells: &'a [Cell]) -> Self {
        let mut this = Self {
            steps,
            cells,
            made: vec![None; cells.len()],
            users: vec![vec![]; cells.len()],
            code: vec![None; steps.len()],
        };
        for (i, step) in steps.iter().enumerate() {
            step.action.operands().for_each(|cell| this.users[cell].push(i));
            step.to.iter().for_each(|&cell| this.made[cell] = Some(i));
        }
        this.code = steps.iter().map(|step| this.code(step)).collect();
        // Conditions never leave a chain.
        while let Some(i) = (0..steps.len()).find(|&i| !this.condition_fits(i)) {
            this.code[i] = None;
        }
        this
    }

    fn dtype(&self, step: usize) -> Option<DType> {
        self.code[step].map(|(dtype, _)| dtype)
    }

    /// The form of a step in a chain.
    fn code(&self, step: &Step) -> Option<(DType, Code)> {
        let (code, value) = match step.action {
            Action::Unary(op, a) => (Code::unary(op), a),
            Action::Binary(op, a, _) => (Code::binary(op)?, a),
            Action::Select(_, a, _) | Action::Choose(_, a, _) => (Code::Select, a),
            _ => return None,
        };
        let dtype = match code {
            Code::Max => self.compared(value),
            _ => self.cells[value].dtype,
        };
        let fits =
            |cell: usize| !self.is_condition(cell) || matches!(self.cells[cell].extent, Extent::Block | Extent::One);
        let float = matches!(dtype, DType::F32 | DType::F64);
        (float && self.cells[step.to?].extent == Extent::Block && step.action.operands().all(fits))
            .then_some((dtype, code))
    }

    /// The type of a value; of a condition, that of what it was made of.
    fn compared(&self, cell: usize) -> DType {
        match (self.cells[cell].dtype, self.made[cell].map(|i| &self.steps[i].action)) {
            (DType::Bool, Some(Action::Unary(_, a) | Action::Binary(_, a, _))) => self.compared(*a),
            (dtype, _) => dtype,
        }
    }

    fn is_condition(&self, cell: usize) -> bool {
        self.cells[cell].dtype == DType::Bool
    }

    /// True if the conditions that a step uses are computed in its chain, and the condition that it computes is used only there.
    fn condition_fits(&self, i: usize) -> bool {
        if self.code[i].is_none() {
            return true;
        }
        let step = &self.steps[i];
        let wide = |cell: &usize| self.is_condition(*cell) && self.cells[*cell].extent == Extent::Block;
        let made_so = |cell: usize| {
            let made = self.made[cell].and_then(|made| self.dtype(made));
            made.is_none() || made == self.dtype(i)
        };
        if !step.action.operands().filter(wide).all(made_so) {
            return false;
        }
        let to = step.to.expect("it has a result");
        if !self.is_condition(to) {
            return true;
        }
        let layers = self.layers();
        let among = |&user: &usize| {
            let takes = match self.steps[user].action {
                Action::Select(c, a, b) | Action::Choose(c, a, b) => c == to && a != to && b != to,
                Action::Binary(Binary::Max, ..) => true,
                _ => false,
            };
            takes && self.dtype(user) == self.dtype(i) && layers[user] == layers[i]
        };
        step.direct.is_none() && self.cells[to].is_open() && self.users[to].iter().all(among)
    }

    /// True if a step's result is stored, and a chain could store it directly.
    fn is_stored(&self, i: usize) -> bool {
        self.ends_in(i, |action| matches!(action, Action::Store(..)))
    }

    /// True if a step's result is reduced, and a chain could reduce it directly.
    fn is_folded(&self, i: usize) -> bool {
        self.ends_in(i, |action| matches!(action, Action::Fold(..)))
    }

    /// True if some such action uses a step's result, and a chain of that step alone could take over the action.
    fn ends_in(&self, i: usize, such: impl Fn(&Action) -> bool) -> bool {
        let step = &self.steps[i];
        self.code[i].is_some()
            && step.direct.is_none()
            && step.to.is_some_and(|to| self.users[to].iter().any(|&user| such(&self.steps[user].action)))
    }

    /// The steps that repeat values of rows for this chain only: the chain repeats them itself.
    fn spread_within(&self, chain: &[usize]) -> Vec<usize> {
        let within = |&i: &usize| {
            let step = &self.steps[i];
            let fits = |&to: &usize| self.cells[to].is_open() && step.direct.is_none() && !self.is_condition(to);
            let Some(to) = step.to.filter(fits) else {
                return false;
            };
            matches!(step.action, Action::Spread { whole: false, .. })
                && self.users[to].iter().all(|user| chain.contains(user))
        };
        let inputs = self.inputs(chain).into_iter();
        inputs.filter_map(|cell| self.made[cell]).filter(within).collect()
    }

    /// True if nothing reads the old contents of a result's place after the result is computed. Of a selected result, this holds for
    /// both operands.
    fn stands_alone(&self, chain: &Chain, output: Output, views: &[View]) -> bool {
        let Some(i) = output.value.checked_sub(chain.inputs.len()) else { return true };
        if let Instruction { code: Code::Choose, of: [_, a, b, ..] } = chain.code[i] {
            let either = [a, b].map(|value| Output { value: usize::from(value), ..output });
            return either.into_iter().all(|output| self.stands_alone(chain, output, views));
        }
        let Some(direct) = output.direct else { return true };
        let place = views[direct].source;
        let lies_there = |value: usize| self.may_lie_in(chain, value, place, views);
        let computes = |later: &&Instruction| later.code != Code::Choose;
        let read_later = chain.code[i + 1..].iter().filter(computes).any(|later| later.operands().any(lies_there));
        // Reductions come after all instructions.
        let is_reduced = chain.folds.iter().any(|fold| match fold.made {
            Some(instruction) => instruction.operands().any(lies_there),
            None => lies_there(fold.value),
        });
        !read_later && !is_reduced
    }

    /// True if a value of a chain may lie in memory that the kernel overwrites: it has been loaded, or selected from such values.
    fn may_lie_in(&self, chain: &Chain, value: usize, place: Source, views: &[View]) -> bool {
        let chosen = |value: &u8| self.may_lie_in(chain, usize::from(*value), place, views);
        match (chain.inputs.get(value), value.checked_sub(chain.inputs.len()).map(|i| &chain.code[i])) {
            (Some(Input::Cell(cell)), _) => match self.made[*cell].map(|i| &self.steps[i].action) {
                Some(Action::Load(view)) => views[*view].source == place && matches!(place, Source::Target(_)),
                Some(Action::Choose(..)) => true,
                _ => false,
            },
            (_, Some(Instruction { code: Code::Choose, of })) => of[1..3].iter().any(chosen),
            _ => false,
        }
    }

    /// The layer of each step; layers of chains are odd. Stores come last, in their order.
    fn layers(&self) -> Vec<usize> {
        let mut layers: Vec<usize> = vec![];
        for (i, step) in self.steps.iter().enumerate() {
            let before = step.action.operands().filter_map(|cell| self.made[cell].filter(|made| *made < i));
            let layer = before.map(|made| layers[made]).max().unwrap_or(0);
            layers.push(match (&step.action, self.code[i]) {
                (Action::Store(..), _) => usize::MAX,
                (_, Some(_)) => layer | 1,
                (_, None) => layer.next_multiple_of(2),
            });
        }
        layers
    }

    /// Cuts steps that fit one chain but for their number into several chains. No condition crosses a cut; where that is not
    /// possible, the steps stay single.
    fn parts<'b>(&self, mut steps: &'b [usize]) -> Vec<&'b [usize]> {
        let mut parts = vec![];
        while !steps.is_empty() {
            let open = |cut: usize| {
                let condition = |i: usize| self.steps[i].to.is_some_and(|to| self.is_condition(to));
                let users = |i: usize| self.steps[i].to.into_iter().flat_map(|to| &self.users[to]);
                steps[..cut].iter().any(|&i| condition(i) && users(i).any(|user| steps[cut..].contains(user)))
            };
            let fits = |cut: usize| self.inputs(&steps[..cut]).len() <= INPUTS;
            let cut = (1..=steps.len().min(LONGEST)).rev().find(|&cut| !open(cut) && fits(cut));
            let Some(cut) = cut else {
                parts.extend(steps.chunks(1));
                return parts;
            };
            let (part, rest) = steps.split_at(cut);
            parts.push(part);
            steps = rest;
        }
        parts
    }

    /// The cells that steps of a chain use and do not compute.
    fn inputs(&self, steps: &[usize]) -> Vec<usize> {
        let mut inputs: Vec<usize> = vec![];
        for cell in steps.iter().flat_map(|&i| self.steps[i].action.operands()) {
            if !steps.iter().any(|&i| self.steps[i].to == Some(cell)) && !inputs.contains(&cell) {
                inputs.push(cell);
            }
        }
        inputs
    }

    fn chain(&self, steps: &[usize], file: &mut impl FnMut(DType, usize) -> usize) -> Step {
        let dtype = self.dtype(steps[0]).expect("steps of chains have a type");
        let to = |i: usize| self.steps[i].to.expect("it has a result");
        let inputs = self.inputs(steps);
        let value = |cell: usize| {
            let made = steps.iter().position(|&i| to(i) == cell).map(|i| inputs.len() + i);
            made.or(inputs.iter().position(|&input| input == cell)).expect("made here, or an input")
        };
        let instruction = |&i: &usize| {
            let (_, code) = self.code[i].expect("steps of chains have a code");
            let operands = self.steps[i].action.operands();
            let first = operands.clone().next().expect("it uses something");
            let one = code == Code::Select && self.cells[first].extent == Extent::One;
            let mut of = [value(first) as u8; 5];
            of.iter_mut().zip(operands).for_each(|(of, cell)| *of = value(cell) as u8);
            Instruction { code: if one { Code::Choose } else { code }, of }
        };
        let code: Vec<Instruction> = steps.iter().map(instruction).collect();
        let output = |&i: &usize| {
            let (cell, direct) = (to(i), self.steps[i].direct);
            let inside = self.cells[cell].is_open() && self.users[cell].iter().all(|user| steps.contains(user));
            (!inside).then_some(Output { value: value(cell), cell, direct, alone: false })
        };
        let mut outputs: Vec<Output> = steps.iter().filter_map(output).collect();
        let kept = |value: usize| outputs.iter().any(|output| output.value == value);
        let is = |value: usize, number: f64| {
            let cell = inputs.get(value).map(|&cell| self.cells[cell].home);
            matches!(cell, Some(Home::Const(c)) if c.to_bits() == number.to_bits())
        };
        let (code, new) = fuse(inputs.len(), &code, kept, is);
        outputs.iter_mut().for_each(|output| output.value = new[output.value]);
        let spread = self.spread_within(steps);
        let input = |cell: usize| match self.made[cell].filter(|i| spread.contains(i)).map(|i| &self.steps[i].action) {
            Some(Action::Spread { from, .. }) => Input::Spread(*from),
            _ => Input::Cell(cell),
        };
        let inputs = inputs.into_iter().map(input).collect();
        let mut chain = Chain { dtype, inputs, code, outputs, folds: vec![], made: 0, file: 0, prefetches: vec![] };
        chain.file = file(dtype, chain.values() * FEW);
        Step { action: Action::Chain(Box::new(chain)), to: None, direct: None }
    }
}
