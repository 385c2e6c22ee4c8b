//! Random tapes with parameter updates between their parts. The gradient with respect to a parameter includes the flow
//! through every value that was read, and agrees with finite differences; or it is refused if the loss reads the
//! parameter at two values.

use super::Property;
use crate::{Tolerance, compare, reference};
use approx::abs_diff_eq;
use proptest::{bool::weighted, collection::vec, prelude::*, sample::select, test_runner::TestCaseResult};
use std::{
    collections::BTreeSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use wgrad::{
    Array, DType, Optimizer, Param, ParamSet, Store, Tape, Tensor,
    testing::{Kind, Mode, Recipe, Recorded, central_difference, recipe},
};
use wgrad_cpu::reference::Outcome;
use wgrad_nn::optim::{Sgd, SgdConfig};

/// The change that makes a new value of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// An optimizer step of some parameters. Their gradient depends on all parameters.
    Step,
    /// An assignment, which changes all parameters.
    Assign,
}

/// The change between two parts of a tape. Sets of parameters are bit masks.
#[derive(Clone, Copy, Debug)]
struct Interlude {
    /// The position in the recipe.
    at: u8,
    change: Change,
    /// The parameters that the optimizer updates.
    stepped: u8,
    /// The parameters that the tape reads again.
    read: u8,
    /// True if the tape also reads the arena as a whole.
    whole: bool,
}

/// A tape whose leaves are parameters, which change between its parts.
#[derive(Clone)]
struct Case {
    recipe: Recipe,
    interludes: Vec<Interlude>,
    /// The parameters that have a hook.
    hooked: u8,
    /// The parameters whose gradient is computed.
    wanted: u8,
    /// The seed of the direction of the differences.
    seed: u64,
}

fn case(steps: usize) -> impl Strategy<Value = Case> {
    let change = select(vec![Change::Step, Change::Step, Change::Step, Change::Assign]);
    let interlude = (any::<u8>(), change, 0..8u8, 0..8u8, weighted(0.25))
        .prop_map(|(at, change, stepped, read, whole)| Interlude { at, change, stepped, read, whole });
    // The parts shrink first. Without them, the rest of the recipe is nearly all that is recorded.
    let parts = (vec(interlude, 1..=3), prop_oneof![2 => Just(0u8), 1 => 0..8u8], 1..8u8, any::<u64>());
    (parts, recipe(steps)).prop_map(|((interludes, hooked, wanted, seed), recipe)| {
        // Rounding has no derivative, so casts are left out.
        let mut recipe = recipe.without(&[Kind::CastFloat, Kind::CastHalf]);
        if hooked != 0 {
            // A hook on a value that was read would run after the parameter's own hook, and see a part of the gradient
            // only.
            recipe = recipe.without(&[Kind::Hook]);
        }
        Case { recipe, interludes, hooked, wanted, seed }
    })
}

/// Prints the masks, the interludes, the recipe and the program.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipe, interludes, hooked, wanted, seed } = self;
        writeln!(f, "hooked: {hooked:#05b}, wanted: {wanted:#05b}, direction of seed {seed}, {interludes:?}")?;
        writeln!(f, "recipe = {recipe:?}")?;
        let record = || {
            let world = World::new(self);
            let tape = world.tape();
            let loss = self.record(&tape, &world).0.loss;
            tape.tap("loss", loss);
            tape.finish().to_string()
        };
        // Recording may panic, and this thread must not, so another thread records.
        match std::thread::scope(|scope| scope.spawn(record).join()) {
            Ok(program) => writeln!(f, "with its steps:\n{program}"),
            Err(_) => writeln!(f, "(recording it panics)"),
        }
    }
}

/// A store with the parameters, and an optimizer for each interlude.
struct World {
    store: Store,
    params: Vec<Param>,
    optimizers: Vec<Sgd>,
}

impl World {
    fn new(case: &Case) -> Self {
        let mut store = Store::new();
        let leaves = case.recipe.leaves.len();
        let params: Vec<Param> = (0..leaves).map(|i| store.param(&format!("p{i}"), &case.recipe.leaf(i))).collect();
        let optimizer = |(k, interlude): (usize, &Interlude)| {
            let config = SgdConfig { name: format!("sgd{k}"), lr: 0.05.into(), ..SgdConfig::default() };
            Sgd::new(&mut store, &chosen(&params, interlude.stepped), config)
        };
        let optimizers = case.sorted().iter().enumerate().map(optimizer).collect();
        Self { store, params, optimizers }
    }

