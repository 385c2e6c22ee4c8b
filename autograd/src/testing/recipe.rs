//! Random tapes as plain data: the leaves, and the steps that are recorded over them.
//!
//! A step refers to earlier values by keys, and reads the value with the nearest key. An operand that does not fit is
//! resized. So any list of steps is a valid recipe, proptest may remove any of them while it shrinks, and a step that
//! nothing refers to leaves the others as they were.

use super::{
    record::{Mode, Recorded},
    shapes::{away_from_zero, narrowed, shape},
    shrink::Shrinking,
};
use crate::{Array, DType, Data, Program, Shape, Tape};
use proptest::{collection::vec, prelude::*, sample::select};
use std::fmt;

/// Declares an enum and the list of its variants.
macro_rules! kinds {
    ($(#[$doc:meta])* $($kind:ident)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)] // Each is named after the op that it records.
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];
        }
    };
}

kinds! {
    /// The kinds of steps. Functions with a limited domain are recorded on safe arguments such as `x * x + 0.5`;
    /// `CastHalf` is a sine in f16; `Windows` are two overlapping slices of one value, one of them reversed; `Sequence`
    /// runs any recurrent cell over a few steps; `Checkpoint` wraps the steps that follow. Recipes shrink towards the
    /// first ones, which are the simplest.
    Neg Sin Cos Tanh Erf Exp Expm1 Add Mul Sub Recip Sqrt Log Log1p Div Pow Max
    SelectLess SelectEqual SelectFinite CastFloat CastHalf CastInteger CastBool
    Random
    Sum ReduceMax Norm ArgMax CumSum
    Reshape Permute Expand Slice Windows Concat Pad Assemble
    Gather ScatterAdd SegmentSum SegmentBroadcast
    MatMul Convolution Sequence Attention
    Detach Barrier Hook Checkpoint Custom
}

/// One step of a recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The operation that it records.
    pub kind: Kind,
    /// The key of its result. The leaves have the keys 1, 2, ..
    pub key: u8,
    /// Its first operand: 0 for the latest value, else the one with the key nearest to this.
    pub a: u8,
    /// Its second operand, if the kind has one.
    pub b: u8,
    /// Further parameters of the kind: axes, positions, extents, factors.
    pub n: [u8; 4],
}

/// A leaf of a recipe.
#[derive(Clone, PartialEq, Debug)]
pub struct Leaf {
    /// Its shape.
    pub shape: Shape,
    /// Its elements, row-major.
    pub values: Vec<f64>,
}

/// A random tape: leaves, and steps over them. See [`Recipe::record`].
#[derive(Clone, PartialEq)]
pub struct Recipe {
    /// The float type of all values.
    pub dtype: DType,
    /// The leaves, by which gradients are taken. At least one.
    pub leaves: Vec<Leaf>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Recipe {
    /// The same recipe in another float type.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The same recipe without the steps of some kinds.
    pub fn without(mut self, kinds: &[Kind]) -> Self {
        self.steps.retain(|step| !kinds.contains(&step.kind));
        self
    }

    /// A leaf's value.
    pub fn leaf(&self, i: usize) -> Array {
        let Leaf { shape, values } = &self.leaves[i];
        Array::new(shape, Data::from_f64(self.dtype, values))
    }

    /// The value of an input that [`Recipe::record`] declares: a leaf, indices into an axis, or the key or counter of
    /// random numbers.
    pub fn array(&self, input: &str) -> Option<Array> {
        let number = |prefix: &str| input.strip_prefix(prefix)?.parse::<usize>().ok();
        if let Some(extent) = number("index") {
            let scattered = |i: usize| ((i * i * 3 + i * 7 + i / 5) % extent) as u32;
            return Some(Array::new([Self::INDICES], (0..Self::INDICES).map(scattered).collect::<Vec<u32>>()));
        }
        match input {
            "key" => return Some(Array::new([2], vec![0x1319_8a2e, 0x0370_7344u32])),
            "counter" => return Some(Array::new([], vec![7u32])),
            _ => {}
        }
        number("x").filter(|&i| i < self.leaves.len()).map(|i| self.leaf(i))
    }

    /// The values of all of a program's inputs that this recipe knows, by name.
    pub fn arrays(&self, program: &Program) -> Vec<(String, Array)> {
        let known = |name: &String| self.array(name).map(|array| (name.clone(), array));
        program.inputs().iter().filter_map(|input| known(&input.name)).collect()
    }

    /// The number of indices that an index input holds.
    pub(super) const INDICES: usize = 96;
}

/// The recorded tape, or a note that recording panics.
impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = || {
            let tape = Tape::default();
            let recorded = self.record(&tape, Mode::Plain);
            tape.tap("loss", recorded.loss);
            tape.finish().to_string()
        };
        // Failing cases are printed by a thread that is panicking already: a second panic there would abort it.
        match std::thread::scope(|scope| scope.spawn(record).join()) {
            Ok(program) => f.write_str(&program),
            Err(_) => f.write_str("(recording it panics)"),
        }
    }
}

