//! Lion.

use super::{
    again, check_rate,
    groups::{Group, Settings, flat, tune},
    range::finite,
    rate::Rate,
};
use wgrad::{Optimizer, OptimizerStates, ParamSet, Pitfall, Rule, Store, Tape, Tensor, Tuning};

/// Hyper-parameters of [`Lion`]; the defaults are the paper's.
#[derive(Clone, PartialEq, Debug)]
pub struct LionConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate, which is the size of every element's step: 3 to 10 times smaller than AdamW's.
    pub lr: Rate,
    /// The share of the running mean in a step's direction, and the decay rate of that mean; each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Decoupled decay: each step first multiplies a parameter by `1 - lr * weight_decay`. As rates are smaller than
    /// AdamW's, it is as many times larger.
    pub weight_decay: f64,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for LionConfig {
    fn default() -> Self {
        Self { name: "lion".into(), lr: 1e-4.into(), betas: (0.9, 0.99), weight_decay: 0.0, groups: vec![] }
    }
}

/// Lion, "evolved sign momentum" (Chen et al. 2023, "Symbolic discovery of optimization algorithms"):
///
/// ```text
/// p *= 1 - lr * weight_decay
/// p -= lr * sign(b1 * m + (1 - b1) * g)
/// m  = b2 * m + (1 - b2) * g
/// ```
///
/// The sign of 0 is 0, and that of NaN is NaN. A sign has no slope: gradients through an update reach the parameters
/// before it and the learning rate, and not the gradients that it was made of. An infinity that nobody has checked
/// counts as the largest finite number, from which the mean recovers.
#[derive(Clone, Debug)]
pub struct Lion {
    config: LionConfig,
    states: OptimizerStates,
}

impl Lion {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: LionConfig) -> Self {
        check_rate("lion", "betas.0", config.betas.0);
        check_rate("lion", "betas.1", config.betas.1);
        let states = OptimizerStates::elementwise(store, params, &config.name, &["m"], &[]);
        let lion = Self { config, states };
        lion.settings().check(store.layout(), params);
        lion
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "lion", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

/// -1, 0 or 1; NaN stays.
#[track_caller]
fn sign(x: Tensor<'_>) -> Tensor<'_> {
    let one = x.ones_like();
    x.greater(0.0).select(one, x.less(0.0).select(-one, x.detach()))
}

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn states(&self) -> &OptimizerStates {
        &self.states
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        self.settings().printed(&[("betas", format!("{:?}", self.config.betas))])
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    fn rate(&self, updates: u32) -> Option<f64> {
        self.config.lr.at(updates)
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        let c = &mut self.config;
        match tuning {
            Tuning::Momentum(beta) => c.betas.0 = beta,
            other => return tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other),
        }
        true
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        let config = LionConfig { name: again(&self.config.name), ..self.config.clone() };
        Some(Box::new(Self::new(store, params, config)))
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        self.settings().rates(tape, &self.states)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (settings, m) = (self.settings(), rule.states[0]);
        let (lr, g) = (settings.lr(&rule), finite(rule.grads, rule.largest));
        let mean = |beta: f64| m * beta + g * (1.0 - beta);
        let change = flat(&rule, lr) * sign(mean(self.config.betas.0));
        let kept = settings.weight_decay(&rule).map(|decay| rule.params * flat(&rule, 1.0 - lr * decay));
        (kept.unwrap_or(rule.params) - change, vec![mean(self.config.betas.1)])
    }
}
