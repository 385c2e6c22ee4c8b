//! A WGAN with a gradient penalty (Gulrajani et al. 2017, arXiv 1704.00028). It learns images of one bright blob each.

use wgrad::{Array, DType::F32, Optimizer, Result, Rng, Session, Step, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Conv2d, ConvTranspose2d, Fan, Init, Linear,
    optim::{Adam, AdamConfig},
};

const SIDE: usize = 16;
const LATENT: usize = 16;
const WIDTH: usize = 16;
const HE: Init = Init::He { fan: Fan::In };
/// With a kernel of 4: a convolution halves height and width, a transposed one doubles them.
const HALVE: wgrad::Conv2d = wgrad::Conv2d { stride: [2, 2], padding: [1, 1], dilation: [1, 1], groups: 1 };

struct Generator {
    project: Linear,
    up: [ConvTranspose2d; 2],
}

impl Generator {
    fn new(mut b: Builder<'_>) -> Self {
        let project = Linear::new(b.at("project"), LATENT, 2 * WIDTH * (SIDE / 4).pow(2), &HE);
        let first = ConvTranspose2d::new(b.at("up/0"), 2 * WIDTH, WIDTH, 4, HALVE, &HE);
        Self { project, up: [first, ConvTranspose2d::new(b.at("up/1"), WIDTH, 1, 4, HALVE, &HE)] }
    }

    fn forward<'t>(&self, z: Tensor<'t>) -> Tensor<'t> {
        let h = self.project.forward(z).relu().reshape([z.shape()[0], 2 * WIDTH, SIDE / 4, SIDE / 4]);
        self.up[1].forward(self.up[0].forward(h).relu()).sigmoid()
    }
}

struct Critic {
    down: [Conv2d; 2],
    head: Linear,
}

impl Critic {
    fn new(mut b: Builder<'_>) -> Self {
        let first = Conv2d::new(b.at("down/0"), 1, WIDTH, 4, HALVE, &HE);
        let down = [first, Conv2d::new(b.at("down/1"), WIDTH, 2 * WIDTH, 4, HALVE, &HE)];
        Self { down, head: Linear::new(b.at("head"), 2 * WIDTH * (SIDE / 4).pow(2), 1, &HE) }
    }

    fn forward<'t>(&self, images: Tensor<'t>) -> Tensor<'t> {
        let h = self.down[0].forward(images).leaky_relu(0.2);
        self.head.forward(self.down[1].forward(h).leaky_relu(0.2).flatten_from(1))
    }
}

/// Images `[batch, 1, SIDE, SIDE]` with a blob each, at a random place.
fn blobs(t: &Tape, rng: Rng, batch: usize) -> Tensor<'_> {
    let centre = rng.uniform(t, [batch, 2, 1], F32) * 8 + 4;
    let bell = ((t.iota(SIDE).cast(F32) - centre).square() / -8).exp();
    (bell.index(1, 0).unsqueeze(2) * bell.index(1, 1).unsqueeze(1)).unsqueeze(1)
}

/// Both networks in one store, each with an optimizer of its own.
pub struct WganGp {
    session: Session,
    generator: Generator,
    rng: Rng,
    critic_step: Step,
    generator_step: Step,
}

impl WganGp {
    /// Records the step of the critic and the step of the generator.
    pub fn new(batch: usize, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let generator = Generator::new(Builder::new(&mut store, 0).at("generator"));
        let critic = Critic::new(Builder::new(&mut store, 0).at("critic"));
        let [generators, critics] = ["generator/", "critic/"].map(|net| store.params_where(|p| p.starts_with(net)));
        let mut adam = |name: &str, params| {
            let config = AdamConfig { name: name.into(), lr: 3e-3.into(), betas: (0.5, 0.9), ..AdamConfig::default() };
            Adam::new(&mut store, params, config)
        };
        let generator_adam = adam("generator_adam", &generators);
        let critic_adam = adam("critic_adam", &critics);
        let rng = Rng::new(&mut store, "rng", 0);
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let critic_step = session.record(|t| {
            let real = blobs(t, rng, batch);
            let fake = generator.forward(rng.normal(t, [batch, LATENT], F32)).detach();
            let share = rng.uniform(t, [batch, 1, 1, 1], F32);
            let between = real * share + fake * (1 - share);
            let slope = critic.forward(between).sum().grad_wrt(&[between])[0].expect("the score depends on the image");
            let penalty = (slope.flatten_from(1).norm_axes(&[1]) - 1).square().mean();
            let distance = critic.forward(real).mean() - critic.forward(fake).mean();
            critic_adam.step((penalty * 10 - distance).grad(&critics).check_finite());
            t.tap("distance", distance);
            rng.advance(t);
        })?;
        let generator_step = session.record(|t| {
            let fake = generator.forward(rng.normal(t, [batch, LATENT], F32));
            generator_adam.step((-critic.forward(fake).mean()).grad(&generators).check_finite());
            rng.advance(t);
        })?;
        Ok(Self { session, generator, rng, critic_step, generator_step })
    }

    /// Three updates of the critic and one of the generator. Returns the critic's estimate of the distance.
    pub fn step(&mut self) -> Result<f64> {
        for _ in 0..2 {
            self.session.run(&self.critic_step, &[])?;
        }
        let distance = self.session.run_now(&self.critic_step, &[])?.scalar("distance").expect("tapped");
        self.session.run(&self.generator_step, &[])?;
        Ok(distance)
    }

    /// Images of the generator: `[count, 1, 16, 16]`.
    pub fn sample(&mut self, count: usize) -> Result<Array> {
        self.session.eval(&[], |t| self.generator.forward(self.rng.normal(t, [count, LATENT], F32)))
    }
}
