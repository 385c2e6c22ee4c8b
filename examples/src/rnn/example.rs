//! The example as a run knows it: one recorded step, tasks by step, and the metric on held-out data.

use super::{
    config::{Config, Update},
    model::Model,
};
use crate::{
    Result,
    cli::Common,
    device::Place,
    history::Observed,
    run::{Example, Names, Runnable, Settings, name_of, weights},
};
use wgrad::{
    Array, ClipNorm, Lint, NonFinite, Operand, Optimizer, Param, ParamSet, Program, Session, StateId, Step, Store,
    Tape, Taps, Tensor,
};
use wgrad_nn::{
    checkpoint::Metadata,
    data::{Batch, Task},
    omega,
    optim::{Adam, AdamConfig, Sgd, SgdConfig},
};

/// A clip that leaves out a step whose norm is not finite: the report tells of it.
fn skipping<'t>(max_norm: impl Into<Operand<'t>>) -> ClipNorm<'t> {
    ClipNorm::new(max_norm).non_finite(NonFinite::Skip)
}

/// A model with everything that trains it, before it moves to a device.
struct Recipe {
    model: Model,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    /// The logarithm of the bound on the gradient norm, where it is learned.
    bound: Option<StateId>,
}

/// How much the logarithm of a learned bound changes in one update: little, since the bound that serves one update best is
/// larger than the one that serves many.
const BOUND_RATE: f64 = 0.01;

impl Recipe {
    fn new(store: &mut Store, config: &Config, data: &dyn Task, seed: u64) -> Self {
        let model = Model::new(store, config, data, seed);
        let params = store.params();
        let optimizer: Box<dyn Optimizer> = match config.update {
            Update::Sgd(lr) => Box::new(Sgd::new(store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() })),
            Update::Adam(lr) => {
                Box::new(Adam::new(store, &params, AdamConfig { lr: lr.into(), ..AdamConfig::default() }))
            }
        };
        let start = config.clip.filter(|_| config.learn_clip);
        let bound = start.map(|start| store.state("meta-clip/log_max_norm", &Array::new([], vec![start.ln() as f32])));
        Self { model, params, optimizer, bound }
    }

    /// Records one training step, forward to optimizer.
    fn step(&self, t: &Tape, config: &Config, example: (&Array, &Array)) {
        let (x, y) = (t.input_like("x", example.0), t.input_like("y", example.1));
        let (hidden, outputs) = t.with_probe(watch_flow, || match config.omega {
            Some(_) => self.model.unrolled(x),
            None => self.model.forward(x),
        });
        let loss = self.model.loss(outputs, y);
        t.tap("loss", loss);
        let objective = match config.omega {
            Some(weight) => loss + omega(loss, &self.model.recurrent, &hidden) * weight,
            None => loss,
        };
        let raw = objective.grad(&self.params);
        let log_bound = self.bound.map(|bound| t.state(bound));
        let grads = match (log_bound, config.clip) {
            (Some(log_bound), _) => raw.clone().clip_by_global_norm(skipping(log_bound.exp())),
            (None, Some(max_norm)) => raw.clone().clip_by_global_norm(skipping(max_norm)),
            (None, None) => raw.clone(),
        };
        t.tap("grad_norm", raw.norm());
        t.tap("norms", raw.segment_norms());
        t.tap("applied_norm", grads.norm());
        self.optimizer.step(grads);
        if let (Some(state), Some(log_bound)) = (self.bound, log_bound) {
            self.learn_bound(t, state, log_bound, (x, y));
        }
    }

    /// Records a step of gradient descent on the bound, by the sign of the gradient: that of the loss that the example has
    /// after the update which has just been recorded, through that update and the clipping before it.
    fn learn_bound<'t>(&self, t: &'t Tape, state: StateId, log_bound: Tensor<'t>, (x, y): (Tensor<'t>, Tensor<'t>)) {
        t.scoped("meta-clip", || {
            // The parameters are by now what the optimizer has made of them.
            let loss = self.model.loss(self.model.forward(x).1, y);
            let slope = loss.grad_wrt(&[log_bound])[0].expect("the new parameters depend on the bound");
            let rate = t.scalar(BOUND_RATE, slope.dtype());
            let up = slope.less(0.0).select(rate, rate.zeros_like());
            let down = slope.greater(0.0).select(rate, rate.zeros_like());
            t.assign(state, log_bound + up - down);
        });
    }

    /// Records the metric on held-out data.
    fn evaluation(&self, t: &Tape, example: (&Array, &Array)) {
        let (x, y) = (t.input_like("x", example.0), t.input_like("y", example.1));
        let (_, outputs) = self.model.forward(x);
        t.tap("metric", self.model.metric(outputs, y));
    }
}

