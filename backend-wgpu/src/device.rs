//! Adapters: which there are, which to take, and what is asked of it.

use crate::{
    error::{Error, Result},
    pipelines::Pipelines,
    units::{self, MatrixUnits, Offer},
    wait::{block_on, pause},
    wgsl::{F16Storage, Target, cooperative::Units},
};
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};
use wgpu::{Backends, DeviceType, Features, Limits};

/// The kind of an adapter's device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AdapterKind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// One that is handed through to a virtual machine.
    Virtual,
    /// An adapter that does not tell its kind.
    Other,
    /// A renderer on the CPU: for tests, slower than the CPU backend.
    Software,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Other => "other",
            AdapterKind::Software => "software",
        })
    }
}

/// A compiler of DX12's kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compiler {
    /// Microsoft's current one, a library beside the program or on the path: `dxcompiler.dll`.
    Dxc,
    /// Its predecessor, which is part of Windows. It leaves out barriers, so each kernel is a dispatch of its own.
    Fxc,
}

impl Compiler {
    fn of_wgpu(self) -> wgpu::Dx12Compiler {
        match self {
            Compiler::Dxc => wgpu::Dx12Compiler::default_dynamic_dxc(),
            Compiler::Fxc => wgpu::Dx12Compiler::Fxc,
        }
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Compiler::Dxc => "DXC",
            Compiler::Fxc => "FXC",
        })
    }
}

/// The facts about an adapter before it is opened.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    /// Its name.
    pub name: String,
    /// The kind of device.
    pub kind: AdapterKind,
    /// The interface it is reached by: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub backend: String,
    /// The driver's name and version.
    pub driver: String,
    /// The compiler of its kernels, where wgpu has to choose one: on DX12.
    pub compiler: Option<Compiler>,
    /// The largest value that a kernel can read or write, in bytes.
    pub largest_binding: u64,
    /// The number of buffers that a kernel can read and write.
    pub storage_buffers: u32,
    /// Memory that the invocations of a workgroup share, in bytes.
    pub workgroup_memory: u32,
    /// The smallest and the largest subgroup, in invocations.
    pub subgroups: [u32; 2],
    /// Optional features of wgpu that wgrad asks for and that it has.
    pub features: Vec<String>,
    /// Those that it has not.
    pub missing: Vec<String>,
    /// True if kernels store f16 values as integers of 16 bits; else two of them share a word, which is changed atomically.
    pub native_f16: bool,
    /// The products of small matrices that its matrix units make, such as `16x16x16 f16 to f32`. What becomes of them when
    /// it is opened [`Gpu::matrix_units`] tells.
    pub matrix_units: Vec<String>,
}

/// The shape `m x n x k` and the types of a product of small matrices.
fn matrix_unit(unit: &wgpu::wgt::CooperativeMatrixProperties) -> String {
    let name = |scalar| format!("{scalar:?}").to_lowercase();
    format!("{}x{}x{} {} to {}", unit.m_size, unit.n_size, unit.k_size, name(unit.ab_type), name(unit.cr_type))
}

impl AdapterSummary {
    fn new(Found { adapter, compiler }: &Found) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let names = |features: Features| features.iter_names().map(|(name, _)| name.to_lowercase()).collect();
        Self {
            kind: kind(info.device_type),
            backend: info.backend.to_string(),
            compiler: *compiler,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            largest_binding: limits.max_storage_buffer_binding_size,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            subgroups: [info.subgroup_min_size, info.subgroup_max_size],
            features: names(adapter.features() & WANTED),
            missing: names(WANTED - adapter.features()),
            native_f16: adapter.features().contains(Features::SHADER_I16),
            matrix_units: adapter.cooperative_matrix_properties().iter().map(matrix_unit).collect(),
            // Browsers keep it to themselves.
            name: if info.name.is_empty() { "adapter without a name".into() } else { info.name },
        }
    }

    /// True if it is a renderer on the CPU, which nobody wants unless they ask for it.
    pub fn is_software(&self) -> bool {
        self.kind == AdapterKind::Software
    }
}

fn kind(device: DeviceType) -> AdapterKind {
    match device {
        DeviceType::DiscreteGpu => AdapterKind::Discrete,
        DeviceType::IntegratedGpu => AdapterKind::Integrated,
        DeviceType::VirtualGpu => AdapterKind::Virtual,
        DeviceType::Other => AdapterKind::Other,
        DeviceType::Cpu => AdapterKind::Software,
    }
}

