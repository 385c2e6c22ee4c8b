//! A catalogue of every operation that a user can record, on arguments that are worth testing: empty ones, single
//! elements, odd and broadcast shapes. Each row runs the checks that apply to every operation.

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
    /// The name, with the special feature and the shapes of this row.
    pub name: String,
    /// The arguments.
    pub check: Gradcheck,
    /// The operation.
    pub f: Function,
    /// True if the arguments after the first are weights that may be multiplied with padding, or values that a causal
    /// mask removes. The results of NaN and infinities among them are then undefined, and so are their gradients.
    pub weighs: bool,
}

/// A row; the part of `name` before a colon is the operation's name.
fn row(name: &str, check: Gradcheck, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t> + 'static) -> Row {
    let op = name.split(':').next().expect("a first part").to_string();
    Row { op, name: format!("{name} of {:?}", check.shapes), check, f: Box::new(f), weighs: false }
}

/// All rows.
pub fn catalogue() -> Vec<Row> {
    let parts: [fn() -> Vec<Row>; 15] = [
        elementwise::unary,
        elementwise::binary,
        reductions::reductions,
        movement::movement,
        indexing::indexing,
        products::products,
        products::convolutions,
        products::einsum,
        layers::losses,
        layers::norms,
        layers::pooling,
        layers::resizing,
        layers::attention,
        sequences::sequences,
        sequences::control,
    ];
    parts.into_iter().flat_map(|part| part()).collect()
}
