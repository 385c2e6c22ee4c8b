//! Every known way to get gradients wrong: the mistake, what wgrad says of it, and the right form, all of them run. The
//! page `docs/red-flags.md` is written from the text of these functions and from the messages that they end in.

mod clips;
mod model;
mod numbers;
mod optimizers;
mod order;
mod replicas;
mod windows;

use model::{Model, Recorded};
use std::{
    collections::BTreeMap,
    fmt::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};
use wgrad::{Lint, Pitfall, Session, Severity, Store};

/// Records a program over a store in which the model's parameters are declared.
type Snippet = fn(Store, &Model) -> Recorded;

/// What becomes of a mistake.
enum Mistake {
    /// Recording it panics.
    Refused(Snippet),
    /// The program has a lint.
    Linted(Snippet),
    /// A run is refused, or a watch has a lint, with this message.
    AtRun(fn(Store, &Model) -> String),
    /// It does not compile, with this code and title: a documentation test of the source file.
    ByType(&'static str, &'static str, &'static str),
    /// It cannot be written, for this reason, which a function shows where that can be shown by a run.
    Impossible(&'static str, Option<fn()>),
    /// It is beyond what wgrad sees, for this reason.
    Unseen(&'static str),
}

/// One entry of the page.
struct Entry {
    pitfall: Pitfall,
    /// What goes wrong, in plain words.
    why: &'static str,
    mistake: Mistake,
    right: Snippet,
    /// The pitfall after which the right form is named, if it serves several.
    right_of: Option<Pitfall>,
    /// The text of both, which are named after the pitfall: `p1_mistake` and `p1_right`.
    source: &'static str,
}

/// The parts of the page.
const PARTS: [(&str, &[Entry]); 6] = [
    ("The order of passes", order::ENTRIES),
    ("Micro-batches and windows", windows::ENTRIES),
    ("Replicas", replicas::ENTRIES),
    ("Clips, noise and centralization", clips::ENTRIES),
    ("Optimizers, schedules and the loss scale", optimizers::ENTRIES),
    ("Numbers, and looking at them", numbers::ENTRIES),
];

/// The message of a lint or panic, the place in this test replaced by one that does not change.
///
/// # Panics
/// If the message does not name a line of the snippets.
fn normalised(message: &str) -> String {
    let Some(start) = message.find("tests/tests/red_flags/") else {
        panic!("the message does not name the line of the mistake: {message}");
    };
    let end = start + message[start..].find(')').expect("a place is in brackets");
    format!("{}train.rs:LINE:COLUMN{}", &message[..start], &message[end..])
}

fn record(snippet: Snippet) -> Recorded {
    let mut store = Store::new();
    let model = Model::new(&mut store);
    snippet(store, &model)
}

fn message_of_panic(snippet: Snippet) -> String {
    let panic = catch_unwind(|| drop(record(snippet))).expect_err("the mistake must be refused");
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| panic.downcast_ref::<&str>().expect("text").to_string())
}

fn lint_of(recorded: &Recorded, pitfall: Pitfall) -> Option<&Lint> {
    recorded.program.lints().iter().find(|lint| lint.pitfall == pitfall)
}

impl Entry {
    /// The text of the mistake.
    fn source_of_mistake(&self) -> String {
        body(self.source, &format!("fn p{}_mistake(", self.pitfall.number()))
    }

    /// The text of the right form, which may serve several.
    fn source_of_right(&self) -> String {
        let number = self.right_of.unwrap_or(self.pitfall).number();
        body(self.source, &format!("fn p{number}_right("))
    }

    /// Runs the mistake, and tells what becomes of it.
    fn outcome(&self) -> (String, String) {
        let code = self.pitfall.code();
        let quoted = |text: &str| format!("```text\n{text}\n```\n");
        let mistake = || format!("```rust\n{}\n```\n", self.source_of_mistake());
        match &self.mistake {
            Mistake::Refused(snippet) => {
                let message = message_of_panic(*snippet);
                assert!(message.contains(&format!("{code}: ")), "{code}: {message}");
                let place = if message.contains("red_flags") { normalised(&message) } else { message };
                ("refused while it is recorded".into(), format!("{}\n{}", mistake(), quoted(&place)))
            }
            Mistake::Linted(snippet) => {
                let recorded = record(*snippet);
                let lint =
                    lint_of(&recorded, self.pitfall).unwrap_or_else(|| panic!("{code}: the mistake has no lint"));
                assert!(lint.severity < Severity::Error);
                (lint.severity.to_string(), format!("{}\n{}", mistake(), quoted(&normalised(&lint.to_string()))))
            }
            Mistake::AtRun(run) => {
                let mut store = Store::new();
                let model = Model::new(&mut store);
                let message = run(store, &model);
                assert!(message.contains(&code), "{code}: {message}");
                let kind = match self.pitfall.severity() {
                    Severity::Lint => "told after some runs",
                    Severity::Warning => "told by the session",
                    Severity::Error => "refused by the run",
                };
                let place = if message.contains("red_flags") { normalised(&message) } else { message };
                (kind.into(), format!("{}\n{}", mistake(), quoted(&place)))
            }
            Mistake::ByType(file, error, title) => {
                let source = doc_test(file, self.pitfall, error);
                let message = quoted(&format!("error[{error}]: {title}"));
                ("does not compile".into(), format!("```rust\n{source}\n```\n\n{message}"))
            }
            Mistake::Unseen(why) => ("not seen".into(), format!("{why}\n")),
            Mistake::Impossible(why, shown) => {
                shown.inspect(|shown| shown());
                ("cannot be written".into(), format!("{why}\n"))
            }
        }
    }

    /// Runs the right form: nothing refuses it, no lint says the same of it, and the parameters stay finite.
    fn check_right(&self) {
        let code = self.pitfall.code();
        let recorded = record(self.right);
        let lints: Vec<String> = recorded.program.lints().iter().map(ToString::to_string).collect();
        assert!(lints.is_empty(), "{code}: the right form has lints: {lints:?}");
        let ranks = recorded.program.ranks();
        if ranks > 1 {
            model::world(ranks, |rank, _, _| {
                self.run_right(record(self.right), |session| session.with_collective(rank))
            });
        } else {
            self.run_right(recorded, |session| session);
        }
    }

    fn run_right(&self, recorded: Recorded, join: impl FnOnce(Session) -> Session) {
        let code = self.pitfall.code();
        let mut session = join(model::session(recorded.store));
        let step = session.compile(recorded.program).unwrap_or_else(|error| panic!("{code}: {error}"));
        for _ in 0..2 {
            model::run(&mut session, &step).unwrap_or_else(|error| panic!("{code}: {error}"));
        }
        let layout = session.layout().clone();
        for (param, decl) in layout.params() {
            let value = session.read_param(param).expect("a parameter can be read");
            assert!(value.to_f64().iter().all(|v| v.is_finite()), "{code}: {} after two runs: {value:?}", decl.path);
        }
    }
}

/// The body of a function, without its indentation.
fn body(source: &str, signature: &str) -> String {
    let start = source.find(signature).unwrap_or_else(|| panic!("no function {signature}"));
    let open = start + source[start..].find("{\n").expect("a body") + 2;
    let close = open + source[open..].find("\n}\n").expect("an end");
    source[open..close].lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The documentation test of a pitfall that must not compile, without its hidden lines.
fn doc_test(file: &str, pitfall: Pitfall, error: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = std::fs::read_to_string(path).expect("the source is there");
    let about = source.find(&format!("Pitfall::{pitfall:?}`]"));
    let about = about.unwrap_or_else(|| panic!("{file} has no test of {pitfall:?}"));
    let fence = format!("compile_fail,{error}\n");
    let start = about + source[about..].find(&fence).unwrap_or_else(|| panic!("{pitfall:?}: no {fence}")) + fence.len();
    let lines = source[start..].lines().map(|line| line.trim_start().trim_start_matches("///"));
    let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).take_while(|line| *line != "```");
    lines.filter(|line| !line.starts_with("# ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_says_what_wgrad_says() {
    let (mut page, mut index, mut seen) = (String::new(), BTreeMap::new(), vec![]);
    for (title, entries) in PARTS {
        writeln!(page, "## {title}\n").unwrap();
        for entry in entries {
            let code = entry.pitfall.code();
            let (kind, text) = entry.outcome();
            entry.check_right();
            writeln!(page, "### {code}: {}\n\n{} *{}.*\n\n{text}", entry.pitfall.what(), entry.why, capital(&kind))
                .unwrap();
            writeln!(page, "Right:\n\n```rust\n{}\n```\n", entry.source_of_right()).unwrap();
            index.insert(entry.pitfall, kind);
            seen.push(entry.pitfall);
        }
    }
    let missing: Vec<Pitfall> = Pitfall::ALL.into_iter().filter(|pitfall| !seen.contains(pitfall)).collect();
    assert_eq!(missing, [], "pitfalls without an entry");
    let entries = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), entries, "two entries for one pitfall");
    let rows = index.iter().map(|(pitfall, kind)| format!("| {} | {} | {kind} |\n", pitfall.code(), pitfall.what()));
    let page = format!(
        "{PAGE}| | the mistake | in wgrad |\n|---|---|---|\n{}\n{}\n",
        rows.collect::<String>(),
        page.trim_end()
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/red-flags.md");
    if std::env::var_os("WGRAD_BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == page, "docs/red-flags.md is out of date: run this test with WGRAD_BLESS=1 to write it anew");
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// A panic within `f`, as text.
pub fn panics<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("this must panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| panic.downcast_ref::<&str>().expect("text").to_string())
}

const PAGE: &str = "\
# Red flags

The known ways to get gradients wrong, by number: the mistake, what wgrad says of it, and the right form. The page is
written by the test `tests/tests/red_flags`, which runs all of this code, and compares every message with what is
printed here; what does not compile are documentation tests.

An *error* is refused: by the compiler, while the step is recorded (a panic that names your line), or by a run. A
*warning* or a *lint* is in `Program::lints()`, and `wgrad tape` prints it; a few are told after some runs. Some mistakes
cannot be written at all; then the reason is given instead.

In the snippets `store` is a store in which the parameters of `model` are declared, a perceptron of one hidden layer;
`model.loss(t)` records its loss on the tape `t`, `model.outputs(t)` what it computes, and `record(store, |t| ..)` stands
for `Session::record`, `record_for(2, store, |t| ..)` for that of a session which is one of two ranks.

";
