//! The arrangement of a body's values in steps: the walk over the rows that computes each, and its register.

use super::{
    chain,
    finite::at_a_glance,
    prefetch::plan_prefetches,
    program::{Acc, Action, Cell, Extent, Home, Phase, Schedule, Step, Vector},
    reduce::accumulator,
    tiling::{Cut, Setting},
    view::View,
};
use crate::{
    memory::{elements::Source, scratch::Files},
    simd::functions::weight,
};
use wgrad::{
    op::Reduce,
    plan::{Instr, Level, Operand},
};

/// Decides everything about a loop kernel.
pub(crate) fn arranged(setting: &Setting, files: &mut Files) -> Schedule {
    let body = setting.body;
    let (depth, phases) = (body.depths(), body.passes());
    let (cut, tiling) = match &body.segments {
        None => (Cut::new(setting, phases), None),
        Some(segments) => {
            let (cut, tiling) = Cut::segments(segments, &setting.sizes, phases);
            (cut, Some(tiling))
        }
    };
    let this = Schedule {
        cut,
        tiling,
        cells: vec![],
        views: vec![],
        accs: vec![],
        prelude: vec![],
        phases: vec![Phase::default(); phases],
        finale: vec![],
        cost: body.values.iter().map(cost).sum::<usize>().max(1),
    };
    let here = vec![vec![None; body.values.len()]; phases];
    let always = vec![None; body.values.len()];
    let copied = copied(setting);
    let mut builder = Builder { setting, files, depth, always, here, copied, schedule: this };
    builder.build();
    let mut schedule = builder.schedule;
    plan_prefetches(&mut schedule);
    files.cells(schedule.cells.len());
    schedule
}

/// The weight of an instruction, per element.
fn cost(value: &wgrad::plan::Value) -> usize {
    match value.instr {
        Instr::Const(_) => 0,
        Instr::Unary(op, _) => weight(Some(op), None),
        Instr::Binary(op, ..) => weight(None, Some(op)),
        Instr::Random { .. } => 16,
        _ => 1,
    }
}

/// The reads that are stored unchanged, or may be, in another place than their own: by then their own may be overwritten.
/// Everything else is done before the first such store.
fn copied(setting: &Setting) -> Vec<bool> {
    let Setting { body, reads, writes, .. } = setting;
    let mut copied = vec![false; reads.len()];
    for (write, &stored) in writes.iter().zip(&body.stores) {
        let mut open = vec![stored];
        while let Some(v) = open.pop() {
            match body.values[v].instr {
                Instr::Load(i) => copied[i] |= reads[i] != *write,
                Instr::Select(_, a, b) => open.extend([a, b]),
                _ => {}
            }
        }
    }
    copied
}

/// True if some dimensions of an operand repeat one element.
fn flat(operand: &Operand, mut dims: std::ops::Range<usize>) -> bool {
    dims.all(|d| operand.shape[d] == 1 || operand.strides[d] == 0)
}

struct Builder<'a, 'b> {
    setting: &'a Setting<'a>,
    files: &'b mut Files,
    /// The number of walks over a row before each value.
    depth: Vec<usize>,
    /// The cell of each value that lasts for a whole tile.
    always: Vec<Option<usize>>,
    /// The cell of each value in each phase.
    here: Vec<Vec<Option<usize>>>,
    /// Reads that are copied before the kernel overwrites them.
    copied: Vec<bool>,
    schedule: Schedule,
}

/// A register that is yet to be chosen.
const OPEN: Home = Home::Register { index: usize::MAX, resident: false };