/// The features that are requested where they exist; none is required.
const WANTED: Features = Features::SUBGROUP
    .union(Features::SHADER_F16)
    .union(Features::SHADER_I16)
    .union(Features::TIMESTAMP_QUERY)
    .union(Features::IMMEDIATES);

/// The choice of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// A discrete GPU before an integrated one, and a software renderer last: see [`WgpuBackend::is_software`].
    ///
    /// [`WgpuBackend::is_software`]: crate::WgpuBackend::is_software
    #[default]
    Best,
    /// The same, but never a software renderer.
    Hardware,
    /// The adapter of this number in the order of [`adapters`].
    Index(usize),
}

/// For tests: what does the work of matrix units on a device that has none.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StandIn {
    /// Loops that multiply as units of this size do, by what would be subgroups of so many invocations.
    Right {
        /// Rows, columns and summands: 8 or 16.
        size: usize,
        /// Invocations: a power of 2, up to 64.
        width: usize,
    },
    /// Loops that forget a summand.
    Wrong,
    /// A text that no driver compiles.
    Broken,
}

/// The way an adapter is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Asks for no more than every WebGPU device offers, and for no optional feature: what runs so runs anywhere.
    pub floor: bool,
    /// The most bytes of buffers; without it, as many as the driver gives.
    pub budget: Option<u64>,
    /// The most bytes of compiled kernels, as [`Gpu::kernel_bytes`] counts them; without it, 256 MiB. Beyond, kernels that no
    /// program uses are dropped, those first that no program has asked for for longest; a program that is compiled again
    /// compiles its kernels again then. Kernels of programs that live stay, and count.
    pub kernels: Option<u64>,
    /// For tests: kernels are those of real GPUs even on a software renderer.
    #[doc(hidden)]
    pub as_hardware: bool,
    /// For tests: see [`WgpuBackend::poisoned`](crate::WgpuBackend::poisoned).
    #[doc(hidden)]
    pub poison: bool,
    /// For tests: each kernel is a dispatch of its own.
    #[doc(hidden)]
    pub separate: bool,
    /// For tests: what is used as matrix units, whether there are any or not; they pass their self-test, or are not used.
    #[doc(hidden)]
    pub stand_in: Option<StandIn>,
}

/// By what devices are reached. Never GL: wgpu would fall back to it without a word.
const INTERFACES: Backends =
    Backends::VULKAN.union(Backends::METAL).union(Backends::DX12).union(Backends::BROWSER_WEBGPU);

/// An adapter, and what compiles its kernels, where that is to be chosen.
struct Found {
    adapter: wgpu::Adapter,
    compiler: Option<Compiler>,
}

/// The adapters of some interfaces. If a compiler is not there, then those of DX12 are not.
fn enumerate(backends: Backends, compiler: Compiler) -> Vec<Found> {
    let mut description = wgpu::InstanceDescriptor::new_without_display_handle();
    description.backends = backends;
    // Debug builds would have wgpu look for validation layers.
    description.flags = wgpu::InstanceFlags::empty();
    description.backend_options.dx12.shader_compiler = compiler.of_wgpu();
    let adapters = block_on(wgpu::Instance::new(description).enumerate_adapters(Backends::all()));
    let found = |adapter: wgpu::Adapter| {
        let compiler = (adapter.get_info().backend == wgpu::Backend::Dx12).then_some(compiler);
        Found { adapter, compiler }
    };
    adapters.into_iter().map(found).collect()
}

/// The adapters, best first: by kind, else in the system's order. Those of DX12 that DXC cannot compile for, or not without
/// being there, have FXC.
fn ranked() -> Vec<Found> {
    let mut all = enumerate(INTERFACES, Compiler::Dxc);
    if cfg!(windows) {
        let known = |one: &Found, all: &[Found]| {
            let id = |found: &Found| (found.compiler.is_some(), found.adapter.get_info().name);
            all.iter().any(|other| id(other) == id(one))
        };
        let older = enumerate(Backends::DX12, Compiler::Fxc);
        let older: Vec<Found> = older.into_iter().filter(|one| !known(one, &all)).collect();
        all.extend(older);
    }
    all.sort_by_key(|found| kind(found.adapter.get_info().device_type));
    all
}

/// The adapters of this machine, in the order in which [`Choice::Index`] counts them: the best first. None if there are
/// no drivers.
pub fn adapters() -> Vec<AdapterSummary> {
    ranked().iter().map(AdapterSummary::new).collect()
}

