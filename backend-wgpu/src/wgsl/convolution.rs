//! Convolutions and their gradients: in registers where kernels are small, else directly: each element of the result adds up
//! its products. Where results are few and sums long, as gradients of weights are, a workgroup adds up one element.

use super::{
    Source, Tables, View,
    body::WIDTH,
    correlation::correlation,
    index::{MOST_STEPS, unrounded},
    launch::Launch,
    load, store,
    weights::weight_gradient,
};
use crate::error::Result;
use std::fmt::Write;
use wgrad::{Conv2d, op::Op};

/// Statements that add up `value` over the invocations of a workgroup, in a tree. They leave the sum in that of the first.
pub(crate) fn tree(source: &mut Source, value: &str, lanes: u32) {
    source.shared = 4 * lanes as usize;
    source.outside += &format!("var<workgroup> sums$: array<f32, {lanes}>;\n");
    source.line(format!("sums$[lid] = {value};"));
    let mut half = lanes / 2;
    while half > 0 {
        source.line("workgroupBarrier();");
        source
            .line(format!("if (lid < {half}u) {{ {value} = {value} + sums$[lid + {half}u]; sums$[lid] = {value}; }}"));
        half /= 2;
    }
}

/// The number of invocations that share a sum of so many terms, of so many sums.
pub(crate) fn lanes(count: usize, steps: usize) -> u32 {
    match steps {
        _ if count >= 16 * 1024 || steps < 128 => 1,
        _ if steps < 4096 => 64,
        _ => 256,
    }
}

/// Names the coordinates of a number, outermost first.
fn split(text: &mut String, linear: &str, parts: &[(&str, usize)]) {
    let mut rest = linear.to_string();
    for (i, (name, extent)) in parts.iter().enumerate().rev() {
        if i == 0 {
            writeln!(text, "let {name} = {rest};").unwrap();
        } else {
            writeln!(text, "let {name} = {rest} % {extent}u; let rest_{name} = {rest} / {extent}u;").unwrap();
            rest = format!("rest_{name}");
        }
    }
}

