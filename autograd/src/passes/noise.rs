//! Gradient noise: normal numbers added to gradients, of constant or falling deviation.

use super::units::Units;
use crate::{
    DType, Tensor,
    grads::{Grads, Unscaled},
    random::Rng,
    recorded::PassKind,
    store::Flat,
};

/// The size of the noise.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Noise {
    /// Of this standard deviation, in the unit of the gradient.
    Fixed {
        /// The deviation.
        sigma: f64,
    },
    /// Of variance `eta / (1 + t0 + t)^gamma` at update t = 0, 1, .. (Neelakantan et al. 2015).
    Annealed {
        /// The variance at first, in the square of the gradient's unit.
        eta: f64,
        /// The rate of its fall.
        gamma: f64,
        /// The number of updates that are assumed before the first.
        t0: f64,
    },
}

impl Noise {
    /// Noise of constant deviation.
    pub fn fixed(sigma: f64) -> Self {
        Noise::Fixed { sigma }
    }

    /// Noise that falls as in the paper: gamma 0.55, from the first update on. The paper's eta are 0.01, 0.3 and 1.
    pub fn annealed(eta: f64) -> Self {
        Noise::Annealed { eta, gamma: 0.55, t0: 0.0 }
    }

    /// The standard deviation after this many updates (u32 scalar), in a float type.
    #[track_caller]
    pub fn sigma<'t>(self, updates: Tensor<'t>, dtype: DType) -> Tensor<'t> {
        match self {
            Noise::Fixed { sigma } => updates.tape.scalar(sigma, dtype),
            Noise::Annealed { eta, gamma, t0 } => {
                let since = updates.cast(dtype) + (1.0 + t0);
                (since.pow(-gamma) * eta).sqrt()
            }
        }
    }

    /// True if there is no noise at all: then not even the sign of a zero changes.
    fn is_silent(self) -> bool {
        let size = match self {
            Noise::Fixed { sigma } => sigma,
            Noise::Annealed { eta, .. } => eta,
        };
        size == 0.0
    }

    fn parameters(self) -> Vec<(&'static str, String)> {
        match self {
            Noise::Fixed { sigma } => vec![("sigma", sigma.to_string())],
            Noise::Annealed { eta, gamma, t0 } => {
                vec![("eta", eta.to_string()), ("gamma", gamma.to_string()), ("t0", t0.to_string())]
            }
        }
    }

    #[track_caller]
    fn check(self) {
        let values = match self {
            Noise::Fixed { sigma } => [sigma, 0.0, 0.0],
            Noise::Annealed { eta, gamma, t0 } => [eta, gamma, t0],
        };
        assert!(
            values.iter().all(|v| v.is_finite() && *v >= 0.0),
            "add_noise: {self:?} has a value that is not at least 0"
        );
    }
}

/// The source of the normal numbers.
#[derive(Clone, Debug)]
pub enum Draw<'t> {
    /// A generator whose counter counts updates: [`crate::Optimizer::step`] advances it, if the step is taken.
    Rng(Rng),
    /// Given numbers: for each arena a vector of its length, and the number of updates so far (u32 scalar).
    Given {
        /// Standard normal numbers.
        z: Flat<'t>,
        /// The counter.
        updates: Tensor<'t>,
    },
}

impl From<Rng> for Draw<'_> {
    fn from(rng: Rng) -> Self {
        Draw::Rng(rng)
    }
}

impl<'t, S> Grads<'t, S> {
    /// Makes the step advance a generator, once, past the counter at which its numbers were drawn.
    pub(super) fn moves(&mut self, generator: Rng, drawn: Tensor<'t>) {
        if self.generators.iter().all(|(known, _)| *known != generator) {
            self.generators.push((generator, drawn));
        }
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Adds normal numbers, independent for each element of each gradient present (Neelakantan et al. 2015):
    ///
    /// `g + sigma_t z`
    ///
    /// The generator's numbers are a function of its seed, its counter and the element's position, so all replicas add
    /// the same noise. Only the optimizer's step may advance its counter: do not use the generator for dropout. After a
    /// skipped step the same numbers are drawn again. This is not differential privacy, which clips example by example.
    ///
    /// Taps: `add_noise/sigma`.
    ///
    /// # Panics
    /// If a value of the noise is below 0 or not finite; if the generator is advanced by [`Rng::advance`] on this tape
    /// ([`crate::Pitfall::AdvanceOnSkippedStep`]).
    #[track_caller]
    pub fn add_noise(mut self, noise: Noise, draw: impl Into<Draw<'t>>) -> Self {
        const NAME: &str = "add_noise";
        noise.check();
        let draw = draw.into();
        let updates = match &draw {
            Draw::Rng(rng) => rng.counter(self.tape),
            Draw::Given { z, updates } => {
                self.tape.check_scalar(NAME, "the number of updates", *updates);
                for (arena, g) in self.flat.parts() {
                    let Some(z) = z.get(*arena) else {
                        panic!("{NAME}: there are no numbers for {:?}", self.tape.layout.state(*arena).name)
                    };
                    self.tape.require(z.shape() == g.shape() && z.dtype() == g.dtype(), NAME, &[*g, z], || {
                        "the numbers have the shape and type of the gradients".into()
                    });
                }
                *updates
            }
        };
        let (flat, sigma) = self.pass(PassKind::Noise, NAME, &noise.parameters(), |flat| {
            let noisy = flat.map(|arena, g| {
                if noise.is_silent() {
                    return g;
                }
                let units = Units::of(&self.tape.layout, arena, |param| self.present.contains(param).then_some(0));
                let z = match &draw {
                    Draw::Rng(rng) => rng.normal(self.tape, g.shape(), g.dtype()),
                    Draw::Given { z, .. } => z.get(arena).expect("checked above"),
                };
                // The deviation is zero where no gradient is: absent gradients and the padding stay as they are.
                let sigma = noise.sigma(updates, g.dtype()).broadcast_to([units.params.len()]);
                g + sigma.segment_broadcast(&units.segments) * z
            });
            let dtype = flat.tensors().iter().map(|g| g.dtype()).min().unwrap_or(DType::F32);
            (noisy, vec![noise.sigma(updates, dtype)])
        });
        self.tap_of(NAME, "sigma", sigma[0]);
        if let Draw::Rng(rng) = draw {
            rng.draws_noise(self.tape);
            self.moves(rng, updates);
        }
        self.with_flat(flat)
    }
}
