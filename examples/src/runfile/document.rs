//! A TOML document as values with their lines, and typed access that refuses invalid values.

use crate::{Error, Result};
use std::{cell::RefCell, fmt, path::Path};
use toml::de::{DeTable, DeValue};

/// A value of a document.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number, written as an integer or a float.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// Several values.
    List(Vec<Entry>),
    /// Values by key.
    Table(Vec<(String, Entry)>),
    /// A date or a time, which no key takes.
    Time(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::List(_) => f.write_str("a list"),
            Value::Table(_) => f.write_str("a table"),
            Value::Time(time) => f.write_str(time),
        }
    }
}

/// A value, and its line, counted from 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The line.
    pub line: usize,
    /// The value.
    pub value: Value,
}

/// Values by key, in the order of the file's keys.
pub type Entries = Vec<(String, Entry)>;

/// Reads a document.
///
/// # Errors
/// [`Error::RunFile`] if the text is no TOML.
pub fn parse(path: &Path, text: &str) -> Result<Entries> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    match DeTable::parse(text) {
        Ok(table) => Ok(entries(table.get_ref(), &line)),
        Err(error) => {
            let at = error.span().map_or(1, |span| line(span.start));
            Err(refusal(path, at, format!("this is no TOML: {}", error.message())))
        }
    }
}

/// The error about a line.
pub fn refusal(path: &Path, line: usize, why: String) -> Error {
    Error::RunFile { path: path.into(), line, why }
}

fn entries(table: &DeTable<'_>, line: &dyn Fn(usize) -> usize) -> Entries {
    let mut all: Entries = table
        .iter()
        .map(|(key, value)| {
            let entry = Entry { line: line(key.span().start), value: converted(value.get_ref(), line) };
            (key.get_ref().to_string(), entry)
        })
        .collect();
    all.sort_by_key(|(_, entry)| entry.line);
    all
}

fn converted(value: &DeValue<'_>, line: &dyn Fn(usize) -> usize) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(whole) => {
            Value::Number(i128::from_str_radix(whole.as_str(), whole.radix()).map_or(f64::NAN, |whole| whole as f64))
        }
        DeValue::Float(float) => Value::Number(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(time) => Value::Time(time.to_string()),
        DeValue::Array(list) => {
            let of = list
                .iter()
                .map(|value| Entry { line: line(value.span().start), value: converted(value.get_ref(), line) });
            Value::List(of.collect())
        }
        DeValue::Table(table) => Value::Table(entries(table, line)),
    }
}

/// The numbers that a key allows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    low: f64,
    high: f64,
    /// True if the range includes `low`, and if it includes `high`.
    closed: [bool; 2],
}

impl Range {
    /// Any finite number.
    pub const FINITE: Self = Self { low: f64::NEG_INFINITY, high: f64::INFINITY, closed: [false; 2] };
    /// Above 0.
    pub const POSITIVE: Self = Self { low: 0.0, ..Self::FINITE };
    /// 0 or above.
    pub const NOT_NEGATIVE: Self = Self { closed: [true, false], ..Self::POSITIVE };
    /// From 0 to below 1.
    pub const BELOW_ONE: Self = Self { high: 1.0, ..Self::NOT_NEGATIVE };
    /// Above 0, at most 1.
    pub const SHARE: Self = Self { low: 0.0, high: 1.0, closed: [false, true] };

    /// Above 0 even after rounding to f32.
    pub const POSITIVE_IN_F32: Self = Self { low: f32::MIN_POSITIVE as f64, closed: [true, false], ..Self::FINITE };

    fn has(self, value: f64) -> bool {
        let above = value > self.low || self.closed[0] && value == self.low;
        let below = value < self.high || self.closed[1] && value == self.high;
        value.is_finite() && above && below
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if self.closed[0] { "from" } else { "above" };
        let high = if self.closed[1] { "at most" } else { "below" };
        match (self.low.is_finite(), self.high.is_finite()) {
            (false, _) => f.write_str("a number"),
            (true, false) => write!(f, "a number {low} {}", self.low),
            (true, true) => write!(f, "a number {low} {}, {high} {}", self.low, self.high),
        }
    }
}

