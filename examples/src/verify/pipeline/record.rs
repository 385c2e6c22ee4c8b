//! The programs of a pipeline, with the passes that a vector names, in its order.

use super::input;
use crate::verify::{Attempt, Attributes, Refusal, kind::Vector, optim};
use wgrad::{
    Accumulator, Agc, Array, ClipNorm, DType, Data, Draw, DynamicScale, Flat, Grads, LossScaler, Noise, Optimizer,
    Param, ParamSet, Scaled, Session, StateId, Store, Tape, Weighting,
};
use wgrad_nn::Schedule;

/// The parameters of the classifier `tanh(x w1^T + b1) w2^T + b2`.
pub const PARAMS: [&str; 4] = ["w1", "b1", "w2", "b2"];

/// The attributes that a vector may have. `model` and `rules` are prose, which describes what this file does.
const ATTRIBUTES: [&str; 16] = [
    "updates",
    "ranks",
    "micro_sizes",
    "weighting",
    "inject_inf",
    "scale",
    "noise",
    "centralize",
    "agc",
    "clip_global",
    "optimizer",
    "opt",
    "warmup",
    "order",
    "model",
    "rules",
];

/// The start of every order. The expected gradients of the reduction still have the loss scale, and the passes after
/// the verdict change the gradients of the whole batch.
const FIRST: [&str; 4] = ["accumulate", "all_reduce_mean", "unscale", "finite_check"];
/// The end of every order.
const LAST: [&str; 1] = ["step"];

/// A pass between the verdict and the step.
pub enum Pass {
    Noise(Noise),
    Centralize,
    Agc { clipping: f64, eps: f64, exclude: ParamSet },
    ClipGlobal { max_norm: f64 },
}

