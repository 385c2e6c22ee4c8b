//! RMSprop.

use super::{
    again, check_eps, check_not_negative, check_rate, divisors,
    groups::{Group, Settings, flat, tune},
    rate::Rate,
};
use wgrad::{
    Optimizer, OptimizerStates, ParamSet, Pitfall, Preconditioner, Rule, StateId, Store, Tape, Tensor, Tuning,
};

/// Hyper-parameters of [`RmsProp`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct RmsPropConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate.
    pub lr: Rate,
    /// The decay rate of the running means, in `[0, 1)`.
    pub alpha: f64,
    /// Added to the root; positive.
    pub eps: f64,
    /// Momentum of the scaled gradient; 0 for none.
    pub momentum: f64,
    /// True to scale by an estimate of the standard deviation rather than of the root mean square.
    pub centered: bool,
    /// L2 decay, added to the gradient.
    pub weight_decay: f64,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for RmsPropConfig {
    fn default() -> Self {
        Self {
            name: "rmsprop".into(),
            lr: 1e-2.into(),
            alpha: 0.99,
            eps: 1e-8,
            momentum: 0.0,
            centered: false,
            weight_decay: 0.0,
            groups: vec![],
        }
    }
}

/// RMSprop (Tieleman & Hinton 2012; centered: Graves 2013):
///
/// ```text
/// g += weight_decay * p
/// v  = alpha * v + (1 - alpha) * g^2
/// a  = alpha * a + (1 - alpha) * g                     (if centered)
/// d  = sqrt(centered ? max(v - a^2, 0) : v) + eps
/// b  = momentum * b + g / d
/// p -= lr * b                                          (lr * g / d without momentum)
/// ```
///
/// Rounding can make `v - a^2` slightly negative, hence the maximum, which PyTorch lacks. An element of `g` whose
/// square overflows, such as an unchecked infinity, counts as the largest whose square does not; in PyTorch it stops
/// its parameter for good. An element whose square underflows counts as 0 in `v`, as in PyTorch.
#[derive(Clone, Debug)]
pub struct RmsProp {
    config: RmsPropConfig,
    states: OptimizerStates,
}

impl RmsProp {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: RmsPropConfig) -> Self {
        check_rate("rmsprop", "alpha", config.alpha);
        check_eps("rmsprop", config.eps);
        check_not_negative("rmsprop", "momentum", config.momentum);
        let mut flat = vec!["v"];
        flat.extend(config.centered.then_some("a"));
        flat.extend((config.momentum > 0.0).then_some("momentum"));
        let states = OptimizerStates::elementwise(store, params, &config.name, &flat, &[]);
        let rmsprop = Self { config, states };
        rmsprop.settings().check(store.layout(), params);
        rmsprop
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "rmsprop", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

impl Optimizer for RmsProp {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn states(&self) -> &OptimizerStates {
        &self.states
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let c = &self.config;
        let own = [
            ("alpha", c.alpha.to_string()),
            ("eps", c.eps.to_string()),
            ("momentum", c.momentum.to_string()),
            ("centered", c.centered.to_string()),
        ];
        self.settings().printed(&own)
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    fn rate(&self, updates: u32) -> Option<f64> {
        self.config.lr.at(updates)
    }

    fn preconditioner<'t>(&self, tape: &'t Tape) -> Option<Preconditioner<'t>> {
        let c = &self.config;
        let divisor = |_: StateId, states: &[StateId]| {
            let whole = |i: usize| self.states.whole(tape, states[i]);
            let v = whole(0);
            let spread = if c.centered { (v - whole(1).square()).maximum(0.0) } else { v };
            spread.sqrt() + c.eps
        };
        Some(Preconditioner { divisors: divisors(&self.states, tape, divisor), limit: 2.0 * (1.0 + c.momentum) })
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        let c = &mut self.config;
        match tuning {
            // Without momentum there is no state for it.
            Tuning::Momentum(momentum) if c.momentum > 0.0 => c.momentum = momentum,
            Tuning::Epsilon(eps) => c.eps = eps,
            other => return tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other),
        }
        true
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        let config = RmsPropConfig { name: again(&self.config.name), ..self.config.clone() };
        Some(Box::new(Self::new(store, params, config)))
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        self.settings().rates(tape, &self.states)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, p, settings) = (&self.config, rule.params, self.settings());
        let (lr, g) = (flat(&rule, settings.lr(&rule)), settings.moments_of(&rule));
        let mean = |old: Tensor<'t>, new: Tensor<'t>| old * c.alpha + new * (1.0 - c.alpha);
        let mut old = rule.states.into_iter();
        let mut next = || old.next().expect("as many states as were declared");
        let v = mean(next(), g.square());
        let mut states = vec![v];
        let mut spread = v;
        if c.centered {
            let a = mean(next(), g);
            states.push(a);
            spread = (v - a.square()).maximum(0.0);
        }
        let mut direction = g / (spread.guarded_sqrt() + c.eps);
        if c.momentum > 0.0 {
            direction = next() * c.momentum + direction;
            states.push(direction);
        }
        (p - direction * lr, states)
    }
}
