//! Memory: parts computed where they belong, states written in place, slots shared by values whose lifetimes do not overlap.

use super::{Grouping, Home, Instr, Kernel, Kind, Level, Operand, Plan, Slot, Value};
use crate::{DType, op::Op, store::StateId};
use std::collections::HashMap;

/// Computes parts in place, writes states in place where that is safe, and shares slots.
pub(super) fn place(plan: &mut Plan, options: &Grouping) {
    plan.place_parts(options);
    plan.write_states(options);
    plan.share_slots(options);
}

impl Plan {
    pub(super) fn slot(&mut self, dtype: DType, len: usize, home: Home) -> usize {
        self.slots.push(Slot { dtype, len, home });
        self.slots.len() - 1
    }

    /// Drops copies of whole values into larger ones (of gradients into the flat gradient): the kernel that computes such a value writes
    /// it there. A kernel must not read other elements of a slot that it writes, so a reader of one part must not write another
    /// part of the same whole.
    fn place_parts(&mut self, options: &Grouping) {
        if !options.direct {
            return;
        }
        let mut readers: Vec<Vec<usize>> = vec![vec![]; self.slots.len()];
        let mut writers = readers.clone();
        for (k, kernel) in self.kernels.iter().enumerate() {
            kernel.reads.iter().for_each(|read| readers[read.slot].push(k));
            kernel.writes.iter().for_each(|write| writers[write.slot].push(k));
        }
        // The slots that have become a part of another, and from which element on.
        let mut moved: Vec<Option<(usize, usize)>> = vec![None; self.slots.len()];
        let mut dropped = vec![false; self.kernels.len()];
        for k in (0..self.kernels.len()).rev() {
            let Some((part, mut whole, mut start)) = self.copied(&self.kernels[k]) else { continue };
            while let Some((further, offset)) = moved[whole] {
                (whole, start) = (further, start + offset);
            }
            let writes_whole = |r: &usize| *r != k && writers[whole].contains(r);
            let reads_whole = |w: &usize| readers[whole].contains(w);
            if moved[part].is_some()
                || part == whole
                || readers[part].iter().any(writes_whole)
                || writers[part].iter().any(reads_whole)
            {
                continue;
            }
            moved[part] = Some((whole, start));
            dropped[k] = true;
            writers[whole].retain(|&w| w != k);
            let (r, w) = (std::mem::take(&mut readers[part]), std::mem::take(&mut writers[part]));
            readers[whole].extend(r.into_iter().filter(|&r| r != k));
            writers[whole].extend(w);
        }
        for operand in self.operands() {
            while let Some((whole, start)) = moved[operand.slot] {
                (operand.slot, operand.offset) = (whole, operand.offset + start);
            }
        }
        let mut k = 0;
        self.kernels.retain(|_| (!dropped[k], k += 1).0);
    }

    /// A kernel that copies a whole slot into a stretch of another: both slots, and where the stretch starts.
    fn copied(&self, kernel: &Kernel) -> Option<(usize, usize, usize)> {
        let (Kind::Loop(body), [read], [write]) = (&kernel.kind, &kernel.reads[..], &kernel.writes[..]) else {
            return None;
        };
        let [Value { instr: Instr::Load(0), .. }] = &body.values[..] else { return None };
        let transient = |slot: usize| self.slots[slot].home == Home::Transient;
        let whole = read.offset == 0 && read.is_contiguous() && read.shape.numel() == self.slots[read.slot].len;
        let fits = whole && write.is_contiguous() && transient(read.slot) && transient(write.slot);
        fits.then_some((read.slot, write.slot, write.offset))
    }

