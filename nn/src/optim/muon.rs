//! Muon: orthogonalised momentum for matrices, and AdamW for everything else.

use super::{
    adam, again, check, check_rate,
    groups::{Group, Settings, flat, tune},
    newton_schulz::{Matrix, orthogonalized},
    range::squarable,
    rate::Rate,
};
use wgrad::{DType, Layout, Optimizer, OptimizerStates, ParamSet, Pitfall, Rule, Store, Tape, Tensor, Tuning};

/// The size of Muon's step for a matrix of `rows` and `columns`, which an orthogonal matrix is multiplied by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum MuonScale {
    /// `sqrt(max(1, rows / columns))` (Jordan et al. 2024); PyTorch's `original`.
    #[default]
    Original,
    /// `sqrt(rows / columns)` (Bernstein 2025, "Deriving Muon"); PyTorch's `spectral_unclamped`.
    Spectral,
    /// `0.2 * sqrt(max(rows, columns))`, with which rates and decays are those of AdamW (Liu et al. 2025, "Muon is
    /// scalable for LLM training"); PyTorch's `match_rms_adamw`.
    MatchAdamW,
}

impl MuonScale {
    fn of(self, matrix: &Matrix) -> f64 {
        let (rows, columns) = (matrix.rows as f64, matrix.columns as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::Spectral => (rows / columns).sqrt(),
            Self::MatchAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// AdamW's hyper-parameters, for the parameters that [`Muon`] does not orthogonalise; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct MuonOthers {
    /// Their learning rate.
    pub lr: Rate,
    /// The decay rates of the running means of `g` and `g^2`, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the root of the corrected second moment; positive.
    pub eps: f64,
    /// Their decoupled decay.
    pub weight_decay: f64,
}

impl Default for MuonOthers {
    fn default() -> Self {
        Self { lr: 1e-3.into(), betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Hyper-parameters of [`Muon`]; the defaults are PyTorch's.
#[derive(Clone, PartialEq, Debug)]
pub struct MuonConfig {
    /// The prefix of its states' names; each optimizer of a store needs its own.
    pub name: String,
    /// The learning rate of matrices.
    pub lr: Rate,
    /// The decay rate of the running mean of gradients, in `[0, 1)`.
    pub momentum: f64,
    /// True to step along the mean that the next step would have of the same gradient.
    pub nesterov: bool,
    /// The number of Newton-Schulz steps, from 1 to 99.
    pub steps: usize,
    /// The size of a step by the matrix's shape.
    pub scale: MuonScale,
    /// Decoupled decay: each step first multiplies a matrix by `1 - lr * weight_decay`.
    pub weight_decay: f64,
    /// Parameters of two and more dimensions that AdamW steps all the same. The paper asks for embeddings and the
    /// output layer here.
    pub exclude: ParamSet,
    /// AdamW's settings, for vectors, scalars and what is excluded.
    pub others: MuonOthers,
    /// Parameters with settings of their own, matrices or others. A setting that is `None` stays that of matrices, or
    /// of others.
    pub groups: Vec<Group>,
}

impl Default for MuonConfig {
    fn default() -> Self {
        Self {
            name: "muon".into(),
            lr: 1e-3.into(),
            momentum: 0.95,
            nesterov: true,
            steps: 5,
            scale: MuonScale::Original,
            weight_decay: 0.1,
            exclude: ParamSet::default(),
            others: MuonOthers::default(),
            groups: vec![],
        }
    }
}

/// Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"), for each matrix:
///
/// ```text
/// m  = momentum * m + (1 - momentum) * g
/// u  = nesterov ? momentum * m + (1 - momentum) * g : m
/// x  = u / max(|u|, 1e-7)
/// x  = 3.4445 * x - 4.7750 * (x x') x + 2.0315 * (x x')^2 x          (`steps` times)
/// p *= 1 - lr * weight_decay
/// p -= lr * scale(rows, columns) * x
/// ```
///
/// `x` is nearly the orthogonal matrix next to `u`: its singular values are between 0.7 and 1.2. A matrix is a
/// parameter of two or more dimensions, taken as its first by the product of the others, as convolutions are. One that
/// stands for several matrices, such as three projections in one weight, is orthogonalised as a whole. Matrices of one
/// shape are one batch of products.
///
/// [`super::AdamW`] steps vectors, scalars and the matrices of [`MuonConfig::exclude`], as part of the same update:
/// one optimizer trains a whole model. PyTorch refuses such parameters, and wants a second optimizer for them.
///
/// PyTorch computes `x` in bf16; this is in the type of the parameters. Elements of `g` are bounded as by
/// [`super::Adam`].
#[derive(Clone, Debug)]
pub struct Muon {
    config: MuonConfig,
    /// The groups by which each parameter has the settings that hold for it.
    groups: Vec<Group>,
    matrices: ParamSet,
    states: OptimizerStates,
}

impl Muon {
    /// Declares the optimizer's states. AdamW's are declared only if there are parameters for it.
    ///
    /// # Panics
    /// If a hyper-parameter is out of its range, or the name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: MuonConfig) -> Self {
        let MuonOthers { betas, eps, .. } = config.others;
        check_rate("muon", "momentum", config.momentum);
        check("muon", "steps", config.steps as f64, (1..100).contains(&config.steps), "from 1 to 99");
        adam::check("muon: others", betas, eps);
        store.layout().check(&config.exclude);
        let matrices: ParamSet = params
            .iter()
            .filter(|p| !config.exclude.contains(*p) && Matrix::of(store.layout(), *p).is_some())
            .collect();
        let (flat, segmental): (&[&str], &[&str]) =
            if matrices.len() < params.len() { (&adam::FLAT[..2], &adam::SEGMENTAL) } else { (&["m"], &[]) };
        let states = OptimizerStates::declare(store, params, &config.name, flat, segmental);
        let mut muon = Self { config, groups: vec![], matrices, states };
        // First as they were given, so that errors name the caller's groups.
        Settings { groups: &muon.config.groups, ..muon.settings() }.check(store.layout(), params);
        muon.groups = muon.resolved();
        muon.settings().check(store.layout(), params);
        muon
    }

    /// The caller's groups, parted into matrices and others, and one of all other others.
    fn resolved(&self) -> Vec<Group> {
        let MuonConfig { others, groups, .. } = &self.config;
        let (lr, decay) = (Some(others.lr.clone()), Some(others.weight_decay));
        let mut resolved = vec![];
        for group in groups {
            let (matrices, rest) = group.params.iter().partition::<Vec<_>, _>(|p| self.matrices.contains(*p));
            resolved.push(Group { params: matrices.into_iter().collect(), ..group.clone() });
            let (lr, weight_decay) = (group.lr.clone().or(lr.clone()), group.weight_decay.or(decay));
            resolved.push(Group { params: rest.into_iter().collect(), lr, weight_decay });
        }
        let grouped = |param| groups.iter().any(|group| group.params.contains(param));
        let rest = self.states.params().iter().filter(|p| !self.matrices.contains(*p) && !grouped(*p)).collect();
        resolved.push(Group { params: rest, lr, weight_decay: decay });
        resolved.retain(|group| !group.params.is_empty());
        resolved
    }

    fn settings(&self) -> Settings<'_> {
        let c = &self.config;
        Settings { optimizer: "muon", lr: &c.lr, weight_decay: c.weight_decay, groups: &self.groups }
    }

    fn has_others(&self) -> bool {
        self.matrices.len() < self.states.params().len()
    }

    /// The matrices of an arena that the optimizer steps; `None` for every other segment.
    fn matrices(&self, layout: &Layout, rule: &Rule<'_>) -> Vec<Option<Matrix>> {
        let own = |param: &_| if self.matrices.contains(*param) { Matrix::of(layout, *param) } else { None };
        rule.members.iter().map(own).collect()
    }
}

impl Optimizer for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn states(&self) -> &OptimizerStates {
        &self.states
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let c = &self.config;
        let mut own = vec![
            ("momentum", c.momentum.to_string()),
            ("nesterov", c.nesterov.to_string()),
            ("steps", c.steps.to_string()),
            ("scale", format!("{:?}", c.scale)),
        ];
        if self.has_others() {
            let MuonOthers { lr, betas, eps, weight_decay } = &c.others;
            own.push(("others", format!("adamw(lr {lr}, betas {betas:?}, eps {eps}, weight_decay {weight_decay})")));
        }
        Settings { groups: &c.groups, ..self.settings() }.printed(&own)
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        self.settings().lints()
    }

    fn rate(&self, updates: u32) -> Option<f64> {
        self.config.lr.at(updates)
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        let others = self.has_others();
        let c = &mut self.config;
        let tuned = match tuning {
            Tuning::Momentum(momentum) => {
                c.momentum = momentum;
                true
            }
            Tuning::Epsilon(eps) => {
                c.others.eps = eps;
                others
            }
            other => {
                let of_others = tune(&mut c.others.lr, &mut c.others.weight_decay, &mut [], other);
                tune(&mut c.lr, &mut c.weight_decay, &mut c.groups, other) || of_others && others
            }
        };
        self.groups = self.resolved();
        tuned
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        let config = MuonConfig { name: again(&self.config.name), ..self.config.clone() };
        Some(Box::new(Self::new(store, params, config)))
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        self.settings().rates(tape, &self.states)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let (c, settings) = (&self.config, self.settings());
        let (tape, dtype) = (rule.params.tape(), rule.params.dtype());
        let (lr, g) = (settings.lr(&rule), squarable(rule.grads, rule.largest));
        let mean = |old: Tensor<'t>| old * c.momentum + g * (1.0 - c.momentum);
        let m = mean(rule.states[0]);
        let matrices = self.matrices(tape.layout(), &rule);
        let x = orthogonalized(if c.nesterov { mean(m) } else { m }, &matrices, c.steps);
        let scales: Vec<f64> = matrices.iter().map(|m| m.as_ref().map_or(0.0, |m| c.scale.of(m))).collect();
        let mut change = x * (lr * tape.table(&scales, dtype)).segment_broadcast(&rule.segments);
        let mut states = vec![m];
        if self.has_others() {
            let own: Vec<f64> = matrices.iter().map(|matrix| f64::from(matrix.is_some())).collect();
            let own = tape.table(&own, DType::Bool).segment_broadcast(&rule.segments);
            let (adam, of_adam) = adam::step(&rule, g, lr, (c.others.betas, c.others.eps));
            change = own.select(change, adam);
            // Both have a running mean of the gradient as their first state.
            states = of_adam;
            states[0] = own.select(m, states[0]);
        }
        let kept = settings.weight_decay(&rule).map(|decay| rule.params * flat(&rule, 1.0 - lr * decay));
        (kept.unwrap_or(rule.params) - change, states)
    }
}
