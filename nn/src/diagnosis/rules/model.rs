//! Rules that look at activations, at gradients by layer, and at first values.

use super::{Evidence, Found, Remedy, data::scale_inputs};
use crate::{
    diagnosis::signs::Signs,
    layers::{Fan, Init},
    monitor::{Measurement, SiteMeasure},
    numbers::median,
    train::{Edit, Transform},
};

/// The remedy that draws weight matrices anew by He's initializer, and sets biases to 0.
fn init(s: &Signs<'_>) -> Remedy {
    let all = s.trace.first.iter().map(|(path, _)| path.clone()).collect();
    let edit = Edit::Init(all, Init::He { fan: Fan::In });
    Remedy::new("init", "draw first weights by He's initializer, and start biases at 0", vec![edit])
}

/// The remedy that normalises the inputs of activations.
fn norm(s: &Signs<'_>) -> Remedy {
    let edit = Edit::Sites(activations(s), Transform::Normalise);
    Remedy::new("norm", "normalise the inputs of activations, as by LayerNorm", vec![edit])
}

/// The remedy that adds to the input of each activation the input of the one before.
fn residual(s: &Signs<'_>) -> Remedy {
    let edit = Edit::Sites(activations(s), Transform::Shortcut);
    Remedy::new("residual", "add the input of each layer to its output (residual connection)", vec![edit])
}

/// The remedy that replaces rectifiers by leaky ones.
pub(super) fn leak(s: &Signs<'_>) -> Remedy {
    let edit = Edit::Sites(activations(s), Transform::Leak);
    Remedy::new("leaky-activation", "use a leaky ReLU with slope 0.01 for negative inputs", vec![edit])
}

/// The paths of the inputs of activations.
fn activations(s: &Signs<'_>) -> Vec<String> {
    s.begin().map_or(vec![], |measured| paths(&Signs::activations(measured)))
}

fn paths(sites: &[&SiteMeasure]) -> Vec<String> {
    sites.iter().map(|site| site.path.clone()).collect()
}

/// The first third of layers.
fn first_third(measured: &Measurement) -> Vec<String> {
    let all = paths(&Signs::activations(measured));
    all[..all.len().div_ceil(3)].to_vec()
}

pub(super) fn symmetry(s: &Signs<'_>) -> Option<Found> {
    let alike = |(_, array): &&(String, wgrad::Array)| {
        let [rows, columns] = array.shape()[..] else { return false };
        let values = array.to_f64();
        rows > 1
            && values.iter().any(|value| *value != 0.0)
            && values.chunks(columns).all(|row| row == &values[..columns])
    };
    let copies: Vec<String> = s.trace.first.iter().filter(alike).map(|(path, _)| path.clone()).collect();
    // A head alone may start with equal rows: the targets tell its rows apart.
    if copies.len() < 2 {
        return None;
    }
    let evidence = vec![Evidence::new("matrices whose units are copies of each other", copies.len() as f64, 0.0, 0.0)];
    Some(Found { place: copies, since: 0, evidence, remedies: vec![init(s), leak(s)] })
}

pub(super) fn dead(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let off = |site: &&&SiteMeasure| site.units.is_some_and(|units| units.off > 0.9);
    let sites = Signs::activations(measured);
    let dead: Vec<&SiteMeasure> = sites.iter().filter(off).copied().collect();
    if dead.is_empty() || !s.reading.rectifies() || !s.is_sick() {
        return None;
    }
    let share = dead.iter().filter_map(|site| site.units).map(|units| units.off).fold(0.0, f64::max);
    let evidence = vec![Evidence::new(format!("share of units that are off at {}", dead[0].path), share, 0.0, 0.9)];
    Some(Found { place: paths(&dead), since: 0, evidence, remedies: vec![init(s), leak(s)] })
}