    /// Lets a kernel that runs over as many points fill the next value of a state with a constant, if there is one such
    /// that nobody reads the state's old value after; whether there is.
    pub(super) fn also_write(&mut self, state: Home, constant: f64, write: &Operand, buffers: usize) -> bool {
        let numel = write.shape.numel();
        let old = self.slots.iter().position(|slot| slot.home == state);
        let reads_old = |read: &Operand| Some(read.slot) == old;
        let last = self.kernels.iter().rposition(|kernel| kernel.reads.iter().any(reads_old)).unwrap_or(0);
        let level = |kernel: &Kernel| match &kernel.kind {
            Kind::Loop(body) if numel > 0 && self.buffers(kernel) < buffers => [Level::Element, Level::Row]
                .into_iter()
                .find(|level| (*level == Level::Element || body.reduced > 0) && body.shape(*level).numel() == numel),
            _ => None,
        };
        // The first kernel that may do it: later ones would miss the old value in the cache.
        let found = (last..self.kernels.len()).find_map(|k| Some((k, level(&self.kernels[k])?)));
        let Some((k, level)) = found else { return false };
        let dtype = self.slots[write.slot].dtype;
        let kernel = &mut self.kernels[k];
        let Kind::Loop(body) = &mut kernel.kind else { unreachable!("a loop was asked for") };
        let own = if body.segments.is_none() && body.reduced > 0 { Level::Row } else { level };
        body.values.push(Value { instr: Instr::Const(constant), dtype, level: own });
        if own != level {
            let from = body.values.len() - 1;
            body.values.push(Value { instr: Instr::Cast(from), dtype, level });
        }
        body.stores.push(body.values.len() - 1);
        kernel.writes.push(Operand::contiguous(write.slot, &body.shape(level)));
        true
    }

    /// Lets the kernel that computes a state's next value write it into the state, where nobody needs the old value
    /// any more and nothing can fail any more.
    fn write_states(&mut self, options: &Grouping) {
        if !options.in_place {
            return;
        }
        let fails =
            |kernel: &Kernel| matches!(kernel.kind, Kind::Op(Op::Gather(_) | Op::ScatterAdd { .. } | Op::Exchange(..)));
        let safe_from = self.kernels.iter().rposition(fails).map_or(0, |last| last + 1);
        let commits = std::mem::take(&mut self.commits);
        let mut kept = vec![];
        for (i, (state, value)) in commits.iter().enumerate() {
            let shared = commits.iter().enumerate().any(|(j, (_, other))| j != i && other.slot == value.slot);
            match self.writer_of(value, safe_from).filter(|_| !shared) {
                Some(k) if self.may_overwrite(*state, value, k) => self.redirect(*state, value.slot),
                _ => kept.push((*state, value.clone())),
            }
        }
        self.commits = kept;
    }

    /// The one kernel that writes a whole slot, which is this value, if it is late enough.
    fn writer_of(&self, value: &Operand, safe_from: usize) -> Option<usize> {
        let slot = &self.slots[value.slot];
        let whole = value.offset == 0 && value.is_contiguous() && value.shape.numel() == slot.len;
        if slot.home != Home::Transient || !whole {
            return None;
        }
        let writes = |k: &usize| self.kernels[*k].writes.iter().any(|write| write.slot == value.slot);
        let mut writers = (0..self.kernels.len()).filter(writes);
        let only = writers.next().filter(|_| writers.next().is_none());
        only.filter(|&k| k >= safe_from)
    }

    /// True if kernel `k` may write a value over a state: nothing reads the old value later, and the kernel itself reads each element
    /// only before it writes that element.
    fn may_overwrite(&self, state: StateId, value: &Operand, k: usize) -> bool {
        let Some(old) = self.slots.iter().position(|slot| slot.home == Home::State(state)) else { return true };
        let kernel = &self.kernels[k];
        let w = kernel.writes.iter().position(|write| write.slot == value.slot).expect("the writer");
        let write = &kernel.writes[w];
        let same = |read: &Operand| Operand { slot: write.slot, ..read.clone() } == *write;
        let mut reads_old = kernel.reads.iter().enumerate().filter(|(_, read)| read.slot == old);
        let mut later = self.kernels[k + 1..].iter().flat_map(|kernel| &kernel.reads).chain(&self.taps);
        !later.any(|read| read.slot == old) && reads_old.all(|(i, read)| kernel.reads_pointwise(i, w) && same(read))
    }

    /// Makes a transient slot a state's.
    fn redirect(&mut self, state: StateId, slot: usize) {
        match self.slots.iter().position(|slot| slot.home == Home::State(state)) {
            None => self.slots[slot].home = Home::State(state),
            Some(home) => self.operands().filter(|o| o.slot == slot).for_each(|o| o.slot = home),
        }
    }

