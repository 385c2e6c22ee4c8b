//! The page `docs/diagnosis.md`: the table of rules as the code has it.

use std::{collections::HashSet, env, fs, path::Path};
use wgrad_nn::diagnosis::rules::RULES;

/// What stands before the table.
const BEFORE: &str = "# Diagnosis

`wgrad diagnose FILE.toml` makes the run of a run file, and tells what is wrong with it, where, since when, and what cures
it. With `--prove` it runs the same steps again with each remedy, on the same batches, until one cures: that run must do
better than the same steps with nothing changed, and than with a change that does not fit the fault. A finding without such a
proof says so, with how the run ended with each remedy. `--json` prints one object. The examples take the same options:
`wgrad resnet --case sigmoid --diagnose --prove`.

A run whose loss is not finite at last is made again from its last sound states, with a look at every value. The first one that
is not finite is named: its operation, scope and source line, what it was computed from, and what it reaches. `--capsule FILE`
keeps that step: the recorded program, its states and its inputs, in one safetensors file. `wgrad replay FILE --device gpu` runs
it again anywhere, and compares each operation with the reference in f64: the model is to blame, or the device.

It works alike on a model of your own. What builds the run goes into a closure, and the trainer's configuration into
`setup.of(..)`; the rest is two calls:

```rust
use wgrad_nn::diagnosis::{Opened, Study};

let mut study = Study::new(steps, |setup| {
    let (store, model, optimizer) = /* as in your program */;
    let trainer = Trainer::new(&mut store, &params, optimizer, setup.of(config), loss);
    let session = Session::new(backend, store)?;
    Ok::<_, wgrad_nn::Error>(Opened { trainer, session, batches: Box::new(batches), judge: None })
});
let mut diagnosis = study.diagnose()?;
study.prove(&mut diagnosis)?;
println!(\"{diagnosis}\");
```

Rules about layers look at what a model names by `probe`: `layer.forward(x).probe(\"z\").tanh()` names the input of an
activation. The library's own layers do so. `tests/tests/own_models` has three models that are written like this, each healthy
and broken in two ways: an adversarial network with a gradient penalty, a network that solves a differential equation, and a
diffusion model.

A diagnosis sees the recorded program and what a monitor measures on it, never a configuration. Bounds are relative: to the
run's own beginning, to the layers beside, to what the program says of rate, clip and optimizer. A run *learns* if it has lost
38 % of its first loss, or of the loss of a guess where that is less: equal shares where the loss is over classes, 0 where it is
one of squared differences.

The rules, the weightiest first. A fault of the program or of the data explains what later rules would see, which are symptoms.
This page is written by the test `tests/tests/diagnosis_page.rs`.

| fault | signal | beyond | source | remedies |
|---|---|---|---|---|
";

fn page() -> String {
    let row = |rule: &wgrad_nn::diagnosis::Rule| {
        format!(
            "| {} | {} | {} | {} | {} |\n",
            rule.fault,
            rule.signal.replace('|', "\\|"),
            rule.bound.replace('|', "\\|"),
            rule.source,
            rule.remedies.join(", ")
        )
    };
    BEFORE.to_string() + &RULES.iter().map(row).collect::<String>()
}

#[test]
fn the_page_is_what_the_rules_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/diagnosis.md");
    let page = page();
    if env::var_os("WGRAD_BLESS").is_some() {
        fs::write(&path, &page).expect("can be written");
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(have == page, "docs/diagnosis.md is out of date: run this test with WGRAD_BLESS=1 to write it anew");
}

#[test]
fn each_fault_has_one_rule() {
    let faults: HashSet<&str> = RULES.iter().map(|rule| rule.fault).collect();
    assert_eq!(faults.len(), RULES.len());
}
