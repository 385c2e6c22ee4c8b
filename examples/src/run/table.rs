//! Tables of numbers by layer, one column per run.

use std::fmt::Write;

/// One column: a heading, and numbers by name.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The name of each row and its number, first to last.
    pub cells: Vec<(String, f64)>,
}

impl Column {
    /// A column from names and as many numbers.
    pub fn new(name: impl Into<String>, names: &[String], numbers: Vec<f64>) -> Self {
        Self { name: name.into(), cells: names.iter().cloned().zip(numbers).collect() }
    }
}

/// The largest number of rows that are shown.
const ROWS: usize = 9;

/// A table of columns; `what` is the heading of the rows. It has evenly spaced rows of the longest column, with the
/// first and the last, and the rows of the same names in the other columns.
pub fn table(what: &str, columns: &[Column]) -> String {
    let Some(longest) = columns.iter().rev().max_by_key(|column| column.cells.len()) else { return String::new() };
    let count = longest.cells.len();
    let rows = ROWS.min(count);
    let at = |row: usize| if rows == 1 { 0 } else { row * (count - 1) / (rows - 1) };
    let names: Vec<&str> = (0..rows).map(|row| longest.cells[at(row)].0.as_str()).collect();
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(what.chars().count()).max(6);
    let width = columns.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).max(10);
    let number = |name: &str, right: bool| {
        if right { format!("  {name:>label$}") } else { format!("  {name:<label$}") }
    };
    // Numbers are aligned to the right, names to the left.
    let right = names.iter().all(|name| name.parse::<u64>().is_ok());
    let mut out = number(what, right);
    columns.iter().for_each(|column| {
        let _ = write!(out, "  {:>width$}", column.name);
    });
    out.truncate(out.trim_end().len());
    out.push('\n');
    for name in names {
        out.push_str(&number(name, right));
        for column in columns {
            let cell = column.cells.iter().find(|(known, _)| known == name);
            let _ = write!(out, "  {:>width$}", cell.map_or(String::new(), |(_, value)| format!("{value:.1e}")));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn shows_the_first_and_the_last_row() {
        let cells = (1..=50).map(|t| (t.to_string(), t as f64)).collect();
        let table = table("step", &[Column { name: "no clip".into(), cells }]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), ROWS + 1);
        assert_eq!(words(lines[1]), ["1", "1.0e0"]);
        assert_eq!(words(lines[ROWS]), ["50", "5.0e1"]);
    }

    #[test]
    fn rows_are_matched_by_name() {
        let column = |names: &[&str]| Column {
            name: "x".into(),
            cells: names.iter().enumerate().map(|(i, name)| (name.to_string(), i as f64)).collect(),
        };
        let table = table("layer", &[column(&["a/z", "c/z"]), column(&["a/z", "b/z", "c/z"])]);
        let lines: Vec<Vec<&str>> = table.lines().map(words).collect();
        assert_eq!(lines[0], ["layer", "x", "x"]);
        assert_eq!(
            lines[1..],
            [["a/z", "0.0e0", "0.0e0"].to_vec(), vec!["b/z", "1.0e0"], vec!["c/z", "1.0e0", "2.0e0"]]
        );
    }

    #[test]
    fn one_row_is_one_row() {
        let cells = vec![("1".into(), 2.0)];
        assert_eq!(table("step", &[Column { name: "x".into(), cells }]).lines().count(), 2);
        assert_eq!(table("step", &[]), "");
    }
}
