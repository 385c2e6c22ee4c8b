//! Learning rates and weight decay, for all parameters of an optimizer or for groups of them: tables with one entry per
//! segment of an arena, so that any number of groups costs no further kernel.

use super::{
    range::squarable,
    rate::{Rate, RateFunction},
};
use std::{collections::BTreeSet, fmt};
use wgrad::{DType, Layout, OptimizerStates, ParamSet, Pitfall, Rule, StateId, Tape, Tensor, Tuning};

/// Settings of some of an optimizer's parameters, in place of its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// The parameters. No parameter may be in two groups.
    pub params: ParamSet,
    /// Their learning rate; `None` for the optimizer's.
    pub lr: Option<Rate>,
    /// Their weight decay; `None` for the optimizer's.
    pub weight_decay: Option<f64>,
}

impl Group {
    /// Parameters without weight decay, as biases and the scales of norms usually are.
    pub fn without_decay(params: ParamSet) -> Self {
        Self { params, lr: None, weight_decay: Some(0.0) }
    }
}

/// Changes learning rates, or weight decays. True if anything was changed: a rate that is a state is left to its
/// writer.
pub(super) fn tune(lr: &mut Rate, decay: &mut f64, groups: &mut [Group], tuning: Tuning) -> bool {
    if let Tuning::Decay(other) = tuning {
        *decay = other;
        groups.iter_mut().filter_map(|group| group.weight_decay.as_mut()).for_each(|decay| *decay = other.min(*decay));
        return true;
    }
    let rates = std::iter::once(lr).chain(groups.iter_mut().filter_map(|group| group.lr.as_mut()));
    let mut tuned = false;
    for rate in rates {
        tuned |= rate.tune(tuning);
    }
    tuned
}

/// The learning rates and decays of one optimizer.
pub(super) struct Settings<'a> {
    pub optimizer: &'a str,
    pub lr: &'a Rate,
    pub weight_decay: f64,
    pub groups: &'a [Group],
}

