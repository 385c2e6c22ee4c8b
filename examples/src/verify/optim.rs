//! Vectors of kind `optim`: the parameters after each step of an optimizer, for given gradients.

use super::{
    Attempt, Attributes, Refusal,
    kind::{Results, Vector},
};
use std::collections::HashMap;
use wgrad::{Array, Data, Optimizer, Param, ParamSet, Session, Shape, Step, Store, Tape, Tensor};
use wgrad_nn::optim::{
    Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Lion, LionConfig, Muon, MuonConfig, MuonOthers,
    MuonScale, Rate, RmsProp, RmsPropConfig, Sam, Sgd, SgdConfig,
};

/// The attributes that a vector of any optimizer may have.
const COMMON: [&str; 5] = ["lr", "weight_decay", "steps", "absent", "lr_per_step"];

/// The hyper-parameters of AdamW that a vector may have.
const ADAMW: [&str; 4] = ["lr", "betas", "eps", "weight_decay"];

/// The sizes of Muon's steps by name.
const SCALES: [(&str, MuonScale); 3] = [
    ("original", MuonScale::Original),
    ("spectral_unclamped", MuonScale::Spectral),
    ("match_rms_adamw", MuonScale::MatchAdamW),
];

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
    let rate_of_state = state.map(Rate::from);
    let (optimizer, sam) = match &*vector.case.op {
        "SAM" => {
            attrs.only(&["steps", "absent", "rho", "base", "base_attrs"], "SAM")?;
            let (base, of_base) = (attrs.text("base")?, attrs.object("base_attrs")?);
            let base = optimizer(base, of_base, &["lr", "weight_decay"], rate_of_state, &mut store, &params)?;
            (base, Some(Sam::new(attrs.number("rho")?)))
        }
        op => (optimizer(op, attrs, &COMMON, rate_of_state, &mut store, &params)?, None),
    };
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
            programs.insert(present.clone(), record(&mut session, (&*optimizer, sam), &params, &given)?);
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

/// A step whose gradients are inputs: those of `sum <p, g>`; for SAM, of `sum <sin p, g>`, which differ from place to
/// place.
fn record(
    session: &mut Session,
    (optimizer, sam): (&dyn Optimizer, Option<Sam>),
    params: &ParamSet,
    given: &[(&Trajectory, Array)],
) -> Attempt<Step> {
    let step = session.record(|t: &Tape| {
        let rows: Vec<(Param, Tensor<'_>)> = given.iter().map(|(p, g)| (p.param, t.input_like(&p.name, g))).collect();
        let grads = || {
            let value = |param| if sam.is_some() { t.param(param).sin() } else { t.param(param) };
            let loss = rows.iter().map(|(param, row)| value(*param).dot(*row)).reduce(|a, b| a + b);
            // Of a step in which nothing has a gradient, too.
            loss.unwrap_or_else(|| t.scalar(0.0, wgrad::DType::F32)).grad(params).even_if_absent()
        };
        optimizer.step(sam.map_or_else(grads, |sam| sam.grad(grads)));
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
    let lr = |default: &Rate| match &rate {
        Some(rate) => Ok(rate.clone()),
        None if attrs.get("lr").is_none() => Ok(default.clone()),
        None => attrs.number("lr").map(Rate::from),
    };
    let only = |own: &[&str]| attrs.only(&[common, own].concat(), name);
    let betas = |default: (f64, f64)| betas(attrs, default);
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
            only(&["betas", "eps", "amsgrad"])?;
            let base = AdamConfig::default();
            let config = AdamConfig {
                lr: lr(&base.lr)?,
                betas: betas(base.betas)?,
                eps: number("eps", base.eps)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                amsgrad: attrs.flag_or("amsgrad", base.amsgrad)?,
                ..base
            };
            Box::new(Adam::new(store, params, config))
        }
        "AdamW" => {
            only(&["betas", "eps", "amsgrad"])?;
            let base = AdamWConfig::default();
            let config = AdamWConfig {
                lr: lr(&base.lr)?,
                betas: betas(base.betas)?,
                eps: number("eps", base.eps)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                amsgrad: attrs.flag_or("amsgrad", base.amsgrad)?,
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
        "Adagrad" => {
            only(&["lr_decay", "initial_accumulator_value", "eps"])?;
            let base = AdagradConfig::default();
            let config = AdagradConfig {
                lr: lr(&base.lr)?,
                lr_decay: number("lr_decay", base.lr_decay)?,
                initial_accumulator: number("initial_accumulator_value", base.initial_accumulator)?,
                eps: number("eps", base.eps)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(Adagrad::new(store, params, config))
        }
        "Lion" => {
            only(&["betas"])?;
            let base = LionConfig::default();
            let config = LionConfig {
                lr: lr(&base.lr)?,
                betas: betas(base.betas)?,
                weight_decay: number("weight_decay", base.weight_decay)?,
                ..base
            };
            Box::new(Lion::new(store, params, config))
        }
        "Muon" => {
            only(&["momentum", "nesterov", "ns_steps", "adjust_lr_fn", "others", "exclude"])?;
            let (base, excluded) = (MuonConfig::default(), attrs.texts("exclude")?);
            let scale = if attrs.get("adjust_lr_fn").is_some() { attrs.text("adjust_lr_fn")? } else { "original" };
            let Some((_, scale)) = SCALES.into_iter().find(|(name, _)| *name == scale) else {
                return Err(Refusal::Unsupported(format!("size {scale:?} of Muon's steps")));
            };
            let config = MuonConfig {
                lr: lr(&base.lr)?,
                momentum: number("momentum", base.momentum)?,
                nesterov: attrs.flag_or("nesterov", base.nesterov)?,
                steps: if attrs.get("ns_steps").is_some() { attrs.extent("ns_steps")? } else { base.steps },
                scale,
                weight_decay: number("weight_decay", base.weight_decay)?,
                exclude: store.params_where(|path| excluded.contains(&path)),
                others: others(attrs.object("others")?)?,
                ..base
            };
            Box::new(Muon::new(store, params, config))
        }
        other => return Err(Refusal::Operation(other.into())),
    })
}

/// AdamW's settings within Muon.
fn others(attrs: Attributes<'_>) -> Attempt<MuonOthers> {
    attrs.only(&ADAMW, "others")?;
    let base = MuonOthers::default();
    Ok(MuonOthers {
        lr: attrs.number("lr")?.into(),
        betas: betas(attrs, base.betas)?,
        eps: attrs.number_or("eps", base.eps)?,
        weight_decay: attrs.number_or("weight_decay", base.weight_decay)?,
    })
}

/// The two decay rates of means, or others where there are none.
fn betas(attrs: Attributes<'_>, default: (f64, f64)) -> Attempt<(f64, f64)> {
    match attrs.get("betas").map(|_| attrs.numbers("betas")).transpose()?.as_deref() {
        None => Ok(default),
        Some([first, second]) => Ok((*first, *second)),
        Some(other) => Err(Refusal::Misfit(format!("there are two betas, and it has {}", other.len()))),
    }
}
