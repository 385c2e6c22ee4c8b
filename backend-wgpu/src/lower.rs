//! From kernels of a plan to kernels of the device.

use crate::{
    error::Result,
    wgsl::{
        Memory, Scratch, Tables, Target, View, attention,
        body::{copy, elementwise, map},
        convolution, cumsum, index,
        launch::Launch,
        product,
        rows::rows,
        sequence, sort,
    },
};
use std::sync::Arc;
use wgrad::{
    DType, Site,
    op::{Op, Segments, Typed},
    plan::{Body, Home, Instr, Kernel, Kind, Level, Operand, Plan, Value},
};

/// The faults of a kernel that reads indices.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub op: &'static str,
    pub extent: usize,
    pub site: Site,
}

/// Lowers the kernels of a plan.
pub(crate) struct Lowering<'a> {
    pub plan: &'a Plan,
    /// The place where each slot's first element is.
    pub places: &'a [(Memory, usize)],
    /// The word of the arena that says whether the run has failed, if one can.
    pub failed: Option<usize>,
    pub checks: Vec<Check>,
}

/// True if a device is given kernels for an op over such inputs; else it runs the decomposition.
pub(crate) fn claims(op: &Op, inputs: &[Typed], target: Target) -> bool {
    sequence::claims(op, inputs, target) || attention::claims(op, inputs, target)
}

/// True if a kernel may find an index out of range.
pub(crate) fn can_fail(kernel: &Kernel) -> bool {
    matches!(kernel.kind, Kind::Op(Op::Gather(_) | Op::ScatterAdd { .. }))
}

