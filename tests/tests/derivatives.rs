//! Derivatives of recorded functions against closed forms, on the reference and on the CPU, in f64 and f32.

use std::{cell::Cell, rc::Rc, sync::Arc};
use wgrad::{Array, DType, Flat, Rng, Shape, Store, Tape, Tensor, hessian, hvp, jacobian, jvp, vjp};
use wgrad_tests::{Gradcheck, Machine, Tolerance, compare, reference};

const F64: DType = DType::F64;

/// An argument: its shape and its elements.
type Argument = (Vec<usize>, Vec<f64>);

fn vector(elements: &[f64]) -> Argument {
    (vec![elements.len()], elements.to_vec())
}

fn scalar(element: f64) -> Argument {
    (vec![], vec![element])
}

/// Requires the tensors that `f` makes of its arguments to have these shapes and elements.
fn check<const N: usize>(
    arguments: [Argument; N],
    f: impl for<'t> Fn([Tensor<'t>; N]) -> Vec<Tensor<'t>>,
    want: &[Argument],
) {
    for dtype in [F64, DType::F32] {
        let t = Tape::default();
        let mut inputs = vec![];
        let x = std::array::from_fn(|i| {
            let (shape, elements) = &arguments[i];
            let array = Array::new(&shape[..], elements.clone()).cast(dtype);
            inputs.push((format!("x{i}"), array.clone()));
            t.input_like(&format!("x{i}"), &array)
        });
        let found = f(x);
        assert_eq!(found.len(), want.len());
        for (i, y) in found.into_iter().enumerate() {
            assert_eq!(y.dtype(), dtype);
            t.tap(&format!("y{i}"), y);
        }
        let program = t.finish();
        let of_reference = reference(&program, &[], &inputs).taps;
        let mut machine = Machine::poisoned(2, Store::new());
        let step = machine.session.compile(program).expect("compiles");
        let of_cpu = machine.run(&step, &inputs).taps;
        for (i, (shape, want)) in want.iter().enumerate() {
            assert_eq!(of_cpu[i].1.shape(), &Shape::from(&shape[..]));
            for have in [&of_reference[i].2, &of_cpu[i].1.to_f64()] {
                compare(&format!("{dtype}: y{i}"), have, want, Tolerance::of(dtype)).unwrap();
            }
        }
    }
}

/// The elements of a matrix by its rows and columns.
fn matrix(rows: usize, columns: usize, element: impl Fn(usize, usize) -> f64) -> Argument {
    let elements = (0..rows * columns).map(|at| element(at / columns, at % columns));
    (vec![rows, columns], elements.collect())
}

#[test]
fn a_quadratic_form() {
    let (a, b, x, v) =
        ([[2.0, -1.0, 0.5], [3.0, 1.0, -2.0], [0.25, 0.0, 4.0]], [1.0, -2.0, 3.0], [0.5, -1.5, 2.0], [1.0, 0.5, -3.0]);
    let sum = |f: &dyn Fn(usize) -> f64| (0..3).map(f).sum::<f64>();
    let gradient = |i: usize| sum(&|j| (a[i][j] + a[j][i]) * x[j]) + b[i];
    let product = |i: usize| sum(&|j| (a[i][j] + a[j][i]) * v[j]);
    let value = sum(&|i| x[i] * (sum(&|j| a[i][j] * x[j]) + b[i]));
    fn derivatives<'t>([a, b, x, v]: [Tensor<'t>; 4]) -> Vec<Tensor<'t>> {
        let f = |x: Tensor<'t>| x.dot(a.matmul(x)) + b.dot(x);
        let (y, slope) = jvp(f, x, v);
        let (_, g) = vjp(f, x, y.ones_like());
        vec![y, slope, g, jacobian(f, x), hessian(f, x), hvp(f, x, v)]
    }
    check(
        [matrix(3, 3, |i, j| a[i][j]), vector(&b), vector(&x), vector(&v)],
        derivatives,
        &[
            scalar(value),
            scalar(sum(&|i| gradient(i) * v[i])),
            vector(&[0, 1, 2].map(gradient)),
            vector(&[0, 1, 2].map(gradient)),
            matrix(3, 3, |i, j| a[i][j] + a[j][i]),
            vector(&[0, 1, 2].map(product)),
        ],
    );
}

