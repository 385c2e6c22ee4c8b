//! The monitor on a GPU: it leaves the same bits there too, and measures what it does on the CPU.

use approx::assert_relative_eq;
use wgrad::{Array, Backend, DynamicScale, Noise, Rng, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Dropout, LossScale, Measurement, Mlp, MlpConfig, MonitorConfig, NormKind, Precision, Trainer,
    TrainerConfig,
    optim::{AdamW, AdamWConfig},
};
use wgrad_tests::gpu;
use wgrad_wgpu::WgpuBackend;

/// Updates of a run, and micro-batches of each.
const UPDATES: usize = 4;
const MICRO_BATCHES: usize = 2;

/// What a run leaves in every state, and what it shows.
type Left = (Vec<(String, Vec<u64>)>, Vec<Measurement>);

fn trained(backend: Box<dyn Backend>, monitor: Option<MonitorConfig>, precision: Precision) -> Left {
    let mut store = Store::new();
    let dropout = Dropout::new(0.2, Rng::new(&mut store, "dropout", 3));
    let config = MlpConfig {
        inputs: 6,
        width: 10,
        depth: 2,
        outputs: 4,
        activation: Activation::Gelu,
        norm: NormKind::BATCH,
        dropout: Some(dropout),
        ..MlpConfig::default()
    };
    let model = Mlp::new(Builder::new(&mut store, 5), &config);
    let params = store.params();
    let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 1e-2.into(), ..AdamWConfig::default() });
    let config = TrainerConfig {
        accumulate: MICRO_BATCHES,
        precision,
        loss_scale: LossScale::Dynamic(DynamicScale { init: 1024.0, ..DynamicScale::default() }),
        noise: Some(Noise::Fixed { sigma: 1e-3 }),
        clip_norm: Some(0.5),
        ema: Some(0.9),
        monitor,
        ..TrainerConfig::default()
    };
    let mut trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
        dropout.rng().advance(batch.tape());
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let mut session = Session::new(backend, store).expect("there is room");
    for step in 0..UPDATES * MICRO_BATCHES {
        let number = |i: usize| ((step * 48 + i) as f32 * 0.37).sin();
        let x = Array::new([8, 6], (0..48).map(number).collect::<Vec<_>>());
        let y = Array::new([8], (0..8).map(|i| ((step + i) % 4) as u32).collect::<Vec<_>>());
        trainer.step(&mut session, &[("x", &x), ("y", &y)]).expect("it runs");
    }
    session.wait().expect("it ran");
    let taps = session.taps().expect("it ran");
    let measured = trainer.measurements(&taps);
    let layout = session.layout().clone();
    let bits = |array: Array| array.to_f64().into_iter().map(f64::to_bits).collect();
    let states = layout.states().map(|(id, decl)| (decl.name.clone(), bits(session.read(id).expect("readable"))));
    (states.collect(), measured)
}

#[test]
fn a_gpu_that_is_watched_leaves_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let run = |monitor, precision| trained(Box::new(WgpuBackend::on(gpu).expect("it is there")), monitor, precision);
    for precision in [Precision::F32, Precision::F16] {
        let (plain, nothing) = run(None, precision);
        let (watched, measured) =
            run(Some(MonitorConfig { every: 1, histograms: true, ..Default::default() }), precision);
        assert!(nothing.is_empty() && measured.len() == UPDATES);
        assert!(measured.iter().all(|measured| measured.update.taken), "{measured:?}");
        for ((name, plain), (_, watched)) in plain.iter().zip(&watched) {
            assert!(plain == watched, "{name} in {precision:?}");
        }
    }
}

#[test]
fn a_gpu_measures_what_the_cpu_does() {
    let Some(gpu) = gpu() else { return };
    let monitor = || Some(MonitorConfig { every: 3, histograms: true, ..Default::default() });
    let cpu = Box::new(CpuBackend::new(1).expect("a thread"));
    let gpu = Box::new(WgpuBackend::on(gpu).expect("it is there"));
    let (_, cpu) = trained(cpu, monitor(), Precision::F32);
    let (_, gpu) = trained(gpu, monitor(), Precision::F32);
    assert_eq!((cpu.len(), gpu.len()), (2, 2));
    let (cpu, gpu) = (&cpu[0], &gpu[0]);
    for (cpu, gpu) in cpu.params.iter().zip(&gpu.params) {
        let of = |grad: &wgrad_nn::GradMeasure| {
            [grad.norm, grad.mean_abs, grad.std, grad.max, grad.zeros, grad.param_norm, grad.update_norm]
        };
        assert_relative_eq!(of(&cpu.grad)[..], of(&gpu.grad)[..], epsilon = 1e-6, max_relative = 1e-3);
    }
    for (cpu, gpu) in cpu.sites.iter().zip(&gpu.sites) {
        assert_eq!(cpu.path, gpu.path);
        let of = |site: &wgrad_nn::SiteMeasure| {
            let values = site.values.expect("measured in full");
            let flow = site.flow.as_ref().map_or([0.0; 2], |flow| [flow.mean_abs, flow.norm]);
            let off = site.units.map_or(0.0, |units| units.off);
            [&[values.rms, values.mean, values.std, values.max, off][..], &flow].concat()
        };
        assert_relative_eq!(of(cpu)[..], of(gpu)[..], epsilon = 1e-6, max_relative = 1e-3);
    }
}
