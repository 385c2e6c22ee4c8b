//! ZClip (Kumar et al. 2025, arXiv 2504.02507), a clip that adapts to the norms so far, as a pass of one's own.

use wgrad::{Array, DType, DType::F32, Grads, Optimizer, Result, Rng, Session, StateId, Step, Store, Taps};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Mlp, MlpConfig,
    optim::{Sgd, SgdConfig},
};

/// A norm that lies more than `THRESHOLD` standard deviations above the mean of the norms so far is clipped to
/// `mean + THRESHOLD^2 / z * deviation`. Mean and variance are moving averages of the norms after the clip. The first
/// `WARMUP` steps are not clipped, and averaged with equal weights.
#[derive(Clone, Copy)]
pub struct ZClip {
    /// The number of steps so far.
    pub steps: StateId,
    /// The mean of the norms.
    pub mean: StateId,
    /// The variance of the norms.
    pub variance: StateId,
}

impl ZClip {
    /// The steps that are not clipped.
    pub const WARMUP: i32 = 4;
    /// The decay of the averages.
    pub const DECAY: f64 = 0.9;
    /// The standard deviations above which a norm is a spike.
    pub const THRESHOLD: f64 = 2.5;

    /// Declares the states.
    pub fn new(store: &mut Store, dtype: DType) -> Self {
        let mut declare = |name| store.state(&format!("zclip/{name}"), &Array::zeros([], dtype));
        Self { steps: declare("steps"), mean: declare("mean"), variance: declare("variance") }
    }

    /// Records the pass. A step whose norm is not finite is skipped, and leaves no trace in the averages.
    pub fn apply<'t>(&self, g: Grads<'t>) -> Grads<'t> {
        let (t, norm) = (g.tape(), g.norm());
        let [steps, mean, variance] = [self.steps, self.mean, self.variance].map(|state| t.state(state));
        let deviation = variance.sqrt() + 1e-6;
        let z = (norm - mean) / deviation;
        let spike = z.greater(Self::THRESHOLD).and(steps.greater_equal(Self::WARMUP));
        let bound = mean + deviation * Self::THRESHOLD.powi(2) / z.maximum(Self::THRESHOLD);
        let clipped = spike.select(bound, norm);
        let weight = (1 / (steps + 1)).maximum(1.0 - Self::DECAY);
        let new_mean = mean + (clipped - mean) * weight;
        let new_variance = variance * (1 - weight) + (clipped - mean) * (clipped - new_mean) * weight;
        t.tap("zclip/norm", norm);
        t.tap("zclip/clipped", clipped);
        g.map("zclip", |flat| flat.map(|_, g| g * spike.select(clipped / norm, norm.ones_like()).cast(g.dtype())))
            .assign(self.steps, steps + 1)
            .assign(self.mean, new_mean)
            .assign(self.variance, new_variance)
            .skip_unless(norm.is_finite())
    }
}

/// A regression with ZClip. A batch can be spoiled by a factor of its targets.
pub struct Spikes {
    /// The session.
    pub session: Session,
    /// The recorded step.
    pub step: Step,
}

impl Spikes {
    /// Records a step on `rows` points.
    pub fn new(rows: usize, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let config = MlpConfig { inputs: 16, width: 128, depth: 2, ..MlpConfig::default() };
        let net = Mlp::new(Builder::new(&mut store, 0), &config);
        let params = store.params();
        let zclip = ZClip::new(&mut store, F32);
        let sgd = SgdConfig { lr: 0.02.into(), momentum: 0.9, ..SgdConfig::default() };
        let sgd = Sgd::new(&mut store, &params, sgd);
        let rng = Rng::new(&mut store, "rng", 0);
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let step = session.record(|t| {
            let x = rng.normal(t, [rows, 16], F32);
            let y = x.sum_axes(&[1]).sin().unsqueeze(1) * t.input("factor", [], F32);
            let loss = net.forward(x, true).mse(y);
            t.tap("loss", loss);
            sgd.step(zclip.apply(loss.grad(&params)));
            rng.advance(t);
        })?;
        Ok(Self { session, step })
    }

    /// An update. Returns the loss, and the norms before and after the clip.
    pub fn step(&mut self, factor: f32) -> Result<Taps> {
        self.session.run_now(&self.step, &[("factor", &Array::new([], vec![factor]))])
    }
}