/// `e^x / sum e^x`.
fn softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

#[test]
fn the_jacobian_of_softmax_is_the_hessian_of_log_sum_exp() {
    let x = [0.3, -1.2, 2.0, 0.9];
    let s = softmax(&x);
    let want = matrix(4, 4, |i, j| s[i] * (f64::from(i == j) - s[j]));
    check(
        [vector(&x)],
        |[x]| vec![jacobian(|x| x.softmax(0), x), hessian(|x| x.logsumexp(0), x), jacobian(|x| x.logsumexp(0), x)],
        &[want.clone(), want, vector(&s)],
    );
}

#[test]
fn the_hessian_of_rosenbrock() {
    let (x, y) = (-0.6, 1.1);
    let (xx, xy, yy) = (1200.0 * x * x - 400.0 * y + 2.0, -400.0 * x, 200.0);
    fn rosenbrock<'t>([x, y]: [Tensor<'t>; 2]) -> Tensor<'t> {
        (1.0 - x).square() + 100.0 * (y - x.square()).square()
    }
    check(
        [scalar(x), scalar(y), vector(&[x, y])],
        |[x, y, both]| {
            let [[xx, xy], [yx, yy]] = hessian(rosenbrock, [x, y]);
            let whole = hessian(|x| rosenbrock([x.index(0, 0), x.index(0, 1)]), both);
            let dynamic = hessian(|x| rosenbrock([x[0], x[1]]), vec![x, y]);
            vec![xx, xy, yx, yy, whole, dynamic[1][0]]
        },
        &[scalar(xx), scalar(xy), scalar(xy), scalar(yy), matrix(2, 2, |i, j| [[xx, xy], [xy, yy]][i][j]), scalar(xy)],
    );
}

#[test]
fn functions_of_matrices() {
    let (x, v) = ([[1.0, 2.0], [-0.5, 3.0]], [[0.5, -1.0], [2.0, 0.25]]);
    let product = |a: [[f64; 2]; 2], b: [[f64; 2]; 2], i: usize, j: usize| a[i][0] * b[0][j] + a[i][1] * b[1][j];
    // d (X X)_ij / d X_kl
    let element = |i: usize, j: usize, k: usize, l: usize| f64::from(i == k) * x[l][j] + f64::from(j == l) * x[i][k];
    let all = (0..16).map(|at| element(at / 8, at / 4 % 2, at / 2 % 2, at % 2)).collect();
    check(
        [matrix(2, 2, |i, j| x[i][j]), matrix(2, 2, |i, j| v[i][j])],
        |[x, v]| vec![jvp(|x| x.matmul(x), x, v).1, vjp(|x| x.matmul(x), x, v).1, jacobian(|x| x.matmul(x), x)],
        &[
            matrix(2, 2, |i, j| product(v, x, i, j) + product(x, v, i, j)),
            matrix(2, 2, |i, j| (0..2).map(|k| v[i][k] * x[j][k] + x[k][i] * v[k][j]).sum()),
            (vec![2, 2, 2, 2], all),
        ],
    );
}

