//! The flow of gradients over time, as a table.

use std::fmt::Write;

/// One column: a heading, and a value per time step.
#[derive(Clone, Debug)]
pub struct FlowColumn {
    /// The heading.
    pub name: String,
    /// Mean |dL/dz| per time step, first to last.
    pub flow: Vec<f64>,
}

/// How many time steps are shown.
const ROWS: usize = 9;

/// A table of mean |dL/dz| at some time steps, evenly spaced, the first and the last among them.
pub fn flow_table(columns: &[FlowColumn]) -> String {
    let steps = columns.iter().map(|c| c.flow.len()).max().unwrap_or(0);
    let width = columns.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).max(10);
    let mut out = format!("  {:>6}", "step");
    let mut row = |label: String, cells: Vec<String>| {
        let _ = write!(out, "{label}");
        cells.iter().for_each(|cell| {
            let _ = write!(out, "  {cell:>width$}");
        });
        out.push('\n');
    };
    row(String::new(), columns.iter().map(|c| c.name.clone()).collect());
    let rows = ROWS.min(steps);
    for i in 0..rows {
        let t = if rows == 1 { 0 } else { i * (steps - 1) / (rows - 1) };
        let cell = |c: &FlowColumn| c.flow.get(t).map_or(String::new(), |v| format!("{v:.1e}"));
        row(format!("  {:>6}", t + 1), columns.iter().map(cell).collect());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_first_and_the_last_step() {
        let flow = (1..=50).map(|t| t as f64).collect();
        let table = flow_table(&[FlowColumn { name: "no clip".into(), flow }]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), ROWS + 1);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["1", "1.0e0"]);
        assert_eq!(lines[ROWS].split_whitespace().collect::<Vec<_>>(), ["50", "5.0e1"]);
    }

    #[test]
    fn one_step_is_one_row() {
        assert_eq!(flow_table(&[FlowColumn { name: "x".into(), flow: vec![2.0] }]).lines().count(), 2);
    }
}
