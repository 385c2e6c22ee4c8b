//! Matrix products give the same bits on any number of threads, however these share them, and the right sums.

use approx::abs_diff_eq;
use proptest::prelude::*;
use wgrad::{Array, DType, Data, Session, Store, Tape};
use wgrad_cpu::CpuBackend;

/// A product `[batch, m, k] x [batch, k, n]`, either side as it lies or transposed, and whether something follows.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    shape: [usize; 3],
    transposed: [bool; 2],
    followed: bool,
    dtype: DType,
}

/// Elements that every type holds, and whose products it does: not all sums, which so tell in which order they were made.
fn element(side: usize, i: usize) -> f64 {
    ((i * 7919 + side * 104_729) % 8191) as f64 / 4096.0 - 1.0
}

impl Case {
    fn side(&self, side: usize) -> Array {
        let [m, k, n] = self.shape;
        let [rows, columns] = [[m, k], [k, n]][side];
        let matrix = if self.transposed[side] { [columns, rows] } else { [rows, columns] };
        let values: Vec<f64> = (0..self.batch * rows * columns).map(|i| element(side, i)).collect();
        Array::new([self.batch, matrix[0], matrix[1]], Data::from_f64(self.dtype, &values))
    }

    fn run(&self, threads: usize) -> Array {
        let t = Tape::default();
        let sides = [0, 1].map(|i| self.side(i));
        let [a, b] = [("a", 0), ("b", 1)].map(|(name, i)| t.input(name, sides[i].shape().clone(), self.dtype));
        let [a, b] = [(a, 0), (b, 1)].map(|(x, i)| if self.transposed[i] { x.permute(&[0, 2, 1]) } else { x });
        let product = a.matmul(b);
        t.tap("y", if self.followed { product.tanh() * 0.5 + product } else { product });
        let device = CpuBackend::poisoned(threads).expect("threads");
        let mut session = Session::new(Box::new(device), Store::new()).expect("session");
        let step = session.compile(t.finish()).expect("compiles");
        session.run(&step, &[("a", &sides[0]), ("b", &sides[1])]).expect("runs");
        session.taps().expect("taps").remove(0).get("y").expect("tapped").clone()
    }

    /// An element of the result, in f64.
    fn want(&self, at: usize) -> f64 {
        let [m, k, n] = self.shape;
        let (batch, row, column) = (at / (m * n), at / n % m, at % n);
        let sides = [0, 1].map(|i| self.side(i).to_f64());
        let read = |side: usize, row: usize, column: usize| {
            let [rows, columns] = [[m, k], [k, n]][side];
            let lies = if self.transposed[side] { column * rows + row } else { row * columns + column };
            sides[side][batch * rows * columns + lies]
        };
        let sum: f64 = (0..k).map(|i| read(0, row, i) * read(1, i, column)).sum();
        if self.followed { sum.tanh() * 0.5 + sum } else { sum }
    }
}

/// Sides next to where products are cut, or computed, in other ways.
fn side() -> impl Strategy<Value = usize> {
    let vectors = (1usize..=24).prop_map(|n| 16 * n);
    prop_oneof![1usize..=40, 60usize..=70, 90usize..=300, 500usize..=530, 1000usize..=1100, vectors]
}

fn case() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![4 => Just(DType::F32), 1 => Just(DType::F64), 1 => Just(DType::F16)];
    // Half of them lie as they do where a weight's gradient is computed.
    let lies = prop_oneof![(any::<[bool; 2]>(), any::<bool>()), Just(([true, false], false))];
    (1usize..=2, [side(), side(), side()], lies, dtype).prop_map(|(batch, shape, (transposed, followed), dtype)| Case {
        batch,
        shape,
        transposed,
        followed,
        dtype,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_threads(case in case()) {
        let alone = case.run(1);
        let tolerance = match case.dtype { DType::F64 => 1e-12, DType::F32 => 1e-5, _ => 1e-2 };
        let values = alone.to_f64();
        for at in [0, values.len() / 3, values.len() - 1] {
            let want = case.want(at);
            let near = abs_diff_eq!(values[at], want, epsilon = tolerance * case.shape[1] as f64);
            prop_assert!(near, "{} instead of {}", values[at], want);
        }
        for threads in [2, 3, 8] {
            prop_assert!(case.run(threads) == alone, "{} threads", threads);
        }
    }
}
