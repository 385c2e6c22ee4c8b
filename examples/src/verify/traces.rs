//! Traces: sequences of actions on gradients, and the pitfalls that each contains. They drive the same [`PassState`] as
//! the gradients of a program.

use super::{Attempt, Attributes, Refusal};
use wgrad::{Action, PassConfig, PassState, Weighting};

/// The actions by their names in a trace.
const ACTIONS: [(&str, Action); 20] = [
    ("backward", Action::Backward),
    ("all_reduce", Action::AllReduce),
    ("unscale", Action::Unscale),
    ("finite_check", Action::FiniteCheck),
    ("reduce_verdict", Action::ReduceVerdict),
    ("noise", Action::Noise { rank_key: false }),
    ("noise:rank_key", Action::Noise { rank_key: true }),
    ("centralize", Action::Centralize),
    ("agc", Action::Agc),
    ("clip_norm", Action::ClipNorm),
    ("clip_value", Action::ClipValue),
    ("step", Action::Step),
    ("raw_step", Action::RawStep),
    ("skip", Action::Skip),
    ("zero", Action::Zero),
    ("scaler_update", Action::ScalerUpdate),
    ("tick", Action::Tick { gated: true }),
    ("tick:ungated", Action::Tick { gated: false }),
    ("probe", Action::Probe),
    ("leaf_hook_clip", Action::LeafHookClip),
];

/// The value of a name in a table.
fn named<T: Copy>(table: &[(&str, T)], what: &str, name: &str) -> Attempt<T> {
    let row = table.iter().find(|(known, _)| *known == name);
    row.map(|(_, value)| *value).ok_or_else(|| Refusal::Unsupported(format!("{what} {name:?}")))
}

/// Runs a trace. Returns `None` if it finds exactly the expected pitfalls; otherwise describes the difference.
///
/// # Errors
/// The reason that the trace cannot be run.
pub fn run(trace: Attributes<'_>) -> Attempt<Option<String>> {
    let config = trace.object("config")?;
    let weightings = [
        ("mean", Some(Weighting::Mean)),
        ("token", Some(Weighting::TokenWeighted)),
        ("sum", Some(Weighting::Sum)),
        ("unset", None),
    ];
    let mut state = PassState::new(PassConfig {
        micro_batches: config.extent("K")?,
        ranks: config.extent("R")?,
        scaler: named(&[("none", false), ("static", true), ("dynamic", true)], "scaler", config.text("scaler")?)?,
        weighting: named(&weightings, "weighting", config.text("weighting")?)?,
    });
    for op in trace.texts("ops")? {
        // A refused action is also recorded as a pitfall, and the trace goes on.
        let _refused = state.apply(named(&ACTIONS, "step of a trace", op)?);
    }
    let found: Vec<String> = state.found().keys().map(|pitfall| pitfall.code()).collect();
    let expected = trace.texts("expect")?;
    let listed = |codes: &[String]| if codes.is_empty() { "nothing".into() } else { codes.join(", ") };
    let expected: Vec<String> = expected.into_iter().map(Into::into).collect();
    Ok((found != expected).then(|| format!("finds {}, want {}", listed(&found), listed(&expected))))
}
