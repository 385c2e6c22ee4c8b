//! Ties that the order of a sum decides: another branch there is no fault, in f64 too; any other branch is.

use wgrad::{
    Array, Data, Program, Shape,
    plan::Grouping,
    testing::{Kind, Leaf, Mode, Recipe, Step},
};
use wgrad_cpu::reference::Outcome;
use wgrad_tests::{Machine, Point, Tolerance, Training, Update, agree};

fn leaf(shape: impl Into<Shape>, values: &[f64]) -> Leaf {
    Leaf { shape: shape.into(), values: values.to_vec() }
}

fn training(leaves: Vec<Leaf>, steps: &[(Kind, u8, u8, u8)]) -> Training {
    let steps = steps.iter().map(|&(kind, key, a, b)| Step { kind, key, a, b, n: [0; 4] }).collect();
    let recipe = Recipe { dtype: wgrad::DType::F64, leaves, steps };
    Training { recipe, gradients: true, second: false, update: Update::None }
}

/// Two values that are 0, but for rounding: a sum of products whose factors are these, and its negative; then what has
/// to decide between the two.
fn cancels(kind: Kind, factors: &[f64]) -> Training {
    let leaves = vec![leaf([1, factors.len()], factors), leaf([factors.len(), 1], &vec![0.1; factors.len()])];
    training(leaves, &[(Kind::MatMul, 10, 1, 2), (Kind::Neg, 20, 0, 0), (kind, 30, 10, 20)])
}

/// In any order, the sum of these products is 0.
const TIE: [f64; 2] = [-1.98, 1.98];
/// The sum of these is 0 in one order and 2e-18 in another.
const NEAR_TIE: [f64; 8] = [1.98, 0.37, 1.13, 0.71, -1.98, -0.37, -1.13, -0.71];

/// A training step, and where it is taken.
struct Taken {
    program: Program,
    states: Vec<Data>,
    inputs: Vec<(String, Array)>,
}

impl Taken {
    fn new(case: &Training) -> Self {
        let program = case.record();
        Self { states: case.states(), inputs: case.inputs(&program), program }
    }

    fn point(&self) -> Point<'_> {
        Point { program: &self.program, states: &self.states, inputs: &self.inputs }
    }
}

/// What a device gives that has rounded a little differently: the reference near by.
fn rounded_differently(case: &Training, by: f64) -> Outcome {
    let mut near = case.clone();
    near.recipe.leaves[0].values[0] *= 1.0 + by;
    Taken::new(&near).point().reference()
}

#[test]
fn the_cpu_may_round_a_sum_to_either_side_of_a_tie() {
    for kind in [Kind::Max, Kind::SelectLess, Kind::SelectEqual] {
        let case = cancels(kind, &NEAR_TIE);
        let outputs = case.train(Machine::poisoned(1, case.store()), 2);
        case.agrees_with_reference(&outputs, Tolerance::F64).unwrap_or_else(|why| panic!("{kind:?}: {why}"));
    }
}

#[test]
fn either_side_of_a_tie_is_right() {
    for kind in [Kind::Max, Kind::SelectLess, Kind::SelectEqual] {
        let tie = cancels(kind, &TIE);
        for by in [1e-15, -1e-15] {
            let (here, near) = (Taken::new(&tie), rounded_differently(&tie, by));
            agree(&near, &here.point().reference(), &here.point(), Tolerance::F64).expect("a tie");
            // Where the reference is beside the tie, the other side of it and the tie itself are as right.
            let mut beside = tie.clone();
            beside.recipe.leaves[0].values[0] *= 1.0 + by;
            let there = Taken::new(&beside);
            for other in [0.0, -by] {
                let other = rounded_differently(&tie, other);
                agree(&other, &there.point().reference(), &there.point(), Tolerance::F64).expect("near a tie");
            }
        }
    }
}

#[test]
fn a_branch_that_no_rounding_decides_is_wrong() {
    // Far from a tie; and the same value twice, which is one however it is rounded.
    let apart = training(vec![leaf([], &[0.5]), leaf([], &[0.7])], &[(Kind::SelectLess, 10, 1, 2)]);
    let same = training(vec![leaf([], &[0.5]), leaf([], &[0.7])], &[(Kind::SelectLess, 10, 1, 1)]);
    for case in [apart, same] {
        let taken = Taken::new(&case);
        let mut wrong = taken.point().reference();
        let branch = wrong.taps.iter_mut().find(|(name, ..)| name == "branch").expect("a comparison");
        branch.2[0] = 1.0 - branch.2[0];
        let why = agree(&wrong, &taken.point().reference(), &taken.point(), Tolerance::F64);
        assert!(why.as_ref().is_err_and(|why| why.contains("branch[0]")), "{why:?}");
        assert!(agree(&wrong, &taken.point().reference(), &taken.point(), Tolerance::F32).is_ok());
    }
}