pub(super) fn saturated(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let sigmoid = !s.reading.has(|op| *op == wgrad::op::Op::Unary(wgrad::op::Unary::Tanh));
    let share = |site: &SiteMeasure| {
        site.units.map_or(0.0, |units| if sigmoid { units.sigmoid_saturated } else { units.tanh_saturated })
    };
    let sites = Signs::activations(measured);
    let flat: Vec<&SiteMeasure> = sites.iter().filter(|site| share(site) > 0.5).copied().collect();
    // Large inputs that saturate a first layer slow learning down, but the other layers make up for some of it.
    let slow = s.is_sick() || (s.input_size() > 10.0 && s.learned() < 0.9);
    if flat.is_empty() || !s.saturates() || !slow {
        return None;
    }
    let evidence =
        vec![Evidence::new(format!("share of saturated inputs at {}", flat[0].path), share(flat[0]), 0.0, 0.5)];
    let remedies = if s.input_size() > 10.0 { vec![scale_inputs(s), norm(s), init(s)] } else { vec![init(s), norm(s)] };
    Some(Found { place: paths(&flat), since: 0, evidence, remedies })
}

pub(super) fn attention_logits(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let width = |site: &SiteMeasure| site.scores.map_or(0.0, |scores| scores.high - scores.low);
    let wide: Vec<&SiteMeasure> = measured.sites.iter().filter(|site| width(site) > 100.0).collect();
    let worst = wide.iter().map(|site| width(site)).fold(0.0, f64::max);
    if wide.is_empty() || !s.is_sick() {
        return None;
    }
    let beside = |what: &str| -> Vec<String> {
        wide.iter().filter_map(|site| Some(format!("{}/{what}", site.path.strip_suffix("/scores")?))).collect()
    };
    let both = [beside("queries"), beside("keys")].concat();
    let factor = 10.0 / worst;
    let remedies = vec![
        Remedy::new(
            "temperature",
            format!("divide the scores by {:.0}", 1.0 / factor),
            vec![Edit::Sites(beside("queries"), Transform::Times(factor))],
        ),
        Remedy::new("qk-norm", "normalise queries and keys", vec![Edit::Sites(both, Transform::Unit)]),
    ];
    let evidence = vec![
        Evidence::new("range of attention's scores", worst, 0.0, 100.0),
        Evidence::new(
            "smallest mean entropy of attention, in nats",
            wide.iter().filter_map(|site| site.scores).map(|scores| scores.entropy).fold(f64::INFINITY, f64::min),
            0.1,
            f64::INFINITY,
        ),
    ];
    Some(Found { place: paths(&wide), since: 0, evidence, remedies })
}

pub(super) fn boundary(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let size = |site: &SiteMeasure| site.values.map_or(0.0, |values| values.rms);
    let is_boundary = |site: &&SiteMeasure| site.path.ends_with("projection/x") || site.path.ends_with("bridge/x");
    let usual = median(Signs::activations(measured).iter().map(|site| size(site)));
    let site = measured.sites.iter().find(is_boundary).filter(|site| size(site) > 50.0 * usual)?;
    let others = vec![site.path.clone()];
    let remedies = vec![
        Remedy::new(
            "norm",
            format!("normalise what enters {}", site.path),
            vec![Edit::Sites(others.clone(), Transform::Normalise)],
        ),
        Remedy::new(
            "scale",
            format!("divide what enters {} by {:.1e}", site.path, size(site)),
            vec![Edit::Sites(others.clone(), Transform::Times(1.0 / size(site)))],
        ),
    ];
    let evidence = vec![Evidence::new(
        "root mean square at the boundary over the median of sites",
        size(site) / usual,
        0.02,
        50.0,
    )];
    Some(Found { place: others, since: 0, evidence, remedies })
}

