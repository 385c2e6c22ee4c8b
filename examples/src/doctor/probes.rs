//! Small programs, one for each family of kernels, whose results are compared with the reference interpreter's.

use crate::{Result, device::Place};
use std::time::Instant;
use wgrad::{Array, Conv2d, DType, Data, Optimizer, Rng, Store, Tape, Tensor};
use wgrad_cpu::reference::{self, Outcome};
use wgrad_nn::optim::{AdamW, AdamWConfig};

/// Records the computation of a probe from its inputs.
type Record = Box<dyn for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>>;

/// The contents of an input.
#[derive(Clone, Copy)]
enum Fill {
    /// Numbers between -1 and 1.
    Numbers,
    /// Integers below this bound.
    Below(u32),
    /// NaN, infinities, zeros, and numbers between them.
    Special,
}

/// A small program that tests one family of kernels.
struct Probe {
    name: &'static str,
    /// The names, shapes and contents of the inputs.
    inputs: &'static [(&'static str, &'static [usize], Fill)],
    /// Declares the states of the program, and returns its record function.
    declare: fn(&mut Store) -> Record,
    /// The largest allowed difference from the reference, relative to the larger of 1 and the reference's largest
    /// magnitude.
    tolerance: f64,
}

/// Values at which comparisons and divisions go wrong.
const SPECIAL: [f32; 11] = [f32::NAN, 0.25, f32::INFINITY, -0.25, f32::NEG_INFINITY, 0.0, 2.0, -2.0, -0.0, 0.5, -0.5];

/// The tolerance of f32 results against a reference in f64.
const SINGLE: f64 = 1e-5;

const PROBES: [Probe; 12] = [
    Probe {
        name: "map",
        inputs: &[("x", &[5000], Fill::Numbers), ("y", &[5000], Fill::Numbers)],
        declare: |_| Box::new(|_, x| x[0].tanh() * x[1] + x[0].exp()),
        tolerance: SINGLE,
    },
    Probe {
        name: "reduction",
        inputs: &[("x", &[300, 70], Fill::Numbers)],
        declare: |_| Box::new(|_, x| x[0].sum_axes(&[0])),
        tolerance: SINGLE,
    },
    Probe {
        name: "rows",
        inputs: &[("x", &[40, 300], Fill::Numbers)],
        declare: |_| Box::new(|_, x| x[0].softmax(1)),
        tolerance: SINGLE,
    },
    Probe {
        // Some compilers assume that NaN never occurs, and that a value divided by itself is 1.
        name: "special values",
        inputs: &[("x", &[11], Fill::Special), ("y", &[11], Fill::Numbers)],
        declare: |_| {
            Box::new(|_, x| {
                let (this, same) = (x[0], x[0]);
                Tensor::stack(&[this.clamp(-0.5, 0.5), this / same, this.maximum(x[1]), (this - same) * x[1]])
            })
        },
        tolerance: SINGLE,
    },
    Probe {
        // Some compilers crash without a message if they can prove that a number is far from 0.
        name: "powers",
        inputs: &[("x", &[40], Fill::Below(40)), ("y", &[40], Fill::Numbers)],
        declare: |_| Box::new(|_, x| (x[0].cast(DType::F32) + 1.0).pow(-0.55) + (x[1].square() + 0.5).log()),
        tolerance: SINGLE,
    },
    Probe {
        // Some compilers assume that rounding is exact, which removes the compensation from a compensated sum.
        name: "lost digits",
        inputs: &[("x", &[4096], Fill::Numbers)],
        declare: |_| Box::new(|_, x| (x[0] + 2.0).cumsum(0)),
        tolerance: 2e-7,
    },
    Probe {
        // Several kernels run in one dispatch, and FXC leaves out barriers between kernels that are not neighbours.
        // Some rows are looked up twice, so that their gradients are sums of values that distant invocations have
        // written.
        name: "dependence",
        inputs: &[("y", &[9], Fill::Below(6))],
        declare: |store| {
            let table = store.param("table", &numbers(&[6, 4], 98));
            let params = store.params();
            Box::new(move |t, x| {
                let rows = t.param(table);
                let loss = rows.embedding(x[0], None).tanh().matmul_t(rows).cross_entropy(x[0]);
                t.tap("loss", loss);
                loss.grad(&params).get(table).expect("the loss depends on it")
            })
        },
        tolerance: SINGLE,
    },
    Probe {
        name: "product",
        inputs: &[("a", &[70, 90], Fill::Numbers), ("b", &[90, 50], Fill::Numbers)],
        declare: |_| Box::new(|_, x| x[0].matmul(x[1])),
        tolerance: SINGLE,
    },
    Probe {
        name: "convolution",
        inputs: &[("x", &[2, 3, 12, 12], Fill::Numbers), ("w", &[4, 3, 3, 3], Fill::Numbers)],
        declare: |_| Box::new(|_, x| x[0].conv2d(x[1], Conv2d::default())),
        tolerance: SINGLE,
    },
    Probe {
        name: "scatter",
        inputs: &[("x", &[200, 3], Fill::Numbers), ("index", &[200, 3], Fill::Below(17))],
        declare: |_| Box::new(|_, x| x[0].scatter_add(x[1], 0, 17).gather(x[1], 0)),
        tolerance: SINGLE,
    },
    Probe {
        name: "random",
        inputs: &[],
        declare: |store| {
            let rng = Rng::new(store, "random", 7);
            Box::new(move |t, _| rng.bits(t, [1000]))
        },
        tolerance: 0.0,
    },
    Probe {
        name: "optimizer",
        inputs: &[("x", &[20, 30], Fill::Numbers), ("y", &[20, 10], Fill::Numbers)],
        declare: |store| {
            let weight = store.param("weight", &numbers(&[30, 10], 99));
            let params = store.params();
            let adamw = AdamW::new(store, &params, AdamWConfig::default());
            Box::new(move |t, x| {
                let loss = x[0].matmul(t.param(weight)).tanh().mse(x[1]);
                adamw.step(loss.grad(&params).clip_by_global_norm(0.01));
                loss
            })
        },
        tolerance: SINGLE,
    },
];