impl Pass {
    /// The names of the passes, which are also the names of the attributes with their settings.
    const NAMES: [&'static str; 4] = ["noise", "centralize", "agc", "clip_global"];

    /// The pass of this name; `None` if the vector does not use it.
    fn read(name: &str, attrs: Attributes<'_>, params: &[Param]) -> Attempt<Option<Self>> {
        let settings =
            |own: &[&str]| attrs.object(name).and_then(|settings| settings.only(own, name).map(|()| settings));
        if attrs.get(name).is_none() {
            return Ok(None);
        }
        Ok(Some(match name {
            "noise" => {
                let noise = settings(&["eta", "gamma"])?;
                Pass::Noise(Noise::Annealed { eta: noise.number("eta")?, gamma: noise.number("gamma")?, t0: 0.0 })
            }
            "centralize" => return Ok(attrs.flag(name)?.then_some(Pass::Centralize)),
            "agc" => {
                let agc = settings(&["clipping", "eps", "on"])?;
                let on = agc.texts("on")?;
                if let Some(unknown) = on.iter().find(|name| !PARAMS.contains(name)) {
                    return Err(Refusal::Misfit(format!("agc: there is no parameter {unknown:?}")));
                }
                let others = params.iter().zip(PARAMS).filter(|(_, name)| !on.contains(name));
                let exclude = others.map(|(param, _)| *param).collect();
                Pass::Agc { clipping: agc.number("clipping")?, eps: agc.number("eps")?, exclude }
            }
            "clip_global" => Pass::ClipGlobal { max_norm: attrs.number(name)? },
            other => return Err(Refusal::Operation(other.into())),
        }))
    }

    /// The passes of a vector, in its order.
    fn all(attrs: Attributes<'_>, params: &[Param]) -> Attempt<Vec<Self>> {
        let order = attrs.texts("order")?;
        let between = order.strip_prefix(&FIRST).and_then(|rest| rest.strip_suffix(&LAST));
        let between = between.ok_or_else(|| Refusal::Unsupported(format!("order {order:?} of passes")))?;
        for name in Pass::NAMES {
            let places = between.iter().filter(|place| **place == name).count();
            if places != 1 && Pass::read(name, attrs, params)?.is_some() {
                return Err(Refusal::Misfit(format!("its order has {places} places for {name:?}")));
            }
        }
        between.iter().filter_map(|name| Pass::read(name, attrs, params).transpose()).collect()
    }
}

/// The parts of a vector's programs.
pub struct Pipeline {
    /// The type of the vector's floats.
    pub dtype: DType,
    params: Vec<Param>,
    /// The numbers of examples in the micro-batches of each replica.
    sizes: Vec<usize>,
    weighting: Weighting,
    /// One accumulator per replica.
    pub accumulators: Vec<Accumulator<Scaled>>,
    scaler: LossScaler,
    /// The passes between the verdict and the step, in order.
    pub passes: Vec<Pass>,
    schedule: Schedule,
    optimizer: Box<dyn Optimizer>,
}

impl Pipeline {
    /// Reads the attributes, and declares the parameters and states of the pipeline in the store.
    ///
    /// # Errors
    /// If an attribute is missing, or asks for something unsupported.
    pub fn declare(vector: &Vector<'_>, store: &mut Store) -> Attempt<Self> {
        let attrs = vector.attrs();
        attrs.only(&ATTRIBUTES, &vector.case.op)?;
        let declare = |name| Ok(store.param(name, &input(vector, name)?));
        let params = PARAMS.into_iter().map(declare).collect::<Attempt<Vec<Param>>>()?;
        let all = store.params();
        let weighting = match attrs.text("weighting")? {
            "mean" => Weighting::Mean,
            "token" => Weighting::TokenWeighted,
            other => return Err(Refusal::Unsupported(format!("weighting {other:?} of micro-batches"))),
        };
        let ranks = attrs.extent("ranks")?;
        let accumulators = (0..ranks).map(|rank| Accumulator::new(store, &all, &replica(rank), weighting)).collect();
        let scaler = scaler(attrs.object("scale")?, store)?;
        let opt = attrs.object("opt")?;
        let schedule = Schedule::warmup(opt.number("lr")?, count(attrs, "warmup")?);
        let rate = Some(schedule.into());
        let optimizer = optim::optimizer(attrs.text("optimizer")?, opt, &["lr", "weight_decay"], rate, store, &all)?;
        Ok(Self {
            dtype: vector.dtype(),
            sizes: attrs.extents("micro_sizes")?,
            weighting,
            accumulators,
            scaler,
            passes: Pass::all(attrs, &params)?,
            schedule,
            optimizer,
            params,
        })
    }

    fn all(&self) -> ParamSet {
        self.params.iter().copied().collect()
    }

    /// Accumulates the gradients of one replica's micro-batches, whose examples are the rows of `x` and `y`.
    pub fn accumulate(&self, t: &Tape, accumulator: &Accumulator<Scaled>, [x, y]: [&Array; 2]) {
        let (x, y) = (t.input_like("x", x), t.input_like("y", y));
        let mut start = 0;
        for &len in &self.sizes {
            let [w1, b1, w2, b2] = [0, 1, 2, 3].map(|i| t.param(self.params[i]));
            let hidden = (x.slice(0, start, len).matmul_t(w1) + b1).tanh();
            let loss = (hidden.matmul_t(w2) + b2).cross_entropy(y.slice(0, start, len));
            t.tap_each("loss", loss);
            let grads = self.scaler.scale(loss).grad(&self.all());
            match self.weighting {
                Weighting::TokenWeighted => accumulator.add_tokens(grads, t.scalar(len as f64, DType::U32)),
                Weighting::Mean | Weighting::Sum => accumulator.add(grads),
            }
            start += len;
        }
    }

