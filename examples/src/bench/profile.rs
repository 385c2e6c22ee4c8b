//! The time of each kernel of a step, beside the limits of the machine.

use super::{
    data::{Draw, Source},
    measure::{self, WARM},
};
use crate::{Error, Result, device::Place, interrupt, output, say};
use serde::Serialize;
use std::time::Duration;
use wgrad::{
    Array, DType, Session, Step, Store, Tape,
    plan::{Cost, Kernel},
};

/// The rows and columns of the matrices whose product measures the arithmetic rate.
const SIDE: usize = 1024;
/// The elements of the vector whose copy measures the memory rate: 256 MiB, more than a cache holds. A device with
/// smaller buffers copies as many elements as a buffer holds.
const COPIED: usize = 64 << 20;
/// The number of runs of each measurement. The fastest run counts.
const RUNS: usize = 12;

/// The best rates of a device, measured by the same clock as the kernels, on the same threads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Floating-point operations per second of a large matrix product.
    pub flops: f64,
    /// Bytes per second, read and written, of a large copy.
    pub bytes: f64,
}

impl Limits {
    /// Measures the rates. Returns `None` if the user interrupts it.
    ///
    /// # Errors
    /// If the device has too little memory, does not report kernel times, or is lost.
    pub fn measure(place: &Place) -> Result<Option<Self>> {
        let mut store = Store::new();
        let mut matrix = |name: &str| -> Result<_> {
            Ok(store.state(name, &Source::Seed(0).floats(name, &[SIDE, SIDE], Draw::Normal(0.0, 1.0))?))
        };
        let (a, b, product) = (matrix("a")?, matrix("b")?, matrix("product")?);
        let multiply = |t: &Tape| t.assign(product, t.state(a).matmul(t.state(b)));
        let Some((flops, _)) = rates(place, store, multiply)? else { return Ok(None) };
        let mut store = Store::new();
        let most = match place {
            Place::Cpu { .. } => usize::MAX,
            Place::Gpu(gpu) => gpu.summary().largest_binding as usize / DType::F32.size(),
        };
        let vector = Array::zeros([COPIED.min(most)], DType::F32);
        let [from, to] = ["from", "to"].map(|name| store.state(name, &vector));
        drop(vector);
        // The plan makes no kernel of a plain copy of a state. A change of sign is a kernel, and takes the same time.
        let copy = |t: &Tape| t.assign(to, -t.state(from));
        Ok(rates(place, store, copy)?.map(|(_, bytes)| Self { flops, bytes }))
    }

    /// A lower bound on the time of these kernels, in seconds: the time of their arithmetic or of their bytes,
    /// whichever is longer. The flag is true if the arithmetic takes longer.
    fn least(&self, cost: &Cost) -> (f64, bool) {
        let (flops, bytes) = (cost.flops as f64 / self.flops, cost.bytes as f64 / self.bytes);
        (flops.max(bytes), flops > bytes)
    }
}

/// Floating-point operations and bytes per second of the fastest run of a step. Returns `None` if the user interrupts
/// it.
fn rates(place: &Place, store: Store, record: impl FnOnce(&Tape)) -> Result<Option<(f64, f64)>> {
    let mut session = place.session(store)?;
    let step = session.record(record)?;
    watch(&mut session, &step)?;
    for _ in 0..RUNS {
        if interrupt::requested() {
            return Ok(None);
        }
        session.run(&step, &[])?;
        session.wait()?;
    }
    let runs = session.kernel_times(&step)?;
    let fastest = runs.iter().map(|seconds| seconds.iter().sum::<f64>()).fold(f64::INFINITY, f64::min);
    let (_, plan) = session.plan(&step);
    let flops: usize = plan.kernels.iter().map(Kernel::flops).sum();
    let bytes: usize = plan.kernels.iter().map(|kernel| plan.traffic(kernel)).sum();
    Ok(Some((flops as f64 / fastest, bytes as f64 / fastest)))
}

fn watch(session: &mut Session, step: &Step) -> Result<()> {
    if session.watch(step)? { Ok(()) } else { Err(Error::NoKernelTimes { device: session.device() }) }
}

/// Refuses devices that do not report kernel times.
///
/// # Errors
/// If the device does not report kernel times, or is lost.
pub fn check(place: &Place) -> Result<()> {
    let mut session = place.session(Store::new())?;
    let step = session.record(|_| ())?;
    watch(&mut session, &step)
}

