//! The number of cases of a random test.

use proptest::test_runner::Config;

/// A configuration for `cases` cases, multiplied by `PROPTEST_CASES` / 256. Nothing is written to disk: a failing case
/// is printed as Rust, so that it can become a test.
pub fn proptest_config(cases: u32) -> Config {
    let scale = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse::<u64>().ok()).unwrap_or(256);
    let cases = (cases as u64 * scale).div_ceil(256) as u32;
    Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: 30_000,
        max_global_rejects: 1024 + cases,
        ..Config::default()
    }
}