    fn tape(&self) -> Tape {
        Tape::new(Arc::new(self.store.layout().clone()))
    }

    fn len(&self) -> usize {
        self.store.layout().state(self.store.layout().param(self.params[0]).arena).shape.numel()
    }

    /// The offset and the length of a parameter in the arena.
    fn place(&self, i: usize) -> (usize, usize) {
        let decl = self.store.layout().param(self.params[i]);
        (decl.offset, decl.shape.numel())
    }
}

fn is_in(mask: u8, i: usize) -> bool {
    mask >> i & 1 == 1
}

fn chosen(params: &[Param], mask: u8) -> ParamSet {
    params.iter().enumerate().filter(|(i, _)| is_in(mask, *i)).map(|(_, param)| *param).collect()
}

/// The value that is computed from the whole arena; its magnitude is at most 1.
fn whole(arena: Tensor<'_>) -> Tensor<'_> {
    (arena * 0.7).sin().mean()
}

impl Case {
    /// The interludes in order.
    fn sorted(&self) -> Vec<Interlude> {
        let mut sorted = self.interludes.clone();
        sorted.sort_by_key(|interlude| self.position(interlude));
        sorted
    }

    fn position(&self, interlude: &Interlude) -> usize {
        usize::from(interlude.at) % (self.recipe.steps.len() + 1)
    }

    fn positions(&self) -> Vec<usize> {
        self.sorted().iter().map(|interlude| self.position(interlude)).collect()
    }

    /// The number of changes of a parameter in the first `interludes` interludes.
    fn age(&self, i: usize, interludes: usize) -> usize {
        let changes = |x: &&Interlude| x.change == Change::Assign || is_in(x.stepped, i);
        self.sorted()[..interludes].iter().filter(changes).count()
    }

    /// Records the tape with its steps; returns it with the values of the arena, in order.
    fn record<'t>(&self, t: &'t Tape, world: &World) -> (Recorded<'t>, Vec<Tensor<'t>>) {
        let World { store, params, optimizers } = world;
        let arena = store.layout().param(params[0]).arena;
        for (_, param) in params.iter().enumerate().filter(|(i, _)| is_in(self.hooked, *i)) {
            t.on_param_grad(*param, |g| g.tanh());
        }
        let leaves: Vec<Tensor<'t>> = params.iter().map(|param| t.param(*param)).collect();
        let (sorted, mut values) = (self.sorted(), vec![t.state(arena)]);
        let recorded = self.recipe.record_in_parts(&leaves, Mode::Plain, &self.positions(), |k| {
            let Interlude { change, stepped, read, whole: reads_whole, .. } = sorted[k];
            let set = chosen(params, stepped);
            match change {
                Change::Assign => t.assign(arena, t.state(arena) * 0.9),
                Change::Step if set.is_empty() => {}
                Change::Step => {
                    let all = params.iter().map(|param| t.param(*param).sum()).reduce(|a, b| a + b);
                    let factor = (all.expect("a leaf") * 0.1).cos();
                    let own = set.iter().map(|param| (t.param(param) * 1.3).sin().sum()).reduce(|a, b| a + b);
                    optimizers[k].step((own.expect("one at least") * factor).grad(&set));
                }
            }
            values.push(t.state(arena));
            let mut again: Vec<(usize, Tensor<'t>)> =
                (0..params.len()).filter(|i| is_in(read, *i)).map(|i| (i, t.param(params[i]))).collect();
            again.extend(reads_whole.then(|| (params.len(), whole(t.state(arena)))));
            again
        });
        (recorded, values)
    }

    /// Records the meaning of the tape. The values of the arena are the inputs `value0`, `value1`, ... Each read of a
    /// parameter adds the input `p<parameter>.<value>`, of which there is one for each value of the parameter. Each
    /// read of the whole arena adds the input `whole<value>`, one for each value of the arena.
    fn explicit<'t>(&self, t: &'t Tape, world: &World) -> Recorded<'t> {
        let value = |k: usize| t.shared_input(&format!("value{k}"), [world.len()], DType::F64);
        let read = |i: usize, k: usize| {
            let (start, len) = world.place(i);
            let moved = t.shared_input(&format!("p{i}.{}", self.age(i, k)), [len], DType::F64);
            (value(k).slice(0, start, len) + moved).reshape(&self.recipe.leaves[i].shape)
        };
        let leaves: Vec<Tensor<'t>> = (0..world.params.len()).map(|i| read(i, 0)).collect();
        let sorted = self.sorted();
        self.recipe.record_in_parts(&leaves, Mode::Explicit, &self.positions(), |k| {
            let reads = (0..world.params.len()).filter(|i| is_in(sorted[k].read, *i));
            let mut again: Vec<(usize, Tensor<'t>)> = reads.map(|i| (i, read(i, k + 1))).collect();
            let moved = |k: usize| value(k) + t.shared_input(&format!("whole{k}"), [world.len()], DType::F64);
            again.extend(sorted[k].whole.then(|| (world.params.len(), whole(moved(k + 1)))));
            again
        })
    }
}