/// The measured times of a workload's watched steps.
#[derive(Clone, Debug)]
pub struct Watched {
    costs: Vec<Cost>,
    /// The median time of a step outside its kernels, in seconds.
    between: f64,
    /// The median time of a whole step, in seconds.
    step: f64,
    /// The number of steps.
    iters: usize,
}

impl Watched {
    /// Runs a step more times; the first runs are the warm-up. `run` runs the step once, and waits for its end. Returns
    /// `None` if the user interrupts it.
    ///
    /// # Errors
    /// If the device does not report kernel times, or a run fails.
    pub fn new(
        session: &mut Session,
        step: &Step,
        budget: Duration,
        mut run: impl FnMut(&mut Session) -> Result<()>,
    ) -> Result<Option<Self>> {
        watch(session, step)?;
        let Some(times) = measure::times(budget, || run(session))? else { return Ok(None) };
        let runs = session.kernel_times(step)?;
        let (program, plan) = session.plan(step);
        let times: Vec<f64> = times[WARM..].iter().map(Duration::as_secs_f64).collect();
        let runs = &runs[WARM..];
        let of = |k: usize| measure::median(runs.iter().map(|seconds| seconds[k]).collect());
        let seconds: Vec<f64> = (0..plan.kernels.len()).map(of).collect();
        let rest = times.iter().zip(runs).map(|(time, seconds)| time - seconds.iter().sum::<f64>());
        let between = measure::median(rest.collect());
        let costs = plan.costs(&program, &seconds);
        Ok(Some(Self { costs, between, iters: times.len(), step: measure::median(times) }))
    }
}

/// The total cost of the kernels that do the same. Rates are over all of them; a line without measurable time has no
/// rates.
#[derive(Serialize, Debug)]
struct Line {
    kernel: String,
    over: String,
    computes: String,
    recorded_in: String,
    operands: String,
    count: usize,
    ms: f64,
    share: f64,
    gflops: f64,
    gbs: f64,
    of_limit: f64,
    limit: &'static str,
}

/// The profile of a step, as it is printed.
#[derive(Serialize, Debug)]
pub struct Profile {
    workload: &'static str,
    backend: String,
    threads: usize,
    iters: usize,
    step_ms: f64,
    kernels: usize,
    kernels_ms: f64,
    between_ms: f64,
    between_share: f64,
    matmul_gflops: f64,
    copy_gbs: f64,
    profile: Vec<Line>,
}

impl Profile {
    /// The profile of a workload.
    pub fn new(workload: &'static str, backend: String, threads: usize, watched: Watched, limits: Limits) -> Self {
        let Watched { costs, between, step, iters } = watched;
        let kernels: f64 = costs.iter().map(|cost| cost.seconds).sum();
        let total = kernels + between;
        let line = |cost: &Cost| {
            let (least, arithmetic) = limits.least(cost);
            Line {
                kernel: cost.kernel.clone(),
                over: cost.over.clone(),
                computes: cost.computes.clone(),
                recorded_in: cost.recorded_in.clone(),
                operands: cost.operands.clone(),
                count: cost.kernels.len(),
                ms: 1e3 * cost.seconds,
                share: cost.seconds / total,
                gflops: 1e-9 * cost.flops as f64 / cost.seconds,
                gbs: 1e-9 * cost.bytes as f64 / cost.seconds,
                of_limit: least / cost.seconds,
                limit: if arithmetic { "matmul" } else { "copy" },
            }
        };
        Self {
            workload,
            backend,
            threads,
            iters,
            step_ms: 1e3 * step,
            kernels: costs.iter().map(|cost| cost.kernels.len()).sum(),
            kernels_ms: 1e3 * kernels,
            between_ms: 1e3 * between,
            between_share: between / total,
            matmul_gflops: 1e-9 * limits.flops,
            copy_gbs: 1e-9 * limits.bytes,
            profile: costs.iter().map(line).collect(),
        }
    }

    /// Prints the object on a line of its own.
    pub fn json(&self) {
        output::json(self);
    }

