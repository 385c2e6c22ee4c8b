//! `cargo xtask fuzz`: tests random tapes with fresh seeds, for a given time.

use clap::{Parser, ValueEnum};
use std::{
    hash::{BuildHasher, RandomState},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::available_parallelism,
    time::Duration,
};
use wgrad_tests::{
    Property,
    fuzz::{Found, Fuzz, Tried, silence_panics},
    gpu, properties,
};

/// Try random tapes with fresh seeds on all properties of tapes; the first failure of each thread is shrunk and printed
#[derive(Parser)]
#[command(name = "cargo xtask fuzz")]
struct Args {
    /// The properties to test: those that need a GPU, those that need none, or all
    #[arg(long, value_enum, default_value_t = Device::All)]
    device: Device,
    /// The time in minutes; 10 unless --tapes is given
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<Duration>,
    /// The number of tapes; default: as many as the time allows, or 5000 for --device gpu without --minutes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tapes: Option<u64>,
    /// The number of threads; 0 takes all cores
    #[arg(long, value_name = "T", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    threads: u16,
    /// The first seed, as a failure prints it; on one thread, the same seed tries the same tapes
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// The properties to test, by the device that they need.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// All properties
    All,
    /// The properties that run without a GPU
    Cpu,
    /// The properties of the wgpu backend, which need a GPU
    Gpu,
}

impl Device {
    fn properties(self) -> fn() -> Vec<Property> {
        match self {
            Device::All => properties,
            Device::Cpu => || properties().into_iter().filter(|property| !property.needs_gpu()).collect(),
            Device::Gpu => || properties().into_iter().filter(Property::needs_gpu).collect(),
        }
    }
}

/// The default time, and the default number of tapes on a GPU.
const TIME: Duration = Duration::from_secs(600);
const TAPES: u64 = 5000;

/// The longest time, in minutes.
const LONGEST: f64 = 100_000.0;

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.0..=LONGEST).contains(minutes));
    minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes)).ok_or_else(|| format!("expected 0 to {LONGEST}"))
}

static STOP: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let Args { device, minutes: time, tapes, threads, seed } = Args::parse();
    let (time, tapes) = match (time, tapes, device) {
        (None, None, Device::Gpu) => (Duration::MAX, TAPES),
        (time, None, _) => (time.unwrap_or(TIME), u64::MAX),
        (time, Some(tapes), _) => (time.unwrap_or(Duration::MAX), tapes),
    };
    if device == Device::Gpu && gpu().is_none() {
        return ExitCode::FAILURE;
    }
    let properties = device.properties();
    let handler = || {
        // The second Ctrl-C ends the process, with the exit status that shells expect.
        if INTERRUPTED.swap(true, Relaxed) {
            std::process::exit(130);
        }
        STOP.store(true, Relaxed);
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        eprintln!("fuzz: Ctrl-C will end this at once: {error}");
    }
    silence_panics();
    let threads = if threads > 0 { threads.into() } else { available_parallelism().map_or(1, usize::from) };
    // The seed has 32 bits, so that it is short enough to type.
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(()) >> 32);
    println!("seed {seed}, {threads} threads; after each rate, how many tapes have held to");
    for (i, property) in properties().iter().enumerate() {
        println!("  {}. {}", i + 1, property.name);
    }
    let fuzz = Fuzz { properties, seed, threads, time, tapes, stop: &STOP };
    let (tried, found) = fuzz.run(|tried| println!("{}", progress(tried)));
    found.iter().for_each(|found| report(found, device));
    println!("{}", progress(&tried));
    let minutes = tried.time.as_secs_f64() / 60.0;
    println!("{} tapes, {} failures, {minutes:.1} minutes", tried.total(), found.len());
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A line of progress: seconds, tapes, tapes per second, and the number of tapes of each property.
fn progress(tried: &Tried) -> String {
    let seconds = tried.time.as_secs_f64();
    let rate = tried.total() as f64 / seconds.max(1e-3);
    let each: Vec<String> = tried.tapes.iter().map(|(_, tapes)| tapes.to_string()).collect();
    format!("{seconds:6.0} s {:9} tapes {rate:6.0}/s: {}", tried.total(), each.join(" "))
}

fn report(Found { seed, after, failure }: &Found, device: Device) {
    let device = device.to_possible_value().expect("each has a name");
    println!("after {:.1} s: {failure}", after.as_secs_f64());
    println!("to see it again: cargo xtask fuzz --device {} --threads 1 --seed {seed}", device.get_name());
}