impl Builder<'_, '_> {
    fn build(&mut self) {
        let body = self.setting.body;
        let phases = self.schedule.phases.len();
        let source = self.setting.source;
        let read_sources: Vec<Source> = self.setting.reads.iter().map(source).collect();
        for (i, value) in body.values.iter().enumerate() {
            if let Instr::Const(c) = value.instr {
                let cell = Cell { home: Home::Const(c), dtype: value.dtype, extent: Extent::One };
                self.always[i] = Some(self.cell(cell));
            }
        }
        // The writes of each phase. One that overwrites a read waits until nothing is read again.
        let mut stores: Vec<Vec<(usize, usize, bool)>> = vec![vec![]; phases];
        let mut row_stores = vec![];
        for (w, &v) in body.stores.iter().enumerate() {
            let write = &self.setting.writes[w];
            let shared = read_sources.contains(&source(write));
            if body.values[v].level == Level::Row {
                row_stores.push((w, v));
            } else {
                let phase = if shared { phases - 1 } else { self.depth[v].min(phases - 1) };
                stores[phase].push((w, v, shared));
            }
        }
        let needed = self.needed(&stores);
        self.rows_of(0);
        for (p, needed) in needed.iter().enumerate() {
            let first = self.schedule.accs.len();
            for (v, needed) in needed.iter().enumerate() {
                if *needed {
                    let direct = stores[p].iter().position(|&(_, stored, shared)| stored == v && !shared);
                    let direct = direct.map(|i| stores[p].remove(i));
                    self.value(p, v, direct.map(|(w, ..)| w));
                }
                if let Instr::Reduce(kind, x) = body.values[v].instr
                    && self.depth[x] == p
                {
                    self.reduce(p, v, kind, x);
                }
            }
            for (w, v, _) in std::mem::take(&mut stores[p]) {
                let from = self.whole(p, v);
                let view = self.view(&self.setting.writes[w], self.schedule.cut.split);
                self.push(p, Step { action: Action::Store(view, from), to: None, direct: None });
            }
            self.schedule.phases[p].accs = first..self.schedule.accs.len();
            let steps = std::mem::take(&mut self.schedule.phases[p].block);
            let file = |dtype, len| self.files.take(dtype, len);
            let Schedule { cut, cells, views, accs, tiling, .. } = &mut self.schedule;
            let steps = if tiling.is_some() || cut.transposed { steps } else { at_a_glance(&steps, cells, accs) };
            let accs = tiling.is_none().then_some(&accs[..]);
            self.schedule.phases[p].block = chain::join(steps, cells, views, self.setting.sizes.piece, accs, file);
            self.registers(p);
            self.rows_of(p + 1);
        }
        for (w, v) in row_stores {
            let from = self.always[v].expect("values of rows last");
            let view = self.part_view(&self.setting.writes[w], 0..self.row_rank());
            self.schedule.finale.push(Step { action: Action::Store(view, from), to: None, direct: None });
        }
    }

    /// The elements' values that each phase computes, rather than finds.
    fn needed(&mut self, stores: &[Vec<(usize, usize, bool)>]) -> Vec<Vec<bool>> {
        let body = self.setting.body;
        let phases = stores.len();
        let mut needed = vec![vec![false; body.values.len()]; phases];
        for p in 0..phases {
            let reduced = body.values.iter().filter_map(|v| match v.instr {
                Instr::Reduce(_, x) if self.depth[x] == p => Some(x),
                _ => None,
            });
            let mut open: Vec<usize> = reduced.chain(stores[p].iter().map(|s| s.1)).collect();
            while let Some(v) = open.pop() {
                let value = &body.values[v];
                if needed[p][v] || value.level == Level::Row || matches!(value.instr, Instr::Const(_)) {
                    continue;
                }
                let before = (0..p).find(|&q| needed[q][v]);
                if before.is_some() && self.schedule.cut.resident && self.worth_keeping(v) {
                    if self.always[v].is_none() {
                        let cell = Cell { home: OPEN, dtype: value.dtype, extent: Extent::Block };
                        let cell = self.cell(cell);
                        self.lasting(cell);
                        self.always[v] = Some(cell);
                    }
                    continue;
                }
                needed[p][v] = true;
                open.extend(value.instr.operands());
            }
        }
        needed
    }

    /// True if a value costs something to compute again: all but those that lie in memory.
    fn worth_keeping(&self, v: usize) -> bool {
        match self.setting.body.values[v].instr {
            Instr::Load(i) => {
                let read = &self.setting.reads[i];
                if flat(read, self.schedule.cut.split..read.shape.rank()) || flat(read, 0..self.schedule.cut.split) {
                    return false;
                }
                let view =
                    View::new((self.setting.source)(read), read, self.schedule.cut.split, self.schedule.cut.transposed);
                !view.may_be_direct()
            }
            Instr::Product => false,
            _ => true,
        }
    }

