//! The `doctor` command: looks for devices, prints their properties, and tests them.

use super::{
    advice::{GET_DXC, advice},
    probes::{Finding, probe},
};
use crate::{
    Error, Result,
    cli::Common,
    device::{Device, Place},
    output::json,
    say,
};
use serde::Serialize;
use std::collections::BTreeMap;
use wgrad_wgpu::{AdapterSummary, Choice, Gpu, Options, adapters};

/// The best compiler for DX12: `doctor` has no advice for a device that uses it.
const DXC: &str = "DXC";

/// The report on the machine, as JSON.
#[derive(Serialize)]
struct Diagnosis {
    /// The GPUs, in the order of their numbers.
    adapters: Vec<Adapter>,
    /// The CPU, unless `--device` asks for a GPU.
    cpu: Option<Tested>,
    /// The device that `--device auto` takes, if the command has looked for adapters.
    auto: Option<String>,
    /// The advice on what to install, if there is no GPU.
    advice: Option<String>,
}

/// A GPU.
#[derive(Serialize)]
struct Adapter {
    device: String,
    name: String,
    kind: String,
    software: bool,
    backend: String,
    driver: String,
    /// The compiler of kernels, if wgpu has a choice of compilers.
    compiler: Option<String>,
    limits: BTreeMap<&'static str, u64>,
    /// The features that wgrad asks for; true if the adapter has the feature.
    features: BTreeMap<String, bool>,
    /// True if kernels store f16 as integers of 16 bits.
    native_f16: bool,
    /// The kinds of matrix products that its matrix units compute.
    matrix_units: Vec<String>,
    /// The use that wgrad makes of the matrix units; `None` if the adapter cannot be opened.
    matrix_use: Option<String>,
    #[serde(flatten)]
    tested: Tested,
}

/// The result of a device's self-test.
#[derive(Serialize)]
struct Tested {
    /// True if every result agrees with the reference.
    passed: bool,
    /// The reason that the device cannot be opened, if so.
    refused: Option<String>,
    tests: Vec<Finding>,
}

impl Tested {
    fn new(place: Result<Place>) -> Self {
        match place {
            Ok(place) => {
                let tests = probe(&place);
                Self { passed: tests.iter().all(|test| test.why.is_none()), refused: None, tests }
            }
            Err(error) => Self { passed: false, refused: Some(error.to_string()), tests: vec![] },
        }
    }

    /// The failures, a line each, or one line if there are none.
    fn lines(&self) -> Vec<String> {
        if let Some(why) = &self.refused {
            return vec![format!("FAILED: {why}")];
        }
        let wrong = self.tests.iter().filter_map(|test| Some(format!("FAILED: {}: {}", test.name, test.why.as_ref()?)));
        let wrong: Vec<String> = wrong.collect();
        if !wrong.is_empty() {
            return wrong;
        }
        let names: Vec<&str> = self.tests.iter().map(|test| test.name).collect();
        let seconds = self.tests.iter().map(|test| test.ms).sum::<f64>() / 1e3;
        vec![format!("{} agree with the reference ({seconds:.2} s)", names.join(", "))]
    }
}

impl Adapter {
    fn new(number: usize, summary: AdapterSummary) -> Self {
        let gpu = Gpu::open(Choice::Index(number), Options::default());
        let [smallest, largest] = summary.subgroups.map(u64::from);
        let found = summary.features.iter().map(|name| (name.clone(), true));
        Self {
            device: Device::Gpu(Some(number)).to_string(),
            kind: summary.kind.to_string(),
            software: summary.is_software(),
            limits: BTreeMap::from([
                ("largest_binding", summary.largest_binding),
                ("storage_buffers", summary.storage_buffers.into()),
                ("workgroup_memory", summary.workgroup_memory.into()),
                ("subgroup_min", smallest),
                ("subgroup_max", largest),
            ]),
            features: found.chain(summary.missing.iter().map(|name| (name.clone(), false))).collect(),
            native_f16: summary.native_f16,
            matrix_units: summary.matrix_units,
            matrix_use: gpu.as_ref().ok().map(|gpu| gpu.matrix_units().to_string()),
            tested: Tested::new(gpu.map(Place::Gpu).map_err(Error::from)),
            name: summary.name,
            backend: summary.backend,
            compiler: summary.compiler.map(|compiler| compiler.to_string()),
            driver: summary.driver,
        }
    }

