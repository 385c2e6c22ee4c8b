//! Proving shaders for devices that are not there: the kernels of many programs, each validated, held to what every device
//! offers, and translated for Vulkan, DX12 and Metal as wgpu would.

mod programs;

use naga::{
    back::{hlsl, msl, spv},
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Command,
};
use wgrad::{Program, plan::Grouping};
use wgrad_wgpu::Imagined;

/// What every device offers: invocations and bytes of shared memory per workgroup, and storage buffers.
const INVOCATIONS: u32 = 256;
const SHARED: u32 = 16 * 1024;
const BUFFERS: usize = 8;

/// The name of every kernel's function, in HLSL too.
pub const ENTRY: &str = "main";

/// Kernels by their texts, each with the name of the first program that has it.
#[derive(Default)]
pub struct Kernels {
    /// The kernels.
    pub texts: BTreeMap<String, String>,
    /// How many programs they come from.
    pub programs: usize,
    /// Programs that did not become kernels, and why.
    pub refused: Vec<String>,
}

impl Kernels {
    /// The kernels of the operations of the catalogue, of sizes and types that take kernels of their own, of passes and
    /// optimizers, and of so many random tapes: on devices that bind as few buffers as there may be.
    pub fn all(tapes: u32) -> Self {
        let mut kernels = Self::default();
        programs::each(tapes, &mut |name, program, grouping| kernels.add(name, program, grouping));
        kernels
    }

    /// Adds what a program becomes.
    pub fn add(&mut self, name: &str, program: &Program, grouping: &Grouping) {
        self.programs += 1;
        // For GPUs, and for software renderers; merged, and each by itself with results hidden from its compiler, as DX12 has
        // it; with stores of 16 bits, and without.
        let flags = |device: u32| [0, 1, 2].map(|bit| device >> bit & 1 == 1);
        let plain = (0..8).map(flags).map(|[software, separate, native]| (software, separate, native, None));
        // Matrix units change products of f16 numbers alone, and these stay by themselves.
        let with_units = UNITS.map(|size| (false, true, true, Some(size)));
        for (software, separate, native, units) in plain.chain(with_units) {
            let device = Imagined { buffers: BUFFERS, software, separate, wary: separate, native, units };
            match wgrad_wgpu::kernels(program, grouping, device) {
                Ok(texts) => texts.into_iter().for_each(|text| {
                    self.texts.entry(text).or_insert_with(|| name.into());
                }),
                Err(why) => self.refused.push(format!("{name}: {why}")),
            }
        }
    }
}

/// The sizes of matrix units that kernels use.
const UNITS: [usize; 2] = [16, 8];

/// What a kernel needs that stores integers of 16 bits.
const NATIVE: &str = "enable wgpu_int16;";

/// What a kernel needs that uses matrix units: they take f16 numbers and integers of 16 bits, and subgroups.
const MATRICES: &str = "enable wgpu_cooperative_matrix;";

/// What only Vulkan's units multiply.
const LARGE_UNITS: &str = "coop_mat16x16";

/// A kernel in the languages of the drivers.
pub struct Translated {
    /// Whether it stores integers of 16 bits.
    pub native: bool,
    /// Whether it uses matrix units.
    pub matrices: bool,
    /// For Vulkan.
    pub spirv: Vec<u32>,
    /// For DX12 by way of DXC; it has no matrix units.
    pub hlsl: Option<String>,
    /// For DX12 by way of FXC, which has no integers of 16 bits either.
    pub legacy_hlsl: Option<String>,
    /// For Metal, whose units are of 8 by 8.
    pub msl: Option<String>,
}

impl Translated {
    /// Validates and translates a kernel.
    ///
    /// # Errors
    /// If it is no valid WGSL, needs a feature that a device may lack, or exceeds what each offers.
    pub fn new(text: &str) -> Result<Self, String> {
        let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
        let [native, matrices] = [NATIVE, MATRICES].map(|enabled| text.lines().any(|line| line == enabled));
        let mut capabilities = Capabilities::empty();
        capabilities.set(Capabilities::SHADER_INT16, native);
        let units = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
        capabilities.set(units, matrices);
        let info = Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .map_err(|error| error.emit_to_string(text))?;
        fits(&module)?;
        let spirv = spirv(&module, &info, matrices).map_err(|why| format!("SPIR-V: {why}"))?;
        let model = if native { hlsl::ShaderModel::V6_2 } else { hlsl::ShaderModel::V6_0 };
        let hlsl = (!matrices).then(|| hlsl(&module, &info, model)).transpose();
        let hlsl = hlsl.map_err(|why| format!("HLSL: {why}"))?;
        let is_merged = text.contains("fn body_0(");
        let legacy = (!matrices && !native && !is_merged)
            .then(|| self::hlsl(&module, &info, hlsl::ShaderModel::V5_1))
            .transpose();
        let legacy_hlsl = legacy.map_err(|why| format!("HLSL 5.1: {why}"))?;
        let msl = (!text.contains(LARGE_UNITS)).then(|| msl(&module, &info, matrices)).transpose();
        let msl = msl.map_err(|why| format!("MSL: {why}"))?;
        Ok(Self { native, matrices, spirv, hlsl, legacy_hlsl, msl })
    }
}

