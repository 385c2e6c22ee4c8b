//! The cost of the monitor on the models of `wgrad bench w1` and `w5`: rounds of steps without it, with every tenth update
//! measured, with each, and with each one's flow alone; and with every tenth one measured with histograms, with and without a
//! report of it, in turn. Prints the mean step of each, the median over the rounds, and its ratio to that without.

use std::{path::Path, time::Instant};
use wgrad::{Array, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    BlockKind, Builder, Detail, Gpt, GptConfig, MonitorConfig, ResNet, ResNetConfig, Trainer, TrainerConfig,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
    track::{Jsonl, Page, Sink, TensorBoard, Tracker},
};

/// Steps of a round: each measures as often as its interval says.
const STEPS: usize = 10;
const ROUNDS: usize = 15;

type Batch = [(&'static str, Array); 2];

/// A model on its way, and the batch that it is trained on.
struct Run {
    trainer: Trainer,
    session: Session,
    batch: Batch,
    /// Takes what it shows to a report.
    tracker: Option<Tracker>,
    steps: usize,
}

fn open(store: Store) -> Session {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Session::new(Box::new(CpuBackend::new(threads).expect("threads start")), store).expect("it fits")
}

fn config(monitor: &Option<MonitorConfig>) -> TrainerConfig {
    TrainerConfig { clip_norm: Some(1.0), monitor: monitor.clone(), ..TrainerConfig::default() }
}

fn w1(monitor: &Option<MonitorConfig>) -> Run {
    let mut store = Store::new();
    let model = Gpt::new(Builder::new(&mut store, 0), &GptConfig::small(96));
    let params = store.params();
    let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
    let trainer = Trainer::new(&mut store, &params, adamw, config(monitor), move |batch| {
        model.loss(batch.get("x"), batch.get("y"), true).into()
    });
    let symbols = |turn: usize| {
        let all = (0..8 * 128).map(|i| ((i * 37 + turn) % 96) as u32);
        Array::new([8, 128], all.collect::<Vec<_>>())
    };
    let batch = [("x", symbols(0)), ("y", symbols(1))];
    Run { trainer, session: open(store), batch, tracker: None, steps: 0 }
}

fn w5(monitor: &Option<MonitorConfig>) -> Run {
    let mut store = Store::new();
    let config_of = ResNetConfig::cifar(20, BlockKind::Basic, 3, 10).expect("20 is 6 times 3 and 2");
    let model = ResNet::new(Builder::new(&mut store, 0), &config_of);
    let params = store.params();
    let sgd = SgdConfig { lr: 0.05.into(), momentum: 0.9, ..SgdConfig::default() };
    let sgd = Sgd::new(&mut store, &params, sgd);
    let trainer = Trainer::new(&mut store, &params, sgd, config(monitor), move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let pixels = (0..16 * 3 * 32 * 32).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let classes = (0..16).map(|i| i % 10).collect::<Vec<u32>>();
    let batch = [("x", Array::new([16, 3, 32, 32], pixels)), ("y", Array::new([16], classes))];
    Run { trainer, session: open(store), batch, tracker: None, steps: 0 }
}

impl Run {
    /// Milliseconds of a mean step of a round.
    fn round(&mut self) -> f64 {
        let [(x_name, x), (y_name, y)] = &self.batch;
        let start = Instant::now();
        for _ in 0..STEPS {
            self.trainer.step(&mut self.session, &[(x_name, x), (y_name, y)]).expect("it runs");
            let taps = self.session.taps().expect("it ran");
            let (updates, measured) = (self.trainer.updates(&taps), self.trainer.measurements(&taps));
            if let Some(tracker) = &mut self.tracker {
                for update in &updates {
                    tracker.update(self.steps, update);
                    self.steps += 1;
                }
                measured.iter().for_each(|measured| _ = tracker.measurement(self.steps, measured));
            }
            std::hint::black_box((updates, measured));
        }
        self.session.wait().expect("it ran");
        start.elapsed().as_secs_f64() * 1e3 / STEPS as f64
    }
}

/// The variant with a report.
const REPORTED: &str = "reported, every 10";

fn reported(folder: &Path) -> std::io::Result<Tracker> {
    let page: Box<dyn Sink> = Box::new(Page::create(folder, "a run")?);
    let lines = Box::new(Jsonl::create(folder.join("metrics.jsonl"))?);
    Ok(Tracker::new(vec![page, lines, Box::new(TensorBoard::create(folder)?)], 4096))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let every = |every, detail| Some(MonitorConfig { every, detail, ..MonitorConfig::default() });
    let counted = || Some(MonitorConfig { every: 10, histograms: true, ..MonitorConfig::default() });
    let variants = [
        ("plain", None),
        ("every 10", every(10, Detail::Full)),
        ("every 1", every(1, Detail::Full)),
        ("flow, every 1", every(1, Detail::Flow)),
        ("counted, every 10", counted()),
        (REPORTED, counted()),
    ];
    type Make = fn(&Option<MonitorConfig>) -> Run;
    let models: [(&str, Make); 2] = [("w1", w1), ("w5", w5)];
    for (name, model) in models {
        let mut runs: Vec<Run> = variants.iter().map(|(_, monitor)| model(monitor)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        for (run, _) in runs.iter_mut().zip(&variants).filter(|(_, (variant, _))| *variant == REPORTED) {
            run.tracker = Some(reported(folder.path()).expect("it can be written"));
        }
        runs.iter_mut().for_each(|run| _ = run.round());
        let mut times = vec![vec![]; variants.len()];
        for _ in 0..ROUNDS {
            for (run, times) in runs.iter_mut().zip(&mut times) {
                times.push(run.round());
            }
        }
        let plain = median(times[0].clone());
        for ((variant, _), times) in variants.iter().zip(times) {
            let ms = median(times);
            println!("{name} {variant:<18} {ms:8.3} ms a step, {:6.3} of plain", ms / plain);
        }
    }
}