    fn cell(&mut self, cell: Cell) -> usize {
        self.schedule.cells.push(cell);
        self.schedule.cells.len() - 1
    }

    /// Gives a cell a register of its own, for the whole kernel.
    fn lasting(&mut self, cell: usize) {
        let Cell { dtype, extent, .. } = self.schedule.cells[cell];
        let len = match extent {
            Extent::Block => self.schedule.cut.lines * self.schedule.cut.reduced,
            Extent::Rows | Extent::One => self.schedule.cut.rows,
            Extent::Columns => unreachable!("a value of columns belongs to a block"),
        };
        let resident = extent == Extent::Block;
        self.schedule.cells[cell].home = Home::Register { index: self.files.take(dtype, len), resident };
    }

    fn push(&mut self, p: usize, step: Step) {
        self.schedule.phases[p].block.push(step);
    }

    fn view(&mut self, operand: &Operand, split: usize) -> usize {
        let view = View::new((self.setting.source)(operand), operand, split, self.schedule.cut.transposed);
        self.schedule.views.push(view);
        self.schedule.views.len() - 1
    }

    /// A view of some dimensions alone.
    fn part_view(&mut self, operand: &Operand, dims: std::ops::Range<usize>) -> usize {
        let (shape, strides) = (operand.shape[dims.clone()].into(), operand.strides[dims].to_vec());
        let operand = Operand { shape, strides, ..operand.clone() };
        self.schedule.views.push(View::new((self.setting.source)(&operand), &operand, 0, false));
        self.schedule.views.len() - 1
    }

    /// A view of what a value of some extent reads.
    fn extent_view(&mut self, operand: &Operand, extent: Extent) -> usize {
        match extent {
            Extent::Block => self.view(operand, self.schedule.cut.split),
            Extent::Columns => self.part_view(operand, self.schedule.cut.split..operand.shape.rank()),
            Extent::One | Extent::Rows => self.part_view(operand, 0..self.row_rank()),
        }
    }

    /// The number of dimensions that an operand with one element per row has.
    fn row_rank(&self) -> usize {
        if self.schedule.tiling.is_some() { 1 } else { self.schedule.cut.split }
    }

    /// The number of elements that a read of a level has in a block, at least.
    fn extent(&self, operand: &Operand, level: Level) -> Extent {
        if let (Some(_), Level::Row) = (&self.schedule.tiling, level) {
            return if flat(operand, 0..1) { Extent::One } else { Extent::Rows };
        }
        let Cut { split, kept, rows, transposed, .. } = self.schedule.cut;
        match (flat(operand, 0..split), flat(operand, split..operand.shape.rank())) {
            (true, true) => Extent::One,
            // Of a single row, the columns are all there is.
            (true, false) if kept == 1 || rows == 1 && !transposed => Extent::Block,
            (false, true) => Extent::Rows,
            (true, false) => Extent::Columns,
            (false, false) => Extent::Block,
        }
    }

    /// The values of rows that `depth` walks precede.
    fn rows_of(&mut self, depth: usize) {
        let body = self.setting.body;
        for (v, value) in body.values.iter().enumerate() {
            let reduction = matches!(value.instr, Instr::Reduce(..) | Instr::Const(_));
            if value.level == Level::Row && self.depth[v] == depth && !reduction {
                let (action, extent) = self.action(None, v, Extent::One);
                let to = self.cell(Cell { home: OPEN, dtype: value.dtype, extent });
                self.lasting(to);
                self.always[v] = Some(to);
                let step = Step { action, to: Some(to), direct: None };
                match depth {
                    0 => self.schedule.prelude.push(step),
                    _ => self.schedule.phases[depth - 1].rows.push(step),
                }
            }
        }
    }

    /// An operand's cell: in a phase, or among the values of rows.
    fn operand(&self, phase: Option<usize>, v: usize) -> usize {
        let here = phase.and_then(|p| self.here[p][v]);
        here.or(self.always[v]).expect("an operand comes before its use")
    }