    fn show(&self) {
        say!("{:<6} {}", self.device, self.name);
        let line = |what: &str, text: &str| say!("       {what:<10} {text}");
        let slow = if self.software { "; slower than the CPU, so --device auto never takes it" } else { "" };
        line("kind", &format!("{}, by {}{slow}", self.kind, self.backend));
        line("driver", &self.driver);
        match self.compiler.as_deref() {
            None => {}
            Some(DXC) => line("compiler", "DXC"),
            Some(other) => {
                line("compiler", &format!("{other}, which makes small programs slower than DXC does"));
                GET_DXC.iter().for_each(|text| line("", text));
            }
        }
        let features: Vec<String> =
            self.features.iter().map(|(name, found)| format!("{name} {}", if *found { "yes" } else { "no" })).collect();
        line("features", &features.join(", "));
        line(
            "f16",
            if self.native_f16 { "stored as integers of 16 bits" } else { "packed in pairs in words of 32 bits" },
        );
        match &self.matrix_units[..] {
            [] => line("matrices", "no units for them"),
            units => {
                line("matrices", &format!("units for {}", units.join(", ")));
                self.matrix_use.iter().for_each(|what| line("", what));
            }
        }
        let limit = |name| self.limits[name];
        line(
            "limits",
            &format!(
                "values of {} MiB, {} buffers in a kernel, {} KiB of workgroup memory, subgroups of {} to {}",
                limit("largest_binding") >> 20,
                limit("storage_buffers"),
                limit("workgroup_memory") >> 10,
                limit("subgroup_min"),
                limit("subgroup_max"),
            ),
        );
        self.tested.lines().iter().for_each(|text| line("self-test", text));
    }
}

/// `wgrad doctor`. Returns true if every device that was found has passed its self-test. A missing GPU is no failure
/// unless the command line asks for a GPU.
///
/// # Errors
/// If the command line asks for a GPU that is not there.
pub fn doctor(common: &Common) -> Result<bool> {
    if common.steps.is_some() {
        return Err(Error::Usage("doctor makes no training steps: leave --steps out".into()));
    }
    let looks = common.device != Device::Cpu;
    let found = if looks { adapters() } else { vec![] };
    let auto = found.iter().position(|adapter| !adapter.is_software());
    let auto = looks.then(|| auto.map_or(Device::Cpu, |number| Device::Gpu(Some(number))).to_string());
    let wanted = match common.device {
        Device::Gpu(Some(index)) if !found.is_empty() && index >= found.len() => {
            return Err(wgrad_wgpu::Error::NoSuchAdapter { index, count: found.len() }.into());
        }
        Device::Gpu(_) if found.is_empty() => return Err(wgrad_wgpu::Error::NoAdapter.into()),
        Device::Gpu(number) => number,
        Device::Auto | Device::Cpu => None,
    };
    let with_cpu = !matches!(common.device, Device::Gpu(_));
    let advice = (with_cpu && looks && found.is_empty()).then(advice);
    let numbered = found.into_iter().enumerate().filter(|(number, _)| wanted.is_none_or(|wanted| wanted == *number));
    let mut diagnosis = Diagnosis { adapters: vec![], cpu: None, auto, advice: advice.map(|lines| lines.join("\n")) };
    let tells = !common.json && !common.quiet;
    // Each adapter is shown as soon as it is tested, so that the output ends before a driver that hangs.
    for (number, summary) in numbered {
        let adapter = Adapter::new(number, summary);
        if tells {
            adapter.show();
        }
        diagnosis.adapters.push(adapter);
    }
    if with_cpu {
        let place = Place::Cpu { threads: common.threads.into() };
        let cpu = Tested::new(Ok(place.clone()));
        if tells {
            say!("{:<6} {}", "cpu", place.name()?);
            cpu.lines().iter().for_each(|text| say!("       {:<10} {text}", "self-test"));
        }
        diagnosis.cpu = Some(cpu);
    }
    let tested = || diagnosis.adapters.iter().map(|adapter| &adapter.tested).chain(&diagnosis.cpu);
    let passed = tested().all(|tested| tested.passed);
    if common.json {
        json(&diagnosis);
        return Ok(passed);
    }
    if let Some(lines) = advice.filter(|_| tells) {
        say!("\nThere is no GPU adapter: everything runs on the CPU. What may be missing:");
        lines.iter().for_each(|line| say!("  {line}"));
    }
    if let Some(auto) = diagnosis.auto.as_ref().filter(|_| tells) {
        say!("\n--device auto takes {auto}");
    }
    let failed = tested().filter(|tested| !tested.passed).count();
    say!("{} passed, {failed} failed", tested().count() - failed);
    Ok(passed)
}