#[test]
fn scalars_and_curves() {
    let x = 0.7;
    let powers = [1.0, x, x * x, x * x * x];
    fn derivatives<'t>([x, v]: [Tensor<'t>; 2]) -> Vec<Tensor<'t>> {
        let cube = |x: Tensor<'t>| x * x * x;
        let curve = |x: Tensor<'t>| Tensor::stack(&[x.ones_like(), x, x * x, x * x * x]);
        vec![jacobian(cube, x), hessian(cube, x), hvp(cube, x, v), jacobian(curve, x), jvp(curve, x, v).0]
    }
    check(
        [scalar(x), scalar(2.0)],
        derivatives,
        &[
            scalar(3.0 * x * x),
            scalar(6.0 * x),
            scalar(12.0 * x),
            vector(&[0.0, 1.0, 2.0 * x, 3.0 * x * x]),
            vector(&powers),
        ],
    );
}

/// By columns, with an argument of more than one element and one that the value does not depend on.
#[test]
fn the_jacobian_of_more_values_than_arguments() {
    let x = [2.0, -3.0];
    check(
        [vector(&x), scalar(5.0)],
        |both| {
            let by_both = jacobian(
                |[x, z]| {
                    let column = (x.tape().iota(3).cast(x.dtype()) + 1).reshape([3, 1]);
                    (column * x).square() + z.detach()
                },
                both,
            );
            by_both.to_vec()
        },
        &[
            (
                vec![3, 2, 2],
                (0..12)
                    .map(|at| {
                        let (row, i, j) = ((at / 4 + 1) as f64, at / 2 % 2, at % 2);
                        if i == j { 2.0 * row * row * x[i] } else { 0.0 }
                    })
                    .collect(),
            ),
            (vec![3, 2], vec![0.0; 6]),
        ],
    );
}

#[test]
fn empty_tensors() {
    let empty = || vector(&[]);
    fn derivatives<'t>([e, x]: [Tensor<'t>; 2]) -> Vec<Tensor<'t>> {
        let sum = |e: Tensor<'t>| e.square().sum();
        let none = |x: Tensor<'t>| x.slice(0, 0, 0) * 3.0;
        let wide = |e: Tensor<'t>| e.sum() + x;
        let (y, slope) = jvp(sum, e, e);
        let first = [y, slope, hessian(sum, e), hvp(sum, e, e), jacobian(none, x)];
        [&first[..], &[jvp(none, x, x).1, vjp(none, x, e).1, jacobian(wide, e)]].concat()
    }
    check(
        [empty(), vector(&[1.0, 2.0])],
        derivatives,
        &[
            scalar(0.0),
            scalar(0.0),
            (vec![0, 0], vec![]),
            empty(),
            (vec![0, 2], vec![]),
            empty(),
            vector(&[0.0, 0.0]),
            (vec![2, 0], vec![]),
        ],
    );
}

#[test]
fn what_the_result_does_not_depend_on_has_zeros() {
    let two = || vector(&[1.0, 2.0]);
    let zeros = |shape: &[usize]| (shape.to_vec(), vec![0.0; shape.iter().product()]);
    fn derivatives<'t>([x, z]: [Tensor<'t>; 2]) -> Vec<Tensor<'t>> {
        let constant = |x: Tensor<'t>| x.ones_like();
        let linear = |x: Tensor<'t>| x.sum();
        let [dx, dz] = vjp(|[x, _]| x * 3.0, [x, z], z).1;
        let [[_, xz], [zx, zz]] = hessian(|[x, _]| x.square().sum(), [x, z]);
        let of_constant = [jvp(constant, x, x).1, vjp(constant, x, x).1, jacobian(constant, x)];
        [&of_constant[..], &[dx, dz, xz, zx, zz, hessian(linear, x), hvp(linear, x, x)]].concat()
    }
    check(
        [two(), two()],
        derivatives,
        &[
            zeros(&[2]),
            zeros(&[2]),
            zeros(&[2, 2]),
            vector(&[3.0, 6.0]),
            zeros(&[2]),
            zeros(&[2, 2]),
            zeros(&[2, 2]),
            zeros(&[2, 2]),
            zeros(&[2, 2]),
            zeros(&[2]),
        ],
    );
}

