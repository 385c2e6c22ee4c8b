//! Runs of programs: on the reference interpreter, and on a device through a session.

use wgrad::{Array, Backend, Collective, Data, Program, Session, StateId, Step, Store, plan::Grouping};
use wgrad_cpu::{CpuBackend, reference::Outcome};
use wgrad_wgpu::{Gpu, WgpuBackend};

/// The results of a run: the tapped values by name, and all states after it.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// The tapped values, in the order of the taps.
    pub taps: Vec<(String, Array)>,
    /// The states, in the order of declaration.
    pub states: Vec<Array>,
}

impl Outputs {
    /// The value tapped under a name.
    ///
    /// # Panics
    /// If nothing is tapped under the name.
    pub fn tap(&self, name: &str) -> &Array {
        let found = self.taps.iter().find(|(n, _)| n == name);
        &found.unwrap_or_else(|| panic!("nothing is tapped as {name:?}")).1
    }

    /// The values tapped under a name by [`wgrad::Tape::tap_each`].
    pub fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Array> {
        let plain = move |tap: &str| tap.split_once('#').map_or(tap == name, |(plain, _)| plain == name);
        self.taps.iter().filter(move |(tap, _)| plain(tap)).map(|(_, value)| value)
    }

    /// The results in the form of the reference's.
    pub fn outcome(&self) -> Outcome {
        let tap = |(name, value): &(String, Array)| (name.clone(), value.shape().clone(), value.to_f64());
        Outcome { taps: self.taps.iter().map(tap).collect(), states: self.states.iter().map(Array::to_f64).collect() }
    }
}

/// Borrows inputs in the form that runs take.
pub fn named(inputs: &[(String, Array)]) -> Vec<(&str, &Array)> {
    inputs.iter().map(|(name, array)| (name.as_str(), array)).collect()
}

/// Runs a program on the reference interpreter. All results are f64, whatever the program's types.
///
/// # Panics
/// If an input is missing, or an index out of range.
pub fn reference(program: &Program, states: &[Data], inputs: &[(String, Array)]) -> Outcome {
    wgrad_cpu::reference::run(program, states, &named(inputs)).expect("the reference runs")
}

/// The relative distance by which floats are moved, to find branches that rounding decides in f64.
pub(crate) const NUDGE: f64 = 1e-12;
/// The number of random directions. A tie falls to either side in about half of them.
pub(crate) const NUDGES: u64 = 32;

/// A point at which a program is evaluated: the states and inputs that it starts from.
#[derive(Clone, Copy)]
pub struct Point<'a> {
    /// The program.
    pub program: &'a Program,
    /// The values of the program's states.
    pub states: &'a [Data],
    /// The program's inputs.
    pub inputs: &'a [(String, Array)],
}

impl Point<'_> {
    /// The outcome of the reference at this point. See [`reference()`] for panics.
    pub fn reference(&self) -> Outcome {
        reference(self.program, self.states, self.inputs)
    }

    /// The outcomes of the reference at this point and at points nearby, whose floats are moved by up to the relative
    /// distance `nudge`. Rounding decides a branch that differs among the outcomes. See [`reference()`] for panics.
    pub fn near(&self, nudge: f64) -> Vec<Outcome> {
        std::iter::once(self.reference()).chain((0..NUDGES).map(|seed| self.nudged(seed, nudge))).collect()
    }

    /// True if rounding decides an element of a tapped `branch`.
    pub fn has_ties(&self) -> bool {
        let near = self.near(NUDGE);
        let branches = |i: usize| near[i].taps.iter().filter(|(name, ..)| name.starts_with("branch"));
        (1..near.len()).any(|i| !branches(i).eq(branches(0)))
    }

    fn nudged(&self, seed: u64, nudge: f64) -> Outcome {
        let mut random = seed;
        let mut element = |x: f64| {
            // The linear congruential generator of Knuth's MMIX.
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            x * (1.0 + nudge * ((random >> 33) as f64 / f64::from(1 << 30) - 1.0))
        };
        let mut nudged = |data: &Data| match data.dtype() {
            dtype if dtype.is_float() => {
                Data::from_f64(dtype, &data.to_f64().into_iter().map(&mut element).collect::<Vec<f64>>())
            }
            _ => data.clone(),
        };
        let states: Vec<Data> = self.states.iter().map(&mut nudged).collect();
        let array = |(name, array): &(String, Array)| (name.clone(), Array::new(array.shape(), nudged(array.data())));
        let inputs: Vec<(String, Array)> = self.inputs.iter().map(array).collect();
        reference(self.program, &states, &inputs)
    }
}

/// A session on a device, and the ids of its states.
pub struct Machine {
    /// The session.
    pub session: Session,
    states: Vec<StateId>,
}

impl Machine {
    /// A session on the CPU whose transient slots are filled with garbage before each run, so that a read before a
    /// write shows.
    pub fn poisoned(threads: usize, store: Store) -> Self {
        Self::on(Box::new(CpuBackend::poisoned(threads).expect("the threads start")), store)
    }

    /// The same as [`Machine::poisoned`], but the CPU splits even the smallest kernels into many parts.
    pub fn splitting(threads: usize, store: Store) -> Self {
        Self::on(Box::new(CpuBackend::splitting(threads).expect("the threads start")), store)
    }

    /// A session on a GPU, whose memory is filled with garbage before each run.
    ///
    /// # Panics
    /// If the device is lost.
    pub fn on_gpu(gpu: &Gpu, store: Store) -> Self {
        Self::on(Box::new(WgpuBackend::on(gpu).expect("the device is there").poisoned()), store)
    }

    /// The same session with these options of the planner.
    #[must_use]
    pub fn grouped(mut self, grouping: &Grouping) -> Self {
        self.session.set_grouping(grouping.clone());
        self
    }

    /// A session on the CPU, with this number of threads.
    pub fn new(threads: usize, store: Store) -> Self {
        Self::on(Box::new(CpuBackend::new(threads).expect("the threads start")), store)
    }

    /// The same session as one of several ranks.
    #[must_use]
    pub fn as_rank(self, collective: impl Collective + 'static) -> Self {
        Self { session: self.session.with_collective(Box::new(collective)), ..self }
    }

    fn on(backend: Box<dyn Backend>, store: Store) -> Self {
        let states = store.layout().states().map(|(id, _)| id).collect();
        Self { session: Session::new(backend, store).expect("the device has room"), states }
    }

    /// Runs a program once.
    ///
    /// # Panics
    /// If the run fails.
    pub fn run(&mut self, step: &Step, inputs: &[(String, Array)]) -> Outputs {
        self.session.run(step, &named(inputs)).expect("the run succeeds");
        self.session.wait().expect("the run succeeds");
        let states = self.states();
        let taps = self.session.taps().expect("the run has succeeded").pop().expect("the run has delivered");
        Outputs { taps: taps.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(), states }
    }

    /// The current values of all states, in the order of declaration.
    ///
    /// # Panics
    /// If the device is lost.
    pub fn states(&mut self) -> Vec<Array> {
        let read = |&id: &StateId| self.session.read(id).expect("the state can be read");
        self.states.iter().map(read).collect()
    }

    /// True if all states hold these bits.
    pub fn states_are(&mut self, expected: &[Array]) -> bool {
        self.states().iter().zip(expected).all(|(a, b)| crate::same_bits(a, b))
    }
}
