//! Tapes whose plans have been wrong, found by random ones and made small.

use wgrad::{
    Array, DType, Tape, Tensor,
    plan::{Grouping, Plan},
};
use wgrad_cpu::reference::plan;
use wgrad_tests::{Point, Tolerance, agree, named, sound};

/// Groups that merge, of which one computes again what the other sees turned: `second` says how.
#[test]
fn a_group_that_merges_with_another_keeps_its_own_looks() {
    let seconds: [fn(Tensor<'_>) -> Tensor<'_>; 3] =
        [|r| r.transpose(), |r| r.transpose() + 1.0, |r| r.slice_step(0, 4, 5, -1) * 2.0];
    for second in seconds {
        let t = Tape::default();
        let (x, y) = (t.input("x", [5, 5], DType::F64), t.input("y", [5, 5], DType::F64));
        let (squares, product) = (x * x, x * y);
        t.tap("first", squares.sum_axes(&[0]));
        // Its group computes the product again.
        t.tap("second", (squares + product).sum_axes(&[0]));
        // A group with the same rows, of the same input, a level deeper.
        t.tap("third", (x * x.sum() * second(product)).sum_axes(&[0]));
        let program = t.finish();
        let value = |k: f64| Array::new([5, 5], (0..25).map(|i| (i as f64 * k).sin()).collect::<Vec<f64>>());
        let inputs = [("x".to_string(), value(0.7)), ("y".to_string(), value(1.3))];
        let point = Point { program: &program, states: &[], inputs: &inputs };
        let want = point.reference();
        for row_limit in [0, 4, 16 * 1024] {
            let grouping = Grouping { row_limit, ..Grouping::default() };
            let plan = Plan::with(&program, &grouping);
            let have = plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
            agree(&have, &want, &point, Tolerance::F64)
                .unwrap_or_else(|why| panic!("{why}\n{}", plan.describe(&program)));
        }
    }
}

/// What a group computes again is loaded, in turn, from groups before it: here `again` is also computed by a group that
/// others read, and merges into one that comes later than these.
#[test]
fn nothing_is_read_from_a_later_group() {
    for shown in [false, true] {
        let t = Tape::default();
        let (x, y) = (t.input("x", [2, 2], DType::F64), t.input("y", [2, 2], DType::F64));
        let again = y + 1.0;
        t.tap("products", (y * x).sum_axes(&[0]));
        t.tap("sums", (y + again).sum_axes(&[0]));
        if shown {
            t.tap("again", again);
        }
        let scaled = again * y.sum() * 0.1;
        let rows = y + y - (y + y).max_axes(&[1]).reshape([2, 1]);
        t.tap("rows", rows);
        t.tap("scaled", (scaled + rows).sum_axes(&[0]));
        let product = scaled.matmul(rows) * 0.2 + scaled;
        t.tap("squares", product.square().sum_axes(&[0]));
        t.tap("product", product + 1.0);
        t.tap("tanh", again.tanh() + rows);
        let program = t.finish();
        let value = |k: f64| Array::new([2, 2], (0..4).map(|i| (i as f64 * k).sin()).collect::<Vec<f64>>());
        let inputs = [("x".to_string(), value(0.7)), ("y".to_string(), value(1.3))];
        let grouping = Grouping::default();
        sound(&program, &grouping).unwrap_or_else(|why| panic!("{why}"));
        let plan = Plan::with(&program, &grouping);
        let have = plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
        let point = Point { program: &program, states: &[], inputs: &inputs };
        agree(&have, &point.reference(), &point, Tolerance::F64).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// A root that members look at as elements of rows, and others, by a slice, as values of rows: where a row has one element the
/// two look alike, and are not the same value of a kernel.
#[test]
fn what_is_computed_of_elements_is_computed_again_for_rows() {
    let t = Tape::default();
    let x = t.input("x", [1, 1], DType::F64);
    let double = x + x;
    let again = double.slice_step(0, 0, 1, -1) + x;
    let sums = (again + x).sum_axes(&[1]);
    t.tap("sums", sums);
    t.tap("others", x.sum_axes(&[1]).tanh().reshape([1, 1]) + double * 0.5);
    t.tap("last", again.slice_step(0, 0, 1, -1) + (sums.tanh().reshape([1, 1]) + x * 0.5).tanh());
    let program = t.finish();
    let inputs = [("x".to_string(), Array::new([1, 1], vec![0.7f64]))];
    let point = Point { program: &program, states: &[], inputs: &inputs };
    let defaults = Grouping::default();
    for grouping in [Grouping { maps: false, epilogues: false, row_limit: 3, ..defaults.clone() }, defaults] {
        sound(&program, &grouping).unwrap_or_else(|why| panic!("{why}\n{program}"));
        let plan = Plan::with(&program, &grouping);
        let have = plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
        agree(&have, &point.reference(), &point, Tolerance::F64).expect("the plan is right");
    }
}

/// Between its two products, a feed-forward block keeps what it cannot cheaply have again: the first product, and what the
/// second one reads.
#[test]
fn what_little_work_gives_again_is_not_kept() {
    let t = Tape::default();
    let [x, up, down] = [[8, 4], [4, 16], [16, 4]].map(|shape| t.input(&format!("{shape:?}"), shape, DType::F32));
    let loss = x.matmul(up).gelu_tanh().matmul(down).square().sum();
    for (i, gradient) in loss.grad_wrt(&[x, up, down]).into_iter().enumerate() {
        t.tap(&format!("gradient {i}"), gradient.expect("reached"));
    }
    let program = t.finish();
    let plan = Plan::new(&program);
    let wide = |operand: &&wgrad::plan::Operand| operand.shape.numel() == 8 * 16;
    let most = plan.kernels.iter().map(|kernel| kernel.writes.iter().filter(wide).count()).max();
    assert_eq!(most, Some(2), "{}", plan.describe(&program));
}

/// Sums that are taken earlier than they are written: each factor, sign and summand in its place.
#[test]
fn sums_that_need_not_wait_are_the_same() {
    fn total(x: Tensor<'_>) -> Tensor<'_> {
        x.sum_axes(&[1]).reshape([5, 1])
    }
    let t = Tape::default();
    let (x, y) = (t.input("x", [5, 7], DType::F64), t.input("y", [5, 7], DType::F64));
    let r = total(y.exp());
    for (i, sum) in
        [x / r, r * x * total(x * y), -(x * r), x * r - y, y - x / r * 3.0, -(x - y * r) / r].into_iter().enumerate()
    {
        t.tap(&format!("sum {i}"), total(sum));
        t.tap(&format!("rest {i}"), sum - total(sum));
    }
    let normed = x.layer_norm(1, Some(y.slice(0, 0, 1).reshape([7])), None, 1e-5);
    t.tap("gradient", normed.vjp(y, &[x])[0].expect("it depends on it"));
    let program = t.finish();
    let value = |k: f64| Array::new([5, 7], (0..35).map(|i| (i as f64 * k).sin()).collect::<Vec<f64>>());
    let inputs = [("x".to_string(), value(0.7)), ("y".to_string(), value(1.3))];
    let point = Point { program: &program, states: &[], inputs: &inputs };
    let plan = Plan::new(&program);
    let have = plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
    agree(&have, &point.reference(), &point, Tolerance::F64)
        .unwrap_or_else(|why| panic!("{why}\n{}", plan.describe(&program)));
}

/// Sums over the same part of a larger value, seen in another order, read it once.
#[test]
fn reductions_of_a_part_of_a_value_are_one_kernel() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [6, 4], DType::F64), t.input("w", [4, 12], DType::F64));
    let all = x.matmul(w);
    for (name, start) in [("queries", 0), ("keys", 4)] {
        let part = all.slice(1, start, 4).reshape([2, 3, 2, 2]).swap_axes(1, 2);
        t.tap(&format!("{name}/size"), part.abs().mean());
        t.tap(&format!("{name}/norm"), part.norm());
        t.tap(&format!("{name}/largest"), part.square().max());
    }
    let program = t.finish();
    let value = |shape: [usize; 2]| {
        Array::new(shape, (0..shape[0] * shape[1]).map(|i| (i as f64 * 0.7).sin()).collect::<Vec<_>>())
    };
    let inputs = [("x".to_string(), value([6, 4])), ("w".to_string(), value([4, 12]))];
    let point = Point { program: &program, states: &[], inputs: &inputs };
    let plan = Plan::with(&program, &Grouping::default());
    let have = plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
    agree(&have, &point.reference(), &point, Tolerance::F64)
        .unwrap_or_else(|why| panic!("{why}\n{}", plan.describe(&program)));
    // The product, and a kernel for each part.
    assert_eq!(plan.kernels.len(), 3, "{}", plan.describe(&program));
}
