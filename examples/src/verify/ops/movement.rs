//! Operations that move elements: views, joining, indexing, triangles.

use super::{Call, Form::One, Operation, op};
use crate::verify::{Attempt, Attributes, Refusal};
use serde_json::{Map, Value};
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("transpose", One(|call| moved(call, "transpose"))),
    op("permute", One(|call| moved(call, "permute"))),
    op("reshape", One(|call| moved(call, "reshape"))),
    op("chain", One(chain)),
    op("broadcast_to", One(|call| Ok(call.input("x")?.broadcast_to(call.attrs.extents("shape")?)))),
    op("slice", One(slice)),
    op("concat", One(concat)),
    op("pad", One(pad)),
    op("index_select", One(index_select)),
    op("gather", One(gather)),
    op("scatter_add", One(scatter_add)),
    op("tril", One(|call| Ok(call.input("x")?.tril(places(call, "diagonal")?)))),
    op("triu", One(|call| Ok(call.input("x")?.triu(places(call, "diagonal")?)))),
    op("roll", One(roll)),
];

/// A view that vectors can name.
struct View {
    name: &'static str,
    /// The names of the attributes, in the order in which a chain lists their values.
    attrs: &'static [&'static str],
    record: for<'t> fn(Tensor<'t>, Attributes<'_>) -> Attempt<Tensor<'t>>,
}

const VIEWS: [View; 3] = [
    View {
        name: "transpose",
        attrs: &["dim0", "dim1"],
        record: |x, attrs| Ok(x.swap_axes(attrs.axis("dim0", x.rank())?, attrs.axis("dim1", x.rank())?)),
    },
    View { name: "permute", attrs: &["dims"], record: |x, attrs| Ok(x.permute(&attrs.axes("dims", x.rank())?)) },
    View { name: "reshape", attrs: &["shape"], record: |x, attrs| Ok(x.reshape(attrs.extents("shape")?)) },
];

fn view(name: &str) -> Attempt<&'static View> {
    VIEWS.iter().find(|view| view.name == name).ok_or_else(|| Refusal::Unsupported(format!("view {name:?}")))
}

fn moved<'t>(call: &Call<'t, '_>, name: &str) -> Attempt<Tensor<'t>> {
    (view(name)?.record)(call.input("x")?, call.attrs)
}

/// A chain of views; each is a list of the view's name and the values of its attributes.
fn chain<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    call.attrs.list("steps")?.iter().try_fold(call.input("x")?, |x, step| {
        let parts = step.as_array().and_then(|parts| Some((parts.first()?.as_str()?, &parts[1..])));
        let (name, values) = parts.ok_or_else(|| Refusal::Attribute {
            name: "steps".into(),
            want: "a list of lists that begin with the name of a view",
            have: step.to_string(),
        })?;
        let view = view(name)?;
        let named = view.attrs.iter().zip(values).map(|(name, value)| (name.to_string(), value.clone()));
        (view.record)(x, Attributes(&named.collect::<Map<String, Value>>()))
    })
}

/// `[start, stop, step]` for each of the first axes.
fn slice<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    let refusal = |have: &Value| Refusal::Attribute {
        name: "start_stop_step".into(),
        want: "a list of up to as many as axes, each of start, stop and a step of at least 1",
        have: have.to_string(),
    };
    let ranges = call.attrs.list("start_stop_step")?;
    if ranges.len() > x.rank() {
        return Err(refusal(&Value::from(ranges)));
    }
    ranges.iter().enumerate().try_fold(x, |x, (axis, range)| {
        let numbers: Option<Vec<i64>> = range.as_array().and_then(|range| range.iter().map(Value::as_i64).collect());
        let (start, stop, step) = match numbers.as_deref() {
            Some(&[start, stop, step]) if step > 0 => (start, stop, step),
            _ => return Err(refusal(range)),
        };
        // The ranges are those of Python's slices: negative positions count from the end, and positions outside are
        // clamped.
        let extent = x.shape()[axis] as i64;
        let [start, stop] =
            [start, stop].map(|at| if at < 0 { at.saturating_add(extent) } else { at }.clamp(0, extent));
        let len = (stop - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs());
        Ok(x.slice_step(axis, start as usize, len as usize, step as isize))
    })
}

/// Joins all inputs, in the order of their names.
fn concat<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let parts: Vec<Tensor<'t>> = call.inputs.values().copied().collect();
    let rank = parts.first().map_or(0, |part| part.rank());
    Ok(Tensor::concat(&parts, call.attrs.axis("dim", rank)?))
}

/// Pads by `[before, after]` along each of the first axes, with a value.
fn pad<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (pairs, value) = (call.attrs.pairs("before_after")?, call.attrs.number("value")?);
    let padded = |x: Tensor<'t>, (axis, [before, after]): (usize, [usize; 2])| x.pad_with(axis, before, after, value);
    Ok(pairs.into_iter().enumerate().fold(call.input("x")?, padded))
}

fn index_select<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    Ok(x.index_select(call.attrs.axis("dim", x.rank())?, call.input("index")?))
}

/// The leading corner of `x` with the extents of `like` in every axis but `axis`. As in PyTorch, an index may be
/// shorter than `x` in these axes.
fn corner<'t>(x: Tensor<'t>, like: Tensor<'t>, axis: usize) -> Tensor<'t> {
    let axes = (0..like.rank().min(x.rank())).filter(|&other| other != axis);
    axes.fold(x, |x, other| x.slice(other, 0, like.shape()[other]))
}

fn gather<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, index) = (call.input("x")?, call.input("index")?);
    let axis = call.attrs.axis("dim", x.rank())?;
    Ok(corner(x, index, axis).gather(index, axis))
}

/// `x` plus the elements of `src` at the positions of the index.
fn scatter_add<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, index, src) = (call.input("x")?, call.input("index")?, call.input("src")?);
    let axis = call.attrs.axis("dim", x.rank())?;
    let src = corner(src, index, x.rank());
    let sums = src.scatter_add(index, axis, x.shape()[axis]);
    let added = (0..x.rank()).fold(sums, |sums, axis| sums.pad(axis, 0, x.shape()[axis] - sums.shape()[axis]));
    Ok(x + added)
}

/// A number of places, below 0 in the other direction; 0 if it is missing.
fn places(call: &Call<'_, '_>, name: &str) -> Attempt<i32> {
    let places = call.attrs.integer(name)?.unwrap_or(0);
    i32::try_from(places).map_err(|_| Refusal::Unsupported(format!("{name} of {places}")))
}

fn roll<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    Ok(x.roll(call.attrs.axis("dim", x.rank())?, places(call, "shift")? as isize))
}