    /// Prints a table, with the texts of the plan in columns as wide as they need.
    pub fn text(&self) {
        say!("\n{}: {:.3} ms, the median of {} steps that were watched", self.workload, self.step_ms, self.iters);
        say!("limits: {:.1} GFLOP/s of a matrix product, {:.1} GB/s of a copy\n", self.matmul_gflops, self.copy_gbs);
        let texts = |line: &Line| [&line.kernel, &line.over, &line.computes, &line.recorded_in].map(String::clone);
        let headings = ["kernel", "over", "computes", "recorded in"].map(String::from);
        let rows: Vec<[String; 4]> = self.profile.iter().map(texts).collect();
        let width = |c: usize| rows.iter().chain([&headings]).map(|row| row[c].chars().count()).max().unwrap_or(0);
        let widths: [usize; 4] = std::array::from_fn(width);
        let padded = |row: &[String; 4]| {
            let cells = row.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
            cells.collect::<Vec<_>>().join("  ")
        };
        let print = |ms: &str, share: &str, rates: [&str; 3], count: &str, texts: &str| {
            let [gflops, gbs, of_limit] = rates;
            let row = format!("{ms:>9} {share:>6} {gflops:>8} {gbs:>7} {of_limit:>13} {count:>5}  {texts}");
            say!("{}", row.trim_end());
        };
        print("ms", "share", ["GFLOP/s", "GB/s", "of limit"], "times", &padded(&headings));
        for (line, texts) in self.profile.iter().zip(&rows) {
            let of_limit = format!("{} {:<6}", percent(line.of_limit), line.limit);
            let rates = [&decimal(line.gflops), &decimal(line.gbs), of_limit.as_str()];
            print(&milliseconds(line.ms), &percent(line.share), rates, &line.count.to_string(), &padded(texts));
        }
        let kernels = self.profile.iter().map(|line| line.share).sum();
        let count = self.kernels.to_string();
        print(&milliseconds(self.kernels_ms), &percent(kernels), [""; 3], &count, "all kernels");
        print(&milliseconds(self.between_ms), &percent(self.between_share), [""; 3], "", "between kernels");
        say!("");
    }
}

fn milliseconds(ms: f64) -> String {
    format!("{ms:.3}")
}

fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1}%", 100.0 * share) } else { "-".into() }
}

fn decimal(rate: f64) -> String {
    if rate.is_finite() { format!("{rate:.1}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    fn cost(kernel: &str, kernels: usize, seconds: f64, flops: usize, bytes: usize) -> Cost {
        let text = String::new;
        Cost {
            kernels: (0..kernels).collect(),
            seconds,
            flops,
            bytes,
            kernel: kernel.into(),
            over: text(),
            computes: text(),
            operands: text(),
            recorded_in: text(),
        }
    }

    #[test]
    fn shares_are_of_the_whole_step_and_rates_of_the_nearer_limit() {
        let costs = vec![
            cost("matmul", 3, 4e-3, 200_000_000, 8_000_000),
            cost("map", 1, 3e-3, 1_000_000, 15_000_000),
            cost("fill", 1, 0.0, 0, 4),
        ];
        let watched = Watched { costs, between: 1e-3, step: 9e-3, iters: 7 };
        let limits = Limits { flops: 100e9, bytes: 10e9 };
        let profile = Profile::new("w0", "cpu".into(), 2, watched, limits);
        assert_eq!((profile.kernels, profile.iters), (5, 7));
        let close = |have: f64, want: f64| assert_relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-12);
        close(profile.kernels_ms, 7.0);
        close(profile.between_ms, 1.0);
        close(profile.step_ms, 9.0);
        let [matmul, map, fill] = &profile.profile[..] else { panic!("{profile:?}") };
        close(matmul.share, 0.5);
        close(map.share, 0.375);
        close(profile.between_share, 0.125);
        close(profile.profile.iter().map(|line| line.share).sum::<f64>() + profile.between_share, 1.0);
        // 200 Mflop take 2 ms at 100 GFLOP/s, and 15 MB take 1.5 ms at 10 GB/s.
        close(matmul.gflops, 50.0);
        close(map.gbs, 5.0);
        close(matmul.of_limit, 0.5);
        close(map.of_limit, 0.5);
        assert_eq!([matmul.limit, map.limit], ["matmul", "copy"]);
        // A kernel without measurable time has no rate: null in JSON.
        let json = serde_json::to_value(fill).expect("serializes");
        assert!(json["gbs"].is_null() && json["gflops"].is_null() && json["of_limit"].is_null(), "{json}");
        assert_eq!([percent(fill.of_limit), decimal(fill.gbs)], ["-", "-"]);
    }
}
