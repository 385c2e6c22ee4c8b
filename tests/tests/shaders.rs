//! Every kernel of the wgpu backend is valid on the least of what devices offer, and can be translated for each driver; what
//! is not is found. `cargo xtask shaders` asks more tools.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use wgrad_tests::shaders::{Kernels, SpirvVal, Translated};

/// What marks each sort of kernel that the generator makes: all of it is in one kernel's text.
const SORTS: &[(&str, &[&str])] = &[
    ("a map", &["@workgroup_size(64)", "let i = g * 64u + lid;"]),
    ("more workgroups than a dimension has", &["let g = wg.y * 65535u + wg.x;"]),
    ("a store that a failure prevents", &["let allowed ="]),
    ("short rows", &["@workgroup_size(64)", "let u = g * 64u + lid;", "let r = u; let low = 0u;"]),
    ("rows", &["@workgroup_size(64)", "let u = g;", "let r = u; let low = 0u;"]),
    ("long rows", &["@workgroup_size(256)", "let u = g;", "let r = u; let low = 0u;"]),
    ("parts of rows", &["let u = g;", "let r = u % "]),
    ("parts of columns", &["let u = g * 64u + lid;", "let r = u % "]),
    ("ends of parts", &["let r = u; let low = 0u;", "u + r])"]),
    ("segments", &["let s = select(0u, id, inside);"]),
    ("a value for each segment", &["let q"]),
    ("norms", &["norm_end("]),
    ("products by element", &["fn epilogue(", "let lane = 0u;"]),
    ("products by workgroup", &["fn epilogue(", "sums[lid]", "@workgroup_size(64)"]),
    ("products by large workgroup", &["fn epilogue(", "sums[lid]", "@workgroup_size(256)"]),
    ("products in small tiles", &["var<workgroup> sa: array<f32, 512>"]),
    ("products in large tiles", &["var<workgroup> sa: array<f32, 1024>"]),
    (
        "products of f16 by large matrix units",
        &["coopLoadT<coop_mat16x16<f16, A>>", "coopLoadT<coop_mat16x16<f16, B>>"],
    ),
    ("the same of sides turned round", &["coopLoad<coop_mat16x16<f16, A>>", "coopLoad<coop_mat16x16<f16, B>>"]),
    ("products of f16 by small matrix units", &["coopLoadT<coop_mat8x8<f16, A>>", "epilogue("]),
    ("parts of their summands", &["coopMultiplyAdd(", "bitcast<u32>(sc[e])"]),
    ("f16 for them in fours", &["coopMultiplyAdd(", "array<vec2<u32>>", "_raw("]),
    ("f16 for them one by one", &["coopMultiplyAdd(", "array<u32>;\nfn b", "_raw("]),
    ("random words", &["stream_key("]),
    ("f16", &["round_half("]),
    ("f16 stored as they are", &["enable wgpu_int16;", "array<u16>", "_put("]),
    ("f16 stored in words", &["array<atomic<u32>>", "atomicAnd("]),
    ("f16 read out of words", &["array<u32>;\nfn b", "_at("]),
    ("f16 read in fours", &["array<vec2<u32>>", "_at("]),
    ("attention", &["staged[", "most[", "sums["]),
    ("the gradient of queries", &["staged[", "dq_base"]),
    ("the gradient of keys and values", &["staged[", "dk_base", "dv_base", "sharer"]),
    ("an index out of range", &["atomicMax("]),
    ("maps of one workgroup", &["for (var i = lid; i < ", "@workgroup_size(256)"]),
    ("bodies of one workgroup", &["fn body_0(lid: u32)", "storageBarrier();", "u) { body_"]),
    ("barriers in several bodies", &["fn body_1(lid: u32)", "shared_words[", "shared_words_1["]),
    ("parameters of several bodies", &["fn body_1(lid: u32)", " + 1].x"]),
    ("the report of one", &["atomicStore("]),
];

fn spirv_val() -> Option<SpirvVal> {
    SpirvVal::find(Path::new("spirv-val"))
}

fn report(failures: &[String]) {
    assert!(failures.is_empty(), "{} fail, the first:\n{}", failures.len(), failures[0]);
}

