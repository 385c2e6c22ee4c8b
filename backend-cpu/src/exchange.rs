//! Exchanges with other ranks between kernels.

use crate::memory::elements::{Element, Source, exact, take, with_type, written};
use std::ops::Range;
use wgrad::{
    Collective, Data, Result,
    collective::{Early, Exchange, Way, exchange},
    plan::{Operand, Plan},
};

/// Values that are exchanged with other ranks, after the kernels that compute this rank's.
#[derive(Debug)]
pub(crate) struct Stop {
    /// The first kernel that it can begin after: the last of the stop before.
    after: usize,
    /// The kernels that bring the values to their places.
    kernels: Range<usize>,
    values: Vec<Value>,
    /// The pieces that the run at hand has yet to begin, the next one last: the kernel after which it is there.
    pieces: Vec<(usize, Piece)>,
}

/// A value of an exchange.
#[derive(Debug)]
struct Value {
    /// The place of the value, and of the result, from the first element on.
    place: Source,
    range: Range<usize>,
    way: Way,
    /// The place at which kernels compute it, if it lies there as one stretch, which begins at this element.
    computed: Option<(Source, usize)>,
    /// The stretches that kernels write there.
    writes: Vec<(Range<usize>, usize)>,
}

/// A piece of a value.
#[derive(Debug)]
struct Piece {
    value: usize,
    index: usize,
    range: Range<usize>,
}

impl Stop {
    /// All stops of a plan.
    pub(crate) fn all(plan: &Plan, place: impl Fn(usize) -> Source) -> Vec<Self> {
        let mut stops: Vec<Self> = vec![];
        for kernels in plan.exchanges() {
            let values = kernels.clone().map(|k| Value::new(plan, k, &place)).collect();
            let after = stops.last().map_or(0, |before| before.kernels.end - 1);
            stops.push(Self { after, kernels, values, pieces: vec![] });
        }
        stops
    }

    /// The kernel before it.
    pub(crate) fn last(&self) -> usize {
        self.kernels.end - 1
    }

    /// Before a run: finds the pieces that can travel while kernels run.
    pub(crate) fn prepare(&mut self, slots: &[Data], buffers: &[Data], collective: &dyn Collective) {
        self.pieces.clear();
        for (v, value) in self.values.iter().enumerate() {
            let (Way::Reduce(_), Some((source, first))) = (value.way, value.computed) else { continue };
            let dtype = match source {
                Source::Slot(slot) => slots[slot].dtype(),
                Source::Buffer(buffer) => buffers[buffer].dtype(),
                _ => continue,
            };
            let Some(elements) = collective.piece(dtype) else { continue };
            for (index, start) in (0..value.range.len()).step_by(elements).enumerate() {
                let range = first + start..first + (start + elements).min(value.range.len());
                let overlaps = |own: &Range<usize>| own.start < range.end && range.start < own.end;
                let ready = value.writes.iter().filter(|(own, _)| overlaps(own)).map(|(_, k)| *k).max();
                // A kernel at least is left to compute meanwhile.
                if let Some(ready) = ready.filter(|ready| ready + 1 < self.kernels.start) {
                    self.pieces.push((ready.max(self.after), Piece { value: v, index, range }));
                }
            }
        }
        self.pieces.sort_by_key(|(ready, piece)| std::cmp::Reverse((*ready, piece.value, piece.index)));
    }

    /// After a kernel: begins the pieces that are there, and lets those that have begun move on.
    pub(crate) fn begin(&mut self, kernel: usize, slots: &[Data], buffers: &[Data], collective: &mut dyn Collective) {
        while let Some((_, Piece { value, index, range })) = self.pieces.pop_if(|(ready, _)| *ready <= kernel) {
            let (Way::Reduce(reduce), Some((source, _))) = (self.values[value].way, self.values[value].computed) else {
                continue;
            };
            let whole = match source {
                Source::Slot(slot) => &slots[slot],
                Source::Buffer(buffer) => &buffers[buffer],
                _ => continue,
            };
            collective.begin(Early { part: value as u32, index: index as u32, reduce, data: whole.slice(range) });
        }
        collective.progress();
    }

    /// Exchanges the values.
    pub(crate) fn run(&self, slots: &mut [Data], buffers: &mut [Data], collective: &mut dyn Collective) -> Result<()> {
        // The memory itself goes to the exchange, and comes back, where the result is as long as the value.
        let bring = |Value { place, range, way, .. }: &Value| {
            let whole = written(*place, slots, buffers);
            let data = match way {
                Way::Reduce(_) if *range == (0..whole.len()) => take(*place, slots, buffers),
                _ => whole.slice(range.clone()),
            };
            Exchange { way: *way, data }
        };
        let mut parts: Vec<Exchange> = self.values.iter().map(bring).collect();
        let result = exchange(collective, &mut parts);
        for (Value { place, range, .. }, part) in self.values.iter().zip(parts) {
            let (to, len) = (written(*place, slots, buffers), part.data.len());
            if to.len() < range.end {
                // An exchange that fails may have lost it.
                *to = if len == range.len() { part.data } else { exact(to.dtype(), range.len()) };
            } else if result.is_ok() {
                with_type!(to.dtype(), T => T::slice_mut(to)[range.start..][..len].copy_from_slice(T::slice(&part.data)));
            }
        }
        result
    }
}

impl Value {
    fn new(plan: &Plan, k: usize, place: impl Fn(usize) -> Source) -> Self {
        let kernel = &plan.kernels[k];
        let (write, read) = (&kernel.writes[0], &kernel.reads[0]);
        let way = kernel.exchange().expect("the plan says so");
        let earlier = plan.kernels[..k].iter().enumerate();
        let writes = earlier.flat_map(|(i, kernel)| kernel.writes.iter().map(move |write| (i, write)));
        let own = writes.filter(|(_, write)| write.slot == read.slot).map(|(i, write)| (extent(write), i));
        Self {
            place: place(write.slot),
            range: write.offset..write.offset + read.shape.numel(),
            way,
            computed: read.is_contiguous().then(|| (place(read.slot), read.offset)),
            writes: own.collect(),
        }
    }
}

/// The elements of its slot among which an operand's are.
fn extent(operand: &Operand) -> Range<usize> {
    if operand.shape.numel() == 0 {
        return 0..0;
    }
    let reach = operand.shape.iter().zip(&operand.strides).map(|(len, stride)| (*len as isize - 1) * stride);
    let (back, on) = reach.fold((0, 0), |(back, on), by| (back + by.min(0), on + by.max(0)));
    let at = |by: isize| operand.offset.checked_add_signed(by).expect("an operand is in its slot");
    at(back)..at(on) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_holds_all_elements() {
        let of = |offset, shape: &[usize], strides: &[isize]| {
            extent(&Operand { slot: 0, offset, shape: shape.to_vec().into(), strides: strides.to_vec() })
        };
        assert_eq!(of(5, &[2, 3], &[3, 1]), 5..11);
        assert_eq!(of(5, &[2, 3], &[10, 1]), 5..18);
        assert_eq!(of(5, &[3], &[-2]), 1..6);
        assert_eq!(of(5, &[], &[]), 5..6);
        assert_eq!(of(5, &[0, 3], &[3, 1]), 0..0);
    }
}
