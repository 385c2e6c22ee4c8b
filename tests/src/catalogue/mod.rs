//! Every operation that a user can record, on arguments that are worth testing: empty ones, single elements, odd and
//! broadcast shapes. What holds of any operation is tested on each row.

mod elementwise;
mod indexing;
mod layers;
mod movement;
mod products;
mod reductions;
mod sequences;

use crate::Gradcheck;
use wgrad::Tensor;

/// A function of float tensors, followed by index tensors.
pub type Function = Box<dyn for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>>;

/// A line of the catalogue: an operation, and the arguments that it is checked on.
pub struct Row {
    /// The operation's name.
    pub op: String,
    /// The name with what is special about this row.
    pub name: String,
    /// The arguments.
    pub check: Gradcheck,
    /// The operation.
    pub f: Function,
    /// Whether the arguments after the first are weights that may be multiplied with padding, or what a causal mask takes
    /// away: what NaN and infinities among them give is left open, and so is what they give in gradients.
    pub weighs: bool,
}

/// A row; what follows a colon in the name is no part of the operation's.
fn row(name: &str, check: Gradcheck, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t> + 'static) -> Row {
    let op = name.split(':').next().expect("a first part").to_string();
    Row { op, name: format!("{name} of {:?}", check.shapes), check, f: Box::new(f), weighs: false }
}

/// All rows.
pub fn catalogue() -> Vec<Row> {
    let parts: [fn() -> Vec<Row>; 13] = [
        elementwise::unary,
        elementwise::binary,
        reductions::reductions,
        movement::movement,
        indexing::indexing,
        products::products,
        products::convolutions,
        layers::losses,
        layers::norms,
        layers::pooling,
        layers::attention,
        sequences::sequences,
        sequences::control,
    ];
    parts.into_iter().flat_map(|part| part()).collect()
}