/// The recipe as Rust, then the recorded tape.
impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Recipe {{\n  dtype: DType::{:?},\n  leaves: vec![", self.dtype)?;
        for Leaf { shape, values } in &self.leaves {
            writeln!(f, "    Leaf {{ shape: {shape}.into(), values: vec!{values:?} }},")?;
        }
        writeln!(f, "  ],\n  steps: vec![")?;
        for Step { kind, key, a, b, n } in &self.steps {
            writeln!(f, "    Step {{ kind: Kind::{kind:?}, key: {key}, a: {a}, b: {b}, n: {n:?} }},")?;
        }
        writeln!(f, "  ],\n}}\n{self}")
    }
}

/// A step of one of these kinds. Its first operand is mostly the latest value, so that tapes are deep.
pub fn step(kinds: &'static [Kind]) -> impl Strategy<Value = Step> {
    let operand = |latest: u32| prop_oneof![latest => Just(0u8), 3 => 1..=255u8];
    // Keys do not shrink: they only identify values.
    (select(kinds), (1..=255u8).no_shrink(), operand(5), operand(1), any::<[u8; 4]>())
        .prop_map(|(kind, key, a, b, n)| Step { kind, key, a, b, n })
}

/// A recipe in f64, of up to this many steps of any kind.
pub fn recipe(steps: usize) -> impl Strategy<Value = Recipe> {
    recipe_of(Kind::ALL, steps)
}

/// A recipe in f64, of up to this many steps of these kinds. Most leaves broadcast with each other.
pub fn recipe_of(kinds: &'static [Kind], steps: usize) -> impl Strategy<Value = Recipe> {
    let recipes = (vec(step(kinds), 0..=steps), leaves());
    let recipes = recipes.prop_map(|(steps, leaves)| Recipe { dtype: DType::F64, leaves, steps });
    Shrinking { recipes, kinds }
}

/// A single operation: a recipe in f64 of exactly one step, whose operands are leaves. It is of any kind that computes
/// something from a leaf (all but `Checkpoint`), and applies to its operands: a scalar has no axis to take an argmax
/// along. It shrinks to a simpler one.
///
/// ```
/// use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
/// use wgrad::{Tape, testing::{Mode, operation}};
/// let mut runner = TestRunner::deterministic();
/// let operation = operation().new_tree(&mut runner).unwrap().current();
/// let tape = Tape::default();
/// let recorded = operation.record(&tape, Mode::Plain);
/// assert!(operation.steps.len() == 1 && recorded.unused.len() <= operation.leaves.len());
/// ```
pub fn operation() -> impl Strategy<Value = Recipe> {
    // The keys of the leaves count from 1. Any leaf is as likely as another.
    let recipes = (step(Kind::ALL), leaves()).prop_map(|(step, leaves)| {
        let leaf = |key: u8| 1 + key % leaves.len() as u8;
        let steps = vec![Step { a: leaf(step.a), b: leaf(step.b), ..step }];
        Recipe { dtype: DType::F64, leaves, steps }
    });
    let computes = |recipe: &Recipe| {
        let tape = Tape::default();
        let Recorded { unused, leaves, .. } = recipe.record(&tape, Mode::Plain);
        recipe.steps.len() == 1 && unused.iter().any(|x| leaves.iter().all(|leaf| leaf.id() != x.id()))
    };
    Shrinking { recipes, kinds: Kind::ALL }.prop_filter("a step that computes nothing", computes)
}

/// The leaves of a recipe: from one to three.
fn leaves() -> impl Strategy<Value = Vec<Leaf>> {
    let leaf_shapes = (shape(), vec((any::<(u8, u8)>(), shape(), 0..4u8), 1..=3)).prop_map(|(base, others)| {
        let pick = |((ones, drop), other, own): ((u8, u8), Shape, u8)| {
            if own == 0 { other } else { narrowed(&base, ones & ones >> 4, drop) }
        };
        others.into_iter().map(pick).collect::<Vec<Shape>>()
    });
    leaf_shapes.prop_flat_map(|shapes| {
        let leaf = |shape: Shape| {
            vec(away_from_zero(), shape.numel()).prop_map(move |values| Leaf { shape: shape.clone(), values })
        };
        shapes.into_iter().map(leaf).collect::<Vec<_>>()
    })
}