impl Lowering<'_> {
    /// The place where an operand's elements are.
    pub fn view(&self, operand: &Operand) -> View {
        let (memory, start) = self.places[operand.slot];
        let (shape, strides) = (operand.shape.clone(), operand.strides.clone());
        View { memory, offset: start + operand.offset, shape, strides, dtype: self.plan.slots[operand.slot].dtype }
    }

    /// The kernels of one of the plan's.
    pub fn kernel(&mut self, kernel: &Kernel, tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        let reads: Vec<View> = kernel.reads.iter().map(|read| self.view(read)).collect();
        let writes: Vec<View> = kernel.writes.iter().map(|write| self.view(write)).collect();
        let is_state = |write: &Operand| matches!(self.plan.slots[write.slot].home, Home::State(_));
        let guard = self.failed.filter(|_| kernel.writes.iter().any(is_state));
        match &kernel.kind {
            Kind::Loop(body) => looped(body, &reads, &writes, guard, tables),
            Kind::MatMul(matmul) => product::product(matmul, &reads, &writes, guard, tables),
            kind => {
                let Some(guard) = guard else { return self.single(kernel, kind, &reads, &writes, tables) };
                // A state is written if nothing has failed; so it is computed elsewhere first.
                let words = writes.iter().map(|write| write.shape.numel()).sum();
                let memory = (tables.scratch)(Scratch::Aside, words);
                let mut offset = 0;
                let asides: Vec<View> = writes
                    .iter()
                    .map(|write| {
                        offset += write.shape.numel();
                        View { memory, offset: offset - write.shape.numel(), ..write.clone() }.contiguous(&write.shape)
                    })
                    .collect();
                let mut launches = self.single(kernel, kind, &reads, &asides, tables)?;
                for (aside, write) in asides.iter().zip(&writes) {
                    launches.extend(copy(aside, write, Some(guard), tables)?);
                }
                Ok(launches)
            }
        }
    }

    /// An op by itself.
    fn single(
        &mut self,
        kernel: &Kernel,
        kind: &Kind,
        reads: &[View],
        writes: &[View],
        tables: &mut Tables<'_>,
    ) -> Result<Vec<Launch>> {
        let write = &writes[0];
        let op = match kind {
            Kind::Fill(ranges) => return Ok(index::fill(ranges, write, tables)?.into_iter().collect()),
            Kind::Op(op) => op,
            _ => unreachable!("no op"),
        };
        Ok(match op {
            // This rank's part of an exchange.
            Op::Reshape(_) | Op::Exchange(..) => {
                copy(&reads[0], &write.contiguous(&reads[0].shape), None, tables)?.into_iter().collect()
            }
            Op::ArgMax(axis) => index::argmax(*axis, &reads[0], write, tables)?.into_iter().collect(),
            Op::ArgSort(axis, descending) => sort::argsort(*axis, *descending, &reads[0], write, tables)?,
            Op::CumSum { axis, reverse } => cumsum::cumsum(*axis, *reverse, &reads[0], write, tables)?,
            Op::Assemble { axis, places, .. } => {
                let mut launches: Vec<Launch> = vec![];
                if reads.iter().map(|read| read.shape.numel()).sum::<usize>() < write.shape.numel() {
                    launches.extend(index::fill(&[(0, write.shape.numel())], write, tables)?);
                }
                for (place, read) in places.iter().zip(reads) {
                    let mut strides = write.strides.clone();
                    let offset = write.offset + place.start * strides[*axis] as usize;
                    strides[*axis] *= place.step;
                    let part = View { offset, strides, shape: read.shape.clone(), ..write.clone() };
                    launches.extend(copy(read, &part, None, tables)?);
                }
                launches
            }
            Op::Gather(axis) => {
                let flag = self.check(kernel, op, reads[0].shape[*axis]);
                let launch = index::gather(*axis, &reads[0], &reads[1], write, flag, tables)?;
                self.reported(launch.into_iter().collect(), &reads[1], flag, tables)?
            }
            Op::ScatterAdd { axis, len } => {
                let flag = self.check(kernel, op, *len);
                let launches = index::scatter_add(*axis, &reads[0], &reads[1], write, flag, tables)?;
                self.reported(launches, &reads[1], flag, tables)?
            }
            Op::SegmentReduce(kind, segments) => {
                let body = segmented(segments, reads[0].dtype, |x| Instr::Reduce(*kind, x));
                rows(&body, reads, std::slice::from_ref(write), None, tables)?
            }
            Op::SegmentBroadcast(segments) => {
                let index = Operand::contiguous(0, &[segments.total].into());
                let instr = Instr::Lookup { load: 0, segments: segments.clone(), index };
                let value = Value { instr, dtype: reads[0].dtype, level: Level::Element };
                let body = elementwise(&write.shape, vec![value]);
                map(&body, reads, std::slice::from_ref(write), None, tables)?.into_iter().collect()
            }
            Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..) => {
                convolution::convolution(op, reads, write, tables)?
            }
            Op::Sequence { .. } | Op::SequenceGrad { .. } => sequence::sequence(op, reads, writes, tables)?,
            Op::Attention(..) | Op::AttentionGrad(..) => attention::attention(op, reads, writes, tables)?,
            op => unreachable!("{} is a leaf, a view, a loop, or decomposed: the plan holds no such kernel", op.name()),
        })
    }

    fn check(&mut self, kernel: &Kernel, op: &Op, extent: usize) -> usize {
        self.checks.push(Check { op: op.name(), extent, site: kernel.site });
        self.checks.len() - 1
    }

    /// Adds the kernels that record a failure of the run.
    fn reported(
        &self,
        mut launches: Vec<Launch>,
        index: &View,
        flag: usize,
        tables: &Tables<'_>,
    ) -> Result<Vec<Launch>> {
        let failed = self.failed.expect("the plan has a kernel that can fail");
        launches.push(index::report(index, flag, failed, flag == 0, tables)?);
        Ok(launches)
    }
}

/// The kernels of a body.
fn looped(
    body: &Body,
    reads: &[View],
    writes: &[View],
    guard: Option<usize>,
    tables: &mut Tables<'_>,
) -> Result<Vec<Launch>> {
    match body.reduced == 0 && body.segments.is_none() {
        true => Ok(map(body, reads, writes, guard, tables)?.into_iter().collect()),
        false => rows(body, reads, writes, guard, tables),
    }
}

/// A body that makes one value of each segment of a vector.
fn segmented(segments: &Arc<Segments>, dtype: DType, instr: impl Fn(usize) -> Instr) -> Body {
    let load = Value { instr: Instr::Load(0), dtype, level: Level::Element };
    let value = Value { instr: instr(0), dtype, level: Level::Row };
    let space = [segments.total].into();
    Body { space, reduced: 1, segments: Some(segments.clone()), values: vec![load, value], stores: vec![1] }
}
