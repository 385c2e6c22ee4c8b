//! Composed operations against their definitions, written as loops: the catalogue holds devices and gradients to the
//! composition, and this holds the composition to what it is named after.

use std::collections::BTreeMap;
use std::sync::Arc;
use wgrad::{Array, Conv2d, CrossEntropy, DType, Reduction, Rng, Shape, Store, Tape, Tensor};
use wgrad_tests::{Machine, Tolerance, compare};

/// Numbers of either sign without a pattern.
fn values(len: usize, salt: usize) -> Vec<f64> {
    (0..len).map(|i| (((i * 7919 + salt * 104_729) % 2003) as f64 / 1001.0 - 1.0) * 1.5).collect()
}

fn array(shape: &[usize], salt: usize) -> Array {
    Array::new(shape, values(shape.iter().product(), salt))
}

/// The value of `f` on the CPU.
fn computed(inputs: &[Array], f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Array {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let named: Vec<(&str, &Array)> = names.iter().map(|name| &name[..]).zip(inputs).collect();
    let mut machine = Machine::poisoned(1, Store::new());
    let result = machine.session.eval(&named, |t| {
        let x: Vec<Tensor<'_>> = named.iter().map(|(name, x)| t.input_like(name, x)).collect();
        f(&x)
    });
    result.expect("it runs")
}

/// The gradient of the sum of what `f` gives by its first argument.
fn slope(inputs: &[Array], f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Array {
    computed(inputs, |x| f(x).sum().grad_wrt(&[x[0]])[0].expect("it depends on it"))
}

fn expect(what: &str, have: &Array, shape: &[usize], want: &[f64]) {
    assert_eq!(*have.shape(), Shape::from(shape), "{what}");
    compare(what, &have.to_f64(), want, Tolerance(1e-12)).unwrap();
}

/// All indices of a shape, row-major.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &extent in shape {
        all = all.iter().flat_map(|at| (0..extent).map(move |i| [&at[..], &[i]].concat())).collect();
    }
    all
}

fn offset(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |offset, (extent, i)| offset * extent + i)
}

#[test]
fn einsum_sums_products_over_the_letters_that_the_result_lacks() {
    let extents = BTreeMap::from([('a', 2), ('b', 3), ('c', 4), ('d', 2), ('e', 5), ('i', 3), ('j', 2), ('k', 3)]);
    for equation in [
        "ij,jk->ik",
        "ij,jk->ki",
        "bij,bjk->bik",
        "ij,ij->",
        "ij,ij->ij",
        "ij->ji",
        "ij->",
        "ii->i",
        "ii->",
        "iji->ij",
        "a,b,c->cab",
        "ab,bc,cd->ad",
        "ab,bc,cd,de->ae",
        "abc,cd->abd",
        "abcd,abed->bace",
        "ab,ac->a",
        "ab,cb->",
        "iik,kk->i",
        "ab,ab,a->b",
        "->",
        "ab,->ba",
    ] {
        let (inputs, result) = equation.split_once("->").expect("an arrow");
        let shape_of = |axes: &str| axes.chars().map(|letter| extents[&letter]).collect::<Vec<usize>>();
        let shapes: Vec<Vec<usize>> = inputs.split(',').map(shape_of).collect();
        let arrays: Vec<Array> = shapes.iter().enumerate().map(|(i, shape)| array(shape, i)).collect();
        let data: Vec<Vec<f64>> = arrays.iter().map(Array::to_f64).collect();
        let mut letters: Vec<char> = inputs.chars().filter(|c| *c != ',').collect();
        letters.sort_unstable();
        letters.dedup();
        let mut want = vec![0.0; shape_of(result).iter().product()];
        for at in indices(&letters.iter().map(|letter| extents[letter]).collect::<Vec<_>>()) {
            let place = |axes: &str| -> Vec<usize> {
                let of = |letter: char| at[letters.iter().position(|other| *other == letter).expect("one of them")];
                axes.chars().map(of).collect()
            };
            let factors = inputs.split(',').zip(&shapes).zip(&data);
            let product: f64 = factors.map(|((axes, shape), x)| x[offset(shape, &place(axes))]).product();
            want[offset(&shape_of(result), &place(result))] += product;
        }
        let have = computed(&arrays, |x| Tensor::einsum(equation, x));
        expect(equation, &have, &shape_of(result), &want);
    }
    let implicit = computed(&[array(&[2, 3], 0), array(&[3, 4], 1)], |x| Tensor::einsum("zb, ba", x));
    assert_eq!(*implicit.shape(), Shape::from([4, 2]), "letters that occur once, in alphabetical order");
}

