//! The attributes of a golden vector, read by name.

use super::{Attempt, Refusal};
use serde_json::{Map, Value};

/// The attributes of a golden vector.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Map<String, Value>);

impl<'a> Attributes<'a> {
    /// An attribute; `None` if it is null or missing.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// An attribute that `read` accepts; `want` describes its form for the refusal.
    fn want<T>(self, name: &str, want: &'static str, read: impl FnOnce(&'a Value) -> Option<T>) -> Attempt<T> {
        self.get(name).and_then(read).ok_or_else(|| Refusal::Attribute {
            name: name.into(),
            want,
            have: self.0.get(name).map_or("missing".into(), Value::to_string),
        })
    }

    /// A number. JSON has no infinity, so a text such as `"inf"` is also read as a number.
    pub fn number(self, name: &str) -> Attempt<f64> {
        self.want(name, "a number", |value| value.as_f64().or_else(|| value.as_str()?.parse().ok()))
    }

    /// A number, or the default if the attribute is missing.
    pub fn number_or(self, name: &str, default: f64) -> Attempt<f64> {
        if self.get(name).is_some() { self.number(name) } else { Ok(default) }
    }

    /// A whole number, if there is one.
    pub fn integer(self, name: &str) -> Attempt<Option<i64>> {
        self.get(name).map(|_| self.want(name, "a whole number", Value::as_i64)).transpose()
    }

    /// A truth value.
    pub fn flag(self, name: &str) -> Attempt<bool> {
        self.want(name, "true or false", Value::as_bool)
    }

    /// A truth value, or the default if the attribute is missing.
    pub fn flag_or(self, name: &str, default: bool) -> Attempt<bool> {
        if self.get(name).is_some() { self.flag(name) } else { Ok(default) }
    }

    /// Refuses attributes with other names, because an attribute that is not read would not be tested.
    pub fn only(self, names: &[&str], of: &str) -> Attempt<()> {
        let unknown = self.0.keys().find(|name| !names.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| Err(Refusal::Unsupported(format!("attribute {name:?} of {of}"))))
    }

    /// A text.
    pub fn text(self, name: &str) -> Attempt<&'a str> {
        self.want(name, "a text", Value::as_str)
    }

    /// A list.
    pub fn list(self, name: &str) -> Attempt<&'a [Value]> {
        self.want(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// A list of numbers.
    pub fn numbers(self, name: &str) -> Attempt<Vec<f64>> {
        self.want(name, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// A list of texts.
    pub fn texts(self, name: &str) -> Attempt<Vec<&'a str>> {
        self.want(name, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An object.
    pub fn object(self, name: &str) -> Attempt<Attributes<'a>> {
        self.want(name, "an object", Value::as_object).map(Attributes)
    }

    /// A whole number of at least 0.
    pub fn extent(self, name: &str) -> Attempt<usize> {
        self.want(name, "a whole number of at least 0", extent)
    }

    /// A list of extents.
    pub fn extents(self, name: &str) -> Attempt<Vec<usize>> {
        self.want(name, "a list of whole numbers of at least 0", |value| value.as_array()?.iter().map(extent).collect())
    }

    /// The extents of height and width; a single number stands for both.
    pub fn pair(self, name: &str) -> Attempt<[usize; 2]> {
        self.want(name, "a whole number of at least 0, or two", |value| match value.as_array().map(Vec::as_slice) {
            Some([height, width]) => Some([extent(height)?, extent(width)?]),
            Some(_) => None,
            None => extent(value).map(|both| [both, both]),
        })
    }

    /// A list of pairs of extents.
    pub fn pairs(self, name: &str) -> Attempt<Vec<[usize; 2]>> {
        self.want(name, "a list of pairs of whole numbers of at least 0", |value| {
            let pair = |value: &Value| match value.as_array()?.as_slice() {
                [first, second] => Some([extent(first)?, extent(second)?]),
                _ => None,
            };
            value.as_array()?.iter().map(pair).collect()
        })
    }

    /// An axis of a tensor of this rank. Negative axes count from the end.
    pub fn axis(self, name: &str, rank: usize) -> Attempt<usize> {
        self.want(name, "an axis of the input", |value| axis(value, rank))
    }

    /// A list of axes of a tensor of this rank.
    pub fn axes(self, name: &str, rank: usize) -> Attempt<Vec<usize>> {
        let read = |value: &Value| value.as_array()?.iter().map(|value| axis(value, rank)).collect();
        self.want(name, "a list of axes of the input", read)
    }
}

fn extent(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn axis(value: &Value, rank: usize) -> Option<usize> {
    let axis = value.as_i64()?;
    let axis = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).expect("an object")
    }

    #[test]
    fn axes_count_from_both_ends_and_must_exist() {
        let map =
            attributes(r#"{"a": -1, "b": 1, "c": 3, "d": -4, "e": [0, -1], "f": 1.5, "g": -9223372036854775808}"#);
        let attrs = Attributes(&map);
        assert_eq!((attrs.axis("a", 3).ok(), attrs.axis("b", 3).ok()), (Some(2), Some(1)));
        assert!(["c", "d", "f", "g", "none"].iter().all(|name| attrs.axis(name, 3).is_err()));
        assert_eq!(attrs.axes("e", 2).ok(), Some(vec![0, 1]));
        assert!(attrs.axes("e", 0).is_err());
    }

    #[test]
    fn null_is_as_good_as_nothing_and_text_stands_for_infinity() {
        let map = attributes(r#"{"a": null, "b": "inf", "c": 2, "d": [1, 2], "e": [1], "f": "x"}"#);
        let attrs = Attributes(&map);
        assert_eq!(attrs.number_or("a", 0.5).ok(), Some(0.5));
        assert_eq!((attrs.number("b").ok(), attrs.number("c").ok()), (Some(f64::INFINITY), Some(2.0)));
        assert_eq!((attrs.pair("c").ok(), attrs.pair("d").ok()), (Some([2, 2]), Some([1, 2])));
        assert!(attrs.pair("e").is_err() && attrs.number("f").is_err());
        let refusal = attrs.number("a").expect_err("null is no number");
        assert_eq!(refusal.to_string(), r#"its attribute "a" must be a number, and is null"#);
    }
}