/// So often it is looked whether values have arrived when the device has done all its work: for a minute or more. In a browser
/// it is not known when that is.
const PATIENCE: u32 = if cfg!(target_arch = "wasm32") { u32::MAX } else { 1_200_000 };

/// The state of a transfer to the host: not yet there, there, or lost.
#[derive(Clone, Default)]
pub(crate) struct Arrival(Arc<AtomicU8>);

impl Arrival {
    pub fn tell(&self, good: bool) {
        self.0.store(if good { 1 } else { 2 }, SeqCst);
    }

    pub fn is_known(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    pub fn is_good(&self) -> bool {
        self.0.load(SeqCst) == 1
    }
}

/// An opened adapter. Copies share the device, its byte budget, and its compiled kernels; each
/// [`WgpuBackend`](crate::WgpuBackend) on it has buffers of its own.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: Limits,
    pub summary: AdapterSummary,
    pub pipelines: Pipelines,
    /// The target that kernels are cut up for.
    pub target: Target,
    pub f16_storage: F16Storage,
    /// The units that multiply matrices of f16.
    pub units: Option<Units>,
    /// The use of the adapter's own.
    matrix_units: MatrixUnits,
    pub poison: bool,
    /// True if each kernel is a dispatch of its own.
    pub separate: bool,
    /// True if compilers compute as if floats were real numbers; those of Vulkan's drivers keep what kernels rely on.
    pub wary: bool,
    budget: Option<u64>,
    used: AtomicU64,
    /// wgpu's reports outside of any call.
    fault: Arc<Mutex<Option<Error>>>,
}

impl Gpu {
    /// Opens an adapter.
    ///
    /// # Errors
    /// If there is none of this kind, or none of this number, or its driver refuses.
    pub fn open(choice: Choice, options: Options) -> Result<Self> {
        let mut found = ranked();
        if choice == Choice::Hardware {
            found.retain(|found| found.adapter.get_info().device_type != DeviceType::Cpu);
        }
        let (index, count) = (if let Choice::Index(index) = choice { index } else { 0 }, found.len());
        if found.is_empty() {
            return Err(Error::NoAdapter);
        }
        if index >= count {
            return Err(Error::NoSuchAdapter { index, count });
        }
        let found = found.swap_remove(index);
        let offer = Offer::of(&found.adapter);
        let units = match options.stand_in {
            _ if options.floor => Err(MatrixUnits::NotAsked),
            Some(stand_in) => offer.stand_in(stand_in),
            None => offer.choose(),
        };
        let with_units = units.and_then(|units| {
            let used = (Some(units), MatrixUnits::Used(units.size));
            let gpu = Self::request(&found, options, used).map_err(|why| MatrixUnits::Refused(why.to_string()))?;
            units::test(&gpu).map_err(MatrixUnits::Failed)?;
            Ok(gpu)
        });
        with_units.or_else(|state| Self::request(&found, options, (None, state)))
    }

