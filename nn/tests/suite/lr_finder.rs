//! The range test of the learning rate, on a bowl whose limit is known, and over a group's rate alone.

use crate::{open, snapshot};
use wgrad::{Array, DType, Session, StateId, Store};
use wgrad_nn::{
    LrFinder, LrRange, Trainer, TrainerConfig,
    diagnosis::MicroBatch,
    optim::{Group, Rate, Sgd, SgdConfig},
};

/// The curvature: gradient descent diverges above 2 over it.
const CURVATURE: f64 = 8.0;

struct Bowl {
    trainer: Trainer,
    session: Session,
    rate: StateId,
}

/// `4 a^2 + 0.005 b^2`, where the rate of the state is that of `a`, or of both.
fn bowl(grouped: bool, accumulate: usize) -> Bowl {
    let mut store = Store::new();
    let [a, b] = ["a", "b"].map(|path| store.param(path, &Array::new([1], vec![1f32])));
    let params = store.params();
    let rate = store.state("rate", &Array::new([0usize; 0], vec![0.125f32]));
    let group = Group { params: [a].into_iter().collect(), lr: Some(Rate::State(rate)), weight_decay: None };
    let config = match grouped {
        true => SgdConfig { lr: 0.01.into(), groups: vec![group], ..SgdConfig::default() },
        false => SgdConfig { lr: Rate::State(rate), ..SgdConfig::default() },
    };
    let sgd = Sgd::new(&mut store, &params, config);
    let config = TrainerConfig { accumulate, ..TrainerConfig::default() };
    let trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        let t = batch.tape();
        let x = batch.get("x").mean();
        ((t.param(a).square() * (CURVATURE / 2.0) + t.param(b).square() * 0.005).sum() * x).into()
    });
    Bowl { trainer, session: open(store), rate }
}

impl Bowl {
    fn found(&mut self, finder: LrFinder) -> LrRange {
        let accumulate = self.trainer.config().accumulate;
        let one = || -> MicroBatch { vec![("x".into(), Array::new([2], vec![1f32, 1.0]))] };
        let batches = || Ok::<_, wgrad::Error>((0..accumulate).map(|_| one()).collect());
        finder.run(self.rate, &mut self.trainer, &mut self.session, batches).expect("it runs")
    }
}

#[test]
fn the_limit_is_found_and_everything_is_as_it_was() {
    for (grouped, accumulate) in [(false, 1), (true, 1), (true, 3)] {
        let mut bowl = bowl(grouped, accumulate);
        let before = snapshot(&mut bowl.session);
        let range = bowl.found(LrFinder { low: 1e-4, high: 100.0, steps: 120 });
        // It takes some updates above the limit until the loss is far off.
        let limit = range.limit.expect("it diverges");
        assert!((2.0 / CURVATURE..8.0 * 2.0 / CURVATURE).contains(&limit), "{range}");
        let begin = range.suggestion().expect("the loss falls");
        assert!(begin < 2.0 / CURVATURE && begin > 1e-3, "{range}");
        assert!(range.points.windows(2).all(|pair| pair[0].lr < pair[1].lr));
        assert!(snapshot(&mut bowl.session) == before);
        assert_eq!(range, bowl.found(LrFinder { low: 1e-4, high: 100.0, steps: 120 }), "it can be repeated");
    }
}

#[test]
fn rates_that_are_all_low_have_no_limit() {
    let range = bowl(false, 1).found(LrFinder { low: 1e-6, high: 1e-3, steps: 20 });
    assert_eq!((range.limit, range.points.len()), (None, 20));
    assert_eq!((range.points[0].lr, range.points[19].lr), (1e-6, 1e-3));
    assert!(range.to_string().starts_with("no tried rate makes the loss diverge; begin with 1.0e-3"), "{range}");
}

#[test]
fn a_rate_so_high_that_nothing_is_finite_is_a_limit() {
    let range = bowl(false, 1).found(LrFinder { low: 1e20, high: 1e30, steps: 20 });
    assert!(range.limit.is_some() && range.suggestion().is_none(), "{range:?}");
}

#[test]
#[should_panic(expected = "lr finder: from 1 to 0.1: needs 0 < low < high")]
fn an_empty_range_is_refused() {
    bowl(false, 1).found(LrFinder { low: 1.0, high: 0.1, steps: 20 });
}

#[test]
#[should_panic(expected = "lr finder: the rate is the state \"counts\": needs a float scalar")]
fn a_rate_that_is_no_float_is_refused() {
    let mut store = Store::new();
    let counts = store.state("counts", &Array::zeros([], DType::U32));
    let w = store.param("w", &Array::new([1], vec![1f32]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig::default();
    let trainer =
        Trainer::new(&mut store, &params, sgd, config, move |batch| batch.tape().param(w).square().sum().into());
    Bowl { trainer, session: open(store), rate: counts }.found(LrFinder::around(0.1));
}
