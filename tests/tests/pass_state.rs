//! The rules for gradient passes: sequences of what is done to gradients, and the pitfalls that each runs into.

use wgrad::{
    Action::{self, *},
    PassConfig, PassState, Pitfall, Severity, Weighting,
};

fn config(micro_batches: usize, ranks: usize, scaler: bool) -> PassConfig {
    PassConfig { micro_batches, ranks, scaler, weighting: Some(Weighting::Mean) }
}

/// The codes that a sequence runs into, joined by blanks.
fn found(config: PassConfig, actions: &[Action]) -> String {
    let mut state = PassState::new(config);
    for action in actions {
        let refused = state.apply(*action);
        let known = refused.err().is_none_or(|pitfall| state.found()[&pitfall] == Severity::Error);
        assert!(known, "what is refused is found, as an error");
    }
    state.found().keys().map(|pitfall| pitfall.code()).collect::<Vec<_>>().join(" ")
}

const NOISE: Action = Noise { rank_key: false };
const TICK: Action = Tick { gated: true };

#[test]
fn the_right_order_meets_nothing() {
    let whole = [
        Backward,
        Backward,
        AllReduce,
        FiniteCheck,
        Unscale,
        Probe,
        NOISE,
        Centralize,
        Agc,
        ClipNorm,
        ClipValue,
        Step,
        ScalerUpdate,
        Zero,
        TICK,
    ];
    let twice = [whole, whole].concat();
    assert_eq!(found(config(2, 8, true), &twice), "");
    let skipped =
        [Backward, Unscale, FiniteCheck, Skip, ScalerUpdate, Zero, Backward, Unscale, FiniteCheck, Step, TICK];
    assert_eq!(found(config(1, 1, true), &skipped), "");
    let unscaled_first = [Backward, Unscale, FiniteCheck, ReduceVerdict, AllReduce, ClipNorm, Step];
    assert_eq!(found(config(1, 2, true), &unscaled_first), "");
    let taken = [Backward, Take { short: true }, Backward, Backward, Take { short: false }, ScalerUpdate];
    assert_eq!(found(config(2, 1, true), &[taken, taken].concat()), "", "what has been taken is gone");
    assert_eq!(found(config(1, 1, false), &[Backward, RawStep, Tick { gated: false }]), "");
}

#[test]
fn each_mistake_has_its_number() {
    let plain = config(1, 1, false);
    let scaled = config(1, 1, true);
    let window = config(3, 1, false);
    let ranks = config(1, 2, false);
    for (config, actions, codes) in [
        (plain, &[Backward, Step, ClipNorm, Zero][..], "P1"),
        (plain, &[Backward, Step, Step], "P1"),
        (scaled, &[Backward, FiniteCheck, ClipNorm, Unscale, Step], "P2"),
        (scaled, &[Backward, ClipNorm, Step], "P2 P11 P30"),
        (scaled, &[Backward, FiniteCheck, Unscale, Unscale, Step], "P3"),
        (scaled, &[Backward, FiniteCheck, Unscale, Step, Unscale], "P1 P3"),
        (plain, &[Backward, Unscale], "P3"),
        (plain, &[Backward, Zero, Step], "P6 P13"),
        (window, &[Backward, ClipNorm, Backward, Backward, Step], "P7"),
        (window, &[LeafHookClip], "P7"),
        (config(2, 4, true), &[LeafHookClip], "P2 P7 P8"),
        (ranks, &[Backward, Agc, AllReduce, Step], "P8"),
        (ranks, &[Backward, AllReduce, AllReduce, Step], "P9"),
        (config(2, 2, false), &[Backward, AllReduce, Backward, Step], "P9 P49"),
        (plain, &[Backward, Step, Backward, Step], "P10"),
        (scaled, &[Backward, FiniteCheck, Unscale, RawStep], "P11"),
        (config(2, 1, true), &[Backward, Unscale, Backward], "P12"),
        (scaled, &[Backward, ScalerUpdate], "P12"),
        (plain, &[Zero, ClipValue], "P13"),
        (config(1, 2, true), &[Backward, Unscale, FiniteCheck, AllReduce, Step], "P16"),
        (ranks, &[Backward, NOISE, AllReduce, Step], "P17"),
        (ranks, &[Backward, AllReduce, Noise { rank_key: true }, Step], "P17"),
        (plain, &[Backward, ClipValue, Step], "P20"),
        (plain, &[Backward, ClipNorm, Probe], "P24"),
        (window, &[Backward, TICK], "P28"),
        (plain, &[Backward, Step, TICK, TICK], "P28"),
        (scaled, &[Backward, FiniteCheck, Unscale, Step, Tick { gated: false }], "P29"),
        (scaled, &[Backward, Unscale, Step], "P30"),
        (scaled, &[Backward, Unscale, ClipNorm, FiniteCheck, Step], "P30"),
        (scaled, &[Backward, Unscale, ClipNorm, ClipValue, FiniteCheck, Step], "P30 P31"),
        (scaled, &[Backward, FiniteCheck, Unscale, Skip, Backward], "P47"),
        (ranks, &[Backward, Step], "P49"),
        (window, &[Backward, Step], "P50"),
        (plain, &[Backward, Backward], "P50"),
        (window, &[Backward, Backward, Take { short: false }], "P50"),
    ] {
        assert_eq!(found(config, actions), codes, "{config:?}: {actions:?}");
    }
}

#[test]
fn accumulation_must_be_weighted() {
    let of = |micro_batches, weighting| {
        PassState::new(PassConfig { weighting, ..config(micro_batches, 1, false) })
            .found()
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(of(4, None), [(Pitfall::UndividedSum, Severity::Error)]);
    assert_eq!(of(4, Some(Weighting::Sum)), [(Pitfall::UndividedSum, Severity::Warning)]);
    assert_eq!(
        [of(4, Some(Weighting::Mean)), of(4, Some(Weighting::TokenWeighted)), of(1, None)],
        [vec![], vec![], vec![]]
    );
}

#[test]
fn only_errors_are_refused() {
    let mut state = PassState::new(config(1, 2, false));
    assert_eq!(state.apply(Backward), Ok(()));
    // Weaker than asked for, and no worse.
    assert_eq!(state.apply(NOISE), Ok(()));
    assert_eq!(state.found()[&Pitfall::NoiseOfOneReplica], Severity::Warning);
    assert_eq!(state.apply(AllReduce), Ok(()));
    // Replicas drift apart.
    assert_eq!(state.apply(Noise { rank_key: true }), Err(Pitfall::NoiseOfOneReplica));
    assert_eq!(state.found()[&Pitfall::NoiseOfOneReplica], Severity::Error);
    assert_eq!(state.apply(Step), Ok(()));
    assert_eq!(state.apply(ClipNorm), Err(Pitfall::PassAfterStep));
}
