//! Every operation of the catalogue on the GPU: values and derivatives are those of the reference in f32 and f16, values
//! unfused too, and special floats give what they give there.

use wgrad_tests::{catalogue::catalogue, checks::GPU_CHECKS, gpu};

#[test]
fn every_operation_agrees_with_the_reference() {
    if gpu().is_none() {
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Rows cannot be sent: each thread makes its own, and runs every n-th of them.
    let part = |first: usize| -> Vec<String> {
        let failure = |row: &wgrad_tests::catalogue::Row| {
            let check = |check: &wgrad_tests::checks::Check| {
                (check.run)(row)?.err().map(|why| format!("{}: {}: {why}", row.name, check.name))
            };
            GPU_CHECKS.iter().filter_map(check).collect::<Vec<_>>()
        };
        catalogue().iter().skip(first).step_by(threads).flat_map(failure).collect()
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let part = &part;
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no check panics")).collect()
    });
    let names: Vec<&str> = failures.iter().map(|f| f.lines().next().expect("a line")).collect();
    assert!(failures.is_empty(), "{} fail:\n{}\nthe first:\n{}", names.len(), names.join("\n"), failures[0]);
}
