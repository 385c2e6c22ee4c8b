//! Kernels of a plan, with everything that depends on shapes decided once, when the plan is compiled.

use crate::{
    arrange::arranged,
    attention::Attention,
    contract::Product,
    conv::Convolution,
    cut::Sizes,
    looped::Loop,
    memory::{Env, Source},
    pool::Pool,
    recurrence::Recurrence,
    schedule::Setting,
    scratch::{Files, Workers},
    single::{OutOfRange, Single},
};
use wgrad::{
    Error, Result,
    plan::{Kernel, Kind, Operand, Plan},
};

/// What a kernel computes, by which loops.
#[derive(Debug)]
enum Body {
    Loop(Box<Loop>),
    Product(Box<Product>),
    Single(Box<Single>),
    Sequence(Box<Recurrence>),
    Attention(Box<Attention>),
    Convolution(Box<Convolution>),
}

/// A kernel ready to run.
#[derive(Debug)]
pub(crate) struct Compiled {
    body: Body,
    /// The stretches of memory that it writes, each once: its targets.
    pub writes: Vec<Source>,
    op: &'static str,
    site: &'static std::panic::Location<'static>,
}

impl Compiled {
    /// Prepares a kernel. `place` says where a slot is.
    pub fn new(plan: &Plan, kernel: &Kernel, place: &dyn Fn(usize) -> Source, sizes: Sizes, files: &mut Files) -> Self {
        let mut writes: Vec<Source> = vec![];
        for write in &kernel.writes {
            let place = place(write.slot);
            if !writes.contains(&place) {
                writes.push(place);
            }
        }
        let source = |operand: &Operand| {
            let place = place(operand.slot);
            writes.iter().position(|w| *w == place).map_or(place, Source::Target)
        };
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

    /// Runs the kernel.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) -> Result<()> {
        match &self.body {
            Body::Loop(body) => body.run(env, workers, pool),
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
