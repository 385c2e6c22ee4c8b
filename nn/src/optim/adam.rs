//! Adam, and AdamW with decoupled weight decay; both with AMSGrad, if asked for.

use super::{
    again, check_eps, check_rate, divisors,
    groups::{Group, Settings, flat, tune},
    range::squarable,
    rate::Rate,
};
use wgrad::{
    Optimizer, OptimizerStates, ParamSet, Pitfall, Preconditioner, Rule, StateId, Store, Tape, Tensor, Tuning,
};

/// Hyper-parameters of [`Adam`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct AdamConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate.
    pub lr: Rate,
    /// The decay rates of the running means of `g` and `g^2`, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the root of the corrected second moment; positive.
    pub eps: f64,
    /// L2 decay, added to the gradient, so that the step's scaling applies to it. For decoupled decay take [`AdamW`].
    pub weight_decay: f64,
    /// True to divide by the largest second moment so far (AMSGrad, Reddi et al. 2018).
    pub amsgrad: bool,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for AdamConfig {
    fn default() -> Self {
        let (lr, groups) = (1e-3.into(), vec![]);
        let betas = (0.9, 0.999);
        Self { name: "adam".into(), lr, betas, eps: 1e-8, weight_decay: 0.0, amsgrad: false, groups }
    }
}

/// Hyper-parameters of [`AdamW`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct AdamWConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate.
    pub lr: Rate,
    /// The decay rates of the running means of `g` and `g^2`, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the root of the corrected second moment; positive.
    pub eps: f64,
    /// Decoupled decay: each step first multiplies a parameter by `1 - lr * weight_decay`.
    pub weight_decay: f64,
    /// True to divide by the largest second moment so far (AMSGrad, Reddi et al. 2018).
    pub amsgrad: bool,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        let (lr, groups) = (1e-3.into(), vec![]);
        let betas = (0.9, 0.999);
        Self { name: "adamw".into(), lr, betas, eps: 1e-8, weight_decay: 0.01, amsgrad: false, groups }
    }
}

/// Adam (Kingma & Ba 2015):
///
/// ```text
/// g += weight_decay * p
/// m  = b1 * m + (1 - b1) * g
/// v  = b2 * v + (1 - b2) * g^2
/// w  = max(w, v) with `amsgrad`, else v
/// p -= lr / (1 - b1^t) * m / (sqrt(w) / sqrt(1 - b2^t) + eps)
/// ```
///
/// `t` counts the steps of each parameter: a parameter without a gradient stays as it is. An element of `g` whose
/// square overflows (in f32, beyond 1.8e19), such as an unchecked infinity, counts as the largest whose square does
/// not. In PyTorch it makes `v` infinite, and stops its parameter for good. An element whose square underflows counts
/// as 0 in `v`, as in PyTorch: its step is then divided by `eps` alone.
///
/// With `amsgrad` (Reddi, Kale & Kumar 2018) the divisor never falls, but for the correction of its first steps. The
/// maximum is of the uncorrected moments, as in PyTorch.
#[derive(Clone, Debug)]
pub struct Adam {
    config: AdamConfig,
    states: OptimizerStates,
}

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019): `p *= 1 - lr * weight_decay`, then [`Adam`]'s step
/// without decay.
#[derive(Clone, Debug)]
pub struct AdamW {
    config: AdamWConfig,
    states: OptimizerStates,
}

/// The states of both optimizers, in order: the moments, the largest second moment if AMSGrad needs it, and `1 - b^t`
/// per segment. As all states, they are 0 at first.
pub(super) const FLAT: [&str; 3] = ["m", "v", "v_max"];
pub(super) const SEGMENTAL: [&str; 2] = ["correction_m", "correction_v"];

/// The number of flat states.
fn flat_states(amsgrad: bool) -> usize {
    if amsgrad { 3 } else { 2 }
}

#[track_caller]
pub(super) fn check(name: &str, betas: (f64, f64), eps: f64) {
    check_rate(name, "betas.0", betas.0);
    check_rate(name, "betas.1", betas.1);
    check_eps(name, eps);
}