    /// A device of an adapter, with these units in use, if any.
    fn request(found: &Found, options: Options, units: (Option<Units>, MatrixUnits)) -> Result<Self> {
        let (units, matrix_units) = units;
        let (adapter, summary) = (&found.adapter, AdapterSummary::new(found));
        let (mut features, limits) = match options.floor {
            true => (Features::empty(), Limits::default()),
            false => (adapter.features() & WANTED, adapter.limits()),
        };
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        if units.is_some_and(Units::are_real) {
            features |= units::EXPERIMENT;
            experimental_features = units::consent();
        }
        let description = wgpu::DeviceDescriptor {
            label: Some("wgrad"),
            required_features: features,
            required_limits: limits.clone(),
            experimental_features,
            ..Default::default()
        };
        let refused =
            |why: wgpu::RequestDeviceError| Error::Refused { adapter: summary.name.clone(), why: why.to_string() };
        let (device, queue) = block_on(adapter.request_device(&description)).map_err(refused)?;
        let fault = Arc::new(Mutex::new(None));
        let note = |fault: &Arc<Mutex<Option<Error>>>, error: Error| {
            let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
            // The first is the cause of the others; but nothing helps a device that is lost.
            if fault.is_none() || matches!(error, Error::Lost(_)) {
                *fault = Some(error);
            }
        };
        let uncaptured = fault.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(&uncaptured, error.into())));
        let lost = fault.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed || !message.is_empty() {
                note(&lost, Error::Lost(if message.is_empty() { format!("{reason:?}") } else { message }));
            }
        });
        // Of a browser's renderer, too, the kernels of hardware: it compiles those of Mesa's for minutes.
        let in_browser = adapter.get_info().backend == wgpu::Backend::BrowserWebGpu;
        let software = summary.is_software() && !options.as_hardware && !in_browser;
        let target = if software { Target::Software } else { Target::Hardware };
        let inner = Inner {
            device,
            queue,
            limits,
            summary,
            pipelines: Pipelines::new(options.kernels),
            target,
            f16_storage: if features.contains(Features::SHADER_I16) { F16Storage::Native } else { F16Storage::Packed },
            units,
            matrix_units,
            poison: options.poison,
            separate: options.separate || found.compiler == Some(Compiler::Fxc),
            wary: adapter.get_info().backend != wgpu::Backend::Vulkan,
            budget: options.budget,
            used: AtomicU64::new(0),
            fault,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The facts about the adapter.
    pub fn summary(&self) -> &AdapterSummary {
        &self.inner.summary
    }

    /// The use of its matrix units.
    pub fn matrix_units(&self) -> &MatrixUnits {
        &self.inner.matrix_units
    }

    /// The number of compiled kernels.
    pub fn kernels(&self) -> usize {
        self.inner.pipelines.len()
    }

    /// The bytes of memory that compiled kernels take, by an estimate from their texts: no driver tells. [`Options::kernels`]
    /// bounds it.
    pub fn kernel_bytes(&self) -> u64 {
        self.inner.pipelines.bytes()
    }

    /// The bytes of all buffers: of values that live, of programs, and of what is on its way to the host.
    /// [`Options::budget`] bounds it.
    pub fn buffer_bytes(&self) -> u64 {
        self.inner.used.load(Relaxed)
    }

    /// For tests: has the driver take the device away, as a crash would.
    #[doc(hidden)]
    pub fn destroy(&self) {
        self.inner.device.destroy();
        self.inner.note(Error::Lost("destroyed".into()));
    }
}

impl Inner {
    fn note(&self, error: Error) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The faults since the last call: each once, save that a lost device stays lost.
    pub fn check(&self) -> Result<()> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match fault.take() {
            None => Ok(()),
            Some(error) => {
                if matches!(error, Error::Lost(_)) {
                    *fault = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Runs something that creates a part of the device; what wgpu refuses is an error.
    pub fn scoped<T>(&self, f: impl FnOnce() -> T) -> Result<T> {
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let value = f();
        let errors = [block_on(validation.pop()), block_on(memory.pop())];
        self.check()?;
        match errors.into_iter().flatten().next() {
            None => Ok(value),
            Some(error) => Err(error.into()),
        }
    }

    /// Waits for a submission, or for all so far, and until it is known what has become of a buffer that was to be mapped
    /// after it. (Another thread that waits for the same device may be the one that is told, a little later.)
    pub fn wait(&self, submission: Option<wgpu::SubmissionIndex>, arrival: &Arrival) -> Result<()> {
        let poll = || self.device.poll(wgpu::PollType::Wait { submission_index: submission.clone(), timeout: None });
        let mut waited = poll();
        let mut looks = 0;
        while waited.is_ok() && !arrival.is_known() {
            self.check()?;
            looks += 1;
            if looks > PATIENCE {
                return Err(Error::Lost("a run has ended, but its values do not arrive".into()));
            }
            pause();
            waited = poll();
        }
        self.check()?;
        waited.map_err(|error| Error::Lost(error.to_string()))?;
        if arrival.is_good() { Ok(()) } else { Err(Error::Lost("values cannot be read".into())) }
    }

    /// True if so many bytes could be taken from the budget.
    pub fn admit(&self, wanted: u64) -> Result<()> {
        let used = self.used.load(Relaxed);
        match self.budget.filter(|budget| used + wanted > *budget) {
            None => Ok(()),
            Some(budget) => Err(Error::OverBudget { wanted, used, budget }),
        }
    }

    /// Takes bytes from the budget.
    pub fn take(&self, wanted: u64) -> Result<()> {
        let used = self.used.fetch_add(wanted, Relaxed);
        match self.budget.filter(|budget| used + wanted > *budget) {
            None => Ok(()),
            Some(budget) => {
                self.give(wanted);
                Err(Error::OverBudget { wanted, used, budget })
            }
        }
    }

    /// Gives bytes back to the budget.
    pub fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}
