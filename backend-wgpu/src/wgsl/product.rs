//! Matrix products with what is computed of them: in tiles that a workgroup shares, of f16 by matrix units where there are
//! any; or, of few or thin results, each element by itself.

use super::{
    Memory, Scratch, Source, Tables, Target, View,
    body::{Emit, WIDTH},
    collapse,
    convolution::{lanes, tree},
    cooperative, coordinates,
    launch::Launch,
    load, position, register,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::plan::MatMul;

/// A tile of the result, and how much of the inner dimension is at hand at once. Each invocation has 4 by 4 elements.
struct Tile {
    rows: usize,
    columns: usize,
    depth: usize,
}

const LARGE: Tile = Tile { rows: 64, columns: 64, depth: 16 };
const SMALL: Tile = Tile { rows: 32, columns: 32, depth: 16 };
/// Rows and columns of an invocation's elements.
const EACH: usize = 4;

/// Products of fewer elements than this are not tiled, nor are those with fewer rows, columns or summands than a tile's depth.
const UNTILED: usize = 2048;

/// Products of fewer tiles than this leave a GPU idle: their summands are cut into parts, if they are many.
const FEW_TILES: usize = 64;
/// The fewest summands of a part.
const PART: usize = 256;
/// The most parts.
const MOST_PARTS: usize = 32;

/// The place where a tile goes.
pub(crate) enum To {
    /// To the epilogue.
    Epilogue,
    /// To scratch memory: the sums of one of so many parts of the summands.
    Parts(Memory, usize),
}

impl To {
    /// The statements that name a workgroup's part of the product, in tiles of so many rows, columns and summands at once:
    /// `matrix`, which is number `batch` of part `part`, its first row and column, and the `low` and `high` end of the
    /// summands. Gives how many workgroups there are, and the steps of each.
    pub fn frame(&self, source: &mut Source, matmul: &MatMul, [rows, columns, depth]: [usize; 3]) -> (u64, usize) {
        let MatMul { m, k, n, .. } = *matmul;
        let parts = if let To::Parts(_, parts) = self { *parts } else { 1 };
        let part = k.div_ceil(depth).div_ceil(parts);
        let (down, across, batches) = (m.div_ceil(rows), n.div_ceil(columns), matmul.batch.numel());
        source.line(format!("let tile = g % {}u; let matrix = g / {}u;", down * across, down * across));
        source.line(format!("let batch = matrix % {batches}u; let part = matrix / {batches}u;"));
        source.line(format!("let low = part * {}u; let high = min(low + {}u, {k}u);", part * depth, part * depth));
        source.line(format!("let row0 = (tile / {across}u) * {rows}u; let column0 = (tile % {across}u) * {columns}u;"));
        ((parts * batches * down * across) as u64, part)
    }

    /// The statement that stores an element of `row`.
    pub fn store(&self, source: &mut Source, matmul: &MatMul, column: &str, value: &str) -> String {
        match self {
            To::Epilogue => format!("epilogue$(batch, row, {column}, {value});"),
            To::Parts(memory, _) => {
                let (MatMul { m, n, .. }, buffer) = (matmul, source.bind(*memory, true));
                format!("{buffer}[(matrix * {m}u + row) * {n}u + {column}] = bitcast<u32>({value});")
            }
        }
    }
}

/// The kernels of a product. Reads 0 and 1 are its sides.
pub(crate) fn product(
    matmul: &MatMul,
    reads: &[View],
    writes: &[View],
    guard: Option<usize>,
    tables: &mut Tables<'_>,
) -> Result<Vec<Launch>> {
    let MatMul { m, k, n, .. } = *matmul;
    let batches = matmul.batch.numel();
    if batches * m * n == 0 {
        return Ok(vec![]);
    }
    let depth = SMALL.depth;
    let units = tables.units.filter(|units| units.fit(matmul, reads));
    let in_registers = units.is_none() && tables.target == Target::Software && register::fits(matmul);
    let many = m * n >= UNTILED && m.min(n) >= depth && k >= depth;
    let in_tiles = units.is_some() || !in_registers && many;
    let tile = if m.min(n) >= 2 * SMALL.rows { LARGE } else { SMALL };
    let [rows, columns] = if units.is_some() { [cooperative::TILE; 2] } else { [tile.rows, tile.columns] };
    let parts = if in_tiles { parts(k, batches * m.div_ceil(rows) * n.div_ceil(columns)) } else { 1 };
    let in_tiles_to = |source: Source, bases: &str, to: &To, tables: &mut Tables<'_>| match units {
        Some(units) => cooperative::tiled(source, matmul, [reads, writes], bases, units, to, tables),
        None => tiled(source, matmul, reads, bases, &tile, to, tables),
    };
    let mut source = Source::default();
    if parts > 1 {
        let bases = bases(&mut source, matmul, reads);
        let memory = (tables.scratch)(Scratch::Parts, parts * batches * m * n);
        let sums = in_tiles_to(source, &bases, &To::Parts(memory, parts), tables)?;
        let mut source = Source::default();
        source.outside = epilogue(&mut source, matmul, reads, writes, guard, tables)?;
        return Ok(vec![sums, ends(source, matmul, memory, parts, tables)?]);
    }
    let epilogue = epilogue(&mut source, matmul, reads, writes, guard, tables)?;
    source.outside += &epilogue;
    let bases = bases(&mut source, matmul, reads);
    let launch = match in_tiles {
        _ if in_registers => register::product(source, matmul, reads, writes, &bases, tables),
        true => in_tiles_to(source, &bases, &To::Epilogue, tables),
        false => direct(source, matmul, reads, &bases, tables),
    };
    Ok(vec![launch?])
}