/// A table of a document, whose keys are read one by one.
pub struct Table<'d> {
    path: &'d Path,
    /// The table's name; empty for the keys before the first table.
    name: &'static str,
    own: &'d [(String, Entry)],
    defaults: &'d [(String, Entry)],
    /// The keys that have been read.
    known: RefCell<Vec<&'static str>>,
}

/// The entry of this name.
fn table_of<'d>(of: &'d [(String, Entry)], name: &str) -> Option<&'d Entry> {
    of.iter().find(|(key, _)| key == name).map(|(_, entry)| entry)
}

impl<'d> Table<'d> {
    /// The keys before the first table. Keys that the document leaves out have the values of `defaults`.
    pub fn root(path: &'d Path, own: &'d Entries, defaults: &'d Entries) -> Self {
        Self { path, name: "", own, defaults, known: RefCell::default() }
    }

    /// A table of the document.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value of this name is no table.
    pub fn table(&self, name: &'static str) -> Result<Table<'d>> {
        self.known.borrow_mut().push(name);
        let entries = |of: &'d [(String, Entry)]| match table_of(of, name) {
            None => Ok(&[][..]),
            Some(Entry { value: Value::Table(entries), .. }) => Ok(&entries[..]),
            Some(Entry { line, value }) => Err(refusal(
                self.path,
                *line,
                format!("{name} is {value}: expected a table, which begins with [{name}]"),
            )),
        };
        let (own, defaults) = (entries(self.own)?, entries(self.defaults)?);
        Ok(Table { path: self.path, name, own, defaults, known: RefCell::default() })
    }

    /// The line of a table or a key, if the document has it.
    pub fn line(&self, key: &str) -> Option<usize> {
        table_of(self.own, key).map(|entry| entry.line)
    }

    /// An error about a key, at its line, or at line 1 if the document leaves the key out.
    pub fn refuse(&self, key: &str, why: &str) -> Error {
        refusal(self.path, self.line(key).unwrap_or(1), format!("{} {why}", self.full(key)))
    }