/// The parts of the gradient with respect to one parameter, from the explicit recording.
struct Parts {
    /// The ages of the parameter, in changes, at the reads that the loss depends on.
    ages: BTreeSet<usize>,
    /// The part through reads of the parameter.
    own: Option<Vec<f64>>,
    /// The part through reads of the whole arena.
    whole: Option<Vec<f64>>,
}

fn add(sum: &mut Option<Vec<f64>>, part: &[f64]) {
    let sum = sum.get_or_insert_with(|| vec![0.0; part.len()]);
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
}

/// The inputs of the explicit recording that have a gradient, with their gradients.
fn differentiated(case: &Case, world: &World, inputs: &[(String, Array)]) -> Vec<(String, Vec<f64>)> {
    let t = Tape::default();
    let loss = case.explicit(&t, world).loss;
    let n = case.interludes.len();
    let own = (0..world.params.len()).flat_map(|i| (0..=n).map(move |age| (format!("p{i}.{age}"), Some(i))));
    let names = own.chain((0..=n).map(|k| (format!("whole{k}"), None)));
    for (name, i) in names {
        let x = t.shared_input(&name, [i.map_or(world.len(), |i| world.place(i).1)], DType::F64);
        if let Some(g) = loss.grad_wrt(&[x])[0] {
            t.tap(&name, g);
        }
    }
    let program = t.finish();
    let taps = reference(&program, &[], &fitting(&program, inputs)).taps;
    taps.into_iter().map(|(name, _, values)| (name, values)).collect()
}

/// An array for each input of a program: the given one, or zeros.
fn fitting(program: &wgrad::Program, given: &[(String, Array)]) -> Vec<(String, Array)> {
    let array = |input: &wgrad::InputDecl| {
        let known = given.iter().find(|(name, _)| *name == input.name).map(|(_, array)| array.clone());
        (input.name.clone(), known.unwrap_or_else(|| Array::zeros(&input.shape, input.dtype)))
    };
    program.inputs().iter().map(array).collect()
}

fn parts(case: &Case, world: &World, gradients: &[(String, Vec<f64>)], i: usize) -> Parts {
    let mut parts = Parts { ages: BTreeSet::new(), own: None, whole: None };
    let (start, len) = world.place(i);
    for (name, values) in gradients {
        if let Some(age) = name.strip_prefix(&format!("p{i}.")) {
            parts.ages.insert(age.parse().expect("a number"));
            add(&mut parts.own, values);
        } else if let Some(k) = name.strip_prefix("whole") {
            parts.ages.insert(case.age(i, k.parse().expect("a number")));
            add(&mut parts.whole, &values[start..start + len]);
        }
    }
    parts
}

fn tap<'o>(outcome: &'o Outcome, name: &str) -> Option<&'o [f64]> {
    outcome.taps.iter().find(|(n, ..)| n == name).map(|(.., values)| &values[..])
}

fn branches(outcome: &Outcome) -> Vec<&[f64]> {
    outcome.taps.iter().filter(|(n, ..)| n.starts_with("branch")).map(|(.., values)| &values[..]).collect()
}

/// A gradient function: the gradient of each parameter that has one. It may panic to refuse.
type Gradient = for<'t> fn(Tensor<'t>, &World, &[Tensor<'t>], &ParamSet) -> Vec<(Param, Tensor<'t>)>;