/// The number of parts that the summands of a product of so many tiles are cut into.
fn parts(k: usize, tiles: usize) -> usize {
    if tiles >= FEW_TILES { 1 } else { (k / PART).min(FEW_TILES.div_ceil(tiles)).clamp(1, MOST_PARTS) }
}

/// Statements that name where each side's matrix begins.
fn bases(source: &mut Source, matmul: &MatMul, reads: &[View]) -> String {
    let rank = matmul.batch.rank();
    let mut strides = [0, 1].map(|side| reads[side].strides[..rank].to_vec());
    let [a, b] = &mut strides;
    let extents = collapse(&matmul.batch, &mut [a, b]);
    let (text, names) = coordinates("batch", "c", &extents);
    let [a, b] = [0, 1].map(|side| {
        let offset = source.param(reads[side].offset as u32);
        position(&offset, names.iter().cloned().zip(strides[side].iter().copied()))
    });
    format!("{text}let a_base = {a};\nlet b_base = {b};\n")
}

/// Adds up the parts of each element's sum, in order, for the epilogue.
fn ends(mut source: Source, matmul: &MatMul, memory: Memory, parts: usize, tables: &Tables<'_>) -> Result<Launch> {
    let MatMul { m, n, .. } = *matmul;
    let count = matmul.batch.numel() * m * n;
    let buffer = source.bind(memory, false);
    source.line(format!("let i = g * {WIDTH}u + lid;\nif (i >= {count}u) {{ return; }}"));
    source.line(format!("let column = i % {n}u; let row = (i / {n}u) % {m}u; let batch = i / {}u;", m * n));
    source.line(format!("var sum = 0.0;\nfor (var part = 0u; part < {parts}u; part = part + 1u) {{"));
    source.line(format!(
        "sum = sum + bitcast<f32>({buffer}[part * {count}u + i]);\n}}\nepilogue$(batch, row, column, sum);"
    ));
    source.finish("a matrix product", WIDTH, (count as u64).div_ceil(u64::from(WIDTH)), parts, tables)
}

/// A function that computes and stores what follows from an element of the product.
fn epilogue(
    source: &mut Source,
    matmul: &MatMul,
    reads: &[View],
    writes: &[View],
    guard: Option<usize>,
    tables: &mut Tables<'_>,
) -> Result<String> {
    let body = &matmul.epilogue;
    let emit = Emit::new(source, body, reads, writes, &[matmul.batch.rank(), 1, 1], guard, tables)?;
    let mut at = vec![];
    for (block, (linear, name)) in [("batch", "c"), ("row", "d"), ("column", "e")].into_iter().enumerate() {
        let (text, names) = coordinates(linear, name, &emit.blocks[block]);
        source.main += &text;
        at.push(names);
    }
    for i in emit.needed(&body.stores, &vec![false; body.values.len()]) {
        let text = emit.value(source, i, &at);
        source.main += &text;
    }
    for k in 0..body.stores.len() {
        let text = emit.store(source, k, &at);
        source.main += &text;
    }
    let statements = std::mem::take(&mut source.main);
    Ok(format!("fn epilogue$(batch: u32, row: u32, column: u32, product: f32) {{\n{statements}}}\n"))
}

/// An element of a side, by statements' names of its row or column and of the summand.
fn element(source: &mut Source, reads: &[View], side: usize, at: [&str; 2]) -> String {
    let view = &reads[side];
    let r = view.strides.len();
    let base = ["a_base", "b_base"][side];
    let steps = at.map(String::from).into_iter().zip(view.strides[r - 2..].iter().copied());
    load(source, view, &position(base, steps))
}

