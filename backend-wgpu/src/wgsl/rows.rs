//! Kernels of bodies that reduce: softmax, norms, sums, column sums, statistics of segments.
//!
//! A row is walked once per level of reductions, and once more where what is stored depends on them. Short rows have an
//! invocation each, others a workgroup, whose invocations take every n-th element and then add up in a tree; few
//! long rows are cut into parts, which a second kernel combines. The order is the same for each run.

use super::{
    MOST_ITERATIONS, Memory, Part, Scratch, Source, Tables, View,
    body::{ALONE, Emit, WIDTH, binary, constant},
    coordinates, from_word,
    launch::Launch,
    raw_word, type_name, zero,
};
use crate::error::Result;
use wgrad::{
    DType,
    op::{Binary, Reduce, Segments},
    plan::{Body, Form, Instr, Level},
};

/// Rows of up to this many elements have one invocation each.
const SHORT: usize = 32;
/// Rows longer than this are cut where there are few, and so are columns.
const LONG: [usize; 2] = [16 * 1024, 512];
/// A row that is the only one is cut beyond this: 256 elements for each invocation of one workgroup, so that it can be one
/// dispatch with what comes before and after.
const LONG_ALONE: usize = 64 * 1024;
/// The elements of a part.
const PART: [usize; 2] = [8 * 1024, 256];
/// Of a sum of more elements by one invocation, so many are added up at a time, and then to what remembers what rounding
/// takes.
const AT_A_TIME: usize = 8;
/// The most parts that are made for the sake of speed.
const MOST_PARTS: usize = 512;
/// No segment: what lies between them.
const GAP: u32 = u32::MAX;

/// A reduction within a kernel: an accumulator.
#[derive(Clone, Copy)]
struct Fold {
    value: usize,
    of: usize,
    kind: Reduce,
    dtype: DType,
}

impl Fold {
    fn words(self) -> usize {
        if self.kind == Reduce::Norm { 3 } else { 1 }
    }

    fn declare(self, source: &mut Source) -> String {
        let i = self.value;
        match (self.kind, self.dtype) {
            (Reduce::Norm, _) => {
                source.part(Part::Norm);
                format!("var a{i} = vec3<f32>(0.0, 0.0, 0.0);\n")
            }
            (Reduce::Max, DType::F32 | DType::F16) => {
                let least = constant(source, DType::F32, f64::NEG_INFINITY);
                format!("var a{i}: f32 = {least};\n")
            }
            (Reduce::Max, DType::I32) => {
                let least = constant(source, DType::I32, f64::from(i32::MIN));
                format!("var a{i}: i32 = {least};\n")
            }
            _ => format!("var a{i}: {} = {};\n", type_name(self.dtype), zero(self.dtype)),
        }
    }

    /// The accumulator with another one, or (of a norm: what `norm_of` makes of) an element.
    fn merged(self, source: &mut Source, other: &str) -> String {
        let a = format!("a{}", self.value);
        match self.kind {
            Reduce::Max => binary(source, Binary::Max, self.dtype, &a, other),
            _ => format!("{a} + {other}"),
        }
    }

    fn step(self, source: &mut Source) -> String {
        let element = match self.kind {
            Reduce::Norm => format!("norm_of(v{})", self.of),
            _ => format!("v{}", self.of),
        };
        let merged = self.merged(source, &element);
        format!("a{} = {merged};\n", self.value)
    }

    /// True if a long sum of it remembers what rounding takes.
    fn is_exacting(self) -> bool {
        self.kind == Reduce::Sum && self.dtype.is_float()
    }

    /// The statement that moves a sum of few elements to that of all so far.
    fn moved(self) -> String {
        let i = self.value;
        format!("all{i} = plus(all{i}, a{i}, none{i}); a{i} = 0.0;\n")
    }

    /// The accumulator's words.
    fn stored(self) -> Vec<String> {
        match self.kind {
            Reduce::Norm => {
                ["x", "y", "z"].iter().map(|part| format!("bitcast<u32>(a{}.{part})", self.value)).collect()
            }
            _ => vec![raw_word(self.dtype, &format!("a{}", self.value))],
        }
    }

