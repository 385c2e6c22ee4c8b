//! Data sets that fail: a loader tells of the batch, loses none, and goes on, however it prepares batches.

use crate::{open, snapshot};
use std::{
    collections::BTreeSet,
    error::Error as _,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use wgrad::{Array, DType, Session, Store};
use wgrad_nn::{
    Builder, Error, Init, Linear, Trainer, TrainerConfig,
    data::{Batch, DataError, Dataset, Loader, LoaderConfig, Position},
    optim::{Adam, AdamConfig},
};

const SAMPLES: usize = 20;

/// The error of a user's own type.
#[derive(Debug)]
struct Unreadable(usize);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {} is unreadable", self.0)
    }
}

impl std::error::Error for Unreadable {}

/// Numbered samples, some of which are broken until they are repaired.
#[derive(Clone, Default)]
struct Flaky {
    broken: Arc<Mutex<BTreeSet<usize>>>,
    /// The number of batches that were asked for.
    asked: Arc<AtomicUsize>,
    /// True to panic at a broken sample.
    panics: bool,
}

impl Flaky {
    fn with(broken: &[usize]) -> Self {
        Self { broken: Arc::new(Mutex::new(broken.iter().copied().collect())), ..Self::default() }
    }

    fn repair(&self) {
        self.broken.lock().expect("no panic while it is held").clear();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Dataset for Flaky {
    fn len(&self) -> usize {
        SAMPLES
    }

    fn batch(&self, samples: &[usize], epoch: u64) -> Result<Batch, DataError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let broken = self.broken.lock().expect("no panic while it is held").clone();
        if let Some(sample) = samples.iter().find(|sample| broken.contains(sample)) {
            assert!(!self.panics, "the data set's panic at {sample}");
            return Err(Unreadable(*sample).into());
        }
        let numbers: Vec<f32> = samples.iter().map(|sample| *sample as f32 / SAMPLES as f32).collect();
        let (left, right) = (Array::new([samples.len(), 1], numbers.clone()), Array::new([samples.len(), 1], numbers));
        Ok(Batch::from([("left", left), ("right", right), ("epoch", Array::new([], vec![epoch as u32]))]))
    }
}

fn loader(data: &Flaky, prefetch: usize, position: Position) -> Loader {
    let config = LoaderConfig { batch: 6, seed: 3, prefetch, ..LoaderConfig::default() };
    Loader::new(data.clone(), config, position).expect("it has batches")
}

fn good(loader: &mut Loader) -> Batch {
    loader.next().expect("there always is one").expect("it is prepared")
}

fn bad(loader: &mut Loader) -> Error {
    loader.next().expect("there always is one").expect_err("it cannot be prepared")
}

/// The numbers of batches that can be prepared before the first that cannot.
const PREFETCH: [usize; 4] = [0, 1, 2, 5];

/// The batches, the samples of each, and a sample of the third.
fn healthy() -> (Vec<Batch>, Vec<Position>, usize) {
    let mut whole = loader(&Flaky::default(), 0, Position::default());
    let (mut batches, mut positions) = (vec![], vec![]);
    for _ in 0..12 {
        positions.push(whole.position());
        batches.push(good(&mut whole));
    }
    let sample = (batches[2]["left"].item(1) * SAMPLES as f64).round() as usize;
    (batches, positions, sample)
}

#[test]
fn an_error_comes_in_its_turn_and_no_batch_is_lost() {
    let (batches, positions, sample) = healthy();
    for prefetch in PREFETCH {
        let data = Flaky::with(&[sample]);
        let mut loader = loader(&data, prefetch, Position::default());
        for at in 0..2 {
            assert_eq!((loader.position(), good(&mut loader)), (positions[at], batches[at].clone()));
        }
        for _ in 0..3 {
            let error = bad(&mut loader);
            assert_eq!(loader.position(), positions[2], "the failed batch is the next one");
            let Error::Batch { epoch: 0, sample: 12, samples, source } = &error else { panic!("{error:?}") };
            assert!(samples.len() == 6 && samples.contains(&sample), "{samples:?}");
            assert_eq!(source.downcast_ref::<Unreadable>().expect("the user's error").0, sample);
            assert!(error.source().is_some_and(|source| source.is::<Unreadable>()));
        }
        data.repair();
        for at in 2..12 {
            assert_eq!((loader.position(), good(&mut loader)), (positions[at], batches[at].clone()), "{at}");
        }
    }
}

#[test]
fn a_position_saved_after_an_error_is_that_of_the_failed_batch() {
    let (batches, positions, sample) = healthy();
    for prefetch in PREFETCH {
        let data = Flaky::with(&[sample]);
        let mut first = loader(&data, prefetch, Position::default());
        let errors = first.by_ref().take(3).filter(Result::is_err).count();
        let saved: Position = first.position().to_string().parse().expect("it was printed");
        assert_eq!((errors, saved), (1, positions[2]));
        drop(first);
        data.repair();
        let mut resumed = loader(&data, prefetch, saved);
        assert!(batches[2..].iter().all(|batch| *batch == good(&mut resumed)));
    }
}

/// A thread that has met an error waits until it is asked again.
#[test]
fn a_batch_is_tried_again_only_on_demand() {
    let (_, _, sample) = healthy();
    let data = Flaky::with(&[sample]);
    let mut loader = loader(&data, 5, Position::default());
    good(&mut loader);
    good(&mut loader);
    for tries in 1..4 {
        bad(&mut loader);
        assert_eq!(data.asked(), 2 + tries);
    }
}

#[test]
fn a_panic_is_the_callers_and_the_loader_goes_on() {
    let (batches, positions, sample) = healthy();
    for prefetch in PREFETCH {
        let data = Flaky { panics: true, ..Flaky::with(&[sample]) };
        let mut loader = loader(&data, prefetch, Position::default());
        assert_eq!([good(&mut loader), good(&mut loader)], batches[..2]);
        for _ in 0..2 {
            let panic = catch_unwind(AssertUnwindSafe(|| loader.next())).expect_err("it panics");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert_eq!(*text, format!("the data set's panic at {sample}"));
            assert_eq!(loader.position(), positions[2]);
        }
        data.repair();
        assert!(batches[2..].iter().all(|batch| *batch == good(&mut loader)));
    }
}

#[test]
fn the_message_names_the_batch_and_some_of_its_samples() {
    let error = |samples: usize, prefetch| {
        let config = LoaderConfig { batch: samples, shuffle: false, prefetch, ..LoaderConfig::default() };
        let at = Position { epoch: 4, sample: 2 };
        let data = Flaky::with(&[2]);
        bad(&mut Loader::new(data, config, at).expect("it has batches")).to_string()
    };
    for prefetch in [0, 2] {
        let say = "cannot prepare the batch at 4:2 (epoch 4, samples 2, 3, 4): sample 2 is unreadable";
        assert_eq!(error(3, prefetch), say);
        let say = "cannot prepare the batch at 4:2 (epoch 4, samples 2, 3, 4, 5, 6, 7, 8, 9 and 3 more): \
                   sample 2 is unreadable";
        assert_eq!(error(11, prefetch), say);
    }
}

/// A model of two inputs.
fn two_inputs() -> (Trainer, Session) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let mut layer = |name| Linear::new(b.at(name), 1, 1, &Init::Normal(1.0));
    let (left, right) = (layer("left"), layer("right"));
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..AdamConfig::default() });
    let trainer = Trainer::new(&mut store, &params, adam, TrainerConfig::default(), move |batch| {
        let sum = left.forward(batch.get("left")) + right.forward(batch.get("right"));
        (sum - batch.get("epoch").cast(DType::F32)).square().mean().into()
    });
    (trainer, open(store))
}

#[test]
fn a_training_loop_goes_on_after_an_error() {
    let (_, _, sample) = healthy();
    let train = |data: &Flaky, prefetch| -> (Vec<(String, Array)>, usize) {
        let (mut trainer, mut session) = two_inputs();
        let mut loader = loader(data, prefetch, Position::default());
        let (mut steps, mut errors) = (0, 0);
        while steps < 10 {
            // The loop of a user whose storage may be away for a while.
            let mut some = || -> Result<(), Box<dyn std::error::Error>> {
                for batch in loader.by_ref().take(10 - steps) {
                    trainer.step(&mut session, &batch?.inputs())?;
                    steps += 1;
                }
                Ok(())
            };
            if some().is_err() {
                errors += 1;
                data.repair();
            }
        }
        session.wait().expect("all have run");
        (snapshot(&mut session), errors)
    };
    let (want, none) = train(&Flaky::default(), 0);
    assert_eq!(none, 0);
    for prefetch in PREFETCH {
        assert_eq!(train(&Flaky::with(&[sample]), prefetch), (want.clone(), 1));
    }
}