#[test]
fn a_transposed_convolution_adds_a_multiple_of_the_kernel_for_each_pixel() {
    for (conv, rest, [n, c, h, w], [_, o, kh, kw]) in [
        (Conv2d::default(), [0, 0], [2, 3, 4, 3], [3, 2, 3, 2]),
        (Conv2d { stride: [2, 2], padding: [1, 1], ..Conv2d::default() }, [0, 0], [1, 2, 3, 2], [2, 3, 4, 4]),
        (Conv2d { stride: [3, 2], padding: [1, 0], ..Conv2d::default() }, [2, 1], [1, 1, 2, 3], [1, 2, 3, 3]),
        (Conv2d { stride: [2, 1], padding: [1, 2], dilation: [2, 1], groups: 2 }, [1, 0], [2, 4, 3, 5], [4, 3, 2, 3]),
    ] {
        let (x, weight) = (array(&[n, c, h, w], 1), array(&[c, o, kh, kw], 2));
        let extent = |axis: usize, len: usize, kernel: usize| {
            (len - 1) * conv.stride[axis] + conv.dilation[axis] * (kernel - 1) + 1 + rest[axis] - 2 * conv.padding[axis]
        };
        let shape = [n, o * conv.groups, extent(0, h, kh), extent(1, w, kw)];
        let mut want = vec![0.0; shape.iter().product()];
        let (xs, ws) = (x.to_f64(), weight.to_f64());
        for at in indices(&[n, c, h, w, o, kh, kw]) {
            let [b, ch, i, j, out, ki, kj] = at[..] else { unreachable!("seven extents") };
            let row = (i * conv.stride[0] + ki * conv.dilation[0]).checked_sub(conv.padding[0]);
            let column = (j * conv.stride[1] + kj * conv.dilation[1]).checked_sub(conv.padding[1]);
            let (Some(row), Some(column)) = (row, column) else { continue };
            if row < shape[2] && column < shape[3] {
                let channel = ch / (c / conv.groups) * o + out;
                want[offset(&shape, &[b, channel, row, column])] +=
                    xs[offset(&[n, c, h, w], &[b, ch, i, j])] * ws[offset(&[c, o, kh, kw], &[ch, out, ki, kj])];
            }
        }
        let have = computed(&[x, weight], |x| x[0].conv_transpose2d(x[1], conv, rest));
        expect(&format!("{conv:?}"), &have, &shape, &want);
    }
}

#[test]
fn resized_images_have_the_pixels_of_their_formulas() {
    let (h, w) = (3, 4);
    let x = array(&[1, 1, h, w], 3);
    let pixels = x.to_f64();
    for [height, width] in [[6, 8], [2, 7], [3, 1], [5, 4]] {
        let mut nearest = vec![];
        let (mut bilinear, mut aligned) = (vec![], vec![]);
        for at in indices(&[height, width]) {
            nearest.push(pixels[at[0] * h / height * w + at[1] * w / width]);
            let sampled = |place: &dyn Fn(usize, usize, usize) -> f64| {
                let [y, x] = [place(at[0], h, height), place(at[1], w, width)];
                let (i, j) = (y.floor() as usize, x.floor() as usize);
                let (below, right) = ((i + 1).min(h - 1), (j + 1).min(w - 1));
                let (dy, dx) = (y - i as f64, x - j as f64);
                let row = |i: usize| pixels[i * w + j] * (1.0 - dx) + pixels[i * w + right] * dx;
                row(i) * (1.0 - dy) + row(below) * dy
            };
            bilinear.push(sampled(&|i, from, to| {
                ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).clamp(0.0, (from - 1) as f64)
            }));
            aligned.push(sampled(&|i, from, to| match to {
                1 => 0.0,
                _ => i as f64 * (from - 1) as f64 / (to - 1) as f64,
            }));
        }
        let shape = [1, 1, height, width];
        let of = |f: &dyn for<'t> Fn(Tensor<'t>) -> Tensor<'t>| computed(std::slice::from_ref(&x), |x| f(x[0]));
        expect("nearest", &of(&|x| x.resize_nearest2d([height, width])), &shape, &nearest);
        expect("bilinear", &of(&|x| x.resize_bilinear2d([height, width], false)), &shape, &bilinear);
        expect("with corners", &of(&|x| x.resize_bilinear2d([height, width], true)), &shape, &aligned);
    }
}

