//! Programs as Graphviz: nodes in clusters by scope, edges from input to user.

use crate::{Program, ScopeId, node::NodeId};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

impl Program {
    /// The program as a Graphviz digraph, for `dot -Tsvg`. Nodes that nothing uses are left out.
    pub fn to_dot(&self) -> String {
        let mut out = String::new();
        self.write_dot(&mut out).expect("writing to a string cannot fail");
        out
    }

    fn write_dot(&self, out: &mut String) -> fmt::Result {
        let live = self.live();
        let mut scopes: BTreeMap<ScopeId, Vec<NodeId>> = BTreeMap::new();
        for (i, node) in self.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
            scopes.entry(node.scope).or_default().push(NodeId(i as u32));
        }
        writeln!(out, "digraph program {{\n  rankdir = TB;\n  node [shape = box, fontname = \"monospace\"];")?;
        for (scope, nodes) in &scopes {
            let path: Vec<String> = self
                .scope_path(*scope)
                .iter()
                .map(|s| s.turn.map_or(s.name.clone(), |turn| format!("{}[{turn}]", s.name)))
                .collect();
            writeln!(out, "  subgraph cluster_{} {{\n    label = \"{}\";", scope.0, escape(&path.join("/")))?;
            for id in nodes {
                let node = self.node(*id);
                let op = format!("{}{}", node.op.name(), node.op.attributes(false));
                let label = format!("{} {}\\n{}{}", id, escape(&op), node.dtype, node.shape);
                writeln!(out, "    n{} [label = \"{label}\"];", id.index())?;
            }
            writeln!(out, "  }}")?;
        }
        for (i, node) in self.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
            for input in &node.inputs {
                writeln!(out, "  n{} -> n{i};", input.index())?;
            }
        }
        for (state, node) in self.commits() {
            let name = escape(&self.layout().state(*state).name);
            writeln!(out, "  s{} [label = \"{name}\", shape = cylinder];", state.index())?;
            writeln!(out, "  n{} -> s{} [style = dashed];", node.index(), state.index())?;
        }
        writeln!(out, "}}")
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
