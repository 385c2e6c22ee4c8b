//! The example as a run knows it: what is minimised, what is judged, and how a bound on the gradient norm is learned.

use super::{
    config::{Config, Update},
    model::Model,
};
use crate::{
    Result,
    cli::Common,
    device::Place,
    run::{Example, LOSS, Network, Plan, Runnable, Settings, Tasks, name_of, open, program},
};
use wgrad::{Array, Optimizer, ParamSet, Program, Session, StateId, Store, Tensor};
use wgrad_nn::{
    Inputs, Trainer, TrainerConfig,
    data::Batch,
    diagnosis::Setup,
    omega,
    optim::{Adam, AdamConfig, Sgd, SgdConfig},
};

/// A model, and what a run makes of it.
#[derive(Clone)]
struct Rnn {
    model: Model,
    /// The weight of Pascanu's regulariser.
    omega: Option<f64>,
    checkpoint: bool,
    /// The logarithm of the bound on the gradient norm, where it is learned, and what the bound was at first.
    bound: Option<(StateId, f64)>,
}

/// How much the logarithm of a learned bound changes in one update: little, since the bound that serves one update best is
/// larger than the one that serves many.
const BOUND_RATE: f64 = 0.01;

impl Rnn {
    /// The mean loss without a regulariser.
    #[track_caller]
    fn plain_loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        self.model.loss(self.model.forward(x).1, y)
    }
}

impl Network for Rnn {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let tape = x.tape();
        let forward = || if self.omega.is_some() { self.model.unrolled(x) } else { self.model.forward(x) };
        let (hidden, outputs) = if self.checkpoint { tape.checkpoint(forward) } else { forward() };
        let loss = self.model.loss(outputs, y);
        tape.tap(LOSS, loss);
        match self.omega {
            Some(weight) => loss + omega(loss, &self.model.recurrent, &hidden) * weight,
            None => loss,
        }
    }

    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        self.model.metric(self.model.forward(x).1, y)
    }

    fn train(&self, trainer: Trainer) -> Trainer {
        let Some((state, _)) = self.bound else { return trainer };
        let rnn = self.clone();
        let clipped = trainer.with_passes(move |grads| {
            let bound = grads.tape().state(state).exp();
            grads.clip_by_global_norm(bound)
        });
        clipped.after_update(move |batch| rnn.learn_bound(state, batch))
    }

    fn remarks(&self, session: &mut Session, _held_out: &Batch) -> Result<Vec<String>> {
        let Some((state, start)) = self.bound else { return Ok(vec![]) };
        Ok(vec![format!("bound on the gradient norm: {:.2}, from {start}", session.read(state)?.item(0).exp())])
    }
}

impl Rnn {
    /// Records a step of gradient descent on the bound, by the sign of the gradient: that of the loss that the batch has
    /// after the update which has just been recorded, through that update and the clipping before it.
    fn learn_bound(&self, state: StateId, batch: &Inputs<'_>) {
        let t = batch.tape();
        t.scoped("meta-clip", || {
            let log_bound = t.state(state);
            // The parameters are by now what the optimizer has made of them.
            let loss = self.plain_loss(batch.get("x"), batch.get("y"));
            let slope = loss.grad_wrt(&[log_bound])[0].expect("the new parameters depend on the bound");
            let rate = t.scalar(BOUND_RATE, slope.dtype());
            let up = slope.less(0.0).select(rate, rate.zeros_like());
            let down = slope.greater(0.0).select(rate, rate.zeros_like());
            t.assign(state, log_bound + up - down);
        });
    }
}

/// What a run declares.
struct Declared {
    store: Store,
    rnn: Rnn,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<Tasks>,
}

fn declare(config: &Config, seed: u64) -> Declared {
    let data = config.data(seed);
    let held_out = vec![data.held_out(config.held_out)];
    let mut store = Store::new();
    let model = Model::new(&mut store, config, &*data, seed);
    let params = store.params();
    let optimizer: Box<dyn Optimizer> = match config.update {
        Update::Sgd(lr) => Box::new(Sgd::new(&mut store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() })),
        Update::Adam(lr) => {
            Box::new(Adam::new(&mut store, &params, AdamConfig { lr: lr.into(), ..AdamConfig::default() }))
        }
    };
    let start = config.clip.filter(|_| config.learn_clip);
    let log = |start: f64| Array::new([], vec![start.ln() as f32]);
    let bound = start.map(|start| (store.state("meta-clip/log_max_norm", &log(start)), start));
    let settings = Settings {
        example: "rnn",
        case: name_of(config.case),
        fix: name_of(config.fix),
        batch: config.batch,
        steps: config.steps,
        evaluate_every: config.evaluate_every,
        metric: config.metric,
        solved: config.solved,
        seed,
    };
    let (task, length) = (name_of(config.task), config.length.to_string());
    let plan = Plan {
        settings,
        identity: vec![("task", task), ("length", length), ("seed", seed.to_string())],
        training: config.training.clone(),
        trainer: TrainerConfig { clip_norm: config.clip.filter(|_| !config.learn_clip), ..TrainerConfig::default() },
        data: Tasks(data),
        held_out,
        seed,
    };
    let rnn = Rnn { model, omega: config.omega, checkpoint: config.training.checkpoint, bound };
    Declared { store, rnn, params, optimizer, plan }
}

impl Runnable for Config {
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)> {
        let Declared { store, rnn, params, optimizer, plan } = declare(self, common.seed());
        open(store, rnn, &params, optimizer, plan, place, setup)
    }
}

/// The program of one training step, and the store that it is over.
///
/// # Errors
/// None that a task has.
pub fn step(config: &Config, seed: u64) -> Result<(Store, Program)> {
    let Declared { store, rnn, params, optimizer, plan } = declare(config, seed);
    program(store, &rnn, &params, optimizer, plan)
}
