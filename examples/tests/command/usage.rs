//! Wrong usage: exit status 2, nothing on standard output, and what would have been right.

use crate::wgrad;

#[test]
fn flags_that_do_not_go_together() {
    for (args, holds) in [
        ("rnn --case exploding --fix lstm", &["--fix lstm", "--case exploding", "clip-norm"][..]),
        ("rnn --case vanishing --fix clip-norm", &["--fix clip-norm", "--case vanishing", "omega", "lstm"]),
        ("rnn --fix omega", &["--fix omega", "--case exploding", "vanishing"]),
        ("rnn --case exploding --task adding", &["--case exploding", "--task temporal-order"]),
        ("rnn --case vanishing --task digits", &["--case vanishing", "--task temporal-order"]),
        ("rnn --case exploding --cell gru", &["--case exploding", "--cell rnn"]),
        ("rnn --task digits --length 20", &["--length", "64"]),
        ("rnn --length 0", &["--length 0", "10 to 10000"]),
        ("rnn --length 9", &["--length 9", "10 to 10000"]),
        ("rnn --task adding --length 1", &["--length 1", "2 to 10000"]),
        ("rnn --length 10001", &["--length 10001", "10 to 10000"]),
        ("rnn --case exploding --max-norm 2", &["--max-norm", "clip-norm", "meta-clip"]),
        ("rnn --case exploding --fix clip-norm --max-norm 0", &["--max-norm 0", "positive"]),
        ("rnn --case exploding --fix meta-clip --max-norm inf", &["--max-norm inf", "positive"]),
        ("rnn --accumulate 0", &["--accumulate 0", "divisor"]),
        ("rnn --accumulate 3", &["--accumulate 3", "divisor", "20"]),
        ("rnn --case exploding --fix meta-clip --accumulate 2", &["--fix meta-clip", "--accumulate"]),
        ("rnn --steps 0", &["--steps 0", "at least 1"]),
        ("--steps 0 --json", &["--steps 0", "at least 1"]),
        ("tape rnn --steps 0", &["--steps 0", "at least 1"]),
        ("tape rnn --fix omega", &["--fix omega", "--case exploding"]),
    ] {
        wgrad(args).fails(2, holds);
    }
}

#[test]
fn values_that_do_not_exist() {
    for (args, holds) in [
        ("rnn --case implode", &["implode", "healthy", "exploding", "vanishing"][..]),
        ("rnn --fix duct-tape", &["duct-tape", "none", "clip-norm", "omega", "lstm"]),
        ("rnn --task chess", &["chess", "temporal-order", "adding", "digits"]),
        ("rnn --cell brain", &["brain", "rnn", "irnn", "lstm", "gru"]),
        ("rnn --device tpu", &["tpu", "auto", "cpu", "gpu", "gpu:N"]),
        ("rnn --device gpu:", &["gpu:", "auto", "cpu", "gpu", "gpu:N"]),
        ("rnn --device gpu:-1", &["gpu:-1", "auto", "cpu", "gpu", "gpu:N"]),
        ("rnn --steps many", &["many", "--steps"]),
        ("rnn --steps -1", &["-1"]),
        ("rnn --seed -1", &["-1"]),
        ("rnn --threads 60000", &["60000", "--threads", "1024"]),
        ("rnn --case", &["--case", "healthy", "exploding", "vanishing"]),
        ("rnn --no-such-flag", &["--no-such-flag"]),
        ("frobnicate", &["frobnicate", "--help"]),
        ("tape chess", &["chess", "--help"]),
        ("tape", &["rnn", "transformer", "passes"]),
    ] {
        let outcome = wgrad(args);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
        for part in holds {
            assert!(outcome.stderr.contains(part), "expected {part:?}: {outcome:#?}");
        }
    }
}

#[test]
fn help_names_cases_and_cures() {
    let help = wgrad("rnn --help").fine();
    for word in ["exploding", "vanishing", "clip-norm", "omega", "lstm", "--save", "--resume", "--device", "--seed"] {
        assert!(help.stdout.contains(word), "{word}: {help:#?}");
    }
    let help = wgrad("--help").fine();
    assert!(
        ["rnn", "transformer", "tape", "--json", "--quiet"].iter().all(|word| help.stdout.contains(word)),
        "{help:#?}"
    );
    assert!(wgrad("--version").fine().stdout.starts_with("wgrad "));
}
