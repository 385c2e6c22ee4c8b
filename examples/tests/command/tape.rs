//! `wgrad tape`: the recorded step, as text and for Graphviz, and its plan.

use crate::{Json, wgrad};
use std::collections::BTreeSet;

fn tape(args: &str) -> String {
    wgrad(&format!("tape rnn {args}")).fine().stdout
}

#[test]
fn the_text_shows_scopes_passes_and_commits() {
    let text = tape("");
    let heads: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
    // In the order in which a step does its work.
    let mut rest = heads.iter();
    for head in [
        "param  rnn/weight_hh: f32[50, 50]",
        "rnn",
        "head",
        "loss",
        "backward/loss",
        "backward/head",
        "backward/rnn",
        "unscale  -- pass unscale(scale = none)",
        "clip_by_global_norm  -- pass clip_by_global_norm(max_norm = 1)",
    ] {
        assert!(rest.any(|line| *line == head), "{head:?} is missing or out of order:\n{text}");
    }
    for start in [
        "sgd  -- pass sgd(lr = 0.1",
        "commit params/f32 <- %",
        "tap    trainer/loss <- %",
        "tap    trainer/applied_norm <- %",
    ] {
        assert!(heads.iter().any(|line| line.starts_with(start)), "{start:?} is missing:\n{text}");
    }
    for loops in ["sequence tanh: h of ", "sequence_grad tanh: dz of rnn/weight_hh, "] {
        assert_eq!(text.matches(loops).count(), 1, "{loops:?}:\n{text}");
    }
    // Fifty time steps, and yet a page or two.
    assert!((50..180).contains(&text.lines().count()), "{} lines", text.lines().count());
}

#[test]
fn turns_of_an_unrolled_loop_are_folded() {
    let text = tape("--case vanishing --fix omega");
    for head in ["rnn/step[0 .. 49]: 50 turns alike, here the first", "backward/rnn/step[49 .. 1]: 49 turns alike"] {
        assert!(text.contains(head), "{head:?} is missing:\n{text}");
    }
    assert!(!text.contains("step[25]"), "{text}");
    assert!(text.lines().count() < 300, "{} lines", text.lines().count());
}

#[test]
fn the_length_of_the_text_does_not_grow_with_the_loop() {
    let lines = |args: &str| tape(args).lines().count();
    assert_eq!(lines("--length 20"), lines("--length 60"));
}

#[test]
fn the_text_shows_what_flags_change() {
    let unclipped = tape("--case exploding");
    assert!(!unclipped.contains("clip_by_global_norm") && unclipped.contains("pass sgd("), "{unclipped}");
    let clipped = tape("--case exploding --fix clip-norm");
    assert_eq!(clipped, tape(""), "the cure brings back what the case took away");
    let regularised = tape("--case vanishing --fix omega");
    assert!(regularised.contains("omega"), "{regularised}");
    assert_ne!(regularised, tape("--case vanishing"));
    let lstm = tape("--task digits --cell lstm");
    for part in [
        "sequence lstm: gates of ",
        "sequence_grad lstm: dz of ",
        "param  rnn/weight_ih: f32[256, 1]",
        "pass adam(",
        "pass clip_by_global_norm(",
    ] {
        assert!(lstm.contains(part), "{part:?} is missing:\n{lstm}");
    }
}

#[test]
fn the_text_ends_in_lints() {
    for args in ["", "--case vanishing", "--case vanishing --fix omega", "--case exploding --fix meta-clip"] {
        assert!(tape(args).ends_with("\nno lints\n"), "{args}: {}", tape(args));
    }
    for args in
        ["--task adding", "--task digits --cell gru", "--task digits --cell irnn", "--case vanishing --fix lstm"]
    {
        assert!(tape(args).ends_with("\nno lints\n"), "{args}: {}", tape(args));
    }
    let text = tape("--case exploding");
    let (_, lints) = text.split_once("\nlints\n").expect("there are lints");
    assert!(
        lints.starts_with("  P35 (lint): a recurrent layer is trained, and nothing clips")
            && lints.lines().count() == 1
    );
    let count = |args: &str| wgrad(&format!("tape rnn --json {args}")).json()["lints"].as_array().map(Vec::len);
    assert_eq!((count(""), count("--case exploding")), (Some(0), Some(1)));
}

#[test]
fn the_plan_lists_kernels_memory_and_work() {
    let text = tape("--plan");
    let mut parts = text.split("\n\n");
    let (kernels, totals) = (parts.next().expect("kernels"), parts.next().expect("totals"));
    assert_eq!(parts.next(), None);
    let (headings, kernels) = kernels.split_once('\n').expect("headings and kernels");
    let columns = ["kernel", "over", "flop", "bytes", "writes <- reads", "computes", "recorded in"];
    assert_eq!(headings.split("  ").map(str::trim).filter(|head| !head.is_empty()).collect::<Vec<_>>(), columns);
    for (number, line) in kernels.lines().enumerate() {
        assert_eq!(line.split_whitespace().next(), Some(&*number.to_string()), "{text}");
        assert!(line.chars().count() <= 150, "{} wide: {line}", line.chars().count());
        // Where a column begins, a gap ends.
        for column in ["kernel", "over", "writes", "computes", "recorded"] {
            let at = headings.find(column).expect("a heading");
            assert_eq!(line.get(at - 2..at).unwrap_or("  "), "  ", "{column}: {line}");
        }
    }
    for part in ["x, rnn/weight_ih, rnn/bias", "sequence_grad", "params/f32 <- ", "then add"] {
        assert!(kernels.contains(part), "{part:?} is missing:\n{text}");
    }
    let count = format!("{} kernels for ", kernels.lines().count());
    for (line, holds) in
        totals.lines().zip([&*count, " slots of ", "2 states written in place, 0 ", " read and written, "])
    {
        assert!(line.contains(holds), "{holds:?}: {line}");
    }
    assert_eq!(totals.lines().count(), 4, "{text}");
}

