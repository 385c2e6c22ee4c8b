//! Workload w6: gradient passes alone, over 200 tensors with ten million elements in total.

use super::{
    command::Bench,
    data::{Draw, Source},
    measure::{self, Timing},
};
use crate::{Result, interrupt};
use std::time::{Duration, Instant};
use wgrad::{Array, DType, Grads, LossScaler, Optimizer, ParamSet, Session, StateId, Store, Tape, Tensor};
use wgrad_nn::optim::{AdamW, AdamWConfig};

/// The number of tensors of each shape, in the order of their names.
const TENSORS: [(usize, &[usize]); 4] = [(40, &[512, 384]), (40, &[384, 128]), (4, &[64, 64, 3, 3]), (116, &[512])];
const PARAMS: Draw = Draw::Normal(0.0, 0.05);
const GRADIENTS: Draw = Draw::Normal(0.0, 0.01);
/// The factor of the gradients before an update.
const LOSS_SCALE: f64 = 0.5;
/// The bound on the global norm in an update.
const MAX_NORM: f64 = 1.0;
/// Each call multiplies the bound by this factor, so that a clip changes gradients that were clipped before.
const TIGHTER: f64 = 0.99;

/// A benchmark of gradients that are given.
pub struct Work {
    /// The name of the result.
    pub name: &'static str,
    kind: Kind,
}

/// The computation of a [`Work`].
enum Kind {
    /// A pass with its first bound. Its results replace the gradients.
    Pass(f64, for<'t> fn(Grads<'t>, Tensor<'t>) -> Grads<'t>),
    /// Unscale, check, clip, and a step of AdamW, which replaces the parameters. The gradients stay as they are.
    Update,
}

/// All results of w6.
pub const WORKS: [Work; 4] = [
    Work { name: "w6_clip", kind: Kind::Pass(1.0, |grads, bound| grads.clip_by_global_norm(bound)) },
    Work { name: "w6_agc", kind: Kind::Pass(0.01, |grads, bound| grads.agc(bound)) },
    Work { name: "w6_central", kind: Kind::Pass(0.0, |grads, _| grads.centralize()) },
    Work { name: "w6_update", kind: Kind::Update },
];

/// Times all selected results, and prints them.
///
/// # Errors
/// If the data is missing, or the device fails.
pub fn run(bench: &Bench<'_>, mut source: Source) -> Result<()> {
    let rss_base = measure::peak_rss();
    for work in WORKS.iter().filter(|work| bench.wants(work.name)) {
        if interrupt::requested() {
            break;
        }
        work.run(bench, &mut source, rss_base)?;
    }
    Ok(())
}

/// Parameters in an arena, and given gradients in a state of the same layout.
struct Given {
    params: ParamSet,
    arena: StateId,
    gradients: StateId,
}

impl Given {
    fn new(store: &mut Store, source: &mut Source) -> Result<Self> {
        let shapes = TENSORS.iter().flat_map(|&(count, shape)| std::iter::repeat_n(shape, count));
        let mut gradients = vec![];
        for (i, shape) in shapes.enumerate() {
            let param = store.param(&format!("p{i:03}"), &source.floats(&format!("p{i:03}"), shape, PARAMS)?);
            let g = source.floats(&format!("g{i:03}"), shape, GRADIENTS)?;
            gradients.push((store.layout().param(param).offset, g));
        }
        let params = store.params();
        let arena = params.arenas(store.layout())[0];
        let mut flat = vec![0f32; store.layout().state(arena).shape.numel()];
        for (offset, g) in gradients {
            flat[offset..].iter_mut().zip(g.to_f64()).for_each(|(to, g)| *to = g as f32);
        }
        let gradients = store.state("gradients", &Array::new([flat.len()], flat));
        Ok(Self { params, arena, gradients })
    }

    /// A loss whose gradient is the stored one, whatever factor multiplies the loss.
    fn loss<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        let stored = t.state(self.gradients);
        t.state(self.arena).on_grad_with([stored], |_, [stored]| stored).dot(stored)
    }
}

impl Work {
    fn run(&self, bench: &Bench<'_>, source: &mut Source, rss_base: Option<f64>) -> Result<()> {
        let mut store = Store::new();
        match self.kind {
            Kind::Pass(bound, pass) => {
                let given = Given::new(&mut store, source)?;
                let record = |t: &Tape| {
                    let grads = given.loss(t).grad(&given.params);
                    let grads = pass(grads, t.input("bound", [], DType::F32));
                    t.assign(given.gradients, grads.flat().tensors()[0]);
                };
                self.time(bench, bench.session(store)?, record, (Some(bound), given.gradients), rss_base)
            }
            Kind::Update => {
                let given = Given::new(&mut store, source)?;
                let adamw = AdamW::new(&mut store, &given.params, AdamWConfig::default());
                let scaler = LossScaler::fixed(LOSS_SCALE);
                let record = |t: &Tape| {
                    let grads = scaler.scale(given.loss(t)).grad(&given.params);
                    adamw.step(grads.unscale(&scaler).clip_by_global_norm(MAX_NORM));
                };
                self.time(bench, bench.session(store)?, record, (None, given.arena), rss_base)
            }
        }
    }

    /// Times the recorded step, which reads the bound if there is one. Prints the result with the sum of magnitudes in
    /// the state `shown` after the first call.
    fn time(
        &self,
        bench: &Bench<'_>,
        mut session: Session,
        record: impl FnOnce(&Tape),
        (mut bound, shown): (Option<f64>, StateId),
        rss_base: Option<f64>,
    ) -> Result<()> {
        let start = Instant::now();
        let step = session.record(record)?;
        let mut call = |session: &mut Session| {
            let array = bound.map(Array::scalar).map(|bound| bound.cast(DType::F32));
            let inputs: Vec<(&str, &Array)> = array.iter().map(|bound| ("bound", bound)).collect();
            bound = bound.map(|bound| bound * TIGHTER);
            session.run(&step, &inputs)?;
            Ok(session.wait()?)
        };
        call(&mut session)?;
        let first_step = start.elapsed().as_secs_f64() * 1e3;
        let digest = session.read(shown)?.to_f64().into_iter().map(f64::abs).sum();
        // A pass gets a third of a workload's time, as an operation of w7 does.
        let budget = bench.budget / 3;
        let Some(timing) = measure::calls(budget, Duration::ZERO, || call(&mut session))? else { return Ok(()) };
        let timing = Timing { first_step, ..timing };
        bench.show(self.name, &timing, (None, Some(digest)), rss_base);
        bench.profile(self.name, (&mut session, &step), budget, call)
    }
}
