//! Compiled kernels, one for each text. A kernel stays as long as a program uses it; unused ones stay up to a limit in bytes.

use crate::{
    device::Inner,
    error::{Error, Result},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
};

/// The kernels of a device, by their WGSL.
pub(crate) struct Pipelines {
    known: Mutex<Known>,
    /// The limit in bytes, above which unused kernels are dropped.
    most: u64,
}

#[derive(Default)]
struct Known {
    kernels: HashMap<Arc<str>, Kernel>,
    /// The bytes of all of them.
    bytes: u64,
    /// The number of requests for kernels.
    calls: u64,
}

struct Kernel {
    pipeline: Arc<wgpu::ComputePipeline>,
    /// The last call that asked for it.
    last: u64,
}

/// The bytes of kernels that are kept by default.
const KEPT: u64 = 256 << 20;

/// An estimate of the bytes of a kernel of this text. No interface tells them; this is what wgpu and Mesa's software renderer
/// were seen to take. Other drivers take less.
fn bytes(text: &str) -> u64 {
    const EACH: u64 = 256 << 10;
    const LETTER: u64 = 96;
    EACH + LETTER * text.len() as u64
}

impl Known {
    /// Drops unused kernels, the least recently requested first, until three quarters of the limit are left, so that not every new
    /// kernel has to drop one.
    fn shrink(&mut self, most: u64) {
        if self.bytes <= most {
            return;
        }
        let unused = self.kernels.iter().filter(|(_, kernel)| Arc::strong_count(&kernel.pipeline) == 1);
        let mut unused: Vec<(u64, Arc<str>)> = unused.map(|(text, kernel)| (kernel.last, text.clone())).collect();
        unused.sort_unstable();
        for (_, text) in unused {
            if self.bytes <= most - most / 4 {
                break;
            }
            self.kernels.remove(&text);
            self.bytes -= bytes(&text);
        }
    }
}

impl Pipelines {
    /// None yet.
    pub fn new(most: Option<u64>) -> Self {
        Self { known: Mutex::default(), most: most.unwrap_or(KEPT) }
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.known().kernels.len()
    }

    /// The bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.known().bytes
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels of these texts, and how many of them were new: these are compiled, on several threads.
    pub fn get(&self, gpu: &Inner, texts: &[&str]) -> Result<(Vec<Arc<wgpu::ComputePipeline>>, usize)> {
        let known = &mut *self.known();
        let mut new: Vec<&str> = texts.iter().copied().filter(|text| !known.kernels.contains_key(*text)).collect();
        new.sort_unstable();
        new.dedup();
        let threads = available_parallelism().map_or(1, usize::from).min(new.len().max(1));
        let part = |first: usize| -> Result<Vec<(Arc<str>, wgpu::ComputePipeline)>> {
            new.iter().skip(first).step_by(threads).map(|text| Ok(((*text).into(), compile(gpu, text)?))).collect()
        };
        let built: Vec<_> = std::thread::scope(|scope| {
            let part = &part;
            let rest: Vec<_> = (1..threads).map(|first| scope.spawn(move || part(first))).collect();
            let own = part(0);
            let failed = || Err(Error::Validation("a thread that compiles kernels has failed".into()));
            std::iter::once(own).chain(rest.into_iter().map(|t| t.join().unwrap_or_else(|_| failed()))).collect()
        });
        known.calls += 1;
        for part in built {
            for (text, pipeline) in part? {
                known.bytes += bytes(&text);
                known.kernels.insert(text, Kernel { pipeline: Arc::new(pipeline), last: known.calls });
            }
        }
        let found = |text: &&str| {
            let kernel = known.kernels.get_mut(*text).expect("it has been compiled if it was not there");
            kernel.last = known.calls;
            kernel.pipeline.clone()
        };
        let pipelines = texts.iter().map(found).collect();
        known.shrink(self.most);
        Ok((pipelines, new.len()))
    }
}

fn compile(gpu: &Inner, text: &str) -> Result<wgpu::ComputePipeline> {
    let made = gpu.scoped(|| {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels have written the words that they share.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    });
    made.map_err(|error| match error {
        Error::Validation(why) => Error::Validation(format!("{why}\n{text}")),
        error => error,
    })
}