/// Each argument is a variable of its own, whatever it was computed from, and what a function captures is a constant.
#[test]
fn arguments_are_not_confused_with_anything_else() {
    check(
        [scalar(3.0)],
        |[x]| {
            let one = x.ones_like();
            let y = x * x;
            let [same_a, same_b] = vjp(|[a, b]| a * a * b, [x, x], one).1;
            let [of_x, of_y] = vjp(|[x, y]| x * y, [x, y], one).1;
            let captured = jvp(|_| x * x, x, one).1;
            // d/dx (x * d/dy (x + y)) at y = x is 1, not 2.
            let nested = jvp(|x| x * jvp(|y| x + y, x, one).1, x, one).1;
            vec![same_a, same_b, of_x, of_y, captured, nested]
        },
        &[scalar(18.0), scalar(9.0), scalar(9.0), scalar(3.0), scalar(0.0), scalar(1.0)],
    );
}

/// `u = sin(w x)`: `u_xx = -w^2 sin(w x)`, in a loss whose gradient flows through the derivative.
#[test]
fn a_physics_informed_loss() {
    let (points, w) = ([0.2, -0.9, 1.4], 1.7);
    let second = |x: f64| -w * w * (w * x).sin();
    let by_w = |x: f64| -2.0 * w * (w * x).sin() - w * w * x * (w * x).cos();
    let mean = |f: &dyn Fn(f64) -> f64| points.iter().map(|x| f(*x)).sum::<f64>() / 3.0;
    fn derivatives<'t>([x, w]: [Tensor<'t>; 2]) -> Vec<Tensor<'t>> {
        let u = |x: Tensor<'t>| (w * x).sin();
        let u_x = |x: Tensor<'t>| jvp(u, x, x.ones_like()).1;
        let u_xx = jvp(u_x, x, x.ones_like()).1;
        let loss = u_xx.square().mean();
        let gradient = loss.grad_wrt(&[w])[0].expect("reached");
        vec![u_xx, loss, gradient]
    }
    check(
        [(vec![3, 1], points.to_vec()), scalar(w)],
        derivatives,
        &[
            (vec![3, 1], points.map(second).to_vec()),
            scalar(mean(&|x| second(x).powi(2))),
            scalar(mean(&|x| 2.0 * second(x) * by_w(x))),
        ],
    );
}

/// A small network of two arguments.
fn net<'t>(w: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
    x.matmul(w).tanh().matmul(w.transpose()).sin()
}

/// Gradients of derivatives, of first and second order, against differences: at leaves, in mid-graph and strided.
#[test]
fn gradients_flow_through_derivatives() {
    let two = || Gradcheck::new([vec![3, 2], vec![2, 3], vec![2, 3]]);
    two().run(|x| jvp(|a| net(x[0], a), x[1], x[2]).1).unwrap();
    two().run(|x| vjp(|w| net(w, x[1]), x[0], x[2]).1).unwrap();
    two().run(|x| hvp(|a| (net(x[0], a) * x[2]).sum(), x[1], x[2])).unwrap();
    Gradcheck::new([vec![2, 1], vec![1, 2]]).run(|x| jacobian(|a| net(x[0], a), x[1])).unwrap();
    Gradcheck::new([vec![2, 1], vec![1, 2]]).run(|x| hessian(|a| net(x[0], a).sum(), x[1])).unwrap();
    // By columns.
    Gradcheck::new([vec![3, 1], vec![1]]).run(|x| jacobian(|a| (x[0] * a).sin(), x[1])).unwrap();
}

