//! The place where values have grown from one run of a program to another, though all of them are finite.

use super::{NodePlace, flags::Flags};
use crate::{Array, error::Result, node::NodeId, op::Op, program::Program, session::Session};
use std::fmt;

/// The root mean square of the elements that are finite; 0 where none is.
fn size(values: &[f64]) -> f64 {
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let largest = finite.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let mean = finite.iter().map(|v| (v / largest).powi(2)).sum::<f64>() / finite.len() as f64;
    largest * mean.sqrt()
}

/// The sizes of all values in a run of a program: of each the root mean square of its finite elements, 0 where it has none or
/// is not of floats.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizes {
    nodes: Vec<f64>,
    /// Of the parameters in each arena that the program reads, by path.
    params: Vec<(NodeId, String, f64)>,
}

impl Sizes {
    fn of(program: &Program, values: &[Array]) -> Self {
        let (layout, mut nodes, mut params) = (program.layout(), vec![], vec![]);
        for (at, value) in values.iter().enumerate() {
            let values = if value.dtype().is_float() { value.to_f64() } else { vec![] };
            nodes.push(size(&values));
            let Op::State(state) = program.nodes()[at].op else { continue };
            for (_, decl) in layout.params().filter(|(_, decl)| decl.arena == state && !values.is_empty()) {
                let own = &values[decl.offset..decl.offset + decl.shape.numel()];
                params.push((NodeId(at as u32), decl.path.clone(), size(own)));
            }
        }
        Self { nodes, params }
    }
}

/// A node, and the size of its value in two runs: the root mean square of its finite elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Grown {
    /// The node.
    pub place: NodePlace,
    /// The size in the first run.
    pub before: f64,
    /// The size in the second.
    pub now: f64,
}

impl fmt::Display for Grown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.3e}, and {:.3e} before", self.place, self.now, self.before)
    }
}

/// The first node whose value has half the growth, in orders of magnitude, of what has grown most among the scalars that a
/// program taps, such as a loss and the norm of gradients; and the way from it to one of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Growth {
    /// The node.
    pub at: Grown,
    /// The parameters that have grown so, by path, where the node is an arena of parameters.
    pub params: Vec<String>,
    /// Its operands; none of an input, a state or a parameter.
    pub operands: Vec<Grown>,
    /// The nodes from it to what is tapped, each computed from the one before it. The first is the node itself.
    pub chain: Vec<NodePlace>,
    /// The tap, in words.
    pub reaches: String,
    /// The factor by which what is tapped has grown.
    pub factor: f64,
}

impl Growth {
    /// From the sizes in two runs of a program, from other states or inputs. `None` if nothing that is tapped has grown by
    /// `least`. Of a program that taps no scalar the states that it assigns count.
    ///
    /// # Panics
    /// If the sizes are those of other programs, or `least` is not above 1.
    #[track_caller]
    pub fn between(program: &Program, before: &Sizes, now: &Sizes, least: f64) -> Option<Self> {
        let nodes = program.nodes().len();
        let fits = before.nodes.len() == nodes && now.nodes.len() == nodes && before.params.len() == now.params.len();
        assert!(fits, "growth: needs the sizes of the {nodes} nodes of this program, twice");
        assert!(least > 1.0, "growth: by a factor of {least}: needs one above 1");
        let by = |before: f64, now: f64| if before > 0.0 { now / before } else { 1.0 };
        let ratio = |id: NodeId| by(before.nodes[id.index()], now.nodes[id.index()]);
        let scalars = program.taps().iter().filter(|tap| program.node(tap.node).shape.numel() == 1);
        let mut results: Vec<(NodeId, String)> =
            scalars.map(|tap| (tap.node, format!("the tap {:?}", tap.name))).collect();
        if results.is_empty() {
            let states = program.commits().iter();
            results = states
                .map(|(state, node)| (*node, format!("the state {:?}", program.layout().state(*state).name)))
                .collect();
        }
        let factor = results.iter().map(|(id, _)| ratio(*id)).fold(1.0, f64::max);
        if factor < least {
            return None;
        }
        results.retain(|(id, _)| ratio(*id) == factor);
        let bound = factor.sqrt();
        // Nothing is a multiple of 0: it passes growth on, and where it begins is elsewhere.
        let was_zero = |id: usize| before.nodes[id] == 0.0 && now.nodes[id] > 0.0;
        let grown = |id: NodeId| ratio(id) >= bound;
        let all = (0..nodes).map(|id| was_zero(id) || grown(NodeId(id as u32))).collect();
        let found = Flags::all_taken(all).leading_to(program, &results, &grown)?;
        let of = |id: &NodeId| Grown {
            place: program.place(*id),
            before: before.nodes[id.index()],
            now: now.nodes[id.index()],
        };
        let first = found.chain[0];
        let mut operands: Vec<NodeId> = program.node(first).inputs.to_vec();
        operands.dedup();
        let params = before.params.iter().zip(&now.params).filter(|((node, ..), _)| *node == first);
        let params = params.filter(|((.., before), (.., now))| by(*before, *now) >= bound);
        Some(Self {
            at: of(&first),
            params: params.map(|((_, path, _), _)| path.clone()).collect(),
            operands: operands.iter().map(of).collect(),
            chain: found.chain.iter().map(|id| program.place(*id)).collect(),
            reaches: found.reaches,
            factor,
        })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, params, operands, chain, reaches, factor } = self;
        write!(f, "Growth begins in {}, at {at}", at.place.phase)?;
        if operands.is_empty() {
            let how = if params.is_empty() { "; it does not compute it" } else { "" };
            write!(f, "\n  the step receives this value{how}")?;
        }
        if !params.is_empty() {
            write!(f, ": parameters {}", params.join(", "))?;
        }
        for operand in operands {
            write!(f, "\n  computed from {operand}")?;
        }
        match chain.len() - 1 {
            0 => write!(f, "\n  and so")?,
            1 => write!(f, "\n  one node later")?,
            nodes => write!(f, "\n  {nodes} nodes later")?,
        }
        if *factor < 1e3 {
            write!(f, " {reaches} is {factor:.1} times what it was")
        } else {
            write!(f, " {reaches} is {factor:.1e} times what it was")
        }
    }
}

impl Session {
    /// The sizes of a program's values, computed from the states as they are. Nothing is committed, and no other run is
    /// affected.
    ///
    /// # Errors
    /// As [`Session::values`].
    pub fn sizes(&mut self, program: &Program, inputs: &[(&str, &Array)]) -> Result<Sizes> {
        let all: Vec<NodeId> = program.ids().collect();
        Ok(Sizes::of(program, &self.values(program, &all, inputs)?))
    }
}