#[test]
fn adaptive_windows_cover_the_image() {
    let (h, w) = (5, 7);
    let x = array(&[1, 1, h, w], 4);
    let pixels = x.to_f64();
    for [rows, columns] in [[2, 3], [5, 7], [1, 1], [3, 2], [7, 4]] {
        let window = |at: &[usize]| -> Vec<f64> {
            let of = |i: usize, len: usize, n: usize| i * len / n..((i + 1) * len).div_ceil(n);
            let (ys, xs) = (of(at[0], h, rows), of(at[1], w, columns));
            ys.flat_map(|y| xs.clone().map(move |x| (y, x))).map(|(y, x)| pixels[y * w + x]).collect()
        };
        let windows: Vec<Vec<f64>> = indices(&[rows, columns]).iter().map(|at| window(at)).collect();
        let means: Vec<f64> = windows.iter().map(|window| window.iter().sum::<f64>() / window.len() as f64).collect();
        let largest: Vec<f64> = windows.iter().map(|window| window.iter().fold(f64::MIN, |a, &b| a.max(b))).collect();
        let shape = [1, 1, rows, columns];
        let x = std::slice::from_ref(&x);
        expect("mean", &computed(x, |x| x[0].adaptive_avg_pool2d([rows, columns])), &shape, &means);
        expect("maximum", &computed(x, |x| x[0].adaptive_max_pool2d([rows, columns])), &shape, &largest);
    }
}

#[test]
fn products_and_their_slopes_survive_zeros() {
    let x = |values: &[f64]| vec![Array::new([values.len()], values.to_vec())];
    expect("a product", &computed(&x(&[2.0, -3.0, 0.5]), |x| x[0].prod()), &[], &[-3.0]);
    expect("of nothing", &computed(&x(&[]), |x| x[0].prod()), &[], &[1.0]);
    expect("a zero", &slope(&x(&[2.0, 0.0, 5.0]), |x| x[0].prod()), &[3], &[0.0, 10.0, 0.0]);
    expect("two zeros", &slope(&x(&[0.0, 0.0, 5.0]), |x| x[0].prod()), &[3], &[0.0; 3]);
    let five = x(&[1.0, 2.0, 0.0, 3.0, 4.0]);
    expect("cumulative", &computed(&five, |x| x[0].cumprod(0)), &[5], &[1.0, 2.0, 0.0, 0.0, 0.0]);
    // x1 (1 + x2 (1 + x3 (1 + x4 (1 + x5)))): 1 + 2 (1 + 0), and so on.
    expect("its slope", &slope(&five, |x| x[0].cumprod(0)), &[5], &[3.0, 1.0, 2.0 * (1.0 + 3.0 * 5.0), 0.0, 0.0]);
    let rows = vec![array(&[3, 4, 2], 5)];
    let all = rows[0].to_f64();
    let want: Vec<f64> = (0..4)
        .map(|j| (0..3).flat_map(|i| (0..2).map(move |k| (i, k))).map(|(i, k)| all[(i * 4 + j) * 2 + k]).product())
        .collect();
    expect("over two axes", &computed(&rows, |x| x[0].prod_axes(&[2, 0])), &[4], &want);
}