    /// All that kernels, taps and commits read and write.
    pub fn operands(&mut self) -> impl Iterator<Item = &mut Operand> {
        let kernels = self.kernels.iter_mut().flat_map(|kernel| kernel.reads.iter_mut().chain(&mut kernel.writes));
        kernels.chain(&mut self.taps).chain(self.commits.iter_mut().map(|(_, read)| read))
    }

    /// Gives transient values whose lifetimes do not overlap the same slot. Taps and commits are read at the end.
    fn share_slots(&mut self, options: &Grouping) {
        let mut first = vec![usize::MAX; self.slots.len()];
        let mut last = vec![0; self.slots.len()];
        for (k, kernel) in self.kernels.iter().enumerate() {
            for operand in kernel.writes.iter().chain(&kernel.reads) {
                first[operand.slot] = first[operand.slot].min(k);
                last[operand.slot] = k;
            }
        }
        let at_end = self.taps.iter().chain(self.commits.iter().map(|(_, read)| read));
        at_end.for_each(|read| last[read.slot] = usize::MAX);
        let mut slots: Vec<Slot> = vec![];
        let mut place = vec![usize::MAX; self.slots.len()];
        for (s, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.home != Home::Transient) {
            place[s] = slots.len();
            slots.push(slot.clone());
        }
        let mut dying: HashMap<usize, Vec<usize>> = HashMap::new();
        let transient = |s: &usize| self.slots[*s].home == Home::Transient && first[*s] != usize::MAX;
        (0..self.slots.len()).filter(transient).for_each(|s| dying.entry(last[s]).or_default().push(s));
        let mut free: Vec<usize> = vec![];
        for (k, kernel) in self.kernels.iter().enumerate() {
            let mut dead = dying.remove(&k).unwrap_or_default();
            for (w, write) in kernel.writes.iter().enumerate() {
                let s = write.slot;
                if place[s] != usize::MAX {
                    continue; // A state, or a part of a slot that has its place.
                }
                let Slot { dtype, len, .. } = self.slots[s];
                if let Some(over) = self.overwritten(kernel, w, &dead).filter(|_| options.in_place) {
                    place[s] = place[over];
                    dead.retain(|&d| d != over);
                    continue;
                }
                // The smallest that is large enough, else the largest, which grows.
                let fit = |&i: &usize| {
                    let have = slots[free[i]].len;
                    if have >= len { (0, have) } else { (1, usize::MAX - have) }
                };
                let found = (0..free.len()).filter(|&i| slots[free[i]].dtype == dtype).min_by_key(fit);
                place[s] = match found.filter(|_| options.reuse) {
                    Some(i) => {
                        let slot = free.swap_remove(i);
                        slots[slot].len = slots[slot].len.max(len);
                        slot
                    }
                    None => {
                        slots.push(Slot { dtype, len, home: Home::Transient });
                        slots.len() - 1
                    }
                };
            }
            free.extend(dead.into_iter().map(|s| place[s]));
        }
        self.slots = slots;
        self.operands().for_each(|operand| operand.slot = place[operand.slot]);
    }

    /// A slot whose last reader is a kernel that reads each element only before it writes this result's.
    fn overwritten(&self, kernel: &Kernel, w: usize, dead: &[usize]) -> Option<usize> {
        let write = &kernel.writes[w];
        let (len, dtype) = (self.slots[write.slot].len, self.slots[write.slot].dtype);
        let same = |(i, read): &(usize, &Operand)| {
            kernel.reads_pointwise(*i, w) && Operand { slot: write.slot, ..(*read).clone() } == *write
        };
        let reads = || kernel.reads.iter().enumerate();
        let reads_only_so = |s: usize| reads().filter(|(_, read)| read.slot == s).all(|read| same(&read));
        let fits = |s: usize| self.slots[s].len == len && self.slots[s].dtype == dtype && write.shape.numel() == len;
        reads().filter(same).map(|(_, read)| read.slot).find(|&s| dead.contains(&s) && fits(s) && reads_only_so(s))
    }

    /// Bytes of all transient slots.
    pub fn transient_bytes(&self) -> usize {
        let transient = self.slots.iter().filter(|slot| slot.home == Home::Transient);
        transient.map(|slot| slot.len * slot.dtype.size()).sum()
    }
}