fn by_set<'t>(loss: Tensor<'t>, _: &World, _: &[Tensor<'t>], set: &ParamSet) -> Vec<(Param, Tensor<'t>)> {
    let grads = loss.grad(set);
    grads.present().iter().map(|param| (param, grads.get(param).expect("present"))).collect()
}

/// The gradient through only the newest value of the arena that the loss reads, which is a fault.
fn by_newest<'t>(loss: Tensor<'t>, world: &World, values: &[Tensor<'t>], set: &ParamSet) -> Vec<(Param, Tensor<'t>)> {
    let mut distinct: Vec<Tensor<'t>> = vec![];
    values.iter().rev().for_each(|x| {
        if distinct.iter().all(|known| known.id() != x.id()) {
            distinct.push(*x);
        }
    });
    let members: Vec<usize> = (0..world.params.len()).filter(|i| set.contains(world.params[*i])).collect();
    for value in distinct {
        let slice = |i: &usize| value.slice(0, world.place(*i).0, world.place(*i).1);
        let found = loss.grad_wrt(&members.iter().map(slice).collect::<Vec<_>>());
        if found.iter().any(Option::is_some) {
            let own = members.iter().zip(found).filter_map(|(i, g)| Some((world.params[*i], g?)));
            return own.collect();
        }
    }
    vec![]
}

fn check(case: &Case, gradient: Gradient) -> TestCaseResult {
    let world = World::new(case);
    // Empty parameters are left out, because they share a slice, and so the gradient of one is that of all.
    let wanted = |i: &usize| is_in(case.wanted, *i) && world.place(*i).1 > 0;
    let wanted: Vec<usize> = (0..world.params.len()).filter(wanted).collect();
    // The plain recording taps the values of the arena, and the values that the sweep takes as constants.
    let t = world.tape();
    let (Recorded { loss, branches: discrete, frozen, .. }, values) = case.record(&t, &world);
    t.tap("loss", loss);
    discrete.iter().enumerate().for_each(|(i, b)| t.tap(&format!("branch{i}"), *b));
    values.iter().enumerate().for_each(|(k, x)| t.tap(&format!("value{k}"), *x));
    frozen.iter().enumerate().for_each(|(i, x)| t.tap(&format!("frozen{i}"), *x));
    // The explicit recording shows which parameters are read at two values. This does not depend on the inputs.
    let gradients = differentiated(case, &world, &case.explicit_inputs(&world));
    let twice = |i: usize| parts(case, &world, &gradients, i).ages.len() > 1;
    let set =
        |of: &dyn Fn(usize) -> bool| wanted.iter().filter(|i| of(**i)).map(|i| world.params[*i]).collect::<ParamSet>();
    let (once, changed) = (set(&|i| !twice(i)), set(&twice));
    for param in changed.iter() {
        let only = [param].into_iter().collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(gradient(loss, &world, &values, &only))));
        let message = outcome.err().and_then(|panic| panic.downcast::<String>().ok());
        let Some(message) = message else { return Err(TestCaseError::fail("a gradient by two values is not refused")) };
        prop_assert!(message.matches("(read at ").count() == 2 && message.matches(".rs:").count() >= 4, "{}", message);
    }
    for (param, g) in gradient(loss, &world, &values, &once) {
        let i = world.params.iter().position(|p| *p == param).expect("a parameter");
        t.tap(&format!("gradient{i}"), g);
    }
    let plain = t.finish();
    let states = world.store.values();
    let base = reference(&plain, states, &case.recipe.arrays(&plain));
    let is_fixed = |name: &str| name.starts_with("value") || name.starts_with("frozen");
    let fixed = base.taps.iter().filter(|(name, ..)| is_fixed(name));
    let fixed = fixed.map(|(name, shape, values)| (name.clone(), Array::new(shape, values.clone())));
    let inputs: Vec<(String, Array)> = case.explicit_inputs(&world).into_iter().chain(fixed).collect();
    let gradients = differentiated(case, &world, &inputs);
    let mut slope = 0.0;
    let along = direction(&world, case.seed);
    for i in wanted.into_iter().filter(|i| once.contains(world.params[*i])) {
        let Parts { own, whole, .. } = parts(case, &world, &gradients, i);
        let (start, len) = world.place(i);
        let flat = |part: &[f64]| part.iter().zip(&along[start..start + len]).map(|(g, u)| g * u).sum::<f64>();
        slope += own.iter().chain(&whole).map(|part| flat(part)).sum::<f64>();
        let hooked =
            |part: Vec<f64>| if is_in(case.hooked, i) { part.into_iter().map(f64::tanh).collect() } else { part };
        let mut want = own.map(hooked);
        whole.iter().for_each(|part| add(&mut want, part));
        let have = tap(&base, &format!("gradient{i}"));
        match (have, want) {
            (Some(have), Some(want)) => {
                compare(&format!("gradient {i}"), have, &want, Tolerance(1e-10)).map_err(TestCaseError::fail)?;
            }
            (have, want) => prop_assert_eq!(have.is_some(), want.is_some(), "gradient {} is there", i),
        }
    }
    differences(case, &world, &once, &inputs, &base, slope, &along)
}