#[test]
fn deviations_are_roots_of_variances_and_have_a_slope_of_0_where_all_is_equal() {
    let x = vec![array(&[4, 5], 6)];
    for correction in [0.0, 1.0] {
        let deviation = computed(&x, |x| x[0].std_axes_with(&[1], correction));
        let variance = computed(&x, |x| x[0].var_axes_with(&[1], correction));
        expect("a deviation", &deviation, &[4], &variance.to_f64().iter().map(|v| v.sqrt()).collect::<Vec<_>>());
    }
    let equal = vec![Array::new([6], vec![0.1; 6])];
    expect("of equal ones", &computed(&equal, |x| x[0].std_axes(&[0])), &[], &[0.0]);
    expect("and its slope", &slope(&equal, |x| x[0].std_axes(&[0])), &[6], &[0.0; 6]);
    let large = vec![Array::new([2], vec![1e200, -1e200])];
    assert_eq!(computed(&large, |x| x[0].std_axes(&[0])).item(0), 1e200, "no square overflows");
}

#[test]
fn numbers_are_rounded_and_shifted_as_they_should() {
    let x = vec![Array::new([8], vec![-1.5, -0.5, -0.2, 0.0, 0.5, 1.5, 2.5, 7.9])];
    let of = |f: &dyn for<'t> Fn(Tensor<'t>) -> Tensor<'t>| computed(&x, |x| f(x[0]));
    expect("round", &of(&|x| x.round()), &[8], &[-2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 8.0]);
    expect("floor", &of(&|x| x.floor()), &[8], &[-2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 2.0, 7.0]);
    expect("ceil", &of(&|x| x.ceil()), &[8], &[-1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 8.0]);
    expect("sign", &of(&|x| x.sign()), &[8], &[-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    expect("straight through", &slope(&x, |x| x[0] + (x[0].round() - x[0]).detach()), &[8], &[1.0; 8]);
    let four = vec![Array::new([4], vec![1.0, 2.0, 3.0, 4.0])];
    for (shift, want) in [(1, [4.0, 1.0, 2.0, 3.0]), (-1, [2.0, 3.0, 4.0, 1.0]), (6, [3.0, 4.0, 1.0, 2.0])] {
        expect("roll", &computed(&four, |x| x[0].roll(0, shift)), &[4], &want);
    }
    let square = vec![Array::new([3, 3], (1..10).map(f64::from).collect::<Vec<_>>())];
    let lower = [1.0, 0.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0, 9.0];
    let above = [0.0, 2.0, 3.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0];
    expect("tril", &computed(&square, |x| x[0].tril(0)), &[3, 3], &lower);
    expect("triu", &computed(&square, |x| x[0].triu(1)), &[3, 3], &above);
    let all = computed(&square, |x| x[0].tril(-1) + x[0].triu(0));
    expect("both triangles", &all, &[3, 3], &square[0].to_f64());
}

#[test]
fn losses_are_their_formulas() {
    let (logits, rows) = (array(&[4, 3], 7), [2usize, 0, 1, 2]);
    let targets = Array::new([4], rows.map(|row| row as u32).to_vec());
    let weights = [0.5, 2.0, 1.25];
    let x = logits.to_f64();
    let log = |row: usize, class: usize| {
        let all = &x[row * 3..][..3];
        all[class] - all.iter().map(|v| v.exp()).sum::<f64>().ln()
    };
    let inputs = [logits.clone(), targets, Array::new([3], weights.to_vec())];
    let weighted = |smoothing: f64, reduction: Reduction| {
        computed(&inputs, move |x| {
            let options = CrossEntropy {
                class_weights: Some(x[2]),
                label_smoothing: smoothing,
                reduction,
                ..CrossEntropy::default()
            };
            x[0].cross_entropy_with(x[1], &options)
        })
    };
    let losses: Vec<f64> = rows.iter().enumerate().map(|(row, &class)| -weights[class] * log(row, class)).collect();
    let total: f64 = rows.iter().map(|&class| weights[class]).sum();
    expect("weighted", &weighted(0.0, Reduction::None), &[4], &losses);
    expect("their mean", &weighted(0.0, Reduction::Mean), &[], &[losses.iter().sum::<f64>() / total]);
    let smooth: Vec<f64> = (0..4)
        .map(|row| 0.7 * losses[row] - 0.3 * (0..3).map(|class| weights[class] * log(row, class)).sum::<f64>() / 3.0)
        .collect();
    expect("smoothed", &weighted(0.3, Reduction::None), &[4], &smooth);
    let plain: f64 = rows.iter().enumerate().map(|(row, &class)| -log(row, class)).sum::<f64>() / 4.0;
    expect("nll", &computed(&inputs, |x| x[0].log_softmax(1).nll(x[1])), &[], &[plain]);

    let pair = [Array::new([4], vec![0.5, -2.0, 1e200, 0.0]), Array::new([4], vec![0.0, 1.0, 0.0, 0.0])];
    let huber = [0.125, 1.5 * (3.0 - 0.75), 1.5e200, 0.0];
    expect("huber", &computed(&pair, |x| x[0].huber(x[1], 1.5, Reduction::None)), &[4], &huber);
    expect("its slope", &slope(&pair, |x| x[0].huber(x[1], 1.5, Reduction::None)), &[4], &[0.5, -1.5, 1.5, 0.0]);
    expect("l1", &computed(&pair, |x| x[0].l1(x[1], Reduction::None)), &[4], &[0.5, 3.0, 1e200, 0.0]);
    expect("its slope", &slope(&pair, |x| x[0].l1(x[1], Reduction::None)), &[4], &[1.0, -1.0, 1.0, 0.0]);

    let probabilities =
        [Array::new([3], [0.2f64, 0.3, 0.5].map(f64::ln).to_vec()), Array::new([3], vec![0.5, 0.0, 0.5])];
    let divergence = [0.5 * (0.5f64 / 0.2).ln(), 0.0, 0.0];
    let have = computed(&probabilities, |x| x[0].kl_divergence(x[1], Reduction::None));
    expect("kl_divergence", &have, &[3], &divergence);

    let decisions = [Array::new([3], vec![0.3, -1.0, 800.0]), Array::new([3], vec![1.0, 0.25, 1.0])];
    let rare =
        [3.0 * 0.3f64.exp().recip().ln_1p(), 0.75 * (-1f64).exp().ln_1p() + 0.25 * 3.0 * 1f64.exp().ln_1p(), 0.0];
    let have = computed(&decisions, |x| {
        x[0].bce_with_logits_weighted(x[1], x[0].tape().scalar(3.0, DType::F64), Reduction::None)
    });
    expect("bce_with_logits_weighted", &have, &[3], &rare);
}

#[test]
fn random_integers_are_spread_evenly() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "dice", 3);
    let t = Tape::new(Arc::new(store.layout().clone()));
    t.tap("dice", rng.integers(&t, 6, [60_000]));
    rng.advance(&t);
    let program = t.finish();
    let mut machine = Machine::poisoned(2, store);
    let step = machine.session.compile(program).expect("the plan compiles");
    let mut counts = [0u32; 6];
    machine.run(&step, &[]).tap("dice").to_f64().into_iter().for_each(|face| counts[face as usize] += 1);
    // Five standard deviations of a count of 10,000.
    assert!(counts.iter().all(|count| count.abs_diff(10_000) < 460), "{counts:?}");
}

#[test]
fn a_permutation_has_each_number_once_and_another_order_each_time() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "cards", 3);
    let t = Tape::new(Arc::new(store.layout().clone()));
    t.tap("cards", rng.permutation(&t, 100));
    t.tap("none", rng.permutation(&t, 0));
    rng.advance(&t);
    let program = t.finish();
    let mut machine = Machine::poisoned(2, store);
    let step = machine.session.compile(program).expect("the plan compiles");
    let mut deal = || machine.run(&step, &[]).tap("cards").to_f64();
    let (first, second) = (deal(), deal());
    for cards in [&first, &second] {
        let mut sorted = cards.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.iter().enumerate().all(|(i, card)| *card == i as f64), "{cards:?}");
    }
    // Of 100 numbers, one is expected to be where it was before.
    let kept = |a: &[f64], b: &[f64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let sorted: Vec<f64> = (0..100).map(f64::from).collect();
    assert!(kept(&first, &second) < 10 && kept(&first, &sorted) < 10, "{first:?} {second:?}");
}
