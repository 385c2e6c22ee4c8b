//! Vectors of kind `optim`: the parameters after each step of an optimizer, for given gradients.

use super::{
    Attempt, Attributes, Refusal,
    kind::{Results, Vector},
};
use std::collections::HashMap;
use wgrad::{Array, Data, Optimizer, Param, ParamSet, Session, Shape, Step, Store, Tape};
use wgrad_nn::optim::{Adam, AdamConfig, AdamW, AdamWConfig, Rate, RmsProp, RmsPropConfig, Sgd, SgdConfig};

/// The attributes that a vector of any optimizer may have.
const COMMON: [&str; 5] = ["lr", "weight_decay", "steps", "absent", "lr_per_step"];

/// A parameter with its gradients.
struct Trajectory {
    name: String,
    param: Param,
    /// The shape of the parameter, and of each row of its gradients.
    shape: Shape,
    grads: Array,
    /// The steps without a gradient.
    absent: Vec<usize>,
}

impl Trajectory {
    fn row(&self, step: usize) -> Array {
        let len = self.shape.numel();
        Array::new(&self.shape, self.grads.data().slice(step * len..(step + 1) * len))
    }
}

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    let attrs = vector.attrs();
    let steps = attrs.extent("steps")?;
    let mut store = Store::new();
    let trajectories = trajectories(vector, steps, &mut store)?;
    let params = store.params();
    let rates = attrs.get("lr_per_step").map(|_| attrs.numbers("lr_per_step")).transpose()?;
    let rate = |value: f64| Array::new([], Data::from_f64(vector.dtype(), &[value]));
    let state = rates.as_ref().map(|_| store.state("lr", &rate(0.0)));
    let optimizer = optimizer(&vector.case.op, attrs, &COMMON, state.map(Rate::from), &mut store, &params)?;
    let mut session = vector.session(store)?;
    let mut programs: HashMap<Vec<usize>, Step> = HashMap::new();
    let mut values: Vec<Vec<f64>> = vec![vec![]; trajectories.len()];
    for step in 0..steps {
        if let (Some(state), Some(rates)) = (state, &rates) {
            let missing = || Refusal::Misfit(format!("it has no learning rate for step {step}"));
            session.write(state, &rate(*rates.get(step).ok_or_else(missing)?))?;
        }
        let present: Vec<usize> =
            (0..trajectories.len()).filter(|i| !trajectories[*i].absent.contains(&step)).collect();
        let given: Vec<(&Trajectory, Array)> =
            present.iter().map(|i| (&trajectories[*i], trajectories[*i].row(step))).collect();
        if !programs.contains_key(&present) {
            programs.insert(present.clone(), record(&mut session, &*optimizer, &params, &given)?);
        }
        let inputs: Vec<(&str, &Array)> = given.iter().map(|(p, g)| (p.name.as_str(), g)).collect();
        session.run(&programs[&present], &inputs)?;
        for (values, p) in values.iter_mut().zip(&trajectories) {
            values.extend(session.read_param(p.param)?.to_f64());
        }
    }
    let results = trajectories.iter().zip(values).map(|(p, values)| {
        let shape: Vec<usize> = [&[steps], &p.shape[..]].concat();
        (format!("out/param_{}", p.name), Array::new(&shape[..], Data::from_f64(vector.dtype(), &values)))
    });
    Ok(results.collect())
}

/// Declares the parameters, and reads their gradients.
fn trajectories(vector: &Vector<'_>, steps: usize, store: &mut Store) -> Attempt<Vec<Trajectory>> {
    let absent = vector.attrs().object("absent")?;
    let mut trajectories = vec![];
    for (name, value) in vector.inputs("in/p0_")? {
        let gradients = format!("in/grad_{name}");
        let grads = vector.tensors.array(&format!("{}/{gradients}", vector.case.id))?;
        let shape = value.shape().clone();
        if grads.shape()[..] != [&[steps], &shape[..]].concat() || grads.dtype() != value.dtype() {
            return Err(Refusal::Misfit(format!(
                "{gradients:?} is not {steps} gradients of a {}{shape}",
                value.dtype()
            )));
        }
        let absent = if absent.get(&name).is_some() { absent.extents(&name)? } else { vec![] };
        trajectories.push(Trajectory { param: store.param(&name, &value), name, shape, grads, absent });
    }
    Ok(trajectories)
}

