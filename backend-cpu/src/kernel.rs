//! Kernels of a plan, with everything that depends on shapes decided once, when the plan is compiled.

use crate::{
    attention::Attention,
    conv::Convolution,
    indexing::{OutOfRange, Single},
    loops::{
        compile::arranged,
        interleave::{Together, may_go_together},
        kernel::Loop,
        tiling::Setting,
    },
    matmul::product::Product,
    memory::{
        elements::{Env, Source},
        scratch::{Files, Workers},
        sizes::Sizes,
    },
    sequence::kernel::Recurrence,
    threads::pool::Pool,
};
use std::time::Duration;
use wgrad::{
    Error, Result,
    plan::{Kernel, Kind, Operand, Plan},
};

/// The loops of a kernel.
#[derive(Debug)]
enum Body {
    Loop(Box<Loop>),
    Together(Box<Together>),
    /// It has run together with the kernel before it.
    Done,
    Product(Box<Product>),
    Single(Box<Single>),
    Sequence(Box<Recurrence>),
    Attention(Box<Attention>),
    Convolution(Box<Convolution>),
}

/// The stretches of memory that kernels write, each once.
fn targets(kernels: &[&Kernel], place: &dyn Fn(usize) -> Source) -> Vec<Source> {
    let mut writes: Vec<Source> = vec![];
    for write in kernels.iter().flat_map(|kernel| &kernel.writes) {
        let place = place(write.slot);
        if !writes.contains(&place) {
            writes.push(place);
        }
    }
    writes
}

/// The place where an operand is while these are written.
fn source(operand: &Operand, writes: &[Source], place: &dyn Fn(usize) -> Source) -> Source {
    let place = place(operand.slot);
    writes.iter().position(|w| *w == place).map_or(place, Source::Target)
}

/// A kernel ready to run.
#[derive(Debug)]
pub(crate) struct Compiled {
    body: Body,
    /// The stretches of memory that it writes, each once: its targets.
    pub writes: Vec<Source>,
    op: &'static str,
    site: wgrad::Site,
}

impl Compiled {
    /// Prepares a kernel. `place` says where a slot is.
    pub fn new(plan: &Plan, kernel: &Kernel, place: &dyn Fn(usize) -> Source, sizes: Sizes, files: &mut Files) -> Self {
        let writes = targets(&[kernel], place);
        let source = |operand: &Operand| source(operand, &writes, place);
        let dtype = kernel.writes.first().map(|write| plan.slots[write.slot].dtype);
        files.open();
        let mut op = "loop";
        let (reads, writes_to) = (&kernel.reads[..], &kernel.writes[..]);
        let body = match &kernel.kind {
            Kind::Loop(body) => {
                let setting = Setting { body, reads, writes: writes_to, source: &source, product: None, sizes };
                Body::Loop(Box::new(Loop::new(arranged(&setting, files))))
            }
            Kind::MatMul(matmul) => {
                Body::Product(Box::new(Product::new(matmul, reads, writes_to, &source, sizes, files)))
            }
            Kind::Fill(ranges) => {
                Body::Single(Box::new(Single::fill(ranges, kernel, &source, dtype.expect("one write"))))
            }
            Kind::Op(fused) if fused.is_fused() => {
                op = fused.name();
                let dtype = dtype.expect("it has outputs");
                match Attention::new(fused, kernel, &source, dtype, sizes, files) {
                    Some(attention) => Body::Attention(Box::new(attention)),
                    None => Body::Sequence(Box::new(Recurrence::new(fused, kernel, &source, dtype, files))),
                }
            }
            Kind::Op(single) => {
                op = single.name();
                let dtype = dtype.expect("one write");
                match Convolution::new(single, kernel, &source, dtype, sizes, files) {
                    Some(convolution) => Body::Convolution(Box::new(convolution)),
                    None => Body::Single(Box::new(Single::new(single, kernel, &source, dtype))),
                }
            }
        };
        Self { body, writes, op, site: kernel.site }
    }

    /// Prepares two kernels that run together, if they may. The second is left with nothing to do.
    pub fn together(
        kernels: [&Kernel; 2],
        place: &dyn Fn(usize) -> Source,
        sizes: Sizes,
        files: &mut Files,
    ) -> Option<[Self; 2]> {
        let [Kind::Loop(rows), Kind::Loop(columns)] = kernels.map(|kernel| &kernel.kind) else { return None };
        if !may_go_together(kernels) {
            return None;
        }
        let writes = targets(&kernels, place);
        let source = |operand: &Operand| source(operand, &writes, place);
        files.open();
        let [rows, columns] =
            [(rows, kernels[0]), (columns, kernels[1])].map(|(body, Kernel { reads, writes, .. })| {
                let setting = Setting { body, reads, writes, source: &source, product: None, sizes };
                Loop::new(arranged(&setting, files))
            });
        let together = Together::new([rows, columns])?;
        let compiled = |body, writes, kernel: &Kernel| Self { body, writes, op: "loop", site: kernel.site };
        let [first, second] = kernels;
        Some([compiled(Body::Together(Box::new(together)), writes, first), compiled(Body::Done, vec![], second)])
    }

    /// The time of the kernel after this one, if both ran interleaved.
    pub fn second(&self) -> Option<Duration> {
        match &self.body {
            Body::Together(together) => Some(together.second()),
            _ => None,
        }
    }

    /// Runs the kernel.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) -> Result<()> {
        match &self.body {
            Body::Loop(body) => body.run(env, workers, pool),
            Body::Together(both) => both.run(env, workers, pool),
            Body::Done => {}
            Body::Product(product) => product.run(env, workers, pool),
            Body::Sequence(sequence) => sequence.run(env, workers, pool.team()),
            Body::Attention(attention) => attention.run(env, workers, pool),
            Body::Convolution(convolution) => convolution.run(env, workers, pool),
            Body::Single(single) => {
                let outside = |OutOfRange { index, extent }| Error::IndexOutOfRange {
                    op: self.op,
                    index,
                    extent,
                    site: self.site,
                };
                single.run(env, pool).map_err(outside)?;
            }
        }
        Ok(())
    }
}
