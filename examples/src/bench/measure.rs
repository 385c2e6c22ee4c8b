//! The timing loops, and the statistics of their times.

use crate::{Result, interrupt};
use std::time::{Duration, Instant};

/// The number of warm-up training steps, or calls of an operation, before the timed ones.
pub const WARM: usize = 3;
/// `loss_last` is the loss of this step, however many follow, so that frameworks can be compared.
const LAST_LOSS: usize = 10;
/// The largest number of timed iterations, whatever the budget.
const MOST: usize = 200;
/// The smallest number of timed calls of an operation. Training steps are timed from the end of the warm-up to
/// [`LAST_LOSS`] at least.
const FEWEST: usize = 5;

/// The statistics of one result's times, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The median; for an even number, the mean of the two middle times.
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The number of timed iterations.
    pub iters: usize,
    /// The time of the first step, including recording and compilation.
    pub first_step: f64,
    /// The peak resident memory of the process so far, in MiB; `None` where the system does not report it.
    pub rss: Option<f64>,
}

impl Timing {
    fn new(first: Duration, times: Vec<Duration>) -> Self {
        let mut ms: Vec<f64> = times.into_iter().map(milliseconds).collect();
        ms.sort_by(f64::total_cmp);
        let quantile = |q: f64| ms[((q * ms.len() as f64) as usize).min(ms.len() - 1)];
        let (p10, p90, iters) = (quantile(0.1), quantile(0.9), ms.len());
        Self { median: median(ms), p10, p90, iters, first_step: milliseconds(first), rss: peak_rss() }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The losses of the first step and of step [`LAST_LOSS`].
pub type Losses = (Option<f64>, Option<f64>);

/// Times training steps. `step(i, stops)` makes step `i` and returns its loss; with `stops` it may return `None`, and no
/// step follows. `prepared` is the time of the preparation before. Returns `None` if the user interrupts it.
pub fn steps(
    budget: Duration,
    prepared: Duration,
    mut step: impl FnMut(usize, bool) -> Result<Option<f64>>,
) -> Result<Option<(Timing, Losses)>> {
    let (mut first, mut losses, mut times) = (prepared, (None, None), vec![]);
    let mut timed = Duration::ZERO;
    for i in 0.. {
        let is_enough = i >= LAST_LOSS && (timed > budget || times.len() >= MOST);
        let start = Instant::now();
        let Some(loss) = step(i, is_enough || interrupt::requested())? else { break };
        let time = start.elapsed();
        match i {
            0 => (losses.0, first) = (Some(loss), prepared + time),
            _ if i + 1 == LAST_LOSS => losses.1 = Some(loss),
            _ => {}
        }
        if i >= WARM {
            times.push(time);
            timed += time;
        }
    }
    Ok((!interrupt::requested()).then(|| (Timing::new(first, times), losses)))
}

/// Times an operation, which has ended when `call` returns. `prepared` is the time of the preparation before. Returns
/// `None` if the user interrupts it.
pub fn calls(budget: Duration, prepared: Duration, call: impl FnMut() -> Result<()>) -> Result<Option<Timing>> {
    Ok(times(budget, call)?.map(|mut times| Timing::new(prepared + times[0], times.split_off(WARM))))
}

/// The times of an operation's calls; the first [`WARM`] are the warm-up. Returns `None` if the user interrupts it.
pub fn times(budget: Duration, mut call: impl FnMut() -> Result<()>) -> Result<Option<Vec<Duration>>> {
    let (mut times, mut timed) = (vec![], Duration::ZERO);
    while times.len() < WARM + FEWEST || timed < budget && times.len() < WARM + MOST {
        if interrupt::requested() {
            return Ok(None);
        }
        let start = Instant::now();
        call()?;
        times.push(start.elapsed());
        timed = times.iter().skip(WARM).sum();
    }
    Ok(Some(times))
}

/// The median; for an even number, the mean of the two middle values.
///
/// # Panics
/// If there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    0.5 * (values[(values.len() - 1) / 2] + values[values.len() / 2])
}

/// The peak resident memory of the process so far, in MiB.
pub fn peak_rss() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    #[test]
    fn a_training_run_is_ten_steps_at_least_of_which_three_do_not_count() {
        let made =
            steps(Duration::ZERO, Duration::ZERO, |i, stops| Ok((!stops).then_some(i as f64))).expect("no step fails");
        let (timing, losses) = made.expect("nobody stops it");
        assert_eq!((timing.iters, losses), (7, (Some(0.0), Some(9.0))));
    }

    #[test]
    fn a_budget_that_is_never_used_up_ends_all_the_same() {
        let (timing, _) = steps(Duration::MAX, Duration::ZERO, |_, stops| Ok((!stops).then_some(0.0)))
            .expect("fine")
            .expect("nobody stops it");
        assert_eq!(timing.iters, MOST);
        let timing = calls(Duration::MAX, Duration::ZERO, || Ok(())).expect("fine").expect("nobody stops it");
        assert_eq!(timing.iters, MOST);
        let timing = calls(Duration::ZERO, Duration::ZERO, || Ok(())).expect("fine").expect("nobody stops it");
        assert_eq!(timing.iters, FEWEST);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        let ms = |times: &[u64]| times.iter().map(|&t| Duration::from_millis(t)).collect::<Vec<_>>();
        let even = Timing::new(Duration::from_millis(9), ms(&[4, 1, 3, 2]));
        assert_abs_diff_eq!([even.median, even.first_step][..], [2.5, 9.0][..], epsilon = 1e-9);
        let ten = Timing::new(Duration::ZERO, ms(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]));
        assert_eq!([ten.median, ten.p10, ten.p90].map(|t| t.round() as u64), [6, 2, 10]);
    }
}
