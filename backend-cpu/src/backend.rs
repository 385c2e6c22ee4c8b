//! The device: buffers, compiled plans, and a pool of threads.

use crate::{
    kernel::{Compiled, copy, copy_nest, nothing, poison},
    nest::Nest,
};
use wgrad::{
    Backend, DType, Data, Result,
    backend::{BufferId, Delivery, ExecutableId},
    plan::{Home, Operand, Plan},
};

/// What can go wrong on the CPU besides what every backend reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system gives no more threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// Why not.
        source: rayon::ThreadPoolBuildError,
    },
}

impl From<Error> for wgrad::Error {
    fn from(error: Error) -> Self {
        wgrad::Error::Backend(Box::new(error))
    }
}

/// Where a kernel finds an operand.
#[derive(Clone, Copy, Debug)]
enum Source {
    Slot(usize),
    Buffer(usize),
    Input(usize),
}

/// A strided read, resolved.
#[derive(Debug)]
struct Read {
    source: Source,
    nest: Nest<1>,
    len: usize,
    dtype: DType,
}

#[derive(Debug)]
struct Executable {
    kernels: Vec<(Compiled, Vec<Source>, usize)>,
    slots: Vec<Data>,
    /// The slots that kernels write.
    transient: Vec<usize>,
    taps: Vec<Read>,
    commits: Vec<(usize, Read)>,
}

/// The CPU as a device.
pub struct CpuBackend {
    pool: rayon::ThreadPool,
    poison: bool,
    buffers: Vec<Data>,
    executables: Vec<Option<Executable>>,
    deliveries: Vec<Delivery>,
}

impl CpuBackend {
    /// A device with this many threads; 0 takes as many as the machine has cores.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(threads: usize) -> std::result::Result<Self, Error> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("wgrad-{i}"))
            .build()
            .map_err(|source| Error::Threads { threads, source })?;
        Ok(Self { pool, poison: false, buffers: vec![], executables: vec![], deliveries: vec![] })
    }

    /// For tests: a device that fills every slot with NaN (or wild integers) before each run, so that a kernel which
    /// reads what nobody wrote is found out.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn poisoned(threads: usize) -> std::result::Result<Self, Error> {
        Ok(Self { poison: true, ..Self::new(threads)? })
    }
}

impl Executable {
    fn new(plan: &Plan, states: &[BufferId]) -> Self {
        let source = |slot: usize| match plan.slots[slot].home {
            Home::Transient | Home::Const(_) => Source::Slot(slot),
            Home::State(state) => Source::Buffer(states[state.index()].0),
            Home::Input(input) => Source::Input(input),
        };
        let read = |operand: &Operand| Read {
            source: source(operand.slot),
            nest: copy_nest(operand),
            len: operand.shape.numel(),
            dtype: plan.slots[operand.slot].dtype,
        };
        let kernels = plan.kernels.iter().map(|kernel| {
            let sources = kernel.inputs.iter().map(|input| source(input.slot)).collect();
            (Compiled::new(kernel), sources, kernel.output)
        });
        let slots = plan.slots.iter().map(|slot| match slot.home {
            Home::Transient => Data::zeros(slot.dtype, slot.len),
            Home::Const(value) => Data::from_f64(slot.dtype, &vec![value; slot.len]),
            Home::State(_) | Home::Input(_) => nothing(slot.dtype),
        });
        Self {
            kernels: kernels.collect(),
            slots: slots.collect(),
            transient: (0..plan.slots.len()).filter(|&s| plan.slots[s].home == Home::Transient).collect(),
            taps: plan.taps.iter().map(read).collect(),
            commits: plan.commits.iter().map(|(state, operand)| (states[state.index()].0, read(operand))).collect(),
        }
    }

    fn run(&mut self, buffers: &mut [Data], inputs: &[&Data], poisoned: bool) -> Result<Vec<Data>> {
        if poisoned {
            self.transient.iter().for_each(|&s| poison(&mut self.slots[s]));
        }
        let Self { kernels, slots, taps, commits, .. } = self;
        for (kernel, sources, output) in kernels {
            let empty = nothing(slots[*output].dtype());
            let mut out = std::mem::replace(&mut slots[*output], empty);
            let x: Vec<&Data> = sources.iter().map(|source| find(*source, slots, buffers, inputs)).collect();
            let result = kernel.run(&x, &mut out);
            slots[*output] = out;
            result?;
        }
        let values = taps.iter().map(|tap| {
            let mut value = Data::zeros(tap.dtype, tap.len);
            copy(&tap.nest, find(tap.source, slots, buffers, inputs), tap.len, &mut value);
            value
        });
        let values = values.collect();
        for (state, read) in commits {
            // The plan's commits read transients only, so taking the state out hides nothing.
            let mut target = std::mem::replace(&mut buffers[*state], nothing(read.dtype));
            copy(&read.nest, find(read.source, slots, buffers, inputs), read.len, &mut target);
            buffers[*state] = target;
        }
        Ok(values)
    }
}

fn find<'a>(source: Source, slots: &'a [Data], buffers: &'a [Data], inputs: &[&'a Data]) -> &'a Data {
    match source {
        Source::Slot(slot) => &slots[slot],
        Source::Buffer(buffer) => &buffers[buffer],
        Source::Input(input) => inputs[input],
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        match self.pool.current_num_threads() {
            1 => "cpu (1 thread)".into(),
            threads => format!("cpu ({threads} threads)"),
        }
    }

    fn alloc(&mut self, data: &Data) -> Result<BufferId> {
        self.buffers.push(data.clone());
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn write(&mut self, buffer: BufferId, data: &Data) -> Result<()> {
        self.buffers[buffer.0].clone_from(data);
        Ok(())
    }

    fn read(&mut self, buffer: BufferId) -> Result<Data> {
        Ok(self.buffers[buffer.0].clone())
    }

    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> Result<ExecutableId> {
        let free = self.executables.iter().position(Option::is_none).unwrap_or_else(|| {
            self.executables.push(None);
            self.executables.len() - 1
        });
        self.executables[free] = Some(Executable::new(plan, states));
        Ok(ExecutableId(free))
    }

    fn release(&mut self, executable: ExecutableId) {
        self.executables[executable.0] = None;
    }

    fn run(&mut self, executable: ExecutableId, inputs: &[&Data], run: u64) -> Result<()> {
        let Self { pool, poison, buffers, executables, deliveries } = self;
        let compiled = executables[executable.0].as_mut().expect("a session runs what it has not released");
        let values = pool.install(|| compiled.run(buffers, inputs, *poison))?;
        deliveries.push(Delivery { executable, run, values });
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(()) // A run has finished when it returns.
    }

    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        Ok(std::mem::take(&mut self.deliveries))
    }
}
