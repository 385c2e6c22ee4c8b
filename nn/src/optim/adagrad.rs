//! Adagrad.

use super::{
    again, check_eps, check_not_negative, divisors,
    groups::{Group, Settings, flat, tune},
    range::summable,
    rate::Rate,
};
use wgrad::{
    Optimizer, OptimizerStates, ParamSet, Pitfall, Preconditioner, Rule, StateId, Store, Tape, Tensor, Tuning,
};

/// Hyper-parameters of [`Adagrad`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct AdagradConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate.
    pub lr: Rate,
    /// The decay of the learning rate over the steps of each parameter; 0 for none.
    pub lr_decay: f64,
    /// The first value of each sum of squares.
    pub initial_accumulator: f64,
    /// Added to the root; positive.
    pub eps: f64,
    /// L2 decay, added to the gradient.
    pub weight_decay: f64,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
}

impl Default for AdagradConfig {
    fn default() -> Self {
        Self {
            name: "adagrad".into(),
            lr: 1e-2.into(),
            lr_decay: 0.0,
            initial_accumulator: 0.0,
            eps: 1e-10,
            weight_decay: 0.0,
            groups: vec![],
        }
    }
}

/// Adagrad (Duchi, Hazan & Singer 2011):
///
/// ```text
/// g += weight_decay * p
/// v += g^2
/// p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(initial_accumulator + v) + eps)
/// ```
///
/// `t` counts the steps of each parameter. The first value is added where the root is taken, so that `v` starts at 0 as
/// all states do. An element of `g` whose squares a long run would sum to infinity (in f32, beyond 2e15), such as an
/// unchecked infinity, counts as the largest whose squares it would not; in PyTorch it stops its parameter for good. An
/// element whose square underflows counts as 0 in `v`, as in PyTorch.
#[derive(Clone, Debug)]
pub struct Adagrad {
    config: AdagradConfig,
    states: OptimizerStates,
}

impl Adagrad {
    /// Declares the optimizer's states.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: AdagradConfig) -> Self {
        check_not_negative("adagrad", "lr_decay", config.lr_decay);
        check_not_negative("adagrad", "initial_accumulator", config.initial_accumulator);
        check_eps("adagrad", config.eps);
        let segmental: &[&str] = if config.lr_decay > 0.0 { &["steps"] } else { &[] };
        let states = OptimizerStates::elementwise(store, params, &config.name, &["v"], segmental);
        let adagrad = Self { config, states };
        adagrad.settings().check(store.layout(), params);
        adagrad
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "adagrad", lr: &c.lr, weight_decay: c.weight_decay, groups: &c.groups }
    }
}

impl Optimizer for Adagrad {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn states(&self) -> &OptimizerStates {
        &self.states
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let c = &self.config;
        let own = [
            ("lr_decay", c.lr_decay.to_string()),
            ("initial_accumulator", c.initial_accumulator.to_string()),
            ("eps", c.eps.to_string()),
        ];
        self.settings().printed(&own)
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    /// The rate of a parameter that has had a gradient in each update.
    fn rate(&self, updates: u32) -> Option<f64> {
        self.config.lr.at(updates).map(|lr| lr / (1.0 + f64::from(updates) * self.config.lr_decay))
    }

    fn preconditioner<'t>(&self, tape: &'t Tape) -> Option<Preconditioner<'t>> {
        let c = &self.config;
        let whole = |state: StateId| self.states.whole(tape, state);
        let divisor = |_: StateId, states: &[StateId]| (whole(states[0]) + c.initial_accumulator).sqrt() + c.eps;
        Some(Preconditioner { divisors: divisors(&self.states, tape, divisor), limit: 2.0 })
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        let c = &mut self.config;
        match tuning {
            Tuning::Epsilon(eps) => c.eps = eps,
            other => return tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other),
        }
        true
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        let config = AdagradConfig { name: again(&self.config.name), ..self.config.clone() };
        Some(Box::new(Self::new(store, params, config)))
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        self.settings().rates(tape, &self.states)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, settings) = (&self.config, self.settings());
        let mut lr = settings.lr(&rule);
        let g = summable(settings.decayed(&rule), settings.largest(&rule));
        let v = rule.states[0] + g.square();
        let mut states = vec![v];
        if let Some(&steps) = rule.states.get(1) {
            lr /= steps * c.lr_decay + 1.0;
            states.push(steps + 1.0);
        }
        let change = flat(&rule, lr) * g / ((v + c.initial_accumulator).guarded_sqrt() + c.eps);
        (rule.params - change, states)
    }
}
