//! Checks of shaders without the devices: the kernels of many programs are validated, compared with the limits that
//! every device offers, and translated for Vulkan, DX12 and Metal as wgpu does.

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

/// The limits that every device offers: invocations and bytes of shared memory per workgroup, and storage buffers.
const INVOCATIONS: u32 = 256;
const SHARED: u32 = 16 * 1024;
const BUFFERS: usize = 8;

/// The name of each kernel's entry point, in HLSL too.
pub const ENTRY: &str = "main";

/// Kernels by their texts, each with the name of the first program that has it.
#[derive(Default)]
pub struct Kernels {
    /// The kernels.
    pub texts: BTreeMap<String, String>,
    /// The number of programs that the kernels come from.
    pub programs: usize,
    /// The programs that could not be compiled to kernels, with the reasons.
    pub refused: Vec<String>,
}

impl Kernels {
    /// The kernels of the catalogue's operations, of sizes and types with special kernels, of passes and optimizers,
    /// and of `tapes` random tapes, for devices that bind the fewest buffers.
    pub fn all(tapes: u32) -> Self {
        let mut kernels = Self::default();
        programs::each(tapes, &mut |name, program, grouping| kernels.add(name, program, grouping));
        kernels
    }

    /// Adds the kernels of a program, for several kinds of devices.
    pub fn add(&mut self, name: &str, program: &Program, grouping: &Grouping) {
        self.programs += 1;
        // The kinds are: GPUs, and software renderers; merged kernels, and separate kernels that hide results from the
        // compiler, as on DX12; with stores of 16 bits, and without.
        let flags = |device: u32| [0, 1, 2].map(|bit| device >> bit & 1 == 1);
        let plain = (0..8).map(flags).map(|[software, separate, native]| (software, separate, native, None));
        // Matrix units change only products of f16, which are never merged.
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

/// The extension of a kernel that stores integers of 16 bits.
const NATIVE: &str = "enable wgpu_int16;";

/// The extension of a kernel that uses matrix units, which also need f16, integers of 16 bits, and subgroups.
const MATRICES: &str = "enable wgpu_cooperative_matrix;";

/// The type of matrices that only Vulkan's units multiply.
const LARGE_UNITS: &str = "coop_mat16x16";

/// A kernel, translated to the languages of the drivers.
pub struct Translated {
    /// True if the kernel stores integers of 16 bits.
    pub native: bool,
    /// True if the kernel uses matrix units.
    pub matrices: bool,
    /// SPIR-V, for Vulkan.
    pub spirv: Vec<u32>,
    /// HLSL for DX12 with DXC; `None` for matrix units, which HLSL lacks.
    pub hlsl: Option<String>,
    /// HLSL for DX12 with FXC; `None` also for integers of 16 bits, and for merged kernels.
    pub legacy_hlsl: Option<String>,
    /// MSL for Metal; `None` for matrix units other than 8 by 8.
    pub msl: Option<String>,
}

impl Translated {
    /// Validates and translates a kernel.
    ///
    /// # Errors
    /// If the text is no valid WGSL, needs a feature that a device may lack, or exceeds the limits that every device
    /// offers.
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

/// Checks the limits that wgpu does not check, or only on a device.
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

/// The bounds checks that wgpu uses for untrusted shaders.
const CHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// Translates to SPIR-V for Vulkan 1.1, the oldest version for these kernels; for matrix units, Vulkan 1.3.
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

/// Translates to HLSL for shader model 5.1, the last that FXC compiles; 6.0, the first that DXC compiles; or 6.2, the
/// first with integers of 16 bits.
fn hlsl(module: &naga::Module, info: &ModuleInfo, shader_model: hlsl::ShaderModel) -> Result<String, String> {
    let options = hlsl::Options { shader_model, zero_initialize_workgroup_memory: false, ..hlsl::Options::default() };
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None);
    match &written.map_err(|why| why.to_string())?.entry_point_names[..] {
        [Ok(name)] if name == ENTRY => Ok(text),
        names => Err(format!("{names:?} instead of the one entry point {ENTRY}")),
    }
}

/// Translates to MSL for Metal 2.1, of macOS 10.14; for matrix units, Metal 2.3, of macOS 11.
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
    /// True if the version knows cooperative matrices.
    pub knows_matrices: bool,
}

/// The first version that knows cooperative matrices.
const MATRICES_SINCE: [u32; 2] = [2023, 4];

impl SpirvVal {
    /// Finds the program of this name, and reads its version.
    pub fn find(program: &Path) -> Option<Self> {
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The output begins like "SPIRV-Tools v2023.1 unknown hash, 2023-02-15T14:03:51".
        let version = text.split_whitespace().find_map(|word| word.strip_prefix('v')).unwrap_or_default();
        let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
        Some(Self { program: program.into(), knows_matrices: numbers[..] >= MATRICES_SINCE[..] })
    }

    /// Checks a kernel, which is written to `file`. Returns false if the version is too old for the kernel's
    /// cooperative matrices, which are then not checked.
    ///
    /// # Errors
    /// The output of `spirv-val` if it finds a fault; or the reason that the file cannot be written.
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
