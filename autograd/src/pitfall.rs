//! The known ways to get gradient passes wrong, by number: the severity, the mistake and the cure of each.

use std::fmt;

/// The severity of a pitfall.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Lint,
    /// Probably wrong.
    Warning,
    /// Wrong: refused.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Lint => "lint",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

macro_rules! pitfalls {
    ($($name:ident $number:literal $severity:ident $what:literal => $cure:literal;)*) => {
        /// A known way to get gradient passes wrong. The numbers up to 50 are those of the guides that the framework
        /// answers to; those from 51 on are its own.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Pitfall {
            $(#[doc = concat!($what, ". Cure: ", $cure, ".")] $name,)*
        }

        impl Pitfall {
            /// All of them, in the order of their numbers.
            pub const ALL: [Pitfall; [$(Pitfall::$name),*].len()] = [$(Pitfall::$name),*];

            /// The number, from 1 on.
            pub fn number(self) -> u32 {
                match self { $(Pitfall::$name => $number,)* }
            }

            /// Its severity at worst. If that depends on the case, [`crate::PassState::found`] has the severity of the
            /// case.
            pub fn severity(self) -> Severity {
                match self { $(Pitfall::$name => Severity::$severity,)* }
            }

            /// The mistake.
            pub fn what(self) -> &'static str {
                match self { $(Pitfall::$name => $what,)* }
            }

            /// The cure.
            pub fn cure(self) -> &'static str {
                match self { $(Pitfall::$name => $cure,)* }
            }
        }
    };
}

