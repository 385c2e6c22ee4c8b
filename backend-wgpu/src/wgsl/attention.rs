//! Attention and its gradient without the scores in memory (Dao 2023, "FlashAttention-2"): a workgroup has a tile of rows and
//! walks through the tiles of columns, of which causal attention skips those that no row sees.
//!
//! Forward, rows are queries and columns are keys: each row keeps its largest score and the sum of exponentials so far, and
//! scales what it has when the largest grows. Backward there are two walks: one by queries for their gradient, one by keys
//! for theirs and that of the values, so that each number is summed up by one invocation, in order.
//!
//! An invocation has 4 by 4 of a tile's scores, and of its rows every column of the result that is its own.

use super::{
    MOST_ITERATIONS, Part, Scratch, Source, Tables, Target, View, body::constant, collapse, coordinates,
    launch::Launch, load, position, rows::rows, store,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::{
    DType, Scores, Shape,
    op::{Binary, Op, Reduce, Typed},
    plan::{Body, Instr, Level, Value},
};

/// Rows and columns of a tile.
const TILE: usize = 32;
/// Summands of a score that are at hand at once.
const DEPTH: usize = 16;
/// Rows and columns of an invocation's scores.
const EACH: usize = 4;
/// Invocations along a side of a tile.
const SIDE: usize = TILE / EACH;
const LANES: usize = SIDE * SIDE;
/// From one row of a tile in shared memory to the next: odd, so that columns spread over its banks.
const PITCH: usize = TILE + 1;
/// So few repetitions are no loop: kernels compile for as long as they are.
const UNROLLED: usize = 4;

/// The most columns of queries, keys and values: an invocation holds a number for each eighth of them, four times, and
/// gradients of keys and values twice that.
const MOST_WIDTH: usize = 128;
/// With fewer queries than this most of a tile would be empty.
const FEW_QUERIES: usize = 8;
/// Instead of minus infinity, whose differences are not numbers.
const LOWEST: &str = "-1e30f";

const PARTS: [&str; EACH] = ["x", "y", "z", "w"];

/// The reads of an attention op, apart from their contents.
struct Attention<'a> {
    scores: Scores,
    batch: &'a [usize],
    heads: usize,
    /// The number of heads of queries that share one of keys and values.
    shared: usize,
    queries: usize,
    keys: usize,
    width: usize,
    values: usize,
}

/// A matrix of each head: its rows are walked in tiles.
struct Side<'a> {
    view: &'a View,
    /// The name of the place where the head's matrix begins.
    base: &'static str,
    rows: usize,
    columns: usize,
}

/// True if a device is given a kernel for an op of attention over inputs that fit it.
///
/// A software renderer is not: it shares memory so slowly that the products of the decomposition, which share nothing, take
/// a third of the time or less, whatever they write.
pub(crate) fn claims(op: &Op, inputs: &[Typed], target: Target) -> bool {
    let shapes: Vec<&Shape> = inputs.iter().map(|(shape, _)| shape).collect();
    let Some(attention) = Attention::new(op, &shapes) else { return false };
    let Attention { batch, heads, queries, keys, width, values, .. } = attention;
    target == Target::Hardware
        && matches!(inputs[0].1, DType::F32 | DType::F16)
        && batch.iter().product::<usize>() * heads * keys > 0
        && queries >= FEW_QUERIES
        && [width, values].iter().all(|width| (1..=MOST_WIDTH).contains(width))
        && attention.iterations(matches!(op, Op::AttentionGrad(..))) <= MOST_ITERATIONS
}

/// The kernels of an op of attention.
pub(crate) fn attention(op: &Op, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
    let shapes: Vec<&Shape> = reads.iter().map(|read| &read.shape).collect();
    let attention = Attention::new(op, &shapes).expect("an op of attention");
    match op {
        Op::Attention(..) => Ok(vec![attention.forward(reads, writes, tables)?]),
        _ => attention.backward(reads, writes, tables),
    }
}

