//! How many cases a random test runs.

use proptest::test_runner::Config;

/// So many cases, scaled by `PROPTEST_CASES` (256 is 1). Nothing is written to disk: a failing case is printed as Rust,
/// to be kept as a test.
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