#[test]
fn every_kernel_is_valid_and_translates_for_each_driver() {
    let kernels = Kernels::all(200);
    report(&kernels.refused);
    assert!(kernels.texts.len() > 1000, "{} kernels", kernels.texts.len());
    let texts: Vec<&str> = kernels.texts.keys().map(String::as_str).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let judge = spirv_val();
    // Processes take time: of the modules, one in forty.
    let part = |first: usize| -> Vec<String> {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{first}.spv"));
        let prove = |(i, text): (usize, &&str)| {
            let judge = judge.as_ref().filter(|_| i % 40 == 0);
            let proven = Translated::new(text).and_then(|kernel| judge.map_or(Ok(false), |j| j.judge(&kernel, &file)));
            proven.err().map(|why| format!("{why}\n{text}"))
        };
        texts.iter().enumerate().skip(first).step_by(threads).filter_map(prove).collect()
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let part = &part;
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no check panics")).collect()
    });
    report(&failures);
    let missing: BTreeSet<&str> = SORTS
        .iter()
        .filter(|(_, marks)| !texts.iter().any(|text| marks.iter().all(|mark| text.contains(mark))))
        .map(|(sort, _)| *sort)
        .collect();
    assert!(missing.is_empty(), "no program has {missing:?}");
}

/// A kernel that does nothing wrong, for others to be made of.
const GOOD: &str = "
@group(0) @binding(1) var<storage, read_write> b0: array<u32>;
var<workgroup> shared_words: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    shared_words[lid] = lid;
    workgroupBarrier();
    b0[lid] = shared_words[63u - lid];
}
";

#[test]
fn a_broken_kernel_is_found() {
    Translated::new(GOOD).unwrap_or_else(|why| panic!("{why}"));
    let nine: String =
        (0..9).map(|i| format!("@group(0) @binding({}) var<storage, read> more{i}: array<u32>;\n", i + 2)).collect();
    let broken = [
        (GOOD.replace("lid] = lid;", "lid] = lidd;"), "no definition in scope"),
        (GOOD.replace("lid] = lid;", "lid] = 1.5;"), "type"),
        (GOOD.replace("size(64)", "size(512)"), "512 invocations"),
        (GOOD.replace("array<u32, 64>", "array<u32, 5000>"), "20000 bytes"),
        (GOOD.replace("fn main", "fn other"), "other"),
        (format!("{nine}{GOOD}"), "10 storage buffers"),
        (format!("enable f16;\n{}", GOOD.replace("lid] = lid;", "lid] = u32(f16(lid));")), "f16"),
        (GOOD.replace("lid] = lid;", "lid] = u32(u16(lid));"), "u16"),
        (GOOD.replace("lid] = lid;", "lid] = subgroupAdd(lid);"), "ubgroup"),
    ];
    for (text, why) in broken {
        let found = Translated::new(&text).err().unwrap_or_else(|| panic!("nothing is wrong with\n{text}"));
        assert!(found.to_lowercase().contains(&why.to_lowercase()), "{found} instead of {why} of\n{text}");
    }
}

/// A product of four small matrices by matrix units.
const MATRICES: &str = "
@group(0) @binding(1) var<storage, read> b0: array<f16>;
@group(0) @binding(2) var<storage, read_write> b1: array<f32>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) lid: u32) {
    let a = coopLoadT<coop_mat16x16<f16, A>>(&b0[0], 16u);
    let b = coopLoad<coop_mat16x16<f16, B>>(&b0[256], 16u);
    coopStoreT(coopMultiplyAdd(a, b, coop_mat16x16<f32, C>()), &b1[0], 16u);
}
";

#[test]
fn a_broken_kernel_of_matrix_units_is_found() {
    let good = format!("enable f16;\nenable wgpu_cooperative_matrix;\n{MATRICES}");
    let kernel = Translated::new(&good).unwrap_or_else(|why| panic!("{why}"));
    assert!(kernel.matrices && kernel.hlsl.is_none() && kernel.msl.is_none());
    let small = Translated::new(&good.replace("16x16", "8x8")).unwrap();
    assert!(small.msl.unwrap().contains("simdgroup_multiply_accumulate"));
    let broken = [
        (format!("enable f16;\n{MATRICES}"), "wgpu_cooperative_matrix"),
        (good.replace("(a, b, coop", "(b, a, coop"), "cooperative"),
        (good.replace("f32, C>()), &b1", "f32, C>()), &b0"), "store"),
    ];
    for (text, why) in broken {
        let found = Translated::new(&text).err().unwrap_or_else(|| panic!("nothing is wrong with\n{text}"));
        assert!(found.to_lowercase().contains(why), "{found} instead of {why} of\n{text}");
    }
}

#[test]
fn a_broken_module_is_found_where_spirv_val_is_there() {
    let Some(judge) = spirv_val() else {
        eprintln!("spirv-val is not there: it is not tested");
        return;
    };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("broken.spv");
    let mut kernel = Translated::new(GOOD).unwrap();
    assert!(judge.judge(&kernel, &file).unwrap());
    kernel.spirv.pop();
    assert!(judge.judge(&kernel, &file).unwrap_err().contains("spirv-val"));
}