impl<'a> Attention<'a> {
    fn new(op: &Op, inputs: &[&'a Shape]) -> Option<Self> {
        let (Op::Attention(scores, _) | Op::AttentionGrad(scores, _)) = op else { return None };
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        let r = q.rank();
        Some(Self {
            scores: *scores,
            batch: &q[..r - 3],
            heads: q[r - 3],
            shared: q[r - 3] / k[r - 3].max(1),
            queries: q[r - 2],
            keys: k[r - 2],
            width: q[r - 1],
            values: v[r - 1],
        })
    }

    /// The most iterations of all loops of an invocation.
    fn iterations(&self, backward: bool) -> usize {
        let staged = |rows: usize, columns: usize| rows * columns / (UNROLLED * LANES);
        let products = |columns: usize| columns.div_ceil(DEPTH) * (1 + 2 * staged(TILE, DEPTH) + DEPTH / UNROLLED);
        let sums = |columns: usize| blocks(columns) * (staged(TILE, TILE) + TILE / UNROLLED);
        let (width, values) = (self.width, self.values);
        let (queries, keys) = (self.queries.div_ceil(TILE), self.keys.div_ceil(TILE));
        if !backward {
            return keys * (1 + products(width) + sums(values));
        }
        let scores = 1 + products(width) + products(values);
        let by_queries = keys * (scores + sums(width));
        let by_keys = self.shared * (1 + queries * (scores + sums(width) + sums(values)));
        by_queries.max(by_keys)
    }

    /// Each row's sum of exponentials, and what they weigh.
    fn forward(&self, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Launch> {
        let mut source = self.source();
        source.part(Part::Log);
        self.by_queries(&mut source);
        let [q, k, v] = self.inputs(&mut source, reads);
        let o = self.side(&mut source, &writes[0], "o_base", "head", self.queries);
        let l = self.base(&mut source, &writes[1], "l_base", "head");
        writeln!(
            source.outside,
            "var<workgroup> most$: array<f32, {0}>;\nvar<workgroup> sums$: array<f32, {0}>;",
            TILE * SIDE
        )
        .unwrap();
        source.shared += 2 * 4 * TILE * SIDE;
        zeros(&mut source, "o", self.values);
        for i in 0..EACH {
            source.line(format!("var m{i} = {LOWEST}; var l{i} = 0.0;"));
        }
        self.walk_keys(&mut source);
        product(&mut source, "s", &q, "row0", &k, "column0");
        let scale = self.scale(&mut source);
        for i in 0..EACH {
            let hidden = self.hidden(i);
            source.line(format!("let hidden{i} = {hidden};"));
            source.line(format!("s_{i} = select(s_{i} * {scale}, vec4<f32>({LOWEST}), hidden{i});"));
            source.line(format!(
                "most$[(ty * {EACH}u + {i}u) * {SIDE}u + tx] = max(max(s_{i}.x, s_{i}.y), max(s_{i}.z, s_{i}.w));"
            ));
        }
        source.line("workgroupBarrier();");
        source.read = false;
        for i in 0..EACH {
            let most = of_row("most", i).fold(format!("m{i}"), |most, other| format!("max({most}, {other})"));
            source.line(format!("let n{i} = {most};"));
            source.line(format!("let e{i} = {};", exponentials(&format!("s_{i}"), &format!("vec4<f32>(n{i})"), i)));
            source
                .line(format!("sums$[(ty * {EACH}u + {i}u) * {SIDE}u + tx] = (e{i}.x + e{i}.y) + (e{i}.z + e{i}.w);"));
            source.line(format!("let shrunk{i} = fexp(m{i} - n{i});\nm{i} = n{i};"));
            for c in 0..blocks(self.values) {
                source.line(format!("o{c}_{i} = o{c}_{i} * shrunk{i};"));
            }
        }
        weights(&mut source, "e");
        accumulate(&mut source, "o", &v, "column0", |source| {
            for i in 0..EACH {
                let sum = of_row("sums", i).collect::<Vec<_>>().join(" + ");
                source.line(format!("l{i} = l{i} * shrunk{i} + ({sum});"));
            }
        });
        source.line("}");
        let infinite = constant(&mut source, DType::F32, f64::INFINITY);
        for i in 0..EACH {
            // A row of scores that are all minus infinity sees nothing.
            source.line(format!("let nothing{i} = l{i} == 0.0;\nlet part{i} = select(1.0 / l{i}, 0.0, nothing{i});"));
        }
        self.results(&mut source, "o", &o, |i| format!(" * part{i}"));
        for i in 0..EACH {
            let row = format!("row0 + ty * {EACH}u + {i}u");
            let at = position("l_base", [(format!("({row})"), l)]);
            let stored =
                store(&mut source, &writes[1], &at, &format!("select(m{i} + flog(l{i}), {infinite}, nothing{i})"));
            source.line(format!("if (tx == 0u && {row} < {}u) {{ {stored} }}", self.queries));
        }
        self.finish(source, self.queries, self.heads, self.iterations(false), tables)
    }

    /// The gradient: first of all what each row's weights have in common, `sum(do * o)`.
    fn backward(&self, reads: &[View], writes: &[View], tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
        let (o, l, d_o) = (&reads[3], &reads[4], &reads[5]);
        let memory = (tables.scratch)(Scratch::State, l.shape.numel());
        let delta = View { memory, offset: 0, dtype: DType::F32, ..l.contiguous(&l.shape) };
        let value = |instr, level| Value { instr, dtype: DType::F32, level };
        let body = Body {
            space: o.shape.clone(),
            reduced: 1,
            segments: None,
            values: vec![
                value(Instr::Load(0), Level::Element),
                value(Instr::Load(1), Level::Element),
                value(Instr::Binary(Binary::Mul, 0, 1), Level::Element),
                value(Instr::Reduce(Reduce::Sum, 2), Level::Row),
            ],
            stores: vec![3],
        };
        let mut launches = rows(&body, &[d_o.clone(), o.clone()], std::slice::from_ref(&delta), None, tables)?;
        launches.push(self.backward_by_queries(reads, &writes[0], &delta, tables)?);
        launches.push(self.backward_by_keys(reads, &writes[1..], &delta, tables)?);
        Ok(launches)
    }

    fn backward_by_queries(&self, reads: &[View], dq: &View, delta: &View, tables: &mut Tables<'_>) -> Result<Launch> {
        let mut source = self.source();
        self.by_queries(&mut source);
        let [q, k, v] = self.inputs(&mut source, reads);
        let d_o = self.side(&mut source, &reads[5], "do_base", "head", self.queries);
        let dq = self.side(&mut source, dq, "dq_base", "head", self.queries);
        for (name, base, view) in [("l", "l_base", &reads[4]), ("delta", "delta_base", delta)] {
            let stride = self.base(&mut source, view, base, "head");
            for i in 0..EACH {
                let row = format!("min(row0 + ty * {EACH}u + {i}u, {}u)", self.queries - 1);
                let value = load(&mut source, view, &position(base, [(row, stride)]));
                source.line(format!("let {name}{i} = {value};"));
            }
        }
        zeros(&mut source, "dq", self.width);
        self.walk_keys(&mut source);
        product(&mut source, "s", &q, "row0", &k, "column0");
        let scale = self.scale(&mut source);
        product(&mut source, "d", &d_o, "row0", &v, "column0");
        for i in 0..EACH {
            let hidden = self.hidden(i);
            source.line(format!("let hidden{i} = {hidden};\ns_{i} = s_{i} * {scale};"));
            source.line(format!("let e{i} = {};", exponentials(&format!("s_{i}"), &format!("vec4<f32>(l{i})"), i)));
            source.line(format!("let ds{i} = e{i} * (d_{i} - vec4<f32>(delta{i}));"));
        }
        weights(&mut source, "ds");
        accumulate(&mut source, "dq", &k, "column0", |_| ());
        source.line("}");
        self.results(&mut source, "dq", &dq, |_| format!(" * {scale}"));
        self.finish(source, self.queries, self.heads, self.iterations(true), tables)
    }

    fn backward_by_keys(
        &self,
        reads: &[View],
        writes: &[View],
        delta: &View,
        tables: &mut Tables<'_>,
    ) -> Result<Launch> {
        let mut source = self.source();
        let (tiles, kv_heads) = (self.keys.div_ceil(TILE), self.heads / self.shared);
        source.line(format!("let row0 = (g % {tiles}u) * {TILE}u; let matrix = g / {tiles}u;"));
        source.line(format!("let kv_head = matrix % {kv_heads}u; let batch = matrix / {kv_heads}u;"));
        let dk = self.side(&mut source, &writes[0], "dk_base", "kv_head", self.keys);
        let dv = self.side(&mut source, &writes[1], "dv_base", "kv_head", self.keys);
        zeros(&mut source, "dk", self.width);
        zeros(&mut source, "dv", self.values);
        source.line(format!("for (var sharer = 0u; sharer < {}u; sharer = sharer + 1u) {{", self.shared));
        source.line(format!("let head = kv_head * {}u + sharer;", self.shared));
        let [q, k, v] = self.inputs(&mut source, reads);
        let d_o = self.side(&mut source, &reads[5], "do_base", "head", self.queries);
        let [l_step, delta_step] = [(&reads[4], "l_base"), (delta, "delta_base")]
            .map(|(view, base)| self.base(&mut source, view, base, "head"));
        let first = if self.scores.causal { "row0" } else { "0u" };
        source
            .line(format!("for (var column0 = {first}; column0 < {}u; column0 = column0 + {TILE}u) {{", self.queries));
        source.read |= self.shared > 1 || self.queries > TILE;
        for (name, view, base, step) in [("l", &reads[4], "l_base", l_step), ("delta", delta, "delta_base", delta_step)]
        {
            let each = (0..EACH).map(|j| {
                let column = format!("min(column0 + tx * {EACH}u + {j}u, {}u)", self.queries - 1);
                load(&mut source, view, &position(base, [(column, step)]))
            });
            let each = each.collect::<Vec<_>>().join(", ");
            source.line(format!("let {name} = vec4<f32>({each});"));
        }
        product(&mut source, "s", &k, "row0", &q, "column0");
        let scale = self.scale(&mut source);
        product(&mut source, "d", &v, "row0", &d_o, "column0");
        source.line(format!("let columns = vec4<u32>(column0 + tx * {EACH}u) + vec4<u32>(0u, 1u, 2u, 3u);"));
        for i in 0..EACH {
            let row = format!("vec4<u32>(row0 + ty * {EACH}u + {i}u)");
            let outside = format!("columns >= vec4<u32>({}u)", self.queries);
            let hidden = if self.scores.causal { format!("({outside}) | (columns < {row})") } else { outside };
            source.line(format!("let hidden{i} = {hidden};\ns_{i} = s_{i} * {scale};"));
            source.line(format!("let e{i} = {};", exponentials(&format!("s_{i}"), "l", i)));
            source.line(format!("let ds{i} = e{i} * (d_{i} - delta);"));
        }
        weights(&mut source, "e");
        accumulate(&mut source, "dv", &d_o, "column0", |_| ());
        weights(&mut source, "ds");
        accumulate(&mut source, "dk", &q, "column0", |_| ());
        source.line("} }");
        self.results(&mut source, "dk", &dk, |_| format!(" * {scale}"));
        self.results(&mut source, "dv", &dv, |_| String::new());
        self.finish(source, self.keys, kv_heads, self.iterations(true), tables)
    }

    /// The beginning that all kernels share.
    fn source(&self) -> Source {
        let mut source = Source::default();
        source.part(Part::Exp);
        source.shared = 2 * 4 * TILE * PITCH;
        source.outside = format!(
            "var<workgroup> staged$: array<f32, {0}>;\nvar<workgroup> weights$: array<f32, {0}>;\n",
            TILE * PITCH
        );
        source.line(format!("let tx = lid % {SIDE}u; let ty = lid / {SIDE}u;"));
        source
    }

    fn finish(
        &self,
        source: Source,
        rows: usize,
        heads: usize,
        iterations: usize,
        tables: &Tables<'_>,
    ) -> Result<Launch> {
        let groups = self.batch.iter().product::<usize>() * heads * rows.div_ceil(TILE);
        source.finish("attention", LANES as u32, groups as u64, iterations, tables)
    }

    fn scale(&self, source: &mut Source) -> String {
        constant(source, DType::F32, self.scores.scale())
    }

    /// Names the tile of queries and its head.
    fn by_queries(&self, source: &mut Source) {
        let tiles = self.queries.div_ceil(TILE);
        // The later the queries, the more keys they see: the longest walks begin first.
        let tile = if self.scores.causal { format!("{}u - g % {tiles}u", tiles - 1) } else { format!("g % {tiles}u") };
        source.line(format!("let row0 = ({tile}) * {TILE}u; let matrix = g / {tiles}u;"));
        source.line(format!("let head = matrix % {0}u; let batch = matrix / {0}u;", self.heads));
        source.line(format!("let kv_head = head / {}u;", self.shared));
    }

    /// Begins the loop through the keys that a tile of queries sees.
    fn walk_keys(&self, source: &mut Source) {
        let (keys, next) = (self.keys, if self.scores.causal { TILE } else { 0 });
        let end = if next > 0 { format!("min(row0 + {next}u, {keys}u)") } else { format!("{keys}u") };
        source.line(format!("let end = {end};"));
        source.line(format!("for (var column0 = 0u; column0 < end; column0 = column0 + {TILE}u) {{"));
        source.read |= keys > TILE;
        source.line(format!("let columns = vec4<u32>(column0 + tx * {EACH}u) + vec4<u32>(0u, 1u, 2u, 3u);"));
    }

    /// The scores of an invocation's query `i` that are none.
    fn hidden(&self, i: usize) -> String {
        let outside = format!("columns >= vec4<u32>({}u)", self.keys);
        match self.scores.causal {
            true => format!("({outside}) | (columns > vec4<u32>(row0 + ty * {EACH}u + {i}u))"),
            false => outside,
        }
    }

    /// Queries, keys and values.
    fn inputs<'v>(&self, source: &mut Source, reads: &'v [View]) -> [Side<'v>; 3] {
        [
            self.side(source, &reads[0], "q_base", "head", self.queries),
            self.side(source, &reads[1], "k_base", "kv_head", self.keys),
            self.side(source, &reads[2], "v_base", "kv_head", self.keys),
        ]
    }

    fn side<'v>(&self, source: &mut Source, view: &'v View, base: &'static str, head: &str, rows: usize) -> Side<'v> {
        self.base(source, view, base, head);
        Side { view, base, rows, columns: view.shape[self.batch.len() + 2] }
    }

    /// Names where a head's part of a view begins, and gives the distance between its rows.
    fn base(&self, source: &mut Source, view: &View, name: &str, head: &str) -> isize {
        let r = self.batch.len();
        let mut strides = view.strides[..r].to_vec();
        let extents = collapse(self.batch, &mut [&mut strides]);
        let (text, names) = coordinates("batch", &format!("{name}_"), &extents);
        source.main += &text;
        let offset = source.param(view.offset as u32);
        let head = (head.to_string(), view.strides[r]);
        let at = position(&offset, names.into_iter().zip(strides).chain([head]));
        source.line(format!("let {name} = {at};"));
        view.strides[r + 1]
    }

    /// Stores an invocation's part of a result, each row times a factor.
    fn results(&self, source: &mut Source, name: &str, to: &Side<'_>, factor: impl Fn(usize) -> String) {
        for i in 0..EACH {
            source.line(format!("{{ let row = row0 + ty * {EACH}u + {i}u;\nif (row < {}u) {{", to.rows));
            for (c, (j, part)) in
                (0..blocks(to.columns)).flat_map(|c| PARTS.into_iter().enumerate().map(move |j| (c, j)))
            {
                let column = format!("(tx * {EACH}u + {}u)", c * TILE + j);
                let stored =
                    store(source, to.view, &to.at("row", &column), &format!("{name}{c}_{i}.{part}{}", factor(i)));
                match (c + 1) * TILE <= to.columns {
                    true => source.line(stored),
                    false => source.line(format!("if ({column} < {}u) {{ {stored} }}", to.columns)),
                }
            }
            source.line("} }");
        }
    }
}

impl Side<'_> {
    fn at(&self, row: &str, column: &str) -> String {
        let steps = self.view.strides[self.view.strides.len() - 2..].iter().copied();
        position(self.base, [row.to_string(), column.to_string()].into_iter().zip(steps))
    }