/// Checks that the explicit recording has the loss of the plain one, and that its slope agrees with finite differences.
fn differences(
    case: &Case,
    world: &World,
    set: &ParamSet,
    inputs: &[(String, Array)],
    base: &Outcome,
    slope: f64,
    along: &[f64],
) -> TestCaseResult {
    const H: f64 = 2e-4;
    let t = Tape::default();
    let Recorded { loss, branches: discrete, .. } = case.explicit(&t, world);
    t.tap("loss", loss);
    discrete.iter().enumerate().for_each(|(i, b)| t.tap(&format!("branch{i}"), *b));
    let program = t.finish();
    let at = |h: f64| {
        let mut arrays = fitting(&program, inputs);
        for i in (0..world.params.len()).filter(|i| set.contains(world.params[*i])) {
            let (start, len) = world.place(i);
            for (name, array) in &mut arrays {
                let mut values = array.to_f64();
                let moved = match name.as_str() {
                    name if name.starts_with(&format!("p{i}.")) => &mut values[..],
                    name if name.starts_with("whole") => &mut values[start..start + len],
                    _ => continue,
                };
                moved.iter_mut().zip(&along[start..start + len]).for_each(|(x, u)| *x = h * u);
                *array = Array::new(array.shape(), values);
            }
        }
        reference(&program, &[], &arrays)
    };
    let straight = [-H, -H / 2.0, 0.0, H / 2.0, H].iter().all(|&h| branches(&at(h)) == branches(base));
    prop_assume!(straight, "a kink is near");
    let loss = |h: f64| tap(&at(h), "loss").expect("tapped")[0];
    let here = tap(base, "loss").expect("tapped")[0];
    compare("explicit loss", &[loss(0.0)], &[here], Tolerance::F64).map_err(TestCaseError::fail)?;
    let (want, error) = central_difference(loss, H);
    let scale = want.abs().max(here.abs()).max(1.0);
    prop_assume!(error < 1e-3 * scale, "too curved for finite differences");
    prop_assert!(
        abs_diff_eq!(slope, want, epsilon = 1e-7 * scale + error),
        "the slope is {}, by differences {}",
        slope,
        want
    );
    Ok(())
}

/// A direction in the arena, of length 1.
fn direction(world: &World, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut all: Vec<f64> = (0..world.len())
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        })
        .collect();
    let norm = all.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-9);
    all.iter_mut().for_each(|v| *v /= norm);
    all
}

impl Case {
    /// The inputs of the explicit recording that the recipe gives.
    fn explicit_inputs(&self, world: &World) -> Vec<(String, Array)> {
        let t = Tape::default();
        self.explicit(&t, world);
        self.recipe.arrays(&t.finish())
    }
}

pub(super) fn properties() -> Vec<Property> {
    vec![Property::new("gradients_across_steps_are_whole_or_refused", 1024, case(8), |case| check(case, by_set))]
}

/// The property for a faulty gradient, which loses the reads before a step. It does not hold.
pub fn lossy_steps() -> Property {
    // The fault is not about refusals, so no gradient of a changed parameter is computed.
    let cases = case(4).prop_map(|mut case| {
        case.interludes.iter_mut().for_each(|interlude| interlude.change = Change::Step);
        let stepped = case.interludes.iter().fold(0, |all, interlude| all | interlude.stepped);
        case.wanted = 7 & !stepped;
        case
    });
    Property::new("gradients_by_the_newest_value_are_whole", 1024, cases, |case| check(case, by_newest))
}
