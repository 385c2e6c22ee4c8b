//! Compiled kernels, one for each text, for as long as a program uses it, and some of the others.

use crate::{
    device::Inner,
    error::{Error, Result},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The kernels of a device, by their WGSL.
pub(crate) struct Pipelines {
    known: Mutex<HashMap<String, Arc<wgpu::ComputePipeline>>>,
    /// Beyond how many those that no program uses are dropped.
    most: usize,
}

/// How many kernels are kept: programs that are compiled again find theirs, and drivers take a few hundred kilobytes for
/// each.
const KEPT: usize = 1024;

impl Pipelines {
    /// None yet.
    pub fn new(most: Option<usize>) -> Self {
        Self { known: Mutex::default(), most: most.unwrap_or(KEPT) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known().len()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<wgpu::ComputePipeline>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels of these texts, and how many of them were new: these are compiled, on several threads.
    pub fn get(&self, gpu: &Inner, texts: &[&str]) -> Result<(Vec<Arc<wgpu::ComputePipeline>>, usize)> {
        let mut known = self.known();
        let mut new: Vec<&str> = texts.iter().copied().filter(|text| !known.contains_key(*text)).collect();
        new.sort_unstable();
        new.dedup();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(new.len().max(1));
        let part = |first: usize| -> Result<Vec<(String, wgpu::ComputePipeline)>> {
            new.iter().skip(first).step_by(threads).map(|text| Ok((text.to_string(), compile(gpu, text)?))).collect()
        };
        let built: Vec<_> = std::thread::scope(|scope| {
            let part = &part;
            let rest: Vec<_> = (1..threads).map(|first| scope.spawn(move || part(first))).collect();
            let own = part(0);
            let failed = || Err(Error::Validation("a thread that compiles kernels has failed".into()));
            std::iter::once(own).chain(rest.into_iter().map(|t| t.join().unwrap_or_else(|_| failed()))).collect()
        });
        for part in built {
            for (text, pipeline) in part? {
                known.insert(text, Arc::new(pipeline));
            }
        }
        let pipelines = texts.iter().map(|text| known[*text].clone()).collect();
        if known.len() > self.most {
            known.retain(|_, pipeline| Arc::strong_count(pipeline) > 1);
        }
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
                // What kernels share they have written.
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