    /// An accumulator of these words.
    fn loaded(self, words: &[String]) -> String {
        match words {
            [word] => from_word(self.dtype, word),
            _ => {
                let parts: Vec<String> = words.iter().map(|word| from_word(DType::F32, word)).collect();
                format!("vec3<f32>({})", parts.join(", "))
            }
        }
    }

    fn end(self) -> String {
        let i = self.value;
        match self.kind {
            Reduce::Norm => format!("let v{i}: f32 = norm_end(a{i});\n"),
            _ => format!("let v{i}: {} = a{i};\n", type_name(self.dtype)),
        }
    }
}

/// The way a body is cut up.
struct Rows<'a> {
    body: &'a Body,
    reads: &'a [View],
    writes: &'a [View],
    guard: Option<usize>,
    /// The number of reductions that each value follows from, one after the other.
    stage: Vec<usize>,
    passes: usize,
    /// The needs of the stores.
    live: Vec<bool>,
}

/// A kernel's part of the work.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// All of it.
    Whole,
    /// The accumulators of parts of rows, and elements.
    Parts,
    /// The values that follow from the accumulators.
    Ends,
}

/// The rows of a kernel.
struct Extent {
    /// Invocations per row.
    lanes: u32,
    /// The number of rows, or parts of rows, or segments.
    units: usize,
    /// The number of parts that a row has: of rows that are no segments.
    parts: usize,
    /// The elements of a row or a part: the most.
    len: usize,
    /// A table in the arena: for each unit its start, length, and segment; or first part and number of parts.
    table: Option<usize>,
}

/// The kernels of a body that has rows.
pub(crate) fn rows(
    body: &Body,
    reads: &[View],
    writes: &[View],
    guard: Option<usize>,
    tables: &mut Tables<'_>,
) -> Result<Vec<Launch>> {
    let stage = body.depths();
    let mut live = vec![false; body.values.len()];
    body.stores.iter().for_each(|&i| live[i] = true);
    for i in (0..live.len()).rev() {
        if live[i] {
            body.values[i].instr.operands().for_each(|o| live[o] = true);
        }
    }
    let passes = (0..stage.len()).filter(|&i| live[i]).map(|i| stage[i]).max().unwrap_or(0);
    let rows = Rows { body, reads, writes, guard, stage, passes, live };
    match &body.segments {
        Some(segments) => rows.of_segments(segments, tables),
        None => rows.of_equal_length(tables),
    }
}