/// The kernels of a convolution, or of one of its gradients. All views are contiguous.
pub(crate) fn convolution(op: &Op, reads: &[View], out: &View, tables: &mut Tables<'_>) -> Result<Vec<Launch>> {
    let (conv, image, weight, result) = match op {
        Op::Conv2d(conv) => (conv, &reads[0].shape, &reads[1].shape, &out.shape),
        Op::ConvInputGrad(conv, _) => (conv, &out.shape, &reads[1].shape, &reads[0].shape),
        Op::ConvWeightGrad(conv, _) => (conv, &reads[1].shape, &out.shape, &reads[0].shape),
        _ => unreachable!("no convolution"),
    };
    if out.shape.numel() > 0 {
        let in_registers = correlation(op, [image, weight, result].map(|shape| &shape[..]), reads, out, tables)
            .or_else(|| weight_gradient(op, [image, weight, result].map(|shape| &shape[..]), reads, out, tables));
        if let Some(launches) = in_registers {
            return launches;
        }
    }
    let Conv2d { stride, padding, dilation, groups } = *conv;
    let (channels, filters) = (weight[1], weight[0] / groups);
    let (mut point, mut term) = (String::new(), String::new());
    let (h, w, oh, ow) = (image[2], image[3], result[2], result[3]);
    let (kh, kw) = (weight[2], weight[3]);
    // Positions beyond the border are large: below 0 they wrap.
    let along = |name: &str, out: &str, kernel: &str, d: usize| {
        format!("let {name} = {out} * {}u + {kernel} * {}u - {}u;\n", stride[d], dilation[d], padding[d])
    };
    let image_at = format!("((n * {}u + group * {channels}u + c) * {h}u + row) * {w}u + column", image[1]);
    let weight_at = format!("(((group * {filters}u + f) * {channels}u + c) * {kh}u + a) * {kw}u + b");
    let result_at = format!("((n * {}u + group * {filters}u + f) * {oh}u + i) * {ow}u + j", result[1]);
    let (steps, condition, [x, y]) = match op {
        Op::Conv2d(_) => {
            split(&mut point, "point", &[("n", result[0]), ("o", result[1]), ("i", oh), ("j", ow)]);
            writeln!(point, "let group = o / {filters}u; let f = o % {filters}u;").unwrap();
            split(&mut term, "t", &[("c", channels), ("a", kh), ("b", kw)]);
            term += &(along("row", "i", "a", 0) + &along("column", "j", "b", 1));
            (channels * kh * kw, format!("row < {h}u && column < {w}u"), [image_at, weight_at])
        }
        Op::ConvInputGrad(..) => {
            split(&mut point, "point", &[("n", image[0]), ("channel", image[1]), ("row", h), ("column", w)]);
            writeln!(point, "let group = channel / {channels}u; let c = channel % {channels}u;").unwrap();
            split(&mut term, "t", &[("f", filters), ("a", kh), ("b", kw)]);
            for (name, image, kernel, d) in [("i", "row", "a", 0), ("j", "column", "b", 1)] {
                let (s, p, q) = (stride[d], padding[d], dilation[d]);
                writeln!(term, "let from_{name} = {image} + {p}u - {kernel} * {q}u; let {name} = from_{name} / {s}u;")
                    .unwrap();
            }
            let exact = |name: &str, s: usize| format!("from_{name} % {s}u == 0u");
            let inside = format!("i < {oh}u && j < {ow}u && {} && {}", exact("i", stride[0]), exact("j", stride[1]));
            (filters * kh * kw, inside, [result_at, weight_at])
        }
        _ => {
            split(&mut point, "point", &[("o", weight[0]), ("c", channels), ("a", kh), ("b", kw)]);
            writeln!(point, "let group = o / {filters}u; let f = o % {filters}u;").unwrap();
            split(&mut term, "t", &[("n", result[0]), ("i", oh), ("j", ow)]);
            term += &(along("row", "i", "a", 0) + &along("column", "j", "b", 1));
            (result[0] * oh * ow, format!("row < {h}u && column < {w}u"), [result_at, image_at])
        }
    };
    let count = out.shape.numel();
    if count == 0 {
        return Ok(vec![]);
    }
    let lanes = lanes(count, steps);
    let most = MOST_STEPS * lanes as usize;
    let starts: Vec<usize> = if steps == 0 { vec![0] } else { (0..steps).step_by(most).collect() };
    let sums = unrounded(out, starts.len(), tables);
    let kernel = |&start: &usize| {
        let (first, last) = (start == 0, start + most >= steps);
        let mut source = Source::default();
        let wide = lanes > 1;
        source.line(if wide { "let point = g;".into() } else { format!("let point = g * {WIDTH}u + lid;") });
        if !wide {
            source.line(format!("if (point >= {count}u) {{ return; }}"));
        }
        source.main += &point;
        let offset = |source: &mut Source, view: &View| source.param(view.offset as u32);
        let [xo, yo, oo, so] = [&reads[0], &reads[1], out, &sums].map(|view| offset(&mut source, view));
        let (low, high) = (source.param(start as u32), source.param(steps.min(start + most) as u32));
        source.line("var sum = 0.0;");
        let lane = if wide { " + lid" } else { "" };
        source.line(format!("for (var t = {low}{lane}; t < {high}; t = t + {lanes}u) {{"));
        source.main += &term;
        let x = load(&mut source, &reads[0], &format!("{xo} + {x}"));
        let y = load(&mut source, &reads[1], &format!("{yo} + {y}"));
        source.line(format!("if ({condition}) {{ sum = sum + {x} * {y}; }}\n}}"));
        if wide {
            tree(&mut source, "sum", lanes);
        }
        let held = format!("{so} + point");
        let sum = match first {
            true => "sum".to_string(),
            false => format!("({} + sum)", load(&mut source, &sums, &held)),
        };
        let (to, at) = if last { (out, format!("{oo} + point")) } else { (&sums, held) };
        let stored = store(&mut source, to, &at, &sum);
        source.line(format!("if ({}) {{ {stored} }}", if wide { "lid == 0u" } else { "true" }));
        let (width, groups) = if wide { (lanes, count as u64) } else { (WIDTH, (count as u64).div_ceil(WIDTH.into())) };
        let iterations = steps.min(most).div_ceil(lanes as usize);
        source.finish("a convolution", width, groups, iterations, tables)
    };
    starts.iter().map(kernel).collect()
}