/// A hook of the function runs once in each pass through it.
#[test]
fn as_many_passes_are_recorded_as_promised() {
    let passes = |record: &dyn for<'t> Fn(Tensor<'t>, &Rc<Cell<usize>>)| {
        let (t, count) = (Tape::default(), Rc::new(Cell::new(0)));
        record(t.input("x", [5], F64), &count);
        count.get()
    };
    fn counted<'t>(x: Tensor<'t>, count: &Rc<Cell<usize>>) -> Tensor<'t> {
        let count = count.clone();
        x.sin().on_grad(move |g| {
            count.set(count.get() + 1);
            g
        })
    }
    assert_eq!(passes(&|x, count| _ = vjp(|x| counted(x, count), x, x)), 1);
    assert_eq!(passes(&|x, count| _ = jvp(|x| counted(x, count), x, x)), 1, "the second is of the first");
    assert_eq!(passes(&|x, count| _ = jacobian(|x| counted(x, count), x)), 5);
    assert_eq!(passes(&|x, count| _ = jacobian(|x| counted(x, count).slice(0, 1, 2), x)), 2);
    let wide = passes(&|x, count| _ = jacobian(|x| counted(x, count).broadcast_to([3, 5]), x));
    assert_eq!(wide, 1, "one, of which each column is the derivative");
    assert_eq!(passes(&|x, count| _ = hessian(|x| counted(x, count).square().sum(), x)), 6);
    assert_eq!(passes(&|x, count| _ = hvp(|x| counted(x, count).square().sum(), x, x)), 2);
}

/// The function is recorded once: what is random in it is the same in its value and its derivatives.
#[test]
fn a_linear_function_with_dropout_and_a_checkpoint_is_its_own_derivative() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "dropout", 7);
    let mut machine = Machine::poisoned(1, store);
    let record = |t: &Tape| {
        let x = t.input("x", [64], F64);
        let (y, slope) = jvp(|x| t.checkpoint(|| (x * 3.0).dropout(0.5, rng)), x, x);
        t.tap("y", y);
        t.tap("slope", slope);
    };
    let step = machine.session.record(record).expect("compiles");
    let x = Array::new([64], (0..64).map(|i| f64::from(i).sin() + 2.0).collect::<Vec<f64>>());
    let out = machine.run(&step, &[("x".into(), x)]);
    let (y, slope) = (out.tap("y").to_f64(), out.tap("slope").to_f64());
    assert_eq!(y, slope);
    let kept = y.iter().filter(|y| **y != 0.0).count();
    assert!((16..=48).contains(&kept), "{kept} of 64 are kept");
}

/// The Hessian of a loss by all parameters of a store, which the function gets as one flat vector.
#[test]
fn second_derivatives_by_the_parameters_of_a_store() {
    let mut store = Store::new();
    let (a, b) =
        (store.param("a", &Array::new([2], vec![1.0, -2.0])), store.param("b", &Array::new([2], vec![0.5, 3.0])));
    let params = store.params();
    let t = Tape::new(Arc::new(store.layout().clone()));
    let arena = store.layout().param(a).arena;
    let loss = || (t.param(a).square() * t.param(b)).sum();
    let f = |x| t.with_params(&Flat::new(vec![(arena, x)]), loss);
    let v = t.state(arena) * 2.0;
    let product = hvp(f, t.state(arena), v);
    t.tap("a", product.slice(0, t.layout().param(a).offset, 2));
    t.tap("b", product.slice(0, t.layout().param(b).offset, 2));
    t.tap("gradient", f(t.state(arena)).grad(&params).get(a).expect("present"));
    let mut machine = Machine::poisoned(1, store);
    let step = machine.session.compile(t.finish()).expect("compiles");
    let out = machine.run(&step, &[]);
    // The loss is a^2 b: second derivatives are 2 b, 2 a and 0.
    assert_eq!(out.tap("a").to_f64(), [2.0 * 0.5 * 2.0 + 2.0 * 1.0, 2.0 * 3.0 * -4.0 + 2.0 * -2.0 * 6.0]);
    assert_eq!(out.tap("b").to_f64(), [2.0 * 1.0 * 2.0, 2.0 * -2.0 * -4.0]);
    assert_eq!(out.tap("gradient").to_f64(), [2.0 * 1.0 * 0.5, 2.0 * -2.0 * 3.0]);
}
