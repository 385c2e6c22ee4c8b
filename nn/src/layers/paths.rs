//! Parameters by a pattern of their paths, to freeze them or to give them a learning rate of their own.
//!
//! A pattern is compared part by part: `*` stands for any characters within a part, `**` for any number of parts.
//!
//! ```
//! use wgrad::Store;
//! use wgrad_nn::{Builder, Linear, Mlp, MlpConfig, optim::{AdamW, AdamWConfig, Group}, paths};
//! let mut store = Store::new();
//! let mut b = Builder::new(&mut store, 0);
//! let config = MlpConfig { inputs: 8, outputs: 8, ..MlpConfig::default() };
//! let encoder = Mlp::new(b.at("encoder"), &config);
//! let head = Linear::new(b.at("head"), 8, 2, &config.init);
//! let params = paths::freeze(store.layout(), &store.params(), "encoder/**");
//! let biases = Group::without_decay(paths::select(store.layout(), "head/bias"));
//! let config = AdamWConfig { groups: vec![biases], ..AdamWConfig::default() };
//! let adamw = AdamW::new(&mut store, &params, config);
//! # let _ = (encoder, head, adamw);
//! ```

use wgrad::{Layout, ParamSet};

/// The parameters whose paths match a pattern.
///
/// # Panics
/// If there are none: a pattern that matches nothing is a mistake.
#[track_caller]
pub fn select(layout: &Layout, pattern: &str) -> ParamSet {
    let found: ParamSet = layout.params().filter(|(_, p)| matches(pattern, &p.path)).map(|(id, _)| id).collect();
    assert!(!found.is_empty(), "paths: no parameter's path matches {pattern:?}");
    found
}

/// The parameters of a set without those whose paths match a pattern. Training this set freezes the others: no gradient
/// is computed for them.
///
/// # Panics
/// If no parameter's path matches; if a parameter is another store's.
#[track_caller]
pub fn freeze(layout: &Layout, params: &ParamSet, pattern: &str) -> ParamSet {
    layout.check(params);
    let frozen = select(layout, pattern);
    params.iter().filter(|param| !frozen.contains(*param)).collect()
}

/// The parameters of the last `count` layers among those whose paths match a pattern. Use it to unfreeze a frozen part
/// step by step, the layers nearest to the loss first. Parameters belong to one layer if their paths differ in the last
/// part only; layers are in the order of declaration.
///
/// # Panics
/// If no parameter's path matches.
#[track_caller]
pub fn last_layers(layout: &Layout, pattern: &str, count: usize) -> ParamSet {
    let layer = |path: &str| path.rsplit_once('/').map_or(String::new(), |(layer, _)| layer.to_string());
    let found = select(layout, pattern);
    let mut layers: Vec<String> = vec![];
    for param in found.iter() {
        let own = layer(&layout.param(param).path);
        if !layers.contains(&own) {
            layers.push(own);
        }
    }
    let last = &layers[layers.len().saturating_sub(count)..];
    found.iter().filter(|param| last.contains(&layer(&layout.param(*param).path))).collect()
}

/// True if a path matches a pattern.
pub fn matches(pattern: &str, path: &str) -> bool {
    fn parts(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], _) => path.is_empty(),
            (["**", rest @ ..], _) => (0..=path.len()).any(|skipped| parts(rest, &path[skipped..])),
            ([part, pattern @ ..], [name, path @ ..]) => part_matches(part, name) && parts(pattern, path),
            _ => false,
        }
    }
    parts(&pattern.split('/').collect::<Vec<_>>(), &path.split('/').collect::<Vec<_>>())
}

/// True if a part of a path matches a part of a pattern.
fn part_matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| part_matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Builder, Init};
    use wgrad::Store;

    #[test]
    fn stars_stay_within_a_part_and_two_do_not() {
        for (pattern, path, want) in [
            ("a/b", "a/b", true),
            ("a", "a/b", false),
            ("a/b", "a", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("*/bias", "head/bias", true),
            ("**/bias", "a/b/bias", true),
            ("**/bias", "bias", true),
            ("a/**", "a", true),
            ("a/**", "ab/c", false),
            ("**", "a/b/c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/b/c/d", false),
            ("block/*1/w*t", "block/11/weight", true),
            ("block/*1/w*t", "block/12/weight", false),
            ("*a*a*", "aa", true),
            ("*a*a*", "a", false),
            ("é*", "école", true),
        ] {
            assert_eq!(matches(pattern, path), want, "{pattern} and {path}");
        }
    }

    #[test]
    fn freezing_leaves_the_others() {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let [a, c] = ["a", "c"].map(|name| b.at(name).param("weight", [2], &Init::Zeros));
        let left = freeze(store.layout(), &store.params(), "a/*");
        assert!(!left.contains(a) && left.contains(c) && left.len() == 1);
        assert_eq!(select(store.layout(), "**/weight"), store.params());
    }

    #[test]
    fn the_last_layers_have_all_their_parameters() {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        for layer in ["encoder/first", "encoder/second", "encoder/third", "head"] {
            for name in ["weight", "bias"] {
                b.at(layer).param(name, [2], &Init::Zeros);
            }
        }
        let layout = store.layout();
        let paths = |count| -> Vec<String> {
            last_layers(layout, "encoder/**", count).iter().map(|param| layout.param(param).path.clone()).collect()
        };
        assert_eq!(
            paths(2),
            ["encoder/second/weight", "encoder/second/bias", "encoder/third/weight", "encoder/third/bias"]
        );
        assert_eq!((paths(0).len(), paths(9).len()), (0, 6));
    }

    #[test]
    #[should_panic(expected = "no parameter's path matches \"encoder/**\"")]
    fn a_pattern_that_matches_nothing_panics() {
        select(Store::new().layout(), "encoder/**");
    }
}