impl Settings<'_> {
    /// Refuses invalid values, a parameter in two groups, and a parameter that the optimizer does not step.
    #[track_caller]
    pub fn check(&self, layout: &Layout, params: &ParamSet) {
        self.lr.check(layout);
        super::check_not_negative(self.optimizer, "weight_decay", self.weight_decay);
        for (i, group) in self.groups.iter().enumerate() {
            if let Some(lr) = &group.lr {
                lr.check(layout);
            }
            if let Some(decay) = group.weight_decay {
                super::check_not_negative(self.optimizer, "weight_decay", decay);
            }
            for param in group.params.iter() {
                let (name, path) = (self.optimizer, &layout.param(param).path);
                assert!(params.contains(param), "{name}: group {i} has a parameter that it does not step: {path:?}");
                let twice = self.groups[..i].iter().any(|other| other.params.contains(param));
                assert!(!twice, "{name}: parameter {path:?} is in two groups");
            }
        }
    }

    /// The learning rate: a scalar, or one per segment where groups differ.
    #[track_caller]
    pub fn lr<'t>(&self, rule: &Rule<'t>) -> Tensor<'t> {
        let (tape, dtype) = (rule.params.tape(), rule.params.dtype());
        let mut rates = self.lr.value(rule.updates, dtype);
        for group in self.groups {
            let own: Vec<f64> = rule.members.iter().map(|p| f64::from(group.params.contains(*p))).collect();
            if let Some(lr) = group.lr.as_ref().filter(|_| own.contains(&1.0)) {
                let row = |x: Tensor<'t>| x.broadcast_to([own.len()]);
                rates = tape.table(&own, DType::Bool).select(row(lr.value(rule.updates, dtype)), row(rates));
            }
        }
        rates
    }

    /// The rates that only a run can judge, scalars: those that are states, and those that functions record.
    #[track_caller]
    pub fn rates<'t>(&self, tape: &'t Tape, of: &OptimizerStates) -> Vec<Tensor<'t>> {
        let mut states = BTreeSet::<StateId>::new();
        let mut functions = Vec::<&RateFunction>::new();
        for rate in std::iter::once(self.lr).chain(self.groups.iter().filter_map(|group| group.lr.as_ref())) {
            match rate {
                Rate::Schedule(_) => {}
                Rate::Function(function) if functions.contains(&function) => {}
                Rate::Function(function) => functions.push(function),
                Rate::State(state) => _ = states.insert(*state),
            }
        }
        let mut rates: Vec<Tensor<'t>> = states.into_iter().map(|state| tape.state(state)).collect();
        if !functions.is_empty() {
            let (layout, updates) = (tape.layout(), tape.state(of.counter()));
            let arenas = of.params().arenas(layout).into_iter();
            let types: BTreeSet<DType> = arenas.map(|arena| layout.state(arena).dtype).collect();
            for function in functions {
                for dtype in &types {
                    rates.push(function.value(updates, *dtype));
                }
            }
        }
        rates
    }

    /// The weight decay: a scalar, or one per segment where groups differ; `None` if nothing decays.
    #[track_caller]
    pub fn weight_decay<'t>(&self, rule: &Rule<'t>) -> Option<Tensor<'t>> {
        let own = |param| self.groups.iter().find(|group| group.params.contains(param))?.weight_decay;
        let table: Vec<f64> = rule.members.iter().map(|p| own(*p).unwrap_or(self.weight_decay)).collect();
        let (tape, dtype) = (rule.params.tape(), rule.params.dtype());
        let first = *table.first()?;
        match table.iter().all(|decay| *decay == first) {
            true => (first != 0.0).then(|| tape.scalar(first, dtype)),
            false => Some(tape.table(&table, dtype)),
        }
    }

    /// `g + weight_decay * p`: L2 decay, as part of the gradient.
    #[track_caller]
    pub fn decayed<'t>(&self, rule: &Rule<'t>) -> Tensor<'t> {
        self.weight_decay(rule).map_or(rule.grads, |decay| rule.grads + rule.params * flat(rule, decay))
    }

    /// A bound of [`Settings::decayed`], as [`Rule::largest`] is one of the gradients: weight decay is added to bounded
    /// gradients, so their bound no longer holds.
    pub fn largest(&self, rule: &Rule<'_>) -> f64 {
        if self.decays() { f64::INFINITY } else { rule.largest }
    }

    /// As [`Settings::decayed`], for an optimizer that squares the gradient.
    #[track_caller]
    pub fn moments_of<'t>(&self, rule: &Rule<'t>) -> Tensor<'t> {
        squarable(self.decayed(rule), self.largest(rule))
    }

    /// Lints of these settings.
    pub fn lints(&self) -> Vec<(Pitfall, String)> {
        let rates = std::iter::once(self.lr).chain(self.groups.iter().filter_map(|group| group.lr.as_ref()));
        let starts_at_0 = |rate: &&Rate| matches!(rate, Rate::Schedule(schedule) if schedule.at(0) == 0.0);
        let still = |rate| {
            let name = self.optimizer;
            (
                Pitfall::WarmupFromZero,
                format!(
                    "{name} begins at a learning rate of 0 ({rate}): its first update moves nothing; start at offset 1"
                ),
            )
        };
        rates.filter(starts_at_0).map(still).take(1).collect()
    }

    /// True if anything decays.
    pub fn decays(&self) -> bool {
        self.weight_decay > 0.0 || self.groups.iter().any(|group| group.weight_decay.is_some_and(|decay| decay > 0.0))
    }

    /// The settings as a program prints them, with the optimizer's own.
    pub fn printed(&self, own: &[(&'static str, String)]) -> Vec<(&'static str, String)> {
        let mut printed = vec![("lr", self.lr.to_string())];
        printed.extend_from_slice(own);
        printed.push(("weight_decay", self.weight_decay.to_string()));
        if !self.groups.is_empty() {
            let groups: Vec<String> = self.groups.iter().map(Group::to_string).collect();
            printed.push(("groups", format!("[{}]", groups.join(", "))));
        }
        printed
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters", self.params.len())?;
        self.lr.as_ref().map_or(Ok(()), |lr| write!(f, " lr {lr}"))?;
        self.weight_decay.map_or(Ok(()), |decay| write!(f, " weight_decay {decay}"))
    }
}

/// A scalar as it is; one value per segment, spread over the segments.
#[track_caller]
pub(super) fn flat<'t>(rule: &Rule<'t>, value: Tensor<'t>) -> Tensor<'t> {
    if value.rank() == 0 { value } else { rule.spread(value) }
}