    /// Records one update from the accumulated gradients. The normal numbers `z` are inputs.
    pub fn update(&self, t: &Tape, z: &[(String, Array)]) {
        let mut replicas = self.accumulators.iter().map(|accumulator| accumulator.take(t));
        let grads = replicas.next().expect("there is a replica");
        let grads = grads.all_reduce_on_tape(&replicas.collect::<Vec<_>>());
        self.tap(t, "reduced", &grads);
        let scale = match self.scaler.states() {
            Some((scale, _)) => t.state(scale).cast(self.dtype),
            None => t.scalar(self.scaler.scale_value().expect("it is fixed"), self.dtype),
        };
        t.tap("scale_used", scale);
        let mut grads = grads.unscale(&self.scaler);
        t.tap("found_inf", !grads.verdict().expect("unscaling gives a verdict"));
        let done = t.state(self.optimizer.states().counter());
        t.tap("lr", self.schedule.lr(done, self.dtype));
        for pass in &self.passes {
            grads = match pass {
                Pass::Noise(noise) => grads.add_noise(*noise, Draw::Given { z: self.flat(t, z), updates: done }),
                Pass::Centralize => grads.centralize(),
                Pass::Agc { clipping, eps, exclude } => grads.agc(Agc::new(*clipping).eps(*eps).exclude(exclude)),
                Pass::ClipGlobal { max_norm } => grads.clip_by_global_norm(ClipNorm::new(*max_norm)),
            };
        }
        self.tap(t, "clipped", &grads);
        self.optimizer.step(grads);
        for (name, param) in PARAMS.iter().zip(&self.params) {
            t.tap(&format!("param_{name}"), t.param(*param));
        }
        self.scaler.update(t);
    }

    /// Taps the gradient of each parameter.
    fn tap<S>(&self, t: &Tape, kind: &str, grads: &Grads<'_, S>) {
        for (name, param) in PARAMS.iter().zip(&self.params) {
            t.tap(&format!("{kind}_{name}"), grads.get(*param).expect("the loss reaches it"));
        }
    }

    /// Numbers in the layout of the gradients, as the gradient of `sum <param, z>`.
    fn flat<'t>(&self, t: &'t Tape, z: &[(String, Array)]) -> Flat<'t> {
        let products = self.params.iter().zip(z).map(|(param, (name, z))| t.param(*param).dot(t.input_like(name, z)));
        let sum = products.reduce(|a, b| a + b).expect("there are parameters");
        sum.grad(&self.all()).flat().clone()
    }

    /// The state in which a replica accumulates its gradients.
    fn sum(&self, session: &Session, rank: usize) -> StateId {
        let name = format!("{}/sum/{}", replica(rank), self.dtype);
        let mut states = session.layout().states();
        states.find(|(_, state)| state.name == name).expect("its accumulator has declared it").0
    }

    /// Makes the accumulated gradient of `w2[0, 0]` infinite on one replica.
    ///
    /// # Errors
    /// If the device fails.
    pub fn spoil(&self, session: &mut Session, rank: usize) -> Attempt<()> {
        let state = self.sum(session, rank);
        let sum = session.read(state)?;
        let mut values = sum.to_f64();
        values[session.layout().param(self.params[2]).offset] = f64::INFINITY;
        Ok(session.write(state, &Array::new(sum.shape(), Data::from_f64(sum.dtype(), &values)))?)
    }
}

/// The name of a replica's accumulator.
fn replica(rank: usize) -> String {
    format!("rank{rank}")
}

fn count(attrs: Attributes<'_>, name: &str) -> Attempt<u32> {
    let count = attrs.extent(name)?;
    u32::try_from(count).map_err(|_| Refusal::Misfit(format!("no pipeline makes {count} updates")))
}

fn scaler(scale: Attributes<'_>, store: &mut Store) -> Attempt<LossScaler> {
    let init = scale.number("init")?;
    if !scale.flag("dynamic")? {
        scale.only(&["init", "dynamic"], "a constant scale")?;
        return Ok(LossScaler::fixed(init));
    }
    scale.only(&["init", "dynamic", "interval"], "a dynamic scale")?;
    let settings = DynamicScale { init, interval: count(scale, "interval")?, ..DynamicScale::default() };
    Ok(LossScaler::dynamic(store, settings))
}
