//! A run that is watched as it goes: a few steps at a time.

use wgrad::Session;
use wgrad_examples::{
    Result,
    cli::{Common, RnnArgs},
    device::{Device, Place},
    ranks::Rank,
    rnn::{Case, Config, Fix},
    run::{Example, Runnable},
};

/// The recurrent network whose gradients explode, or the same with its gradients clipped; as `wgrad rnn --case exploding`.
pub struct Play {
    example: Box<dyn Example>,
    session: Session,
    losses: Vec<f64>,
    norms: Vec<f64>,
    flow: Vec<f64>,
}

impl Play {
    /// Opens a run on a device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn open(place: &Place, cured: bool, seed: u64) -> Result<Self> {
        let fix = if cured { Fix::ClipNorm } else { Fix::None };
        let config = Config::new(&RnnArgs { case: Case::Exploding, fix, ..RnnArgs::default() }, None)?;
        let common = Common {
            device: Device::Auto,
            threads: 0,
            seed: Some(seed),
            steps: None,
            json: false,
            quiet: true,
            rank: Rank::default(),
        };
        let (example, session) = config.open(&common, place, &Default::default())?;
        Ok(Self { example, session, losses: vec![], norms: vec![], flow: vec![] })
    }

    /// Makes so many steps, and waits for them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn steps(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.example.step(&mut self.session)?;
            // A session keeps what it has to tell of the last steps alone.
            self.observe()?;
        }
        self.session.wait()?;
        self.observe()
    }

    /// Takes in what has arrived.
    fn observe(&mut self) -> Result<()> {
        for taps in self.session.taps()? {
            let Self { example, losses, norms, flow, .. } = self;
            example.observe(&taps, &mut |seen| {
                losses.push(seen.observed.loss);
                norms.push(seen.observed.grad_norm);
                flow.clear();
                flow.extend_from_slice(seen.observed.flow);
            });
        }
        Ok(())
    }

    /// The loss of each step so far, in nats.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// The norm of each step's gradient before it is clipped.
    pub fn norms(&self) -> &[f64] {
        &self.norms
    }

    /// The part of the last step's gradient that each time step got: the mean of |dL/dz|, first to last.
    pub fn flow(&self) -> &[f64] {
        &self.flow
    }

    /// The name of its device.
    pub fn device(&self) -> String {
        self.session.device()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cure_bounds_what_explodes() {
        let place = Place::Cpu { threads: 1 };
        let run = |cured| {
            let mut play = Play::open(&place, cured, 0).expect("the CPU opens");
            play.steps(3).and_then(|()| play.steps(97)).expect("it runs");
            play
        };
        let [exploding, cured] = [false, true].map(run);
        assert_eq!(exploding.losses().len(), 100);
        assert_eq!(exploding.losses()[0], cured.losses()[0], "before the first update they are the same");
        let largest = |play: &Play| play.losses().iter().fold(0.0f64, |most, loss| most.max(*loss));
        assert!(largest(&exploding) > 3.0 * largest(&cured), "{} and {}", largest(&exploding), largest(&cured));
        assert_eq!(cured.flow().len(), 50, "one for each time step");
        assert!(cured.norms().iter().all(|norm| norm.is_finite()));
    }
}
