//! The example: its loss, its metric, and a bound on the gradient norm that gradient descent learns.

use super::{
    config::{Config, Update},
    model::Model,
};
use crate::{
    Result,
    cli::Common,
    device::Place,
    run::{Example, Network, Objective, Plan, Runnable, Settings, Tasks, name_of, open, program},
};
use wgrad::{Array, Optimizer, ParamSet, Program, Session, StateId, Store, Tensor};
use wgrad_nn::{
    Inputs, Trainer, TrainerConfig,
    data::Batch,
    diagnosis::Setup,
    omega,
    optim::{Adam, AdamConfig, Sgd, SgdConfig},
};

/// A model, and the options of its training.
#[derive(Clone)]
struct Rnn {
    model: Model,
    /// The weight of Pascanu's regulariser.
    omega: Option<f64>,
    checkpoint: bool,
    /// The logarithm of a learned bound on the gradient norm, and the bound's first value.
    bound: Option<(StateId, f64)>,
}

/// The change of a learned bound's logarithm in one update. It is small, because the bound that is best for one update
/// is larger than the bound that is best for many.
const BOUND_RATE: f64 = 0.01;

impl Rnn {
    /// The mean loss without the regulariser.
    #[track_caller]
    fn plain_loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        self.model.loss(self.model.forward(x).1, y)
    }
}

impl Network for Rnn {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t> {
        let tape = x.tape();
        let forward = || if self.omega.is_some() { self.model.unrolled(x) } else { self.model.forward(x) };
        let (hidden, outputs) = if self.checkpoint { tape.checkpoint(forward) } else { forward() };
        let loss = self.model.loss(outputs, y);
        let value = match self.omega {
            Some(weight) => loss + omega(loss, &self.model.recurrent, &hidden) * weight,
            None => loss,
        };
        Objective { value, mean: Some(loss) }
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
    /// Records a step of gradient descent on the bound, by the sign of the gradient. The loss is that of the same batch
    /// after the recorded update; its gradient flows back through the update and the clipping.
    fn learn_bound(&self, state: StateId, batch: &Inputs<'_>) {
        let t = batch.tape();
        t.scoped("meta-clip", || {
            let log_bound = t.state(state);
            // The parameters on the tape are now the values after the update.
            let loss = self.plain_loss(batch.get("x"), batch.get("y"));
            let slope = loss.grad_wrt(&[log_bound])[0].expect("the new parameters depend on the bound");
            // Only the sign counts, and all ranks must agree on it.
            let rows = batch.get("y").shape()[0] as f64;
            let slope = if t.ranks() == 1 { slope } else { (slope * rows).sum_over_ranks() };
            let rate = t.scalar(BOUND_RATE, slope.dtype());
            let up = slope.less(0.0).select(rate, rate.zeros_like());
            let down = slope.greater(0.0).select(rate, rate.zeros_like());
            t.assign(state, log_bound + up - down);
        });
    }
}

/// The declarations of a run.
struct Declared {
    store: Store,
    rnn: Rnn,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<Tasks>,
}

fn declare(config: &Config, mut store: Store, seed: u64) -> Declared {
    let data = config.data(seed);
    let held_out = vec![data.held_out(config.held_out)];
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
        let Declared { store, rnn, params, optimizer, plan } = declare(self, common.rank.store(), common.seed());
        open(store, rnn, &params, optimizer, plan, place, setup)
    }
}

/// The program of one training step, and the store of its states.
///
/// # Errors
/// The generated tasks and the built-in digits cause no error.
pub fn step(config: &Config, seed: u64) -> Result<(Store, Program)> {
    let Declared { store, rnn, params, optimizer, plan } = declare(config, Store::new(), seed);
    program(store, &rnn, &params, optimizer, plan)
}