/// The result of a probe.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Finding {
    /// The name of the probe.
    pub name: &'static str,
    /// The difference or the error, if the probe fails.
    pub why: Option<String>,
    /// The time of the probe in milliseconds, including compilation.
    pub ms: f64,
}

/// Runs all probes.
pub fn probe(place: &Place) -> Vec<Finding> {
    let finding = |probe: &Probe| {
        let start = Instant::now();
        let why = probe.run(place).unwrap_or_else(|error| Some(error.to_string()));
        Finding { name: probe.name, why, ms: (start.elapsed().as_secs_f64() * 1e5).round() / 1e2 }
    };
    PROBES.iter().map(finding).collect()
}

impl Probe {
    /// Runs the probe; describes the first difference from the reference, if there is one.
    fn run(&self, place: &Place) -> Result<Option<String>> {
        let mut store = Store::new();
        let record = (self.declare)(&mut store);
        let input = |(i, &(name, shape, fill)): (usize, &(&'static str, &[usize], Fill))| {
            let len: usize = shape.iter().product();
            let value = match fill {
                Fill::Numbers => numbers(shape, i as u32),
                Fill::Below(bound) => Array::new(shape, Data::U32((0..len as u32).map(|i| i * 7 % bound).collect())),
                Fill::Special => Array::new(shape, (0..len).map(|i| SPECIAL[i % SPECIAL.len()]).collect::<Vec<f32>>()),
            };
            (name, value)
        };
        let inputs: Vec<(&str, Array)> = self.inputs.iter().enumerate().map(input).collect();
        let given: Vec<(&str, &Array)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
        let mut session = place.session(store)?;
        let step = session.record(|t| {
            let x: Vec<Tensor<'_>> = inputs.iter().map(|(name, value)| t.input_like(name, value)).collect();
            t.tap("result", record(t, &x));
        })?;
        let ids: Vec<_> = session.layout().states().map(|(id, _)| id).collect();
        let mut states = vec![];
        for id in &ids {
            states.push(session.read(*id)?.into_data());
        }
        let Outcome { taps, states: after } = reference::run(&step, &states, &given)?;
        session.run(&step, &given)?;
        session.wait()?;
        let found = session.taps()?;
        let found = found.last().expect("the run has ended");
        for ((name, have), (_, _, want)) in found.iter().zip(&taps) {
            if let Some(why) = self.differs(name, &have.to_f64(), want) {
                return Ok(Some(why));
            }
        }
        for (id, want) in ids.into_iter().zip(&after) {
            let have = session.read(id)?.to_f64();
            if let Some(why) = self.differs(&session.layout().state(id).name, &have, want) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Describes the first element that is too far from the reference's.
    fn differs(&self, what: &str, have: &[f64], want: &[f64]) -> Option<String> {
        let finite = want.iter().filter(|want| want.is_finite());
        let bound = self.tolerance * finite.fold(1.0f64, |largest, want| largest.max(want.abs()));
        let near =
            |(have, want): (&f64, &f64)| (have - want).abs() <= bound || have == want || have.is_nan() && want.is_nan();
        let wrong = have.iter().zip(want).position(|pair| !near(pair))?;
        Some(format!("{what}[{wrong}] is {:e}, and the reference gives {:e}", have[wrong], want[wrong]))
    }
}

/// Numbers between -1 and 1, without a pattern that could hide the error of a kernel.
fn numbers(shape: &[usize], seed: u32) -> Array {
    let number = |i: u32| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(0x85eb_ca6b));
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae35);
        (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    Array::new(shape, (0..shape.iter().product::<usize>() as u32).map(number).collect::<Vec<f32>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_passes_and_what_is_wrong_is_found() {
        let place = Place::Cpu { threads: 1 };
        for probe in &PROBES {
            assert_eq!(probe.run(&place).expect("runs"), None, "{}", probe.name);
        }
        let probe = &PROBES[0];
        assert_eq!(probe.differs("x", &[1.0, 2.0 + 1e-6], &[1.0, 2.0]), None);
        let why = probe.differs("x", &[1.0, f64::NAN], &[1.0, 2.0]).expect("NaN is wrong");
        assert_eq!(why, "x[1] is NaN, and the reference gives 2e0");
        assert!(probe.differs("x", &[1.001], &[1.0]).is_some());
    }
}