/// Records a step whose gradients are inputs, as the gradients of `sum <p, g>`.
fn record(
    session: &mut Session,
    optimizer: &dyn Optimizer,
    params: &ParamSet,
    given: &[(&Trajectory, Array)],
) -> Attempt<Step> {
    let step = session.record(|t: &Tape| {
        let products = given.iter().map(|(p, g)| t.param(p.param).dot(t.input_like(&p.name, g)));
        let loss = products.reduce(|a, b| a + b).unwrap_or_else(|| t.scalar(0.0, wgrad::DType::F32));
        // A step is recorded even if no parameter has a gradient.
        optimizer.step(loss.grad(params).even_if_absent());
    })?;
    Ok(step)
}

/// The optimizer that a vector names, with its settings; missing settings have PyTorch's defaults. The attributes may
/// also include those in `common`. A `rate` replaces the learning rate of the attributes.
///
/// # Errors
/// If there is no such optimizer, or an attribute is unknown or has another form.
pub fn optimizer(
    name: &str,
    attrs: Attributes<'_>,
    common: &[&str],
    rate: Option<Rate>,
    store: &mut Store,
    params: &ParamSet,
) -> Attempt<Box<dyn Optimizer>> {
    let number = |name: &str, default: f64| attrs.number_or(name, default);
    let lr = |default: &Rate| match rate {
        Some(rate) => Ok(rate),
        None if attrs.get("lr").is_none() => Ok(*default),
        None => attrs.number("lr").map(Rate::from),
    };
    let only = |own: &[&str]| attrs.only(&[common, own].concat(), name);
    let betas = |default: (f64, f64)| match attrs.get("betas").map(|_| attrs.numbers("betas")).transpose()?.as_deref() {
        None => Ok(default),
        Some([first, second]) => Ok((*first, *second)),
        Some(other) => Err(Refusal::Misfit(format!("there are two betas, and it has {}", other.len()))),
    };
    Ok(match name {
        "SGD" => {
            only(&["momentum", "dampening", "nesterov"])?;
            let base = SgdConfig::default();
            let config = SgdConfig {
                lr: lr(&base.lr)?,
                momentum: number("momentum", base.momentum)?,
                dampening: number("dampening", base.dampening)?,
                nesterov: attrs.flag_or("nesterov", base.nesterov)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(Sgd::new(store, params, config))
        }
        "Adam" => {
            only(&["betas", "eps"])?;
            let base = AdamConfig::default();
            let config = AdamConfig {
                lr: lr(&base.lr)?,
                betas: betas(base.betas)?,
                eps: number("eps", base.eps)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(Adam::new(store, params, config))
        }
        "AdamW" => {
            only(&["betas", "eps"])?;
            let base = AdamWConfig::default();
            let config = AdamWConfig {
                lr: lr(&base.lr)?,
                betas: betas(base.betas)?,
                eps: number("eps", base.eps)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(AdamW::new(store, params, config))
        }
        "RMSprop" => {
            only(&["alpha", "eps", "momentum", "centered"])?;
            let base = RmsPropConfig::default();
            let config = RmsPropConfig {
                lr: lr(&base.lr)?,
                alpha: number("alpha", base.alpha)?,
                eps: number("eps", base.eps)?,
                momentum: number("momentum", base.momentum)?,
                centered: attrs.flag_or("centered", base.centered)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(RmsProp::new(store, params, config))
        }
        other => return Err(Refusal::Operation(other.into())),
    })
}
