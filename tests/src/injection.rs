//! Injections of non-finite numbers into any value of a random tape with a whole update. Either the step is skipped and
//! changes no state, or the numbers have reached neither loss nor gradients.

use crate::{Machine, Outputs, reference, same_bits};
use proptest::{prelude::*, sample::select};
use std::{fmt, sync::Arc};
use wgrad::{
    Accumulator, Array, Centralize, DType, DynamicScale, FiniteGuard, Grads, LossScaler, Noise, OnGiveUp, Optimizer,
    ParamSet, Program, Rng, Scaled, StateId, Store, Tape, Tensor, Weighting,
    op::Op,
    testing::{INJECTED, INJECTED_AT, Mode, Recipe, injected, recipe},
};
use wgrad_nn::{
    Schedule,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Ema, EmaConfig, Lion, LionConfig, Muon,
        MuonConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig,
    },
};

/// The parts of the update that is recorded after a tape. A failing case shrinks towards no parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pipeline {
    /// A dynamic loss scale.
    pub scaled: bool,
    /// Two micro-batches, accumulated.
    pub accumulated: bool,
    /// A batch normalisation in addition to the tape, with running statistics.
    pub normalised: bool,
    /// Gradient noise.
    pub noise: bool,
    /// Centralization, and both kinds of adaptive clipping.
    pub shaped: bool,
    /// A clip by the global norm, and a clip by value.
    pub clipped: bool,
    /// An exponential moving average of the parameters.
    pub averaged: bool,
    /// The number of the optimizer.
    pub optimizer: u8,
    /// The planted fault: parameters follow their gradients whatever the verdict.
    pub ungated: bool,
}

/// A tape with an update, and the number that is injected.
#[derive(Clone)]
pub struct Injection {
    /// The tape; its leaves are parameters.
    pub recipe: Recipe,
    /// The update after the tape.
    pub pipeline: Pipeline,
    /// The value that gets the number, among the values that loss and gradients depend on.
    pub value: u16,
    /// The element of that value.
    pub element: u8,
    /// The injected number: NaN or an infinity.
    pub bad: f64,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The step is skipped: the loss or a gradient is non-finite.
    Skipped,
    /// The step is taken: loss and gradients are finite.
    Taken,
    /// The step is skipped: loss and gradients are finite, but the gradient's norm overflows.
    TooLong,
}

/// Injections into tapes of up to this many steps.
pub fn injection(steps: usize, ungated: bool) -> impl Strategy<Value = Injection> {
    let pipeline = (any::<[bool; 7]>(), 0..8u8).prop_map(move |(parts, optimizer)| {
        let [scaled, accumulated, normalised, noise, shaped, clipped, averaged] = parts;
        Pipeline { scaled, accumulated, normalised, noise, shaped, clipped, averaged, optimizer, ungated }
    });
    let bad = select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    (pipeline, any::<(u16, u8)>(), bad, any::<bool>(), recipe(steps)).prop_map(
        |(pipeline, (value, element), bad, single, recipe)| {
            let recipe = if single { recipe.with_dtype(DType::F32) } else { recipe };
            Injection { recipe, pipeline, value, element, bad }
        },
    )
}

/// The prefixes of states that a skipped step may change: the loss scale, and the counts of skipped steps.
const COUNTING: [&str; 2] = ["loss_scale/", "guard/"];

/// The store, with its parameters, optimizer and passes.
struct World {
    store: Store,
    params: ParamSet,
    leaves: Vec<wgrad::Param>,
    optimizer: Box<dyn Optimizer>,
    scaler: LossScaler,
    guard: FiniteGuard,
    accumulator: Accumulator<Scaled>,
    ema: Ema,
    rng: Rng,
    statistics: [StateId; 2],
}

/// A recorded update.
struct Recorded {
    program: Program,
    /// The nodes that the passes and the optimizer read: the flat gradients, the statistics, and the flag of finite
    /// loss and statistics.
    given: Vec<usize>,
}

impl Injection {
    fn dtype(&self) -> DType {
        self.recipe.dtype
    }