impl Rows<'_> {
    fn folds(&self, stage: usize) -> Vec<Fold> {
        let fold = |i: usize| match self.body.values[i].instr {
            Instr::Reduce(kind, of) if self.live[i] && self.stage[i] == stage => {
                Some(Fold { value: i, of, kind, dtype: self.body.values[i].dtype })
            }
            _ => None,
        };
        (0..self.body.values.len()).filter_map(fold).collect()
    }

    fn stores(&self, level: Level) -> Vec<usize> {
        let stores = self.body.stores.iter().enumerate();
        stores.filter(|(_, value)| self.body.values[**value].level == level).map(|(k, _)| k).collect()
    }

    /// True if neighbouring rows lie closer together than neighbouring elements of a row.
    fn is_columns(&self) -> bool {
        let kept = self.body.space.rank() - self.body.reduced;
        let along = |read: &View| {
            let last = |dims: std::ops::Range<usize>| {
                dims.rev().find(|&d| self.body.space[d] > 1).map_or(0, |d| read.strides[d].unsigned_abs())
            };
            (last(0..kept), last(kept..self.body.space.rank()))
        };
        let whole = self.reads.iter().filter(|read| read.shape.rank() == self.body.space.rank()).map(along);
        let steps: Vec<(usize, usize)> = whole.filter(|(kept, reduced)| kept + reduced > 0).collect();
        !steps.is_empty() && steps.iter().all(|(kept, reduced)| *kept == 1 && *reduced != 1)
    }

    fn of_equal_length(&self, tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        let (count, len) = (self.body.shape(Level::Row).numel(), self.body.row_len());
        if count == 0 || len == 0 && self.stores(Level::Row).is_empty() {
            return Ok(vec![]);
        }
        let columns = self.is_columns();
        let single = len <= SHORT || columns && count >= SHORT && (self.passes <= 1 || len <= 1024);
        let lanes = if single { 1 } else { lanes(len, count) };
        let part = PART[usize::from(single)];
        let long = if count == 1 && !single { LONG_ALONE } else { LONG[usize::from(single)] };
        if self.body.form() != Form::Row && len > long {
            let most = MOST_ITERATIONS / 2 * lanes as usize;
            let parts = len.div_ceil(part).min(MOST_PARTS.max(len.div_ceil(most)));
            // With many rows there is enough to do without parts.
            if count * parts.min(2) < 64 * 1024 || len > most {
                let len = len.div_ceil(parts);
                let extent = Extent { lanes, units: count * parts, parts, len, table: None };
                let mut launches = vec![];
                let scratch = (tables.scratch)(Scratch::Parts, self.words() * count * parts);
                launches.push(self.kernel(Work::Parts, &extent, Some((scratch, count * parts)), tables)?);
                if !self.stores(Level::Row).is_empty() {
                    let lanes = if parts <= SHORT { 1 } else { lanes_of_parts(parts, count) };
                    let ends = Extent { lanes, units: count, parts, len: parts, table: None };
                    launches.push(self.kernel(Work::Ends, &ends, Some((scratch, count * parts)), tables)?);
                }
                return Ok(launches);
            }
        }
        let extent = Extent { lanes, units: count, parts: 1, len, table: None };
        Ok(vec![self.kernel(Work::Whole, &extent, None, tables)?])
    }

    fn of_segments(&self, segments: &Segments, tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        // Segments, and what lies between them if that is stored.
        let mut units: Vec<(usize, usize, u32)> = vec![];
        let (all, mut end) = (!self.stores(Level::Element).is_empty(), 0);
        for (i, &(start, len)) in segments.ranges.iter().enumerate() {
            if all && start > end {
                units.push((end, start - end, GAP));
            }
            units.push((start, len, i as u32));
            end = end.max(start + len);
        }
        if all && end < segments.total {
            units.push((end, segments.total - end, GAP));
        }
        let longest = units.iter().map(|unit| unit.1).max().unwrap_or(0);
        let lanes = if longest <= SHORT { 1 } else { lanes(longest, units.len()) };
        if units.is_empty() {
            return Ok(vec![]);
        }
        if self.body.form() == Form::Row || longest <= LONG[0] {
            // A gap needs no walk in one piece, but then it is as any other row.
            let table = table(&units, tables)?;
            let extent = Extent { lanes, units: units.len(), parts: 1, len: longest, table: Some(table) };
            return Ok(vec![self.kernel(Work::Whole, &extent, None, tables)?]);
        }
        let mut parts: Vec<(usize, usize, u32)> = vec![];
        let mut ends: Vec<(usize, usize, u32)> = vec![];
        let most = PART[0].max(longest.div_ceil(MOST_ITERATIONS));
        for (start, len, id) in units {
            let first = parts.len();
            parts.extend((0..len).step_by(most).map(|done| (start + done, most.min(len - done), id)));
            if id != GAP {
                ends.push((first, parts.len() - first, id));
            }
        }
        let count = parts.len();
        let scratch = (tables.scratch)(Scratch::Parts, self.words() * count);
        let extent = Extent { lanes, units: count, parts: 1, len: most, table: Some(table(&parts, tables)?) };
        let mut launches = vec![self.kernel(Work::Parts, &extent, Some((scratch, count)), tables)?];
        if !self.stores(Level::Row).is_empty() {
            let longest = ends.iter().map(|end| end.1).max().unwrap_or(0);
            let lanes = if longest <= SHORT { 1 } else { lanes_of_parts(longest, ends.len()) };
            let table = table(&ends, tables)?;
            let extent = Extent { lanes, units: ends.len(), parts: 1, len: longest, table: Some(table) };
            launches.push(self.kernel(Work::Ends, &extent, Some((scratch, count)), tables)?);
        }
        Ok(launches)
    }

    /// The words of all accumulators.
    fn words(&self) -> usize {
        self.folds(1).iter().map(|fold| fold.words()).sum()
    }

    /// One kernel. `scratch` is where the accumulators of parts are, and how many parts there are in all.
    fn kernel(
        &self,
        work: Work,
        extent: &Extent,
        scratch: Option<(Memory, usize)>,
        tables: &mut Tables<'_>,
    ) -> Result<Launch> {
        let lanes = extent.lanes;
        let walks = if work == Work::Whole { self.passes + usize::from(self.stores_last()) } else { 1 };
        let iterations = walks * extent.len.div_ceil(lanes as usize);
        let mut source = Source::default();
        let rank = self.body.space.rank();
        let blocks = [rank - self.body.reduced, self.body.reduced];
        let unit = if lanes == 1 { format!("g * {WIDTH}u + lid") } else { "g".into() };
        source.line(format!("let u = {unit};"));
        if lanes == 1 {
            source.line(format!("if (u >= {}u) {{ return; }}", extent.units));
            source.line("let lane = 0u;");
        } else {
            source.line("let lane = lid;");
        }
        let emit = Emit::new(&mut source, self.body, self.reads, self.writes, &blocks, self.guard, tables)?;
        self.bounds(&mut source, work, extent);
        let (text, kept) = coordinates(if self.body.segments.is_some() { "s" } else { "r" }, "c", &emit.blocks[0]);
        source.main += &text;
        let known = vec![false; self.body.values.len()];
        let long = extent.len.div_ceil(lanes as usize) > 2 * AT_A_TIME;
        let mut kernel = Walk { rows: self, emit, kept, known, lanes, long, work };
        kernel.rows_of(&mut source, 0);
        match work {
            Work::Ends => kernel.ends(&mut source, extent, scratch.expect("parts before")),
            _ => kernel.walks(&mut source),
        }
        match work {
            Work::Parts => {
                let (memory, units) = scratch.expect("there is memory for them");
                let buffer = source.bind(memory, true);
                let mut word = 0;
                let mut text = String::new();
                for fold in self.folds(1) {
                    for value in fold.stored() {
                        text += &format!("{buffer}[{}u + u] = {value};\n", word * units);
                        word += 1;
                    }
                }
                source.line(if lanes == 1 { text } else { format!("if (lane == 0u) {{ {text} }}") });
            }
            _ => {
                let at = vec![kernel.kept.clone(), vec![]];
                let text: String =
                    self.stores(Level::Row).iter().map(|&k| kernel.emit.store(&mut source, k, &at)).collect();
                let first = if self.body.segments.is_some() { "inside && lane == 0u" } else { "lane == 0u" };
                if !text.is_empty() {
                    if lanes > 1 && self.passes == 0 {
                        source.line("storageBarrier();"); // All have read what is now overwritten.
                    }
                    source.line(format!("if ({first}) {{ {text} }}"));
                }
            }
        }
        let width = if lanes == 1 { WIDTH } else { lanes };
        let groups = if lanes == 1 { (extent.units as u64).div_ceil(u64::from(WIDTH)) } else { extent.units as u64 };
        source.finish("a reduction", width, groups, iterations, tables)
    }

    /// Names the row `r` or the segment `s`, and the elements from `low` to `high`, or parts.
    fn bounds(&self, source: &mut Source, work: Work, extent: &Extent) {
        if let Some(table) = extent.table {
            let (arena, place) = (source.bind(Memory::Arena, false), source.param(table as u32));
            source
                .line(format!("let low = {arena}[{place} + u * 3u]; let high = low + {arena}[{place} + u * 3u + 1u];"));
            source.line(format!("let id = {arena}[{place} + u * 3u + 2u]; let inside = id != {GAP}u;"));
            source.line("let s = select(0u, id, inside);");
            return;
        }
        let rows = extent.units / if work == Work::Parts { extent.parts } else { 1 };
        match work {
            Work::Whole => source.line(format!("let r = u; let low = 0u; let high = {}u;", extent.len)),
            Work::Ends => source.line(format!("let r = u; let low = 0u; let high = {}u;", extent.parts)),
            Work::Parts => {
                source.line(format!("let r = u % {rows}u; let low = (u / {rows}u) * {}u;", extent.len));
                source.line(format!("let high = min(low + {}u, {}u);", extent.len, self.body.row_len()));
            }
        }
    }

    /// True if elements are stored in a walk of their own, after all reductions.
    fn stores_last(&self) -> bool {
        let stores = self.stores(Level::Element);
        let follows = |k: &usize| self.stage[self.body.stores[*k]] >= self.passes;
        stores.iter().any(follows)
    }
}