#[test]
fn turns_of_a_planned_loop_are_folded() {
    let text = tape("--plan --case vanishing --fix omega");
    for part in [": rnn/step[49]\n", "      .. these 2, ", ": omega/backward/rnn/step[1]\n"] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(!text.contains("rnn/step[25]"), "{text}");
    // What is folded is counted.
    let numbers = text.lines().filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    assert!(numbers.max() > Some(200) && text.lines().count() < 60, "{text}");
    let lines = |length| tape(&format!("--plan --case vanishing --fix omega --length {length}")).lines().count();
    assert!(lines(60).abs_diff(lines(40)) <= 4, "{} and {}", lines(60), lines(40));
}

#[test]
fn a_plan_as_json_adds_up() {
    let plan = |args: &str| wgrad(&format!("tape rnn --plan --json {args}")).json();
    let number = |plan: &Json, field: &str| plan[field].as_u64().unwrap_or_else(|| panic!("{field}: {plan:?}"));
    let kernels = |plan: &Json| -> u64 {
        let kinds = plan["kernels"].as_object().expect("kernels by name");
        kinds.values().map(|n| n.as_u64().expect("a number")).sum()
    };
    let rnn = plan("");
    let fields: Vec<&str> = rnn.keys().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect();
    let expected = ["bytes", "example", "flops", "kernels", "nodes", "slots", "state_bytes", "states", "traffic"];
    assert_eq!(fields, expected);
    assert!(kernels(&rnn) < number(&rnn, "nodes") / 3, "{rnn:?}");
    assert_eq!((&rnn["example"], number(&rnn, "states")), (&"rnn".into(), 2));
    assert!(tape("--plan").contains(&format!("\n{} kernels for {} nodes", kernels(&rnn), number(&rnn, "nodes"))));
    // Two products with the recurrent weights and one for their gradient: 2 * 3 * 50 steps * 20 sequences * 50 * 50.
    let products = |length: u64| 6 * length * 20 * 50 * 50;
    let flops = number(&rnn, "flops");
    assert!((products(50)..products(50) * 5 / 4).contains(&flops), "{flops}");
    let half = plan("--length 25");
    assert_eq!(kernels(&half), kernels(&rnn));
    for field in ["flops", "bytes", "traffic"] {
        assert!((number(&rnn, field) / 3..number(&rnn, field) * 2 / 3).contains(&number(&half, field)), "{half:?}");
    }
}

#[test]
fn what_cannot_be_printed_at_once() {
    for (args, holds) in [("--plan --dot", ["--plan", "--dot"]), ("--dot --json", ["--dot", "--json"])] {
        let outcome = wgrad(&format!("tape rnn {args}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
        assert!(holds.iter().all(|part| outcome.stderr.contains(part)), "{outcome:#?}");
    }
}

#[test]
fn the_graph_is_well_formed() {
    for (args, least) in
        [("", 80), ("--length 20 --case vanishing --fix omega", 300), ("--task digits --cell lstm", 80)]
    {
        let nodes = check_graph(&tape(&format!("--dot {args}")));
        assert!(nodes > least, "{args}: {nodes} nodes");
    }
}

/// Reads a graph statement by statement, and gives the number of its nodes.
fn check_graph(dot: &str) -> usize {
    let mut lines = dot.lines().map(str::trim).filter(|line| !line.is_empty());
    assert_eq!(lines.next(), Some("digraph program {"));
    let (mut depth, mut declared, mut edges) = (1, BTreeSet::new(), vec![]);
    for line in lines {
        assert!(depth > 0, "after the end: {line}");
        // Quoted text may hold anything but an unescaped quote.
        let code = outside_quotes(line);
        match code.chars().last() {
            Some('{') => depth += 1,
            Some('}') => depth -= 1,
            Some(';') => {}
            _ => panic!("neither a statement nor a block: {line}"),
        }
        let statement = code.split('[').next().unwrap_or("").trim_end_matches(';').trim();
        if let Some((from, to)) = statement.split_once("->") {
            edges.push((from.trim().to_string(), to.trim().to_string()));
        } else if code.contains('[') && statement != "node" {
            assert!(declared.insert(statement.to_string()), "declared twice: {line}");
        }
    }
    assert_eq!(depth, 0, "braces are balanced");
    assert!(!edges.is_empty());
    for (from, to) in edges {
        assert!(declared.contains(&from) && declared.contains(&to), "{from} -> {to} has an end that is not declared");
    }
    declared.len()
}

fn outside_quotes(line: &str) -> String {
    let (mut code, mut quoted, mut escaped) = (String::new(), false, false);
    for c in line.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if !quoted => code.push(c),
            _ => {}
        }
    }
    assert!(!quoted, "a quote is not closed: {line}");
    code
}

#[test]
fn a_step_with_every_pass_shows_them_in_order() {
    let text = wgrad("tape passes").fine().stdout;
    let mut rest = text.lines();
    for pass in [
        "check_loss",
        "accumulate(",
        "take_accumulated(",
        "unscale(",
        "skip_if_not_finite(",
        "add_noise(",
        "centralize(",
        "agc(",
        "clip_by_global_norm(",
        "clip_by_value(",
        "adamw(",
        "ema(",
        "scaler_update(",
    ] {
        assert!(rest.any(|line| line.contains(&format!("-- pass {pass}"))), "{pass} is missing or late:\n{text}");
    }
    let refused = wgrad("tape passes --case exploding");
    assert_eq!(refused.status, Some(2), "options of another example");
}