    fn world(&self) -> World {
        let mut store = Store::new();
        let leaves = (0..self.recipe.leaves.len()).map(|i| store.param(&format!("x{i}"), &self.recipe.leaf(i)));
        let leaves: Vec<wgrad::Param> = leaves.collect();
        store.param("width", &Array::new([2], vec![0.7, -1.1]).cast(self.dtype()));
        let params = store.params();
        let lr = Schedule::warmup(0.01, 3).into();
        let optimizer: Box<dyn Optimizer> = match self.pipeline.optimizer {
            0 => Box::new(Sgd::new(&mut store, &params, SgdConfig { lr, momentum: 0.9, ..SgdConfig::default() })),
            1 => Box::new(Adam::new(&mut store, &params, AdamConfig { lr, ..AdamConfig::default() })),
            2 => Box::new(AdamW::new(&mut store, &params, AdamWConfig { lr, ..AdamWConfig::default() })),
            3 => {
                let config = RmsPropConfig { lr, momentum: 0.5, centered: true, ..RmsPropConfig::default() };
                Box::new(RmsProp::new(&mut store, &params, config))
            }
            4 => {
                let config = AdamConfig { lr, amsgrad: true, ..AdamConfig::default() };
                Box::new(Adam::new(&mut store, &params, config))
            }
            5 => {
                let config = AdagradConfig { lr, lr_decay: 0.1, ..AdagradConfig::default() };
                Box::new(Adagrad::new(&mut store, &params, config))
            }
            6 => Box::new(Lion::new(&mut store, &params, LionConfig { lr, ..LionConfig::default() })),
            _ => Box::new(Muon::new(&mut store, &params, MuonConfig { lr, ..MuonConfig::default() })),
        };
        let scaler = match self.pipeline.scaled {
            true => LossScaler::dynamic(&mut store, DynamicScale { init: 1024.0, ..DynamicScale::default() }),
            false => LossScaler::none(),
        };
        let guard = FiniteGuard::new(&mut store, "guard", None, OnGiveUp::Error);
        let accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
        let ema = Ema::new(&mut store, &params, EmaConfig { decay: 0.5, ..EmaConfig::default() });
        let rng = Rng::new(&mut store, "noise", 3);
        let statistics =
            ["mean", "var"].map(|name| store.state(name, &Array::new([2], vec![0.5; 2]).cast(self.dtype())));
        World { store, params, leaves, optimizer, scaler, guard, accumulator, ema, rng, statistics }
    }

    fn record(&self, world: &World) -> Recorded {
        let World { store, params, leaves, optimizer, scaler, guard, accumulator, ema, rng, statistics } = world;
        let tape = Tape::new(Arc::new(store.layout().clone()));
        let t = &tape;
        let leaves: Vec<Tensor<'_>> = leaves.iter().map(|leaf| t.param(*leaf)).collect();
        // The tape's own loss may depend on no parameter, so `width` is added.
        let width = t.param(params.iter().last().expect("the last one"));
        let mut loss = self.recipe.record_over(&leaves, Mode::Plain).loss + width.square().sum();
        let mut running = None;
        if self.pipeline.normalised {
            let normed = (t.input("batch", [3, 2], self.dtype()) * width).batch_norm(None, None, 1e-5);
            loss += normed.y.sin().sum();
            running = Some(normed.running(t.state(statistics[0]), t.state(statistics[1]), 0.1));
        }
        let losses = if self.pipeline.accumulated { vec![loss, loss * 0.5] } else { vec![loss] };
        let scaled: Vec<Grads<'_, Scaled>> = losses.iter().map(|loss| scaler.scale(*loss).grad(params)).collect();
        let flats: Vec<Tensor<'_>> = scaled.iter().flat_map(|grads| grads.flat().tensors()).collect();
        let sound = losses.iter().map(|loss| loss.is_finite()).reduce(Tensor::and).expect("a loss");
        // An infinite variance makes the normalised values 0, so loss and gradients stay finite; the statistics are
        // checked too.
        let statistics_of = running.into_iter().flat_map(|(mean, var)| [mean, var]);
        let sound = statistics_of.fold(sound, |sound, statistic| sound.and(statistic.all_finite()));
        let grads = match self.pipeline.accumulated {
            true => {
                scaled.into_iter().for_each(|grads| accumulator.add(grads));
                accumulator.take(t)
            }
            false => scaled.into_iter().next().expect("a loss"),
        };
        let grads = self.passes(grads.skip_unless(sound).unscale(scaler).skip_if_not_finite(guard), *rng);
        let verdict = grads.verdict().expect("checked");
        t.tap("taken", verdict);
        if let Some((mean, var)) = running {
            for (state, value) in statistics.iter().zip([mean, var]) {
                t.assign(*state, verdict.select(value, t.state(*state)));
            }
        }
        if self.pipeline.ungated {
            grads.flat().parts().iter().for_each(|(arena, g)| t.assign(*arena, t.state(*arena) - *g * 0.01));
        }
        optimizer.step(grads);
        if self.pipeline.averaged {
            ema.update(t, &**optimizer);
        }
        scaler.update(t);
        t.tap("healthy", flats.iter().fold(sound, |healthy, flat| healthy.and(flat.all_finite())));
        let statistics = running.into_iter().flat_map(|(mean, var)| [mean, var]);
        let given = flats.into_iter().chain([sound]).chain(statistics).map(|x| x.id().index()).collect();
        Recorded { program: tape.finish(), given }
    }