    /// Statements that bring `rows` by `columns` elements, from row `first` and column `from` on, to shared memory from
    /// word `to` on; what lies outside of the matrix is 0. Transposed, columns become rows there.
    fn stage(
        &self,
        source: &mut Source,
        first: &str,
        from: &str,
        [rows, columns]: [usize; 2],
        to: usize,
        turned: bool,
    ) {
        let [down, across] = [2, 1].map(|d| self.view.strides[self.view.strides.len() - d].unsigned_abs());
        // Neighbouring invocations load neighbours in memory.
        let along = across <= down || self.rows == 1;
        source.line(format!("for (var all = lid; all < {}u; all = all + {}u) {{", rows * columns, UNROLLED * LANES));
        for step in 0..UNROLLED {
            let e = format!("(all + {}u)", step * LANES);
            let (row, column) = match along {
                true => (format!("{e} / {columns}u"), format!("{e} % {columns}u")),
                false => (format!("{e} % {rows}u"), format!("{e} / {rows}u")),
            };
            source.line(format!("{{ let r = {row}; let c = {column}; let row = {first} + r; let column = {from} + c;"));
            let near = |name: &str, extent: usize, ragged: bool| match ragged {
                true => format!("min({name}, {}u)", extent - 1),
                false => name.to_string(),
            };
            let limits = [
                ("row", self.rows, !self.rows.is_multiple_of(rows)),
                ("column", self.columns, !self.columns.is_multiple_of(columns)),
            ];
            let [row, column] = limits.map(|(name, extent, ragged)| near(name, extent, ragged));
            let value = load(source, self.view, &self.at(&row, &column));
            let ragged = limits.iter().filter(|(.., ragged)| *ragged);
            let inside: Vec<String> = ragged.map(|(name, extent, _)| format!("{name} < {extent}u")).collect();
            let value =
                if inside.is_empty() { value } else { format!("select(0.0, {value}, {})", inside.join(" && ")) };
            let place = if turned { format!("c * {PITCH}u + r") } else { format!("r * {PITCH}u + c") };
            source.line(format!("staged$[{to}u + {place}] = {value}; }}"));
        }
        source.line("}");
    }
}

