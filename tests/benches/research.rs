//! Times the programs of `wgrad_tests::research`, as `tests/programs/timed.py` times the same ones in PyTorch: 3 steps that do
//! not count, then at least 10 and at most 200 within the budget. Prints the median.
//!
//! `cargo bench -p wgrad-tests --bench research -- [PROGRAM..] --threads 2 --budget 5`

use clap::Parser;
use std::time::Instant;
use wgrad_nn::Result;
use wgrad_tests::research::{
    ddpm::Ddpm, own_cell::AddingRun, pinn::Pinn, sam::FlatSpirals, wgan_gp::WganGp, zclip::Spikes,
};

#[derive(Parser)]
struct Args {
    /// The programs; all if none is named.
    programs: Vec<String>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds for each program.
    #[arg(long, default_value_t = 5.0)]
    budget: f64,
    /// Cargo passes it to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// Times a program, if it is asked for.
    fn time<P>(
        &self,
        name: &str,
        make: impl FnOnce(usize) -> Result<P>,
        step: impl Fn(&mut P) -> Result<()>,
    ) -> Result<()> {
        if !self.programs.is_empty() && !self.programs.iter().any(|program| program == name) {
            return Ok(());
        }
        let mut program = make(self.threads)?;
        let (mut times, mut spent) = (vec![], 0.0);
        for _ in 0..3 {
            step(&mut program)?;
        }
        while times.len() < 10 || (spent < self.budget && times.len() < 200) {
            let start = Instant::now();
            step(&mut program)?;
            times.push(start.elapsed().as_secs_f64());
            spent += times[times.len() - 1];
        }
        times.sort_by(f64::total_cmp);
        println!("{name:<10} {:9.3} ms a step, of {} steps", times[times.len() / 2] * 1e3, times.len());
        Ok(())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    args.time("wgan_gp", |threads| Ok(WganGp::new(64, threads)?), |gan| Ok(_ = gan.step()?))?;
    args.time("pinn", |threads| Ok(Pinn::new(1000, threads)?), |pinn| Ok(_ = pinn.step()?))?;
    args.time("ddpm", |threads| Ok(Ddpm::new(256, threads)?), |ddpm| Ok(_ = ddpm.step()?))?;
    args.time("sam", |threads| Ok(FlatSpirals::new(256, 0.05, threads)?), |sam| Ok(_ = sam.step()?))?;
    args.time("zclip", |threads| Ok(Spikes::new(256, threads)?), |zclip| Ok(_ = zclip.step(1.0)?))?;
    args.time("own_cell", |threads| AddingRun::new(50, 64, threads), |cell| Ok(_ = cell.step()?))
}