/// Puts a table of units into the arena.
fn table(units: &[(usize, usize, u32)], tables: &mut Tables<'_>) -> Result<usize> {
    (tables.put)(units.iter().flat_map(|&(start, len, id)| [start as u32, len as u32, id]).collect())
}

/// Invocations for a row of this length, of so many.
fn lanes(len: usize, rows: usize) -> u32 {
    if rows > 1 && len < 512 { 64 } else { ALONE }
}

fn lanes_of_parts(parts: usize, rows: usize) -> u32 {
    if rows > 1 && parts <= 1024 { 64 } else { ALONE }
}

/// The statements of a kernel's loops.
struct Walk<'a> {
    rows: &'a Rows<'a>,
    emit: Emit<'a>,
    /// The coordinates of the row.
    kept: Vec<String>,
    /// The values that are named.
    known: Vec<bool>,
    lanes: u32,
    /// True if an invocation adds up many elements.
    long: bool,
    work: Work,
}

impl Walk<'_> {
    /// Names the values of rows that follow from so many reductions.
    fn rows_of(&mut self, source: &mut Source, stage: usize) {
        let at = vec![self.kept.clone(), vec![]];
        for i in 0..self.rows.body.values.len() {
            let value = &self.rows.body.values[i];
            let here = self.rows.live[i] && self.rows.stage[i] == stage && value.level == Level::Row;
            if here && !matches!(value.instr, Instr::Reduce(..)) {
                let text = self.emit.value(source, i, &at);
                source.main += &text;
                self.known[i] = true;
            }
        }
    }

    /// All passes over the elements.
    fn walks(&mut self, source: &mut Source) {
        let (passes, last) = (self.rows.passes, self.rows.stores_last());
        for pass in 1..=passes {
            let folds = self.rows.folds(pass);
            let stores = if pass == passes && !last { self.rows.stores(Level::Element) } else { vec![] };
            self.walk(source, &folds, &stores);
            for fold in &folds {
                self.across(source, *fold);
                if self.work == Work::Whole {
                    source.main += &fold.end();
                    self.known[fold.value] = true;
                }
            }
            if self.work == Work::Whole {
                self.rows_of(source, pass);
            }
        }
        if last {
            self.walk(source, &[], &self.rows.stores(Level::Element));
        }
    }

    /// One pass: accumulates, and stores elements.
    fn walk(&self, source: &mut Source, folds: &[Fold], stores: &[usize]) {
        for fold in folds {
            let text = fold.declare(source);
            source.main += &text;
        }
        let exacting: Vec<&Fold> = folds.iter().filter(|fold| self.long && fold.is_exacting()).collect();
        if !exacting.is_empty() {
            source.part(Part::Sum);
            let none = source.param(0);
            for Fold { value, .. } in &exacting {
                source.line(format!("let none{value} = {none}; var all{value} = vec2<f32>(0.0, 0.0);"));
            }
            source.line(format!("var steps{} = 0u;", exacting[0].value));
        }
        source.line(format!("for (var t = low + lane; t < high; t = t + {}u) {{", self.lanes));
        source.line("let j = t;");
        let (text, names) = coordinates("j", "k", &self.emit.blocks[1]);
        source.main += &text;
        let at = vec![self.kept.clone(), names];
        let mut wanted: Vec<usize> = folds.iter().map(|fold| fold.of).collect();
        wanted.extend(stores.iter().map(|&k| self.rows.body.stores[k]));
        for i in self.emit.needed(&wanted, &self.known) {
            let text = self.emit.value(source, i, &at);
            source.main += &text;
        }
        for fold in folds {
            let text = fold.step(source);
            source.main += &text;
        }
        for &k in stores {
            let text = self.emit.store(source, k, &at);
            source.main += &text;
        }
        if exacting.is_empty() {
            source.line("}");
            return;
        }
        let moved: String = exacting.iter().map(|fold| fold.moved()).collect();
        let steps = format!("steps{}", exacting[0].value);
        source.line(format!("{steps} = {steps} + 1u;\nif ({steps} % {AT_A_TIME}u == 0u) {{ {moved} }}\n}}\n{moved}"));
        exacting.iter().for_each(|fold| source.line(format!("a{0} = all{0}.x + all{0}.y;", fold.value)));
    }

    /// Combines the accumulators of a workgroup's invocations, in a tree.
    fn across(&self, source: &mut Source, fold: Fold) {
        if self.lanes == 1 {
            return;
        }
        let (lanes, words) = (self.lanes as usize, fold.words());
        if source.shared > 0 {
            source.line("workgroupBarrier();"); // All have read the reduction before.
        }
        if source.shared < 4 * lanes * words {
            source.shared = 4 * lanes * words;
            source.outside = format!("var<workgroup> shared_words$: array<u32, {}>;\n", lanes * words);
        }
        let at = |i: &str| (0..words).map(|w| format!("shared_words$[{}u + {i}]", w * lanes)).collect::<Vec<_>>();
        let put = |source: &mut Source| {
            let pairs: Vec<String> =
                at("lane").iter().zip(fold.stored()).map(|(to, word)| format!("{to} = {word};")).collect();
            source.line(pairs.join(" "));
        };
        put(source);
        source.line("workgroupBarrier();");
        let mut half = lanes / 2;
        while half > 0 {
            let other = fold.loaded(&at(&format!("lane + {half}u")));
            let merged = fold.merged(source, &other);
            source.line(format!("if (lane < {half}u) {{ a{} = {merged};", fold.value));
            put(source);
            source.line("}\nworkgroupBarrier();");
            half /= 2;
        }
        let all = fold.loaded(&at("0u"));
        source.line(format!("a{} = {all};", fold.value));
    }

    /// Combines the accumulators of parts, and names what follows from them.
    fn ends(&mut self, source: &mut Source, extent: &Extent, (memory, units): (Memory, usize)) {
        let folds = self.rows.folds(1);
        let buffer = source.bind(memory, false);
        for fold in &folds {
            let text = fold.declare(source);
            source.main += &text;
        }
        source.line(format!("for (var t = low + lane; t < high; t = t + {}u) {{", self.lanes));
        let part = if extent.table.is_some() { "t".into() } else { format!("t * {}u + r", extent.units) };
        let mut word = 0;
        for fold in &folds {
            let words: Vec<String> =
                (0..fold.words()).map(|w| format!("{buffer}[{}u + {part}]", (word + w) * units)).collect();
            word += fold.words();
            let merged = fold.merged(source, &fold.loaded(&words));
            source.line(format!("a{} = {merged};", fold.value));
        }
        source.line("}");
        for fold in folds {
            self.across(source, fold);
            source.main += &fold.end();
            self.known[fold.value] = true;
        }
        for stage in 1..=self.rows.passes {
            self.rows_of(source, stage);
        }
    }
}