/// The numbers that the invocations of row `i` have put into shared memory, each its own.
fn of_row(name: &str, i: usize) -> impl Iterator<Item = String> {
    (0..SIDE).map(move |x| format!("{name}$[(ty * {EACH}u + {i}u) * {SIDE}u + {x}u]"))
}

/// The number of tiles that are as wide as so many columns.
fn blocks(columns: usize) -> usize {
    columns.div_ceil(TILE)
}

/// Declares an invocation's part of a result of so many columns, for each of its rows and each tile.
fn zeros(source: &mut Source, name: &str, columns: usize) {
    for (c, i) in (0..blocks(columns)).flat_map(|c| (0..EACH).map(move |i| (c, i))) {
        source.line(format!("var {name}{c}_{i} = vec4<f32>(0.0);"));
    }
}

/// The weights of an invocation's scores in row `i`.
fn exponentials(scores: &str, less: &str, i: usize) -> String {
    let each = PARTS.map(|part| format!("fexp({scores}.{part} - {less}.{part})")).join(", ");
    format!("select(vec4<f32>({each}), vec4<f32>(0.0), hidden{i})")
}

/// Waits, before shared memory is overwritten, until all have read it.
fn settle(source: &mut Source) {
    if std::mem::take(&mut source.read) {
        source.line("workgroupBarrier();");
    }
}

