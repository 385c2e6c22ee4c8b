//! Refusals: whatever is misused is refused in the name of the function that the user called, at the user's line.

mod attention;
mod functions;
mod handles;
mod layers;
mod names;

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};
use wgrad::{Layout, Session, Store, Tape};
use wgrad_cpu::CpuBackend;

/// A panic: its message, and the file and line that it names.
struct Refusal {
    message: String,
    file: String,
    line: u32,
}

/// Runs `f`, which must panic.
fn refusal<R>(f: impl FnOnce() -> R) -> Refusal {
    thread_local! {
        static LAST: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let at = info.location().expect("panics have a place");
            LAST.with(|last| *last.borrow_mut() = Some((at.file().into(), at.line())));
            before(info);
        }));
    });
    let panic = panic::catch_unwind(AssertUnwindSafe(f)).err().expect("it must panic");
    let text = panic.downcast_ref::<String>().cloned();
    let message = text.unwrap_or_else(|| panic.downcast_ref::<&str>().expect("a text").to_string());
    let (file, line) = LAST.with(|last| last.borrow_mut().take()).expect("the hook has run");
    Refusal { message, file, line }
}

/// Requires a refusal at a line of this file, whose message begins with the function's name.
#[track_caller]
fn refused_as(file: &str, name: &str, f: impl FnOnce()) {
    assert_eq!(fault(file, name, f), None);
}

/// What is wrong about a refusal.
fn fault(file: &str, name: &str, f: impl FnOnce()) -> Option<String> {
    let Refusal { message, file: blamed, line } = refusal(f);
    let begins = message.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', ':']));
    let site = message.split_once("(recorded at ").map(|(_, site)| site);
    let same = site.is_none_or(|site| site.starts_with(&format!("{file}:{line}:")));
    (blamed != file || !begins || !same).then(|| format!("{name}: {message:?} is blamed on {blamed}:{line}"))
}

fn session(store: Store) -> Session {
    Session::new(Box::new(CpuBackend::new(1).expect("threads")), store).expect("room")
}

fn tape(layout: &Layout) -> Tape {
    Tape::new(layout.clone().into())
}
