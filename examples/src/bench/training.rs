//! Workloads that train a network. Each step is forward, backward, clip, update, and the loss read back. Ranks share each
//! batch, and the step then has an all-reduce.

use super::{
    command::Bench,
    data::{Draw, Source, split, transposed},
    measure,
};
use crate::{Error, Result, ranks::Share, run::stretch};
use std::time::Instant;
use wgrad::{Array, Optimizer, Param, ParamSet, Session, Store, Tensor};
use wgrad_nn::data::Batch;

/// Step `i` trains on batch `i` modulo this number.
pub const BATCHES: usize = 4;

/// The bound on the global gradient norm of workloads that clip.
pub const MAX_NORM: f64 = 1.0;

/// A network, and how it is trained.
pub trait Training {
    /// The declared network.
    type Model;

    /// The name of the result.
    fn name(&self) -> &'static str;

    /// Declares the network; [`Training::weights`] gives its initial values.
    fn declare(&self, store: &mut Store) -> Self::Model;

    /// The sources of the parameters' initial values. Parameters that are not listed keep the values of their
    /// declaration.
    fn weights(&self, model: &Self::Model) -> Vec<Weight>;

    /// The number of examples in a batch.
    fn batch(&self) -> usize;

    /// [`BATCHES`] batches of `batch` examples each.
    ///
    /// # Errors
    /// If the source does not hold the batches.
    fn batches(&self, source: &mut Source, batch: usize) -> Result<Vec<Batch>>;

    /// The dimension of the inputs that counts examples. In targets, it is the first dimension.
    fn axis(&self) -> usize {
        0
    }

    /// The loss of a batch.
    fn loss<'t>(&self, model: &Self::Model, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// The optimizer.
    fn optimizer(&self, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer>;

    /// True if gradients are clipped to a global norm of [`MAX_NORM`].
    fn clips(&self) -> bool {
        true
    }
}

/// The source of a parameter's initial values.
pub struct Weight {
    /// The name of the tensor in a file.
    pub name: String,
    /// The parameter.
    pub param: Param,
    /// The shape in the file.
    pub shape: Vec<usize>,
    /// True if the file holds the transpose: linear weights are `[in, out]` in files, and `[out, in]` in wgrad.
    pub turned: bool,
    /// The distribution of the values without a file.
    pub draw: Draw,
}

impl Weight {
    /// A parameter whose file has the same layout.
    pub fn plain(name: impl Into<String>, param: Param, shape: &[usize], draw: Draw) -> Self {
        Self { name: name.into(), param, shape: shape.into(), turned: false, draw }
    }

    /// A matrix parameter whose transpose is in the file.
    pub fn turned(name: impl Into<String>, param: Param, shape: [usize; 2], draw: Draw) -> Self {
        Self { turned: true, ..Self::plain(name, param, &shape, draw) }
    }
}

/// Times training steps, and prints the result.
///
/// # Errors
/// If the data is missing, or the device fails.
pub fn run(training: &impl Training, bench: &Bench<'_>, mut source: Source) -> Result<()> {
    let rss_base = measure::peak_rss();
    let mut store = bench.store();
    let model = training.declare(&mut store);
    let params = store.params();
    let optimizer = training.optimizer(&mut store, &params);
    let mut session = bench.session(store)?;
    let (share, rows) = (bench.share(), bench.batch.unwrap_or(training.batch()));
    if rows < share.ranks {
        return Err(Error::Usage(format!("--ranks: {} ranks cannot share a batch of {rows} rows", share.ranks)));
    }
    load(&mut session, &mut source, &training.weights(&model))?;
    let whole = training.batches(&mut source, rows)?;
    let own = share.rows(rows);
    let batches: Vec<Batch> = whole.iter().map(|batch| stretch(batch, training.axis(), own.clone())).collect();
    let factor = Share::factor(own.len(), rows, share.ranks);
    let start = Instant::now();
    let step = session.record(|t| {
        let (x, y) = (t.input_like("x", &batches[0]["x"]), t.input_like("y", &batches[0]["y"]));
        let loss = training.loss(&model, x, y);
        let loss = factor.map_or(loss, |factor| loss * factor);
        t.tap("loss", if share.ranks == 1 { loss } else { loss.sum_over_ranks() / share.ranks as f64 });
        let grads = loss.grad(&params).all_reduce();
        optimizer.step(if training.clips() { grads.clip_by_global_norm(MAX_NORM) } else { grads });
    })?;
    let prepared = start.elapsed();
    let make = |session: &mut Session, i: usize| {
        session.run(&step, &batches[i % BATCHES].inputs())?;
        session.wait()?;
        let taps = session.taps()?;
        Ok(taps.last().and_then(|taps| taps.scalar("loss")).expect("tapped by the step"))
    };
    let measured = measure::steps(bench.budget, prepared, |i, stops| {
        if stops {
            session.ask_to_stop();
        }
        // All ranks stop after the same step.
        if session.asked_to_stop() { Ok(None) } else { make(&mut session, i).map(Some) }
    })?;
    let Some((timing, losses)) = measured else { return Ok(()) };
    bench.show(training.name(), &timing, losses, rss_base);
    let mut next = 0..;
    bench.profile(training.name(), (&mut session, &step), bench.budget, |session| {
        make(session, next.next().expect("there is always another")).map(|_| ())
    })
}

/// Writes the parameters' initial values.
fn load(session: &mut Session, source: &mut Source, weights: &[Weight]) -> Result<()> {
    for Weight { name, param, shape, turned, draw } in weights {
        let stored = source.floats(name, shape, *draw)?;
        session.write_param(*param, &if *turned { transposed(&stored) } else { stored })?;
    }
    Ok(())
}

/// Batches from arrays whose first axis counts them.
pub fn zip(x: &Array, y: &Array) -> Vec<Batch> {
    split(x).into_iter().zip(split(y)).map(|(x, y)| Batch::new(x, y)).collect()
}