/// Each element by one invocation; where there are few, by a workgroup.
fn direct(mut source: Source, matmul: &MatMul, reads: &[View], bases: &str, tables: &mut Tables<'_>) -> Result<Launch> {
    let MatMul { m, k, n, .. } = *matmul;
    let count = matmul.batch.numel() * m * n;
    let lanes = lanes(count, k);
    let iterations = k.div_ceil(lanes as usize);
    let wide = lanes > 1;
    if wide {
        source.line("let i = g; let lane = lid;");
    } else {
        source.line(format!("let i = g * {WIDTH}u + lid; let lane = 0u;"));
        source.line(format!("if (i >= {count}u) {{ return; }}"));
    }
    source.line(format!("let column = i % {n}u; let row = (i / {n}u) % {m}u; let batch = i / {}u;", m * n));
    source.main += bases;
    source.line(format!("var sum = 0.0;\nfor (var t = lane; t < {k}u; t = t + {lanes}u) {{"));
    let (a, b) = (element(&mut source, reads, 0, ["row", "t"]), element(&mut source, reads, 1, ["t", "column"]));
    source.line(format!("sum = sum + {a} * {b};\n}}"));
    if wide {
        tree(&mut source, "sum", lanes);
        source.line("if (lid > 0u) { return; }");
    }
    source.line("epilogue$(batch, row, column, sum);");
    let (width, groups) = if wide { (lanes, count as u64) } else { (WIDTH, (count as u64).div_ceil(WIDTH.into())) };
    source.finish("a matrix product", width, groups, iterations, tables)
}

/// A tile of the result by one workgroup.
fn tiled(
    mut source: Source,
    matmul: &MatMul,
    reads: &[View],
    bases: &str,
    tile: &Tile,
    to: &To,
    tables: &mut Tables<'_>,
) -> Result<Launch> {
    let MatMul { m, k, n, .. } = *matmul;
    let Tile { rows, columns, depth } = *tile;
    let threads = rows * columns / (EACH * EACH);
    source.shared = 4 * depth * (rows + columns);
    let (in_a, in_b) = (depth * rows, depth * columns);
    write!(source.outside, "var<workgroup> sa$: array<f32, {in_a}>;\nvar<workgroup> sb$: array<f32, {in_b}>;\n")
        .unwrap();
    let wide = columns / EACH;
    let (groups, steps) = to.frame(&mut source, matmul, [rows, columns, depth]);
    source.line(format!("let tx = lid % {wide}u; let ty = lid / {wide}u;"));
    source.main += bases;
    for i in 0..EACH {
        source.line(format!("var acc{i} = vec4<f32>(0.0, 0.0, 0.0, 0.0);"));
    }
    source.line(format!("for (var k0 = low; k0 < high; k0 = k0 + {depth}u) {{"));
    // Neighbouring invocations load neighbours in memory.
    for (side, extent, tile, shared, first, limit) in
        [(0, rows, in_a, "sa$", "row0", m), (1, columns, in_b, "sb$", "column0", n)]
    {
        let view = &reads[side];
        let r = view.strides.len();
        let inner = view.strides[r - 2 + [1, 0][side]].unsigned_abs();
        let outer = view.strides[r - 2 + [0, 1][side]].unsigned_abs();
        for step in 0..tile / threads {
            let e = format!("(lid + {}u)", step * threads);
            let (along, deep) = match inner <= outer && inner > 0 {
                true => (format!("{e} / {depth}u"), format!("{e} % {depth}u")),
                false => (format!("{e} % {extent}u"), format!("{e} / {extent}u")),
            };
            source.line(format!("{{ let x = {along}; let d = {deep}; let at = {first} + x; let t = k0 + d;"));
            // Clamped, so that no address lies outside.
            source.line(format!("let near = min(at, {}u); let deep = min(t, {}u);", limit - 1, k - 1));
            let at = if side == 0 { ["near", "deep"] } else { ["deep", "near"] };
            let value = element(&mut source, reads, side, at);
            source.line(format!("{shared}[d * {extent}u + x] = select(0.0, {value}, at < {limit}u && t < {k}u); }}"));
        }
    }
    source.line("workgroupBarrier();");
    for d in 0..depth {
        let of = |shared: &str, extent: usize, index: &str, i: usize| {
            format!("{shared}[{}u + {index} * {EACH}u]", d * extent + i)
        };
        let parts: Vec<String> = (0..EACH).map(|i| of("sb$", columns, "tx", i)).collect();
        source.line(format!("{{ let b = vec4<f32>({});", parts.join(", ")));
        for i in 0..EACH {
            source.line(format!("acc{i} = acc{i} + {} * b;", of("sa$", rows, "ty", i)));
        }
        source.line("}");
    }
    source.line("workgroupBarrier();\n}");
    for i in 0..EACH {
        source.line(format!("{{ let row = row0 + ty * {EACH}u + {i}u;\nif (row < {m}u) {{"));
        for (j, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let column = format!("column0 + tx * {EACH}u + {j}u");
            let store = to.store(&mut source, matmul, &column, &format!("acc{i}.{part}"));
            source.line(format!("if ({column} < {n}u) {{ {store} }}"));
        }
        source.line("} }");
    }
    source.finish("a matrix product", threads as u32, groups, steps, tables)
}