/// Puts a tile of weights where all invocations find them: those of row `i` are called by the name and `i`.
fn weights(source: &mut Source, name: &str) {
    settle(source);
    for (i, (j, part)) in (0..EACH).flat_map(|i| PARTS.into_iter().enumerate().map(move |j| (i, j))) {
        source.line(format!("weights$[(ty * {EACH}u + {i}u) * {PITCH}u + tx * {EACH}u + {j}u] = {name}{i}.{part};"));
    }
}

/// Four numbers of shared memory.
fn four(at: impl Fn(usize) -> String) -> String {
    format!("vec4<f32>({})", (0..EACH).map(|j| format!("staged$[{}]", at(j))).collect::<Vec<_>>().join(", "))
}

/// An invocation's part of the product of a tile of rows with another: `name`, `_` and the row.
fn product(source: &mut Source, name: &str, a: &Side<'_>, a_first: &str, b: &Side<'_>, b_first: &str) {
    (0..EACH).for_each(|i| source.line(format!("var {name}_{i} = vec4<f32>(0.0);")));
    source.line(format!("for (var depth = 0u; depth < {}u; depth = depth + {DEPTH}u) {{", a.columns));
    source.read |= a.columns > DEPTH;
    settle(source);
    a.stage(source, a_first, "depth", [TILE, DEPTH], 0, true);
    b.stage(source, b_first, "depth", [TILE, DEPTH], DEPTH * PITCH, true);
    source.line("workgroupBarrier();");
    source.line(format!("for (var d0 = 0u; d0 < {DEPTH}u; d0 = d0 + {UNROLLED}u) {{"));
    for d in 0..UNROLLED {
        let at = |i: usize| format!("(d0 + {d}u) * {PITCH}u + {i}u");
        source.line(format!("{{ let b = {};", four(|j| format!("{} + tx * {EACH}u", at(DEPTH * PITCH + j)))));
        for i in 0..EACH {
            source.line(format!("{name}_{i} = {name}_{i} + staged$[{} + ty * {EACH}u] * b;", at(i)));
        }
        source.line("}");
    }
    source.line("}\n}");
    source.read = true;
}

/// Adds the product of the tile of weights with a tile of rows to an invocation's part of a result. `then` follows when all
/// invocations have come so far for the first time.
fn accumulate(source: &mut Source, name: &str, x: &Side<'_>, first: &str, then: impl FnOnce(&mut Source)) {
    let mut then = Some(then);
    for c in 0..blocks(x.columns) {
        settle(source);
        x.stage(source, first, &format!("{}u", c * TILE), [TILE, TILE], 0, false);
        source.line("workgroupBarrier();");
        if let Some(then) = then.take() {
            then(source);
        }
        source.line(format!("for (var t0 = 0u; t0 < {TILE}u; t0 = t0 + {UNROLLED}u) {{"));
        for t in 0..UNROLLED {
            source.line(format!("{{ let x = {};", four(|j| format!("(t0 + {t}u) * {PITCH}u + tx * {EACH}u + {j}u"))));
            for i in 0..EACH {
                let weight = format!("weights$[(ty * {EACH}u + {i}u) * {PITCH}u + t0 + {t}u]");
                source.line(format!("{name}{c}_{i} = {name}{c}_{i} + {weight} * x;"));
            }
            source.line("}");
        }
        source.line("}");
        source.read = true;
    }
}