    /// The action that computes a value, from operands that fit one another, and its elements in a block.
    fn action(&mut self, phase: Option<usize>, v: usize, least: Extent) -> (Action, Extent) {
        let setting = self.setting;
        let wgrad::plan::Value { instr, level, .. } = &setting.body.values[v];
        match instr {
            Instr::Load(i) => {
                let extent = self.extent(&setting.reads[*i], *level).with(least);
                let view = self.extent_view(&setting.reads[*i], extent);
                let read = &mut self.schedule.views[view];
                let target = matches!(read.source, Source::Target(_));
                read.overwritten = target && (phase.is_none() || self.copied[*i]);
                return (Action::Load(view), extent);
            }
            Instr::Product => {
                self.schedule.views.push(setting.product.clone().expect("a product belongs to an epilogue"));
                return (Action::Load(self.schedule.views.len() - 1), Extent::Block);
            }
            Instr::Lookup { load, segments, index } => {
                let extent = self.extent(index, *level).with(least);
                let index = self.extent_view(index, extent);
                let read = &setting.reads[*load];
                let (source, offset, stride) = ((setting.source)(read), read.offset, read.strides[0]);
                let from = Vector { source, offset, stride };
                let whole = extent != Extent::Block || self.is_kept_whole(v);
                return (Action::Lookup { from, segments: segments.clone(), index, whole }, extent);
            }
            Instr::Spread(a) => {
                let (from, whole) = (self.operand(phase, *a), self.is_kept_whole(v));
                return (Action::Spread { from, whole }, Extent::Block);
            }
            _ => {}
        }
        let mut extent = least;
        if let Instr::Random { index, .. } = instr {
            extent = self.extent(index, *level).with(least);
        }
        for o in instr.operands() {
            extent = extent.with(self.schedule.cells[self.operand(phase, o)].extent);
        }
        let mut cell = |o: usize| match (phase, extent) {
            (Some(p), Extent::Block) => self.fitting(p, o),
            _ => self.operand(phase, o),
        };
        let action = match instr {
            Instr::Random { stream, key, index } => {
                let key = key.map(&mut cell);
                let index = self.extent_view(index, extent);
                Action::Random { stream: *stream, key, index }
            }
            Instr::Unary(op, a) => Action::Unary(*op, cell(*a)),
            Instr::Binary(op, a, b) => Action::Binary(*op, cell(*a), cell(*b)),
            Instr::Select(a, b, c) => {
                let [a, b, c] = [*a, *b, *c].map(cell);
                let extents = [a, b, c].map(|cell| self.schedule.cells[cell].extent);
                let whole = phase.is_none() || self.always[v].is_some();
                match extents {
                    [Extent::One, Extent::Block, Extent::Block] if !whole => Action::Choose(a, b, c),
                    _ => Action::Select(a, b, c),
                }
            }
            Instr::Cast(a) => Action::Cast(cell(*a)),
            Instr::Load(_) | Instr::Product | Instr::Const(_) | Instr::Reduce(..) => unreachable!("handled elsewhere"),
            Instr::Lookup { .. } | Instr::Spread(_) => unreachable!("handled above"),
        };
        (action, extent)
    }

    /// True if a value needs each of its elements in a register: it is kept from one walk to the next, or reduced.
    fn is_kept_whole(&self, v: usize) -> bool {
        let needs = |value: &wgrad::plan::Value| match value.instr {
            Instr::Reduce(_, x) => x == v,
            Instr::Select(_, a, b) => a == v || b == v, // What is chosen may be reduced.
            _ => false,
        };
        self.always[v].is_some() || self.setting.body.values.iter().any(needs)
    }

    /// The cell of a value, in a form that an instruction over elements can take.
    fn fitting(&mut self, p: usize, v: usize) -> usize {
        let cell = self.operand(Some(p), v);
        let Cut { transposed, rows, block, .. } = self.schedule.cut;
        let (lines, width) = if transposed { (block, rows) } else { (rows, block) };
        match self.schedule.cells[cell].extent {
            Extent::Rows | Extent::Columns if lines > 1 && width < self.setting.sizes.narrow => {
                self.expanded(p, v, cell)
            }
            _ => cell,
        }
    }

