//! A recording's notes beside its nodes: inputs, taps, gradient passes, values that may be errors, and the effects of
//! its runs on windows.

use crate::{
    DType, Data, Error, Shape, Site,
    node::NodeId,
    pass_state::{Action, PassConfig, Weighting},
    pitfall::Pitfall,
    range::Range as Bounds,
    store::{ParamSet, StateId},
};
use serde::{Deserialize, Serialize};
use std::{ops::Range, sync::Arc};

/// A declared input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputDecl {
    /// Its name, unique in the program.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// The caller's line.
    pub site: Site,
}

impl InputDecl {
    /// The error of a run without this input.
    pub fn missing(&self) -> Error {
        Error::MissingInput { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), site: self.site }
    }
}

/// A value that is delivered to the host after each run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapDecl {
    /// Its name, unique in the program.
    pub name: String,
    /// The value.
    pub node: NodeId,
    /// The caller's line.
    pub site: Site,
}

/// The role of a gradient pass in an update. The rules for the order of passes, and the lints, depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PassKind {
    /// A step of an optimizer.
    Step,
    /// Adds the gradients of a micro-batch to those of its window.
    Accumulate,
    /// Takes the gradients of a window out of its accumulator.
    TakeAccumulated,
    /// Adds or averages gradients over ranks.
    AllReduce,
    /// Divides gradients by the loss scale.
    Unscale,
    /// Checks gradients for non-finite elements.
    CheckFinite,
    /// Subtracts the mean of each unit's gradient.
    Centralize,
    /// Adds noise.
    Noise,
    /// Clips gradients by the norms of their parameters.
    Agc,
    /// Clips by the norm of all gradients.
    ClipGlobalNorm,
    /// Clips groups of gradients, each by its own norm.
    ClipGroupNorm,
    /// Clips element by element.
    ClipValue,
    /// Scales the gradients of some parameters.
    ScaleGroup,
    /// A pass of the caller's own, which may change gradients in any way.
    Own,
    /// Shows gradients, and changes none.
    Probe,
    /// Any other region with a name.
    Other,
}

impl PassKind {
    /// The effect of a pass of this kind on the tags of gradients, if the kind alone decides it.
    pub(crate) fn judged(self) -> Option<Action> {
        Some(match self {
            Self::CheckFinite => Action::FiniteCheck,
            Self::Centralize => Action::Centralize,
            Self::Noise => Action::Noise { rank_key: false },
            Self::Agc => Action::Agc,
            Self::ClipGlobalNorm | Self::ClipGroupNorm => Action::ClipNorm,
            Self::ClipValue => Action::ClipValue,
            Self::Own => Action::Own,
            _ => return None,
        })
    }
}

/// A gradient pass: a region of the program, with its settings.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The pass's name, as in code and specification.
    pub name: &'static str,
    /// Its parameters, printed; a parameter that is a tensor shows as its node.
    pub parameters: Vec<(&'static str, String)>,
    /// The parameters whose gradients it changes, or that it updates; empty for a pass over no parameter's gradient.
    pub params: ParamSet,
    /// Its role in an update.
    pub kind: PassKind,
    /// The nodes it works on.
    pub inputs: Vec<NodeId>,
    /// The nodes it returns.
    pub outputs: Vec<NodeId>,
    /// The nodes recorded within it. (A node that existed before is shared, and stays where it was.)
    pub nodes: Range<u32>,
    /// The caller's line.
    pub site: Site,
}

/// The condition that makes a tapped value an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// The value is true.
    True,
    /// An element is NaN or infinite.
    NotFinite,
    /// An element is out of the range of a coefficient, whose name the message begins with.
    Outside(Bounds),
}

/// A tapped value that may be an error.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    /// The tap.
    pub tap: usize,
    pub bad: Bad,
    pub what: String,
    pub pitfall: Option<Pitfall>,
    /// The line to blame.
    pub site: Site,
}

impl Alarm {
    /// The error of a run with these taps, if there is one.
    pub fn error(&self, run: u64, taps: &[Data]) -> Option<Error> {
        let is_bad = |value: &f64| match self.bad {
            Bad::True => *value != 0.0,
            Bad::NotFinite => !value.is_finite(),
            Bad::Outside(range) => !range.has(*value),
        };
        let (pitfall, site) = (self.pitfall, self.site);
        let value = taps[self.tap].to_f64().into_iter().find(is_bad)?;
        let what = match self.bad {
            Bad::True | Bad::NotFinite => self.what.clone(),
            Bad::Outside(range) => {
                // With the digits of its type.
                let (wide, narrow) = (format!("{value:?}"), format!("{:?}", value as f32));
                let shown = if taps[self.tap].dtype() == DType::F64 { wide } else { narrow };
                format!("{} is {shown}, and must be {range}: the step was skipped", self.what)
            }
        };
        Some(Error::Late { run, what, pitfall, site })
    }
}

/// The settings of an accumulator's windows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Window {
    /// The accumulator's name.
    pub name: String,
    /// The number of micro-batches of a window, if it is specified.
    pub micro_batches: Option<usize>,
    /// The count of micro-batches in the window (u32 scalar): their number, or their weight if no length is specified.
    pub counter: StateId,
    pub weighting: Weighting,
    /// True if the gradients that are added up carry a loss scale.
    pub scaled: bool,
    /// The state of the loss scale that the gradients carry, or have carried.
    pub scale: Option<StateId>,
}

/// An effect of a run on windows.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// An action on the window of one accumulator.
    Window(Arc<Window>, Action),
    /// An update of a loss scale.
    ScalerUpdate(StateId),
}

impl Event {
    /// True if it concerns this window.
    pub fn concerns(&self, of: &Window) -> bool {
        match self {
            Event::Window(window, _) => window.counter == of.counter,
            Event::ScalerUpdate(scale) => of.scale == Some(*scale),
        }
    }

    pub fn action(&self) -> Action {
        match self {
            Event::Window(_, action) => *action,
            Event::ScalerUpdate(_) => Action::ScalerUpdate,
        }
    }
}

/// Events, each with the line that recorded it.
pub(crate) type Events = [(Event, Site)];

impl Window {
    /// The settings of the rules for its gradients.
    pub fn config(&self, ranks: usize) -> PassConfig {
        PassConfig {
            micro_batches: self.micro_batches.unwrap_or(usize::MAX),
            ranks,
            scaler: self.scaled,
            weighting: Some(self.weighting),
        }
    }
}