    fn passes<'t>(&self, grads: Grads<'t>, rng: Rng) -> Grads<'t> {
        let mut grads = grads;
        if self.pipeline.noise {
            grads = grads.add_noise(Noise::fixed(0.01), rng);
        }
        if self.pipeline.shaped {
            // Empty rows have no mean, so empty parameters are excluded.
            let layout = grads.tape().layout();
            let empty = grads.present().iter().filter(|param| layout.param(*param).shape.numel() == 0).collect();
            grads = grads.centralize_with(&Centralize::new().exclude(&empty)).agc(0.1).agc_per_tensor(0.5, 1e-6, 1e-3);
        }
        if self.pipeline.clipped {
            grads = grads.clip_by_global_norm(0.5).clip_by_value(0.3);
        }
        grads
    }

    /// The program with the injection, and the index of the node that gets the number.
    fn injected(&self, Recorded { program, given }: &Recorded) -> Option<(Program, usize)> {
        // A gradient of zero is a constant node, and so is the zero that resets an accumulator. Both are left out.
        let constant = |i: &usize| matches!(program.nodes()[*i].op, Op::Expand(_));
        let given: Vec<usize> = given.iter().copied().filter(|i| !constant(i)).collect();
        // Mark all nodes that the given nodes are computed from.
        let mut matters = vec![false; given.iter().max().map_or(0, |last| last + 1)];
        given.iter().for_each(|i| matters[*i] = true);
        for i in (0..matters.len()).rev() {
            let inputs = if matters[i] { &program.nodes()[i].inputs[..] } else { &[] };
            inputs.iter().for_each(|input| matters[input.index()] = true);
        }
        let holds = |i: &usize| {
            let node = &program.nodes()[*i];
            matters[*i] && node.dtype.is_float() && node.shape.numel() > 0
        };
        let candidates: Vec<usize> = (0..matters.len()).filter(holds).collect();
        let target = *candidates.get(self.value as usize % candidates.len().max(1))?;
        Some((injected(program, target, &given), target))
    }

    /// Checks a step without the injection, one with it, and another one without.
    ///
    /// # Errors
    /// The change of a state, or the wrong outcome, of a step.
    pub fn check(&self) -> Result<Outcome, String> {
        let world = self.world();
        let recorded = self.record(&world);
        let Some((program, target)) = self.injected(&recorded) else { return Ok(Outcome::Taken) };
        let node = &recorded.program.nodes()[target];
        let numel = node.shape.numel();
        let mut inputs = self.recipe.arrays(&program);
        if self.pipeline.normalised {
            let batch = Array::new([3, 2], vec![0.3, -1.0, 0.8, 0.1, -0.4, 2.0]).cast(self.dtype());
            inputs.push(("batch".into(), batch));
        }
        let with = |at: usize, value: f64| {
            let at = (INJECTED_AT.to_string(), Array::new([], vec![at as u32]));
            let value = (INJECTED.to_string(), Array::new([], vec![value]).cast(node.dtype));
            [inputs.clone(), vec![at, value]].concat()
        };
        let states = world.store.values().to_vec();
        let plain = reference(&recorded.program, &states, &inputs);
        let idle = reference(&program, &states, &with(numel, self.bad));
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
        if plain.states.iter().zip(&idle.states).any(|(a, b)| bits(a) != bits(b)) {
            return Err("an injection into no element changes the step".into());
        }
        let mut machine = Machine::poisoned(1, world.store);
        let step = machine.session.compile(program).map_err(|why| why.to_string())?;
        let mut last = Outcome::Taken;
        for at in [numel, self.element as usize % numel, numel] {
            let before = machine.states();
            let out = machine.run(&step, &with(at, self.bad));
            let outcome = self.judge(&machine, &before, &out, world.optimizer.states().counter());
            let outcome = outcome.map_err(|why| format!("{} into element {at} of %{target}: {why}", self.bad))?;
            last = if at < numel { outcome } else { last };
        }
        Ok(last)
    }

    fn judge(&self, machine: &Machine, before: &[Array], out: &Outputs, counter: StateId) -> Result<Outcome, String> {
        let names: Vec<&str> = machine.session.layout().states().map(|(_, decl)| decl.name.as_str()).collect();
        let [healthy, taken] = ["healthy", "taken"].map(|name| out.tap(name).item(0) == 1.0);
        let counted = out.states[counter.index()].item(0) - before[counter.index()].item(0);
        for ((name, before), after) in names.iter().zip(before).zip(&out.states) {
            let counting = COUNTING.iter().any(|prefix| name.starts_with(prefix));
            if !taken && !counting && !same_bits(before, after) {
                return Err(format!("the step is skipped, and {name} was {before:?} and is {after:?}"));
            }
            if let Some(value) = after.to_f64().into_iter().find(|value| !value.is_finite()) {
                return Err(format!("{name} holds {value}"));
            }
        }
        let overflows = out.taps.iter().any(|(name, value)| name.ends_with("/norm") && !value.item(0).is_finite());
        match (healthy, taken) {
            (false, true) => Err("loss or gradients are not finite, and the step is taken".into()),
            (true, false) if !overflows => Err("loss and gradients are finite, and the step is skipped".into()),
            (..) if counted != f64::from(u8::from(taken)) => Err(format!("{counted} updates are counted")),
            (true, true) => Ok(Outcome::Taken),
            (true, false) => Ok(Outcome::TooLong),
            (false, false) => Ok(Outcome::Skipped),
        }
    }
}

/// Prints the case as Rust.
impl fmt::Debug for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipe, pipeline, value, element, bad } = self;
        writeln!(f, "Injection {{ recipe, pipeline: {pipeline:?}, value: {value}, element: {element}, bad: {bad} }}")?;
        writeln!(f, "{} steps in recipe = {recipe:?}", recipe.steps.len())
    }
}