    /// The cell of a value with one element per element of the block.
    fn whole(&mut self, p: usize, v: usize) -> usize {
        let cell = self.operand(Some(p), v);
        if self.schedule.cells[cell].extent == Extent::Block { cell } else { self.expanded(p, v, cell) }
    }

    fn expanded(&mut self, p: usize, v: usize, cell: usize) -> usize {
        let dtype = self.schedule.cells[cell].dtype;
        let to = self.cell(Cell { home: OPEN, dtype, extent: Extent::Block });
        self.push(p, Step { action: Action::Expand(cell), to: Some(to), direct: None });
        self.here[p][v] = Some(to);
        to
    }

    /// Computes a value in a phase, and stores it where that can be done at once.
    fn value(&mut self, p: usize, v: usize, store: Option<usize>) {
        let setting = self.setting;
        let least = if self.always[v].is_some() { Extent::Block } else { Extent::One };
        let (action, extent) = self.action(Some(p), v, least);
        let to = self.always[v]
            .unwrap_or_else(|| self.cell(Cell { home: OPEN, dtype: setting.body.values[v].dtype, extent }));
        let view = store.map(|w| self.view(&setting.writes[w], self.schedule.cut.split));
        let fresh = matches!(self.schedule.cells[to].home, Home::Register { resident: false, .. });
        let direct = view.filter(|_| fresh && extent == Extent::Block);
        self.push(p, Step { action, to: Some(to), direct });
        self.here[p][v] = Some(to);
        if let Some(view) = view {
            let from = self.whole(p, v);
            self.push(p, Step { action: Action::Store(view, from), to: None, direct: None });
        }
    }

    fn reduce(&mut self, p: usize, v: usize, kind: Reduce, x: usize) {
        let dtype = self.setting.body.values[x].dtype;
        let from = self.whole(p, x);
        let (store, width) = accumulator(kind, dtype);
        let [chunk, tile] = [0, 1].map(|_| self.files.take(store, self.schedule.cut.rows * width));
        let to = self.cell(Cell { home: OPEN, dtype, extent: Extent::Rows });
        self.lasting(to);
        self.always[v] = Some(to);
        self.push(p, Step { action: Action::Fold(self.schedule.accs.len(), from), to: None, direct: None });
        self.schedule.accs.push(Acc { kind, dtype, width, chunk, tile, to });
    }

    /// True if a result of a step lies in memory, where chains read it.
    fn is_in_pieces(&self, step: &Step, to: usize) -> bool {
        let view = match &step.action {
            Action::Load(view) => Some(*view),
            Action::Chain(chain) => chain.outputs.iter().find(|output| output.cell == to).and_then(|o| o.direct),
            _ => None,
        };
        view.is_some_and(|view| self.schedule.views[view].in_pieces)
    }

    /// Chooses registers for what lives within a phase: free ones again as soon as their last reader has run.
    fn registers(&mut self, p: usize) {
        let steps = &self.schedule.phases[p].block;
        let mut last = vec![0; self.schedule.cells.len()];
        for (i, step) in steps.iter().enumerate() {
            step.action.operands().chain(step.results()).for_each(|cell| last[cell] = i);
        }
        // A selected operand is read in place.
        for step in steps.iter().rev() {
            if let (Action::Choose(_, a, b), Some(to)) = (&step.action, step.to) {
                [*a, *b].into_iter().for_each(|cell| last[cell] = last[cell].max(last[to]));
            }
        }
        let len = self.schedule.cut.lines * self.schedule.cut.block;
        let mut mine = vec![false; self.schedule.cells.len()];
        for (i, step) in steps.iter().enumerate() {
            for to in step.results() {
                if self.schedule.cells[to].is_open() && !self.is_in_pieces(step, to) {
                    let index = self.files.take(self.schedule.cells[to].dtype, len);
                    self.schedule.cells[to].home = Home::Register { index, resident: false };
                    mine[to] = true;
                }
            }
            for cell in step.action.operands().chain(step.results()) {
                if last[cell] == i && mine[cell] {
                    mine[cell] = false;
                    if let Home::Register { index, .. } = self.schedule.cells[cell].home {
                        self.files.give_back(index);
                    }
                }
            }
        }
    }
}