/// Checks what wgpu does not, or only on the device.
fn fits(module: &naga::Module) -> Result<(), String> {
    let [entry] = &module.entry_points[..] else { return Err("a kernel has one entry point".into()) };
    let invocations: u32 = entry.workgroup_size.iter().product();
    if entry.name != ENTRY || invocations > INVOCATIONS {
        return Err(format!("{} has {invocations} invocations per workgroup, of {INVOCATIONS}", entry.name));
    }
    let in_space = |wanted: fn(&naga::AddressSpace) -> bool| {
        module.global_variables.iter().map(|(_, variable)| variable).filter(move |v| wanted(&v.space))
    };
    let shared: u32 = in_space(|space| matches!(space, naga::AddressSpace::WorkGroup))
        .map(|variable| module.types[variable.ty].inner.size(module.to_ctx()))
        .sum();
    if shared > SHARED {
        return Err(format!("a workgroup shares {shared} bytes, of {SHARED}"));
    }
    let buffers = in_space(|space| matches!(space, naga::AddressSpace::Storage { .. })).count();
    if buffers > BUFFERS {
        return Err(format!("{buffers} storage buffers are bound, of {BUFFERS}"));
    }
    Ok(())
}

/// As wgpu translates what no caller has vouched for.
const CHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// For Vulkan 1.1, the oldest that wgpu may meet with this; 1.3 where there are matrix units.
fn spirv(module: &naga::Module, info: &ModuleInfo, matrices: bool) -> Result<Vec<u32>, String> {
    let options = spv::Options {
        lang_version: if matrices { (1, 6) } else { (1, 3) },
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: CHECKED,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..spv::Options::default()
    };
    spv::write_vec(module, info, &options, None).map_err(|why| why.to_string())
}

/// For shader model 5.1, the last that FXC compiles; 6.0, the first that DXC compiles; or 6.2, the first with integers of
/// 16 bits.
fn hlsl(module: &naga::Module, info: &ModuleInfo, shader_model: hlsl::ShaderModel) -> Result<String, String> {
    let options = hlsl::Options { shader_model, zero_initialize_workgroup_memory: false, ..hlsl::Options::default() };
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None);
    match &written.map_err(|why| why.to_string())?.entry_point_names[..] {
        [Ok(name)] if name == ENTRY => Ok(text),
        names => Err(format!("{names:?} instead of the one entry point {ENTRY}")),
    }
}

/// For Metal 2.1, of macOS 10.14; 2.3, of macOS 11, where there are matrix units.
fn msl(module: &naga::Module, info: &ModuleInfo, matrices: bool) -> Result<String, String> {
    let options = msl::Options {
        lang_version: if matrices { (2, 3) } else { (2, 1) },
        bounds_check_policies: CHECKED,
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let written = msl::write_string(module, info, &options, &msl::PipelineOptions::default());
    let (text, translated) = written.map_err(|why| why.to_string())?;
    match &translated.entry_point_names[..] {
        [Ok(_)] => Ok(text),
        names => Err(format!("{names:?} instead of one entry point")),
    }
}

/// The program `spirv-val`, of the SPIR-V tools.
pub struct SpirvVal {
    program: PathBuf,
    /// Whether it is new enough to know cooperative matrices.
    pub knows_matrices: bool,
}

/// The first version that knows cooperative matrices.
const MATRICES_SINCE: [u32; 2] = [2023, 4];

impl SpirvVal {
    /// The program of this name, if it is there.
    pub fn find(program: &Path) -> Option<Self> {
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // "SPIRV-Tools v2023.1 unknown hash, 2023-02-15T14:03:51"
        let version = text.split_whitespace().find_map(|word| word.strip_prefix('v')).unwrap_or_default();
        let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
        Some(Self { program: program.into(), knows_matrices: numbers[..] >= MATRICES_SINCE[..] })
    }

    /// Judges a kernel, by way of a file. Gives whether it has: of cooperative matrices an old one knows nothing.
    ///
    /// # Errors
    /// If it finds a fault: what it says; or if the file cannot be written.
    pub fn judge(&self, kernel: &Translated, file: &Path) -> Result<bool, String> {
        if kernel.matrices && !self.knows_matrices {
            return Ok(false);
        }
        let bytes: Vec<u8> = kernel.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
        let failed = |error: io::Error| format!("{}: {error}", file.display());
        std::fs::write(file, bytes).map_err(failed)?;
        let target = if kernel.matrices { "vulkan1.3" } else { "vulkan1.1" };
        let output = Command::new(&self.program).args(["--target-env", target]).arg(file).output().map_err(failed)?;
        match output.status.success() {
            true => Ok(true),
            false => {
                Err(format!("spirv-val: {}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim()))
            }
        }
    }
}