pub(super) fn post_norm(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let blocks = Signs::named(measured, "residual");
    let normed = blocks.iter().all(|site| site.values.is_some_and(|values| (values.rms - 1.0).abs() < 0.05));
    if blocks.len() < 6 || !normed || !s.is_sick() {
        return None;
    }
    let rise = (s.steps / 4).max(10) as u32;
    let warm = vec![Edit::Tune(wgrad::Tuning::Warmup(rise))];
    let slow = vec![Edit::Tune(wgrad::Tuning::Warmup(rise)), Edit::Tune(wgrad::Tuning::Rate(0.2))];
    let remedies = vec![
        Remedy::new("warmup", format!("let the learning rate rise over {rise} updates"), warm),
        Remedy::new("warmup", format!("let the learning rate rise over {rise} updates, to a fifth"), slow),
        Remedy::new("pre-norm", "normalise the input of each part of a block (NormPlace::Pre)", vec![]),
    ];
    let rms = blocks.last().and_then(|site| site.values).map_or(1.0, |values| values.rms);
    let evidence = vec![
        Evidence::new("blocks that normalise the residual path", blocks.len() as f64, 0.0, 5.0),
        Evidence::new("root mean square of the residual path after the last block", rms, 1.05, f64::INFINITY),
    ];
    Some(Found { place: paths(&blocks), since: 0, evidence, remedies })
}

pub(super) fn exploding_init(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let signal = Signs::signal(measured);
    let growth = signal.last()? / signal.first()?;
    if growth <= 50.0 || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("growth of the signal from the first layer to the last", growth, 0.1, 50.0)];
    let clip = Remedy::new("clip-norm", "clip gradients to the norm 1", vec![Edit::ClipNorm(Some(1.0))]);
    let remedies = vec![init(s), norm(s), clip];
    Some(Found { place: activations(s), since: 0, evidence, remedies })
}

/// The recurrent weights, which map a hidden state to the next: the square matrices.
fn recurrent(s: &Signs<'_>) -> Vec<String> {
    let square = |(_, array): &&(String, wgrad::Array)| matches!(array.shape()[..], [rows, columns] if rows == columns);
    s.trace.first.iter().filter(square).map(|(path, _)| path.clone()).collect()
}

/// The number of time steps, and the mean gradient of their first third over that of their last third.
fn through_time(s: &Signs<'_>) -> Option<(usize, f64)> {
    let measured = s.begin()?;
    let steps = measured.sites.iter().filter_map(|site| site.flow.as_ref()).find(|flow| !flow.steps.is_empty())?;
    Some((steps.steps.len(), Signs::time_ratio(measured)?))
}

/// The paths of the sites of recurrent layers.
fn in_time(s: &Signs<'_>) -> Vec<String> {
    let sites = s.begin().map_or(&[][..], |measured| &measured.sites);
    sites.iter().filter(|site| site.path.ends_with("time/z")).map(|site| site.path.clone()).collect()
}

/// The weight of the regulariser, which is a mean over steps and samples. This weight suffices for temporal order.
const OMEGA: f64 = 5.0;

pub(super) fn vanishing_time(s: &Signs<'_>) -> Option<Found> {
    let (steps, ratio) = through_time(s)?;
    if ratio >= 0.01 || !s.is_sick() {
        return None;
    }
    // The first third and the last third lie two thirds of the steps apart.
    let by_step = ratio.max(1e-30).powf(1.5 / steps as f64);
    let factor = 0.97 / by_step;
    let evidence = vec![Evidence::new("mean |dL/dz|, first third of time steps over the last", ratio, 0.01, 100.0)];
    let enlarge = format!("multiply the first recurrent weights by {factor:.2}, for a spectral radius of about 1");
    let remedies = vec![
        Remedy::new("init", enlarge.clone(), vec![Edit::Times(recurrent(s), factor)]),
        Remedy::new(
            "init",
            format!("{enlarge}, and clip gradients to the norm 1"),
            vec![Edit::Times(recurrent(s), factor), Edit::ClipNorm(Some(1.0))],
        ),
        Remedy::new(
            "omega",
            format!("add {OMEGA} times the regularizer of Pascanu et al. (wgrad_nn::omega) to the loss"),
            vec![Edit::Omega(OMEGA)],
        ),
        Remedy::new("gated-cell", "use an LSTM or a GRU", vec![]),
    ];
    Some(Found { place: in_time(s), since: 0, evidence, remedies })
}