    /// The name of a key with its table.
    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.into() } else { format!("{}.{key}", self.name) }
    }

    fn entry(&self, key: &'static str) -> Option<&'d Entry> {
        self.known.borrow_mut().push(key);
        table_of(self.own, key).or(table_of(self.defaults, key))
    }

    /// Reads the value of a key, if there is one; `of` converts an allowed value.
    fn read<T>(&self, key: &'static str, allowed: &str, of: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(Entry { value, .. }) = self.entry(key) else { return Ok(None) };
        match of(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.refuse(key, &format!("is {value}: expected {allowed}"))),
        }
    }

    /// A value that the document or the defaults must have.
    fn must<T>(&self, key: &'static str, read: Option<T>) -> T {
        read.unwrap_or_else(|| panic!("the defaults have {}", self.full(key)))
    }

    /// A number, if there is one.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value is no number, or out of the range.
    pub fn optional_number(&self, key: &'static str, range: Range) -> Result<Option<f64>> {
        self.read(key, &range.to_string(), |value| match value {
            Value::Number(number) if range.has(*number) => Some(*number),
            _ => None,
        })
    }

    /// A number.
    ///
    /// # Errors
    /// As [`Table::optional_number`].
    pub fn number(&self, key: &'static str, range: Range) -> Result<f64> {
        Ok(self.must(key, self.optional_number(key, range)?))
    }

    /// A whole number within bounds, if there is one.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value is no whole number, or out of bounds.
    pub fn optional_whole(&self, key: &'static str, low: i64, high: i64) -> Result<Option<i64>> {
        self.read(key, &format!("a whole number from {low} to {high}"), |value| match value {
            Value::Number(number) if number.fract() == 0.0 && (low as f64..=high as f64).contains(number) => {
                Some(*number as i64)
            }
            _ => None,
        })
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// As [`Table::optional_whole`].
    pub fn whole(&self, key: &'static str, low: i64, high: i64) -> Result<i64> {
        Ok(self.must(key, self.optional_whole(key, low, high)?))
    }

    /// A count within bounds.
    ///
    /// # Errors
    /// As [`Table::optional_whole`].
    pub fn count(&self, key: &'static str, low: usize, high: usize) -> Result<usize> {
        Ok(self.whole(key, low as i64, high as i64)? as usize)
    }

    /// An index such as a step or a layer, or `None` for -1.
    ///
    /// # Errors
    /// As [`Table::optional_whole`].
    pub fn place(&self, key: &'static str, last: usize) -> Result<Option<usize>> {
        Ok(usize::try_from(self.whole(key, -1, last as i64)?).ok())
    }

    /// True or false.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another type.
    pub fn flag(&self, key: &'static str) -> Result<bool> {
        let read = self.read(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })?;
        Ok(self.must(key, read))
    }

    /// Text.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another type.
    pub fn text(&self, key: &'static str) -> Result<String> {
        let read = self.read(key, "text in quotes", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })?;
        Ok(self.must(key, read))
    }

    /// The meaning of one of some words.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another type.
    pub fn choice<T: Clone>(&self, key: &'static str, words: &[(&str, T)]) -> Result<T> {
        Ok(self.must(key, self.optional_choice(key, words)?))
    }

    /// The meaning of one of some words, if the key has a value.
    ///
    /// # Errors
    /// As [`Table::choice`].
    pub fn optional_choice<T: Clone>(&self, key: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        self.read(key, &listed(words.iter().map(|(word, _)| *word)), |value| match value {
            Value::Text(text) => words.iter().find(|(word, _)| word == text).map(|(_, of)| of.clone()),
            _ => None,
        })
    }

    /// The meaning of one of some words, or of a number.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value is neither, or the number is out of the range.
    pub fn choice_or_number<T: Clone>(
        &self,
        key: &'static str,
        words: &[(&str, T)],
        range: Range,
        number: impl Fn(f64) -> T,
    ) -> Result<T> {
        let allowed = format!("{}, or {range}", listed(words.iter().map(|(word, _)| *word)));
        let read = self.read(key, &allowed, |value| match value {
            Value::Text(text) => words.iter().find(|(word, _)| word == text).map(|(_, of)| of.clone()),
            Value::Number(value) if range.has(*value) => Some(number(*value)),
            _ => None,
        })?;
        Ok(self.must(key, read))
    }

    /// A list of texts.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another type.
    pub fn texts(&self, key: &'static str) -> Result<Vec<String>> {
        let read = self.read(key, "a list of texts, such as [\"layer/0\", \"head\"]", |value| match value {
            Value::List(list) => {
                let text = |entry: &Entry| match &entry.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                };
                list.iter().map(text).collect()
            }
            _ => None,
        })?;
        Ok(self.must(key, read))
    }

    /// Two numbers in a list, if there are any.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another form, or a number is out of the range.
    pub fn optional_pair(&self, key: &'static str, range: Range) -> Result<Option<(f64, f64)>> {
        self.read(key, &format!("two numbers in a list, each {range}"), |value| match value {
            Value::List(list) => match list[..] {
                [Entry { value: Value::Number(a), .. }, Entry { value: Value::Number(b), .. }]
                    if range.has(a) && range.has(b) =>
                {
                    Some((a, b))
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// Numbers by pattern, from a table.
    ///
    /// # Errors
    /// [`Error::RunFile`] if the value has another form, or a number is out of the range.
    pub fn factors(&self, key: &'static str, range: Range) -> Result<Vec<(String, f64)>> {
        let allowed = format!("a table of patterns, each with {range}, such as {{ \"head\" = 0.1 }}");
        let read = self.read(key, &allowed, |value| match value {
            Value::Table(entries) => {
                let factor = |(pattern, entry): &(String, Entry)| match entry.value {
                    Value::Number(number) if range.has(number) => Some((pattern.clone(), number)),
                    _ => None,
                };
                entries.iter().map(factor).collect()
            }
            _ => None,
        })?;
        Ok(self.must(key, read))
    }

    /// Refuses keys that nothing has read.
    ///
    /// # Errors
    /// [`Error::RunFile`] about the first such key.
    pub fn finish(self) -> Result<()> {
        let known = self.known.borrow();
        let Some((key, entry)) = self.own.iter().find(|(key, _)| !known.contains(&key.as_str())) else { return Ok(()) };
        let place = if self.name.is_empty() { "a run file".into() } else { format!("[{}]", self.name) };
        Err(refusal(
            self.path,
            entry.line,
            format!("{key} is no key of {place}: it has {}", listed(known.iter().copied())),
        ))
    }
}

/// Words as a list in a sentence: `a, b or c`.
pub fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => (*last).to_string(),
        None => "nothing".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(text: &str, of: impl Fn(&Table<'_>) -> Result<T>) -> std::result::Result<T, String> {
        let path = Path::new("run.toml");
        let own = parse(path, text).map_err(|error| error.to_string())?;
        let defaults = parse(path, "a = 1\n[t]\nb = 0.5").expect("sound");
        of(&Table::root(path, &own, &defaults)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_document_comes_before_the_defaults() {
        assert_eq!(read("a = 2", |t| t.count("a", 0, 9)), Ok(2));
        assert_eq!(read("", |t| t.count("a", 0, 9)), Ok(1));
        assert_eq!(read("[t]\nb = 1e-3", |t| t.table("t")?.number("b", Range::SHARE)), Ok(1e-3));
        assert_eq!(read("[t]", |t| t.table("t")?.number("b", Range::SHARE)), Ok(0.5));
    }

    #[test]
    fn a_wrong_value_is_told_with_its_key_its_line_and_the_allowed_ones() {
        type Read = fn(&Table<'_>) -> Result<()>;
        let cases: &[(&str, Read, &str)] = &[
            ("\na = 2.5", |t| t.count("a", 0, 9).map(drop), "line 2: a is 2.5: expected a whole number from 0 to 9"),
            ("a = 10", |t| t.count("a", 0, 9).map(drop), "line 1: a is 10: expected a whole number from 0 to 9"),
            ("a = nan", |t| t.number("a", Range::FINITE).map(drop), "line 1: a is NaN: expected a number"),
            (
                "[t]\nb = 2",
                |t| t.table("t")?.number("b", Range::SHARE).map(drop),
                "line 2: t.b is 2: expected a number above 0, at most 1",
            ),
            (
                "a = \"c\"",
                |t| t.choice("a", &[("x", 0), ("y", 1), ("z", 2)]).map(drop),
                "line 1: a is \"c\": expected x, y or z",
            ),
            ("a = 1979-05-27", |t| t.flag("a").map(drop), "line 1: a is 1979-05-27: expected true or false"),
            ("t = 3", |t| t.table("t").map(drop), "line 1: t is 3: expected a table, which begins with [t]"),
            ("a = \n", |_| Ok(()), "line 1: this is no TOML: "),
        ];
        for (text, of, want) in cases {
            let why = read(text, of).expect_err(text);
            assert!(why.contains(want), "{text:?}: {why}");
        }
    }

    #[test]
    fn an_unknown_key_is_told_with_the_known_ones() {
        let why = read("a = 1\nc = 2", |t| {
            t.count("a", 0, 9)?;
            Table { known: t.known.clone(), ..*t }.finish()
        });
        assert_eq!(why, Err("run.toml, line 2: c is no key of a run file: it has a".into()));
    }
}
