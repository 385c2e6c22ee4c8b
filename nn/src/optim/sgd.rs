//! Stochastic gradient descent, with momentum.

use super::{
    again, check_not_negative,
    groups::{Group, Settings, flat, tune},
    range::finite,
    rate::Rate,
};
use wgrad::{Flat, Optimizer, OptimizerStates, ParamSet, Pitfall, Preconditioner, Rule, Store, Tape, Tensor, Tuning};

/// Hyper-parameters of [`Sgd`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct SgdConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate.
    pub lr: Rate,
    /// `momentum`; 0 for none.
    pub momentum: f64,
    /// The share of a gradient that does not enter the momentum, from a parameter's second step on.
    pub dampening: f64,
    /// True to step along the momentum of the next step (Nesterov 1983, as in Sutskever et al. 2013).
    pub nesterov: bool,
    /// L2 decay, added to the gradient.
    pub weight_decay: f64,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for SgdConfig {
    fn default() -> Self {
        let lr = 1e-3.into();
        let groups = vec![];
        Self { name: "sgd".into(), lr, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0, groups }
    }
}

/// Stochastic gradient descent:
///
/// ```text
/// g += weight_decay * p
/// b  = g at a parameter's first step, later momentum * b + (1 - dampening) * g
/// p -= lr * (nesterov ? g + momentum * b : b)          (lr * g without momentum)
/// ```
///
/// A result beyond the largest finite number becomes that number, and so does an unchecked infinity; in PyTorch the
/// parameter becomes infinite, and stays so for good. Gradients that a clip has bounded need no such check, and are
/// computed as written.
#[derive(Clone, Debug)]
pub struct Sgd {
    config: SgdConfig,
    states: OptimizerStates,
}

impl Sgd {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is negative or not finite, if Nesterov's method is asked for without momentum or with
    /// dampening, or if the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: SgdConfig) -> Self {
        let SgdConfig { momentum, dampening, nesterov, .. } = config;
        check_not_negative("sgd", "momentum", momentum);
        assert!(dampening.is_finite(), "sgd: dampening is {dampening}, and must be finite");
        assert!(
            !nesterov || (momentum > 0.0 && dampening == 0.0),
            "sgd: nesterov needs momentum above 0 and dampening 0, not {momentum} and {dampening}"
        );
        let flat: &[&str] = if momentum > 0.0 { &["momentum"] } else { &[] };
        // The state of momentum starts at 0, so the first `b` equals `g`, unless dampening would shrink `g`.
        let segmental: &[&str] = if momentum > 0.0 && dampening != 0.0 { &["started"] } else { &[] };
        let states = OptimizerStates::elementwise(store, params, &config.name, flat, segmental);
        let sgd = Self { config, states };
        sgd.settings().check(store.layout(), params);
        sgd
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "sgd", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self) -> &OptimizerStates {
        &self.states
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let c = &self.config;
        let own = [
            ("momentum", c.momentum.to_string()),
            ("dampening", c.dampening.to_string()),
            ("nesterov", c.nesterov.to_string()),
        ];
        self.settings().printed(&own)
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    fn rate(&self, updates: u32) -> Option<f64> {
        self.config.lr.at(updates)
    }

    fn preconditioner<'t>(&self, _: &'t Tape) -> Option<Preconditioner<'t>> {
        let SgdConfig { momentum, dampening, nesterov, .. } = self.config;
        let limit = 2.0 * (1.0 + momentum) / if nesterov { 1.0 + 2.0 * momentum } else { 1.0 - dampening };
        Some(Preconditioner { divisors: Flat::new(vec![]), limit: if momentum > 0.0 { limit } else { 2.0 } })
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        let c = &mut self.config;
        match tuning {
            // Without momentum there is no state for it.
            Tuning::Momentum(momentum) if c.momentum > 0.0 => c.momentum = momentum,
            other => return tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other),
        }
        true
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        let config = SgdConfig { name: again(&self.config.name), ..self.config.clone() };
        Some(Box::new(Self::new(store, params, config)))
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        self.settings().rates(tape, &self.states)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, p, settings) = (&self.config, rule.params, self.settings());
        let (lr, g) = (flat(&rule, settings.lr(&rule)), settings.decayed(&rule));
        let finite = |x| finite(x, rule.largest);
        let (b, states) = match rule.states[..] {
            [] => return (finite(p - g * lr), vec![]),
            [b] => {
                let b = finite(b * c.momentum + g);
                (b, vec![b])
            }
            [b, started, ..] => {
                let share = 1.0 - started * c.dampening;
                let b = finite(b * c.momentum + g * rule.spread(share));
                (b, vec![b, started.ones_like()])
            }
        };
        let direction = if c.nesterov { finite(g + b * c.momentum) } else { b };
        (finite(p - direction * lr), states)
    }
}