pub(super) fn exploding_time(s: &Signs<'_>) -> Option<Found> {
    let (steps, ratio) = through_time(s)?;
    let spike = s.largest_norm() / s.norm();
    if s.clips() || !s.is_sick() || !(spike > 10.0 || ratio > 3.0 || s.learned() < 0.0) {
        return None;
    }
    let factor = (1.0 / ratio.max(1e-30).powf(1.5 / steps as f64)).min(1.0);
    let evidence = vec![
        Evidence::new("largest norm of the gradient over the median", spike, 1.0, 10.0),
        Evidence::new("mean |dL/dz|, first third of time steps over the last", ratio, 0.01, 3.0),
    ];
    let clip = |bound: f64| {
        Remedy::new("clip-norm", format!("clip gradients to the norm {bound}"), vec![Edit::ClipNorm(Some(bound))])
    };
    let shrink = Remedy::new(
        "init",
        format!("multiply the first recurrent weights by {factor:.2}"),
        vec![Edit::Times(recurrent(s), factor)],
    );
    let remedies = vec![clip(1.0), clip(0.1), shrink];
    Some(Found { place: in_time(s), since: s.blew_up().unwrap_or(0), evidence, remedies })
}

pub(super) fn vanishing_activation(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let ratio = Signs::flow_ratio(measured)?;
    // If the signal itself dies out on its way, the first weights are to blame.
    let dies_out = decay(measured).is_some_and(|decay| decay < 0.1);
    if ratio >= 0.05 || dies_out || !s.saturates() || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("mean |dL/dz|, first third of layers over the last", ratio, 0.05, 20.0)];
    let rectify = Remedy::new(
        "activation",
        "use a rectifier in place of the saturating activation",
        vec![Edit::Sites(activations(s), Transform::Rectify)],
    );
    let remedies = vec![norm(s), residual(s), rectify];
    Some(Found { place: first_third(measured), since: 0, evidence, remedies })
}

/// The signal at the last layer over that at the first: root mean squares of activations' inputs. `None` if there are
/// fewer than three layers.
fn decay(measured: &Measurement) -> Option<f64> {
    let signal = Signs::signal(measured);
    Some(signal.last()? / signal.first()?).filter(|_| signal.len() >= 3)
}

pub(super) fn vanishing_init(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let decay = decay(measured)?;
    if decay >= 0.1 || !s.is_sick() {
        return None;
    }
    let flow = Signs::flow_ratio(measured).unwrap_or(f64::NAN);
    let evidence = vec![
        Evidence::new("the signal of the last layer over that of the first", decay, 0.1, 50.0),
        Evidence::new("mean |dL/dz|, first third of layers over the last", flow, 0.05, 20.0),
    ];
    let remedies = vec![init(s), norm(s), residual(s)];
    Some(Found { place: first_third(measured), since: 0, evidence, remedies })
}

pub(super) fn vanishing_depth(s: &Signs<'_>) -> Option<Found> {
    let measured = s.begin()?;
    let sites = Signs::activations(measured);
    if sites.len() < 20 || s.reading.has_shortcuts() {
        return None;
    }
    let ratio = Signs::flow_ratio(measured).unwrap_or(1.0);
    let bent = !(0.03..=30.0).contains(&ratio);
    if !bent && !s.is_sick() {
        return None;
    }
    let evidence = vec![
        Evidence::new("layers in a row without a shortcut", sites.len() as f64, 1.0, 19.0),
        Evidence::new("mean |dL/dz|, first third of layers over the last", ratio, 0.03, 30.0),
    ];
    Some(Found { place: first_third(measured), since: 0, evidence, remedies: vec![residual(s), norm(s)] })
}
