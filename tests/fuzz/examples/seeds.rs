//! Writes `seeds`: small valid inputs of each target, from which fuzzing starts deep. Run it where a format changes:
//! `cargo run --manifest-path tests/fuzz/Cargo.toml --example seeds`.

use std::{collections::BTreeMap, fs, io, path::PathBuf};
use wgrad_examples::history::{History, Observed};
use wgrad::{Array, Data};
use wgrad_nn::{
    SaveFile,
    checkpoint::{Arrays, Metadata, save, save_to},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let metadata = Metadata::from([("step".to_string(), "3".to_string())]);
    save(&mut wgrad_fuzz::session(), path("checkpoint", "valid")?, &metadata)?;
    let arrays = Arrays::from([("losses".to_string(), Array::new([2], vec![0.5f32, f32::NAN]))]);
    let with_arrays = SaveFile::open(path("checkpoint", "arrays")?)?;
    save_to(&with_arrays, &mut wgrad_fuzz::session(), &metadata, &arrays)?;
    let parameters = concat!(
        r#"{"model.a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"#,
        r#""model.b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},"#,
        r#""wide":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},"#,
        r#""other":{"dtype":"U8","shape":[1],"data_offsets":[20,21]}}"#
    );
    fs::write(path("checkpoint", "parameters")?, safetensors(parameters, &[0x3c; 21]))?;

    let batches = concat!(
        r#"{"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#""y":{"dtype":"I64","shape":[0],"data_offsets":[24,24]}}"#
    );
    fs::write(path("bench_data", "floats")?, safetensors(batches, &[0; 24]))?;
    let classes = r#"{"y":{"dtype":"I64","shape":[2,3],"data_offsets":[0,48]}}"#;
    fs::write(path("bench_data", "classes")?, safetensors(classes, &[1, 0, 0, 0, 0, 0, 0, 0].repeat(6)))?;

    let digits = include_str!("../../../nn/data/digits.csv").lines().take(2);
    fs::write(path("digits", "two")?, digits.map(|line| format!("{line}\n")).collect::<String>())?;

    let mut history = History::default();
    for loss in [3.0, 2.0, f64::NAN] {
        history.push(Observed { loss, grad_norm: 2.0, applied_norm: 1.0, flow: &[0.5, 1.0], weights: &[3.0] });
    }
    let (text, arrays) = history.save();
    let bits = |array: &Array| match array.data() {
        Data::F32(values) => (array.shape().to_vec(), values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()),
        _ => unreachable!("a history is of f32"),
    };
    let arrays: BTreeMap<&String, (Vec<usize>, Vec<u32>)> = arrays.iter().map(|(name, x)| (name, bits(x))).collect();
    fs::write(path("history", "three")?, serde_json::to_string(&(text, arrays))?)?;
    let former = concat!(
        r#"{"losses":[1077936128,1073741824,2143289344],"ratios":[1056964608,1056964608,1056964608],"#,
        r#""flow":{"recent":[[1056964608,1065353216]],"at_peak":[1056964608,1065353216]},"#,
        r#""weights":{"recent":[[1077936128]],"at_peak":[1077936128]},"#,
        r#""grad_norm_max":4611686018427387904,"applied_norm_max":4607182418800017408,"clipped":3}"#
    );
    fs::write(path("history", "former")?, serde_json::to_string(&(former, BTreeMap::<String, ()>::new()))?)?;

    let index = concat!(
        r#"{"schema":1,"traces":"t","cases":[{"id":"a","kind":"op","op":"sum","dtype":"f64","file":"f","#,
        r#""attrs":{"n":2,"x":0.5,"inf":"inf","dim":-1,"dims":[0,-2],"pads":[[0,1],[2,0]],"keep":true,"#,
        r#""none":null,"of":{"beta":0.9}},"diff":["x"],"inputs":["in/x","cot/y"],"#,
        r#""expect":{"out/y":{"rtol":1e-12,"atol":0}}}]}"#
    );
    fs::write(path("golden_index", "index")?, index)?;
    fs::write(path("golden_index", "traces")?, r#"[{"id":"a","steps":[{"op":"backward"}]},{"id":"b"}]"#)?;
    for (name, [x, y, z]) in [
        ("floats", [("F64", 8), ("F32", 4), ("F16", 2)]),
        ("integers", [("I64", 8), ("I32", 4), ("U32", 4)]),
        ("bytes", [("BOOL", 1), ("U8", 1), ("BF16", 2)]),
    ] {
        let (second, third, end) = (2 * x.1, 2 * x.1 + 2 * y.1, 2 * (x.1 + y.1 + z.1));
        let header = format!(
            concat!(
                r#"{{"x":{{"dtype":"{}","shape":[2,1],"data_offsets":[0,{}]}},"#,
                r#""y":{{"dtype":"{}","shape":[2],"data_offsets":[{},{}]}},"#,
                r#""z":{{"dtype":"{}","shape":[1,2],"data_offsets":[{},{}]}}}}"#
            ),
            x.0, second, y.0, second, third, z.0, third, end
        );
        fs::write(path("golden_tensors", name)?, safetensors(&header, &vec![1; end]))?;
    }

    for (name, line) in [
        ("cure", "rnn --case exploding --fix clip-norm --device cpu --threads 2 --seed 7 --json"),
        ("resume", "--quiet rnn --task adding --cell gru --length 12 --steps 3 --save a --resume b"),
        ("plan", "tape rnn --plan --task digits --cell irnn"),
        ("text", "transformer --case scores --fix qk-norm --text a --size small --sample 9 --accumulate 2 --checkpoint"),
        ("bench", "bench w3 w7 --data here --budget 0.5 --only w7_matmul,w3"),
        ("device", "gpu:1"),
    ] {
        fs::write(path("command_line", name)?, line.replace(' ', "\n"))?;
    }
    Ok(())
}

/// The place of a seed, whose folder then exists.
fn path(target: &str, name: &str) -> io::Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder.join(name))
}

/// A file of this header and these tensors.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}