pitfalls! {
    PassAfterStep 1 Error "a pass works on gradients that a step has consumed" => "put every pass before the step";
    ClipBeforeUnscale 2 Error "a clip or noise works on gradients that still carry the loss scale" => "unscale first: thresholds are in true units";
    NothingToUnscale 3 Error "gradients are unscaled that carry no loss scale" => "unscale once per update, after all micro-batches";
    UndividedSum 4 Error "micro-batches are summed and nothing divides the sum" => "accumulate their mean, or weight them by tokens";
    ShortWindow 5 Error "a short last window is divided by the full number of micro-batches" => "divide by the number that it holds";
    ZeroInsideWindow 6 Error "gradients are zeroed inside a window, before a step has used them" => "zero after the step";
    PassOnPartialWindow 7 Error "a nonlinear pass works on part of a window" => "run it once, on the gradients of the whole window";
    ClipBeforeAllReduce 8 Error "a clip works on one replica's gradients before the all-reduce" => "all-reduce first: a mean of clips is not the clip of the mean";
    RepeatedAllReduce 9 Lint "gradients are all-reduced more than once in a window" => "all-reduce once, when the window is complete";
    StaleGradients 10 Error "a backward adds to gradients that a step has used already" => "zero the gradients after each step";
    StepPastScaler 11 Error "the optimizer steps past the loss scaler" => "unscale, and let the verdict gate the step";
    ScaleChangesInsideWindow 12 Error "the loss scale changes inside a window" => "update the scaler after the step, once per window";
    PassBeforeBackward 13 Error "a pass works on gradients before any backward" => "put the backward first";
    AgcWithoutFloor 14 Warning "adaptive clipping without a floor meets a parameter that is all zeros" => "give it a positive eps";
    CentralizedAway 15 Error "centralization leaves nothing of a gradient" => "leave out parameters with one element per unit, and biases";
    LocalVerdict 16 Error "ranks may judge differently: the verdict is of one replica" => "check after the all-reduce, or reduce the verdict";
    NoiseOfOneReplica 17 Error "noise differs between replicas, or is averaged away by the all-reduce" => "add it after the all-reduce, with one key for all ranks";
    OverlappingClipGroups 18 Error "a parameter is in two clipping groups" => "make the groups disjoint";
    RuleByModuleKind 19 Warning "a rule by kind of module misses or repeats parameters" => "list the parameters";
    ClipByValueAlone 20 Lint "gradients are clipped by value alone" => "clip by norm, which keeps the direction";
    AgcOnOutputLayer 21 Warning "adaptive clipping works on the output layer" => "exclude the head";
    NoiseOnBatchGradient 22 Error "noise on a batch gradient is called private" => "clip each example first";
    MissingGradient 23 Error "a trainable parameter has no gradient" => "freeze it, or leave it out of the set";
    MisplacedProbe 24 Warning "a probe sees gradients that are scaled, local, partial or clipped" => "probe complete, reduced, unscaled gradients before any clip";
    ChangedRecomputation 25 Error "a checkpointed region changes when it is recomputed" => "replay its random numbers and freeze its statistics";
    AdamWithL2 26 Lint "Adam is given weight decay, which is L2 inside the adaptive step" => "take AdamW for decoupled decay";
    WarmupFromZero 27 Warning "the warm-up starts at a learning rate of 0" => "start at offset 1";
    ScheduleWithoutStep 28 Error "the schedule ticks without a step of its own" => "tick once per successful update";
    AdvanceOnSkippedStep 29 Error "a schedule, noise counter or average advances on a skipped step" => "gate it by the verdict";
    ClipBeforeFiniteCheck 30 Error "a step has no finite check before its clips" => "check right after unscaling";
    ClipHidesInfinity 31 Error "a clip by value hides infinities from the finite check" => "check before clipping";
    InfinityZeroesStep 32 Warning "an infinity zeroes the whole step through the norm clip" => "skip the step where the norm is not finite";
    OverflowingNorm 33 Error "finite gradients have an infinite norm" => "scale by the largest element within the norm";
    ClipAlwaysOrNever 34 Lint "almost every step is clipped, or none" => "choose max_norm near the usual norm";
    NoClip 35 Lint "a recurrent or attention model is trained without a clip" => "clip by global norm";
    IdleClip 36 Lint "a clip never acts" => "leave it out, or lower its threshold";
    NonFiniteLoss 37 Error "the loss is not finite before the backward" => "find the first operation that is not finite";
    NonFiniteGradient 38 Warning "an operation is finite and its gradient is not" => "add an eps inside the root, logarithm or division";
    ScalerBeforeStep 39 Error "the scaler is updated before every optimizer under this scale has stepped" => "update it last";
    BackwardTwice 40 Error "a backward runs twice over one loss" => "take the gradient once, or scale it on purpose";
    SpreadOfOneElement 41 Warning "the spread of a one-element gradient is probed" => "report 0 for it";
    PartialClip 42 Lint "a clip covers fewer parameters than the step" => "clip all of them, or name the scope";
    ScaledAroundClip 43 Lint "a group's gradient is scaled around a global clip" => "change its learning rate instead";
    BatchNormWithAccumulation 44 Lint "batch statistics with accumulation are not those of the large batch" => "use a norm without batch statistics";
    ReplicaDrift 45 Error "replicas have drifted apart" => "make the verdict, the clip and the noise equal on all ranks";
    UnequalMicroBatches 46 Warning "micro-batches of different lengths are averaged as equals" => "weight them by tokens";
    KeptAfterSkip 47 Error "the gradients of a skipped step are kept for the next window" => "zero after a skipped step too";
    AbsoluteThreshold 48 Lint "a threshold for vanishing or exploding gradients is an absolute number" => "compare with the parameters' norms";
    StepBeforeAllReduce 49 Error "a step uses gradients that were never all-reduced" => "all-reduce after the last backward";
    ViolatedWindow 50 Error "a window's boundary is violated" => "step when all its micro-batches are in, and take no more";
    StateOfSkippedStep 51 Warning "a state takes in what a skipped step has computed" => "assign it with the step, by `Grads::assign`";
    UncheckedStep 52 Lint "a step is taken with gradients that nobody has checked" => "check that they are finite, or clip them by their norm";
    RepeatedDraws 53 Warning "each run draws the random numbers of the last one" => "advance the generator once per run";
    SharedDraws 54 Warning "two programs draw the same random numbers" => "advance the generator in both, or give each its own";
    SameDrawsOnRanks 55 Warning "all ranks draw the same random numbers" => "seed each rank's generator by its rank too";
}

impl Pitfall {
    /// The pitfall of this code, such as `P12`.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pitfall| pitfall.code() == code)
    }

    /// Its code, such as `P12`.
    pub fn code(self) -> String {
        format!("P{}", self.number())
    }
}

impl fmt::Display for Pitfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{}: {}; {}", self.number(), self.what(), self.cure())
    }
}

impl std::error::Error for Pitfall {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_are_in_order() {
        for (i, pitfall) in Pitfall::ALL.into_iter().enumerate() {
            assert_eq!(pitfall.number() as usize, i + 1);
            assert_eq!(Pitfall::from_code(&format!("P{}", i + 1)), Some(pitfall));
        }
        assert_eq!(Pitfall::ALL.len(), 55);
        assert_eq!((Pitfall::from_code("P0"), Pitfall::from_code("p1")), (None, None));
        assert_eq!(
            Pitfall::ZeroInsideWindow.to_string(),
            "P6: gradients are zeroed inside a window, before a step has used them; zero after the step"
        );
    }
}