/// Taps dL/dz of every time step, from the gradient of what enters the activations.
fn watch_flow<'t>(_path: &str, z: Tensor<'t>) -> Tensor<'t> {
    z.on_grad(|g| {
        g.tape().tap("flow", g.abs().mean_axes(&[1, 2]));
        g
    })
}

/// The program of one training step, and the store that it is over.
pub fn program(config: &Config, seed: u64) -> (Store, Program) {
    let data = config.data(seed);
    let mut store = Store::new();
    let recipe = Recipe::new(&mut store, config, &*data, seed);
    let batch = data.train(config.batch, 0);
    let tape = Tape::new(store.layout().clone().into());
    recipe.step(&tape, config, (&batch.x, &batch.y));
    (store, tape.finish())
}

/// The network of a run with its data.
struct Rnn {
    config: Config,
    settings: Settings,
    names: Names,
    seed: u64,
    data: Box<dyn Task>,
    training: Step,
    evaluation: Step,
    held_out: Batch,
    /// The weights whose gradients' norms are shown, by their place among those of all parameters.
    weights: Vec<usize>,
    bound: Option<StateId>,
    /// The number of steps made.
    made: u64,
}

impl Runnable for Config {
    fn open(&self, common: &Common, place: &Place) -> Result<(Box<dyn Example>, Session)> {
        let data = self.data(common.seed);
        let mut store = Store::new();
        let recipe = Recipe::new(&mut store, self, &*data, common.seed);
        let params: Vec<Param> = recipe.params.iter().collect();
        let (weights, names) = weights(store.layout(), &params);
        let names = Names { flow: (1..=self.length).map(|t| t.to_string()).collect(), weights: names };
        let bound = recipe.bound;
        let mut session = place.session(store)?;
        let batch = data.train(self.batch, 0);
        let held_out = data.held_out(self.held_out);
        let training = session.record(|t| recipe.step(t, self, (&batch.x, &batch.y)))?;
        let evaluation = session.record(|t| recipe.evaluation(t, (&held_out.x, &held_out.y)))?;
        let settings = Settings {
            example: "rnn",
            case: name_of(self.case),
            fix: name_of(self.fix),
            batch: self.batch,
            steps: self.steps,
            evaluate_every: self.evaluate_every,
            metric: self.metric,
            solved: self.solved,
        };
        let (config, seed) = (self.clone(), common.seed);
        let made = 0;
        let rnn = Rnn { config, settings, names, seed, data, training, evaluation, held_out, weights, bound, made };
        Ok((Box::new(rnn), session))
    }
}

impl Example for Rnn {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn identity(&self) -> Vec<(&'static str, String)> {
        let (task, length) = (name_of(self.config.task), self.config.length.to_string());
        vec![("task", task), ("length", length), ("seed", self.seed.to_string())]
    }

    fn step(&mut self, session: &mut Session) -> Result<()> {
        let batch = self.data.train(self.config.batch, self.made);
        session.run(&self.training, &[("x", &batch.x), ("y", &batch.y)])?;
        self.made += 1;
        Ok(())
    }

    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Observed<'_>)) {
        let scalar = |name| taps.scalar(name).expect("tapped by the step");
        let values = |name| taps.get(name).expect("tapped by the step").to_f64();
        let norms = values("norms");
        tell(Observed {
            loss: scalar("loss"),
            grad_norm: scalar("grad_norm"),
            applied_norm: scalar("applied_norm"),
            flow: &values("flow"),
            weights: &self.weights.iter().map(|at| norms[*at]).collect::<Vec<_>>(),
        });
    }

    fn evaluate(&mut self, session: &mut Session) -> Result<f64> {
        session.run(&self.evaluation, &[("x", &self.held_out.x), ("y", &self.held_out.y)])?;
        session.wait()?;
        let taps = session.taps()?;
        Ok(taps.last().and_then(|taps| taps.scalar("metric")).expect("tapped by the evaluation"))
    }

    fn lints(&self) -> Vec<Lint> {
        self.training.lints().to_vec()
    }

    /// The data is a function of the step.
    fn resume(&mut self, _metadata: &Metadata, steps: usize) -> Result<()> {
        self.made = steps as u64;
        Ok(())
    }

    fn remarks(&mut self, session: &mut Session) -> Result<Vec<String>> {
        let Some(state) = self.bound else { return Ok(vec![]) };
        let (bound, start) = (session.read(state)?.item(0).exp(), self.config.clip.unwrap_or_default());
        Ok(vec![format!("bound on the gradient norm: {bound:.2}, from {start}")])
    }
}
