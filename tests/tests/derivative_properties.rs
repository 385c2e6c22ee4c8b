//! Properties of the derivatives of every operation, along random vectors: the products with the Jacobian and with its
//! transpose agree, differences confirm them, and the Hessian's product is the product with the Hessian.

use approx::abs_diff_eq;
use proptest::prelude::*;
use wgrad::{Array, DType, Shape, Tape, Tensor, hessian, hvp, jacobian, jvp, vjp};
use wgrad_tests::{
    Gradcheck,
    catalogue::{Function, Row, catalogue},
    proptest_config as config, reference,
};

/// Hessians of up to so many elements of all arguments are recorded as a whole.
const MOST: usize = 12;

/// Numbers without a pattern, of magnitude up to 1.
fn numbers(shape: &Shape, phase: f64) -> Array {
    Array::new(shape, (0..shape.numel()).map(|i| (1.9 * i as f64 + phase).sin()).collect::<Vec<f64>>())
}

fn dot(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a * b).sum()
}

/// An operation on its arguments.
fn applied<'t>(row: &Row, x: Vec<Tensor<'t>>, indices: &[Tensor<'t>]) -> Tensor<'t> {
    (row.f)(&[&x[..], indices].concat())
}

/// `<u, J v>`, `<J^T u, v>` with the whole Jacobian in between, and the same by differences of the function.
fn check_products(row: &Row, phase: f64) -> Result<(), String> {
    let at = row.check.numbers();
    let v: Vec<Array> = at.iter().enumerate().map(|(i, x)| numbers(x.shape(), phase + i as f64)).collect();
    let t = Tape::default();
    let mut inputs = vec![];
    let mut input = |name: String, array: &Array| {
        inputs.push((name.clone(), array.clone()));
        t.input_like(&name, array)
    };
    let x: Vec<Tensor<'_>> = at.iter().enumerate().map(|(i, x)| input(format!("x{i}"), x)).collect();
    let tangent: Vec<Tensor<'_>> = v.iter().enumerate().map(|(i, v)| input(format!("v{i}"), v)).collect();
    let indices: Vec<Tensor<'_>> =
        row.check.indices.iter().enumerate().map(|(i, x)| input(format!("index{i}"), x)).collect();
    let f = |x| applied(row, x, &indices);
    let (y, slope) = jvp(f, x.clone(), tangent.clone());
    let u_array = numbers(&y.shape(), phase * 3.0 + 0.5);
    let u = input("u".into(), &u_array);
    let transposed = vjp(f, x.clone(), u).1;
    let (y_len, x_len) = (y.numel(), x.iter().map(|x| x.numel()).sum::<usize>());
    let small = y_len.min(x_len) <= MOST;
    let whole = small.then(|| jacobian(f, x.clone()));
    // f(x + h v), for both signs of h.
    const STEP: f64 = 1e-6;
    for (name, h) in [("ahead", STEP), ("behind", -STEP)] {
        t.tap(name, f(x.iter().zip(&tangent).map(|(x, v)| *x + *v * h).collect()));
    }
    t.tap("slope", slope);
    transposed.iter().enumerate().for_each(|(i, g)| t.tap(&format!("g{i}"), *g));
    for (i, part) in whole.iter().flatten().enumerate() {
        assert_eq!(part.shape(), Shape::from([&y.shape()[..], &x[i].shape()[..]].concat()));
        t.tap(&format!("j{i}"), *part);
    }
    let out = reference(&t.finish(), &[], &inputs);
    let all = |prefix: &str| {
        let own = out.taps.iter().filter(|(name, ..)| name.trim_end_matches(|c: char| c.is_ascii_digit()) == prefix);
        own.map(|(.., values)| values.clone()).collect::<Vec<_>>()
    };
    let (slope, transposed) = (all("slope"), all("g"));
    let (u, v) = (vec![u_array.to_f64()], v.iter().map(Array::to_f64).collect::<Vec<_>>());
    let size = 1.0 + slope[0].iter().fold(0.0f64, |m, x| m.max(x.abs())) * (1 + y_len) as f64;
    let close = |what: &str, a: f64, b: f64, epsilon: f64| {
        let close = abs_diff_eq!(a, b, epsilon = epsilon * size);
        if close { Ok(()) } else { Err(format!("{}: {what}: {a} and {b}", row.name)) }
    };
    close("u J v and v J^T u", dot(&u, &slope), dot(&transposed, &v), 1e-11)?;
    for (i, ((slope, ahead), behind)) in slope[0].iter().zip(&all("ahead")[0]).zip(&all("behind")[0]).enumerate() {
        close(&format!("element {i} of J v and its difference"), *slope, (ahead - behind) / (2.0 * STEP), 1e-6)?;
    }
    if small {
        for i in 0..y_len {
            let row: Vec<Vec<f64>> = all("j")
                .iter()
                .map(|part| part[i * part.len() / y_len..(i + 1) * part.len() / y_len].to_vec())
                .collect();
            close(&format!("row {i} of J, times v"), dot(&row, &v), slope[0][i], 1e-11)?;
        }
    }
    Ok(())
}

/// The Hessian's product, and the product with the Hessian, of a scalar that depends on all elements of the result.
fn check_hessian(row: &Row, phase: f64) -> Result<(), String> {
    let at = row.check.numbers();
    let t = Tape::default();
    let (mut inputs, mut x, mut v) = (vec![], vec![], vec![]);
    for (i, array) in at.iter().enumerate() {
        for (name, array, tensors) in
            [("x", array.clone(), &mut x), ("v", numbers(array.shape(), phase + i as f64), &mut v)]
        {
            let name = format!("{name}{i}");
            tensors.push(t.input_like(&name, &array));
            inputs.push((name, array));
        }
    }
    let mut indices = vec![];
    for (i, array) in row.check.indices.iter().enumerate() {
        indices.push(t.input_like(&format!("index{i}"), array));
        inputs.push((format!("index{i}"), array.clone()));
    }
    let f = |x| {
        let y = applied(row, x, &indices);
        (y.sin() * (t.iota(y.numel()).cast(DType::F64) + phase).cos().reshape(y.shape())).sum()
    };
    let product = hvp(f, x.clone(), v);
    let whole = hessian(f, x);
    for (i, (row, part)) in whole.iter().zip(&product).enumerate() {
        t.tap(&format!("p{i}"), *part);
        row.iter().enumerate().for_each(|(j, block)| t.tap(&format!("h{i},{j}"), *block));
    }
    let out = reference(&t.finish(), &[], &inputs);
    let of = |name: String| &out.taps.iter().find(|(tap, ..)| *tap == name).expect("tapped").2;
    for i in 0..at.len() {
        for (k, have) in of(format!("p{i}")).iter().enumerate() {
            let terms = (0..at.len()).flat_map(|j| {
                let (block, v) = (of(format!("h{i},{j}")), numbers(at[j].shape(), phase + j as f64).to_f64());
                let len = v.len();
                v.into_iter().enumerate().map(|(l, v)| block[k * len + l] * v).collect::<Vec<_>>()
            });
            let (want, size) = terms.fold((0.0, 1.0), |(sum, size), term| (sum + term, size + f64::abs(term)));
            if !abs_diff_eq!(*have, want, epsilon = 1e-10 * size) {
                return Err(format!("{}: element {k} of H v by argument {i}: {have} and {want}", row.name));
            }
        }
    }
    Ok(())
}

fn has_small_arguments(row: &Row) -> bool {
    row.check.shapes.iter().map(Shape::numel).sum::<usize>() <= MOST
}

#[test]
fn products_agree_for_every_operation() {
    let failures: Vec<String> = catalogue().iter().filter_map(|row| check_products(row, 0.4).err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn hessians_agree_for_every_operation() {
    let rows = catalogue();
    let small: Vec<&Row> = rows.iter().filter(|row| has_small_arguments(row)).collect();
    assert!(small.len() > 50, "{} rows", small.len());
    let failures: Vec<String> = small.iter().filter_map(|row| check_hessian(row, 0.4).err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn products_agree_along_any_vectors(place in any::<prop::sample::Index>(), phase in -10.0..10.0f64) {
        let rows = catalogue();
        prop_assert_eq!(check_products(&rows[place.index(rows.len())], phase), Ok(()));
    }

    #[test]
    fn hessians_agree_along_any_vector(place in any::<prop::sample::Index>(), phase in -10.0..10.0f64) {
        let rows = catalogue();
        let small: Vec<&Row> = rows.iter().filter(|row| has_small_arguments(row)).collect();
        prop_assert_eq!(check_hessian(small[place.index(small.len())], phase), Ok(()));
    }
}

/// A gradient rule, of a cotangent and the argument.
type Rule = for<'t> fn(Tensor<'t>, Tensor<'t>) -> Tensor<'t>;

/// The sine, with a gradient rule of its own.
fn sine<'t>(x: Tensor<'t>, rule: Rule) -> Tensor<'t> {
    x.tape().custom_vjp(&[x], |x| vec![x[0].sin()], move |v| vec![v.cotangents[0].map(|g| rule(g, v.inputs[0]))])[0]
}

/// A row of the sine of three numbers.
fn ruled(rule: Rule) -> Row {
    fn function(f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t> + 'static) -> Function {
        Box::new(f)
    }
    let (check, f) = (Gradcheck::new([[3]]), function(move |x| sine(x[0], rule)));
    Row { op: "sin".into(), name: "sin".into(), check, f, weighs: false }
}

/// The controls: a rule that is no derivative, one that is not linear, and a Hessian that is not symmetric.
#[test]
fn wrong_rules_are_found() {
    let right = ruled(|g, x| g * x.cos());
    check_products(&right, 0.4).and(check_hessian(&right, 0.4)).unwrap();
    let wrong = check_products(&ruled(|g, x| g * x.cos() * 1.01), 0.4).expect_err("no derivative");
    assert!(wrong.contains("difference"), "{wrong}");
    let bent = check_products(&ruled(|g, x| g * x.cos() + g * g * 0.1), 0.4).expect_err("not linear");
    assert!(bent.contains("u J v"), "{bent}");
    let skew = check_hessian(&ruled(|g, x| g * x.cos() * (x.flip(&[0]) + 2.0)), 0.4).expect_err("not symmetric");
    assert!(skew.contains("H v"), "{skew}");
}