#[test]
fn one_tie_excuses_no_other_branch() {
    let leaves = cancels(Kind::Max, &TIE).recipe.leaves;
    let steps =
        [(Kind::MatMul, 10, 1, 2), (Kind::Neg, 20, 0, 0), (Kind::Max, 30, 10, 20), (Kind::SelectLess, 40, 1, 1)];
    let case = training(leaves, &steps);
    let (taken, mut near) = (Taken::new(&case), rounded_differently(&case, 1e-15));
    let point = taken.point();
    agree(&near, &point.reference(), &point, Tolerance::F64).expect("a tie");
    near.taps.iter_mut().rfind(|(name, ..)| name.starts_with("branch")).expect("a comparison").2[1] = 1.0;
    assert!(agree(&near, &point.reference(), &point, Tolerance::F64).is_err());
}

#[test]
fn explicit_recordings_have_the_same_branches() {
    for kind in [Kind::Max, Kind::SelectEqual] {
        let recipe = cancels(kind, &TIE).recipe;
        let tape = wgrad::Tape::default();
        let count = |mode| recipe.record(&tape, mode).branches.len();
        assert_eq!((count(Mode::Plain), count(Mode::Explicit)), (2, 2), "one for each order of two values");
    }
}

/// In f32 a branch is what the reference takes near by, or what the CPU takes; on a GPU that is held against it.
#[test]
fn a_wrong_branch_in_f32_is_found() {
    let case = training(vec![leaf([4], &[0.3, 0.9, -0.5, 0.1])], &[(Kind::ReduceMax, 0, 0, 0)]);
    let case = case.with_dtype(wgrad::DType::F32);
    let mut have = case.train(Machine::new(1, case.store()), 1);
    case.branches_as_reference(&have, &Grouping::default()).unwrap();
    let branch = have[0].taps.iter_mut().find(|(name, _)| name == "branch").expect("a maximum is one");
    let other: Vec<f64> = branch.1.to_f64().iter().map(|x| 1.0 - x).collect();
    branch.1 = Array::new(branch.1.shape(), Data::from_f64(branch.1.dtype(), &other));
    let why = case.branches_as_reference(&have, &Grouping::default()).unwrap_err();
    assert!(why.contains("no tie"), "{why}");
}

/// Segments of the same numbers in another order, whose sums are compared: 0.1 + 0.1 - 0.4 and 0.1 - 0.4 + 0.1, beside 0.1 - 0.4.
/// (Found on a GPU, by the 4,069th tape of a run.)
#[test]
fn the_same_numbers_in_another_order_are_a_tie_in_f32() {
    let mut case = training(
        vec![leaf([3], &[0.1, 0.1, -0.4])],
        &[(Kind::Expand, 41, 0, 0), (Kind::SegmentSum, 87, 0, 0), (Kind::ReduceMax, 53, 0, 0)],
    );
    for (step, n) in case.recipe.steps.iter_mut().zip([[0, 1, 0, 0], [0, 7, 6, 4], [1, 0, 0, 0]]) {
        step.n = n;
    }
    let case = Training { gradients: false, ..case.with_dtype(wgrad::DType::F32) };
    let outputs = case.train(Machine::new(1, case.store()), 1);
    let with = |branches: [f64; 3]| {
        let mut have = outputs.clone();
        let branch = have[0].taps.iter_mut().find(|(name, _)| name == "branch").expect("a maximum is one");
        branch.1 = Array::new(branch.1.shape(), Data::from_f64(branch.1.dtype(), &branches));
        case.branches_as_reference(&have, &Grouping::none())
    };
    for tie in [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] {
        with(tie).unwrap_or_else(|why| panic!("{tie:?}: {why}"));
    }
    assert!(with([0.0, 0.0, 1.0]).is_err_and(|why| why.contains("branch[2]")), "the third is another number");
}