/// The differences to subtract from the parameters, and the new states. A state of the largest second moment, if there
/// is one, makes it AMSGrad.
#[track_caller]
pub(super) fn step<'t>(
    rule: &Rule<'t>,
    g: Tensor<'t>,
    lr: Tensor<'t>,
    (betas, eps): ((f64, f64), f64),
) -> (Tensor<'t>, Vec<Tensor<'t>>) {
    let (m, v, largest, correction_m, correction_v) = match rule.states[..] {
        [m, v, correction_m, correction_v] => (m, v, None, correction_m, correction_v),
        [m, v, largest, correction_m, correction_v] => (m, v, Some(largest), correction_m, correction_v),
        _ => panic!("adam: its states are {FLAT:?} and {SEGMENTAL:?}"),
    };
    let mean = |old: Tensor<'t>, new: Tensor<'t>, beta: f64| old * beta + new * (1.0 - beta);
    let m = mean(m, g, betas.0);
    let v = mean(v, g.square(), betas.1);
    // 1 - b^t is the same running mean of ones.
    let correction_m = correction_m * betas.0 + (1.0 - betas.0);
    let correction_v = correction_v * betas.1 + (1.0 - betas.1);
    // Take reciprocals per segment: a division by the broadcast values would be 0 / 0 in the padding.
    let rate = rule.spread(lr / correction_m);
    let scale = rule.spread(correction_v.sqrt().recip());
    let largest = largest.map(|largest| largest.maximum(v));
    let change = rate * m / (largest.unwrap_or(v).guarded_sqrt() * scale + eps);
    let flat = [m, v].into_iter().chain(largest);
    (change, flat.chain([correction_m, correction_v]).collect())
}

impl Adam {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: AdamConfig) -> Self {
        check("adam", config.betas, config.eps);
        let states =
            OptimizerStates::elementwise(store, params, &config.name, &FLAT[..flat_states(config.amsgrad)], &SEGMENTAL);
        let adam = Self { config, states };
        adam.settings().check(store.layout(), params);
        adam
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "adam", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

impl AdamW {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: AdamWConfig) -> Self {
        check("adamw", config.betas, config.eps);
        let states =
            OptimizerStates::elementwise(store, params, &config.name, &FLAT[..flat_states(config.amsgrad)], &SEGMENTAL);
        let adam = Self { config, states };
        adam.settings().check(store.layout(), params);
        adam
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "adamw", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

/// The common part of both optimizers.
macro_rules! common {
    ($name:literal, $config:ident) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn states(&self) -> &OptimizerStates {
            &self.states
        }

        fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
            self.settings().rates(tape, &self.states)
        }

        fn parameters(&self) -> Vec<(&'static str, String)> {
            let c = &self.config;
            let own =
                [("betas", format!("{:?}", c.betas)), ("eps", c.eps.to_string()), ("amsgrad", c.amsgrad.to_string())];
            self.settings().printed(&own)
        }

        fn rate(&self, updates: u32) -> Option<f64> {
            self.config.lr.at(updates)
        }

        fn preconditioner<'t>(&self, tape: &'t Tape) -> Option<Preconditioner<'t>> {
            let c = &self.config;
            let divisor = |arena: StateId, states: &[StateId]| {
                let flat = flat_states(c.amsgrad);
                let [v, correction] = [flat - 1, flat + 1].map(|at| self.states.whole(tape, states[at]));
                let scale = correction.sqrt().recip().segment_broadcast(&tape.layout().segments(arena));
                v.sqrt() * scale + c.eps
            };
            // The running mean of gradients is momentum, with gradients multiplied by 1 - b1.
            let limit = 2.0 * (1.0 + c.betas.0) / (1.0 - c.betas.0);
            Some(Preconditioner { divisors: divisors(&self.states, tape, divisor), limit })
        }

        fn tune(&mut self, tuning: Tuning) -> bool {
            let c = &mut self.config;
            match tuning {
                Tuning::Momentum(beta) => c.betas.0 = beta,
                Tuning::Epsilon(eps) => c.eps = eps,
                other => return tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other),
            }
            true
        }

        fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
            let config = $config { name: again(&self.config.name), ..self.config.clone() };
            Some(Box::new(Self::new(store, params, config)))
        }
    };
}

impl Optimizer for Adam {
    common!("adam", AdamConfig);

    fn lints(&self) -> Vec<(Pitfall, String)> {
        let mut lints = self.settings().lints();
        if self.settings().decays() {
            let text = "adam's weight_decay is L2 within the adaptive step; for decoupled decay take AdamW";
            lints.push((Pitfall::AdamWithL2, text.into()));
        }
        lints
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, settings) = (&self.config, self.settings());
        let (lr, g) = (settings.lr(&rule), settings.moments_of(&rule));
        let (change, states) = step(&rule, g, lr, (c.betas, c.eps));
        (rule.params - change, states)
    }
}

impl Optimizer for AdamW {
    common!("adamw", AdamWConfig);

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, settings) = (&self.config, self.settings());
        let lr = settings.lr(&rule);
        let g = squarable(rule.grads, rule.largest);
        let (change, states) = step(&rule, g, lr, (c.betas, c.eps));
        let kept = settings.weight_decay(&rule).map(|decay| rule.params * flat(&rule, 1.0 - lr * decay));
        (kept.unwrap_or(rule.params) - change, states)
    }
}
