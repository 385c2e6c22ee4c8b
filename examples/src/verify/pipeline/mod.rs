//! Vectors of kind `pipeline`: whole updates of a small classifier, from micro-batches on some replicas to new
//! parameters, with every intermediate value.

mod record;

use super::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use record::{PARAMS, Pass, Pipeline};
use wgrad::{Array, DType, Data, Store, Taps};

/// The tap of the global norm in the clip.
const NORM: &str = "clip_by_global_norm/norm";

/// Named results, each with a row per update.
#[derive(Default)]
struct Rows(Vec<(String, Vec<Array>)>);

impl Rows {
    fn push(&mut self, name: &str, row: Array) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, rows)) => rows.push(row),
            None => self.0.push((name.into(), vec![row])),
        }
    }

    /// Adds the taps of an update. A skipped update has neither a norm nor clipped gradients, so zeros stand for them.
    fn take(&mut self, taps: &Taps, dtype: DType) {
        let skipped = taps.scalar("found_inf").is_none_or(|found| found != 0.0);
        let zeros = |value: &Array| Array::zeros(value.shape(), value.dtype());
        let number = Array::zeros([], dtype);
        self.push("total_norm", taps.get(NORM).filter(|_| !skipped).unwrap_or(&number).clone());
        // Names with a slash are the passes' own taps, which are no results.
        for (name, value) in taps.iter().filter(|(name, _)| !name.contains('/')) {
            let placeholder = skipped && name.starts_with("clipped_");
            self.push(name, if placeholder { zeros(value) } else { value.clone() });
        }
    }

    /// The rows of each result as one array.
    fn results(self) -> Results {
        let stacked = |(name, rows): (String, Vec<Array>)| {
            let shape = [&[rows.len()], &rows[0].shape()[..]].concat();
            let values: Vec<f64> = rows.iter().flat_map(Array::to_f64).collect();
            (format!("out/{name}"), Array::new(shape, Data::from_f64(rows[0].dtype(), &values)))
        };
        self.0.into_iter().map(stacked).collect()
    }
}

fn input(vector: &Vector<'_>, name: &str) -> Attempt<Array> {
    vector.tensors.array(&format!("{}/in/{name}", vector.case.id))
}

/// The part of an array at the given indices of its first dimensions.
fn part(array: &Array, indices: &[usize]) -> Array {
    let (leading, inner) = array.shape().split_at(indices.len());
    let index = indices.iter().zip(leading).fold(0, |at, (index, extent)| at * extent + index);
    let len: usize = inner.iter().product();
    Array::new(inner, array.data().slice(index * len..(index + 1) * len))
}

/// Refuses an input whose shape does not begin with `leading`.
fn check(name: &str, array: &Array, leading: &[usize]) -> Attempt<()> {
    let shape = array.shape();
    let fits = shape.starts_with(leading);
    fits.then_some(())
        .ok_or_else(|| Refusal::Misfit(format!("{name:?} of shape {shape} does not begin with {leading:?}")))
}

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    if vector.case.op != "pipeline" {
        return Err(Refusal::Operation(vector.case.op.clone()));
    }
    let attrs = vector.attrs();
    let (updates, ranks) = (attrs.extent("updates")?, attrs.extent("ranks")?);
    let examples = attrs.extents("micro_sizes")?.iter().sum();
    let leading = [updates, ranks, examples];
    if leading.contains(&0) {
        let what = format!("pipeline of {updates} updates with {examples} examples on each of {ranks} replicas");
        return Err(Refusal::Unsupported(what));
    }
    // The data is checked before anything is declared for each replica, because its size bounds the number of replicas.
    let (x, y) = (input(vector, "x")?, input(vector, "y")?);
    for (name, array) in [("x", &x), ("y", &y)] {
        check(name, array, &leading)?;
    }
    let inject = attrs.get("inject_inf").map(|_| attrs.extents("inject_inf")).transpose()?;
    if let Some(at) = inject.as_deref().filter(|at| !matches!(at, [u, rank] if *u < updates && *rank < ranks)) {
        return Err(Refusal::Misfit(format!("inject_inf: there is no update and replica {at:?}")));
    }
    let mut store = Store::new();
    let pipeline = Pipeline::declare(vector, &mut store)?;
    let mut session = vector.session(store)?;
    let noisy = pipeline.passes.iter().any(|pass| matches!(pass, Pass::Noise(_)));
    let mut z = vec![];
    for name in PARAMS.iter().filter(|_| noisy).map(|name| format!("z_{name}")) {
        let numbers = input(vector, &name)?;
        check(&name, &numbers, &[updates])?;
        z.push((name, numbers));
    }
    let draws =
        |u: usize| -> Vec<(String, Array)> { z.iter().map(|(name, z)| (name.clone(), part(z, &[u]))).collect() };
    let batch = [part(&x, &[0, 0]), part(&y, &[0, 0])];
    let mut replicas = vec![];
    for accumulator in &pipeline.accumulators {
        replicas.push(session.record(|t| pipeline.accumulate(t, accumulator, batch.each_ref()))?);
    }
    let update = session.record(|t| pipeline.update(t, &draws(0)))?;
    let mut rows = Rows::default();
    for u in 0..updates {
        let mut losses = vec![];
        for (rank, step) in replicas.iter().enumerate() {
            session.run(step, &[("x", &part(&x, &[u, rank])), ("y", &part(&y, &[u, rank]))])?;
            session.wait()?;
            for taps in session.taps()? {
                losses.extend(taps.each("loss").map(|loss| loss.item(0)));
            }
            if inject.as_deref() == Some(&[u, rank]) {
                pipeline.spoil(&mut session, rank)?;
            }
        }
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        rows.push("loss", Array::new([], Data::from_f64(pipeline.dtype, &[loss])));
        let draws = draws(u);
        session.run(&update, &draws.iter().map(|(name, z)| (name.as_str(), z)).collect::<Vec<_>>())?;
        session.wait()?;
        for taps in session.taps()? {
            rows.take(&taps, pipeline.dtype);
        }
    }
    Ok(rows.results())
}
