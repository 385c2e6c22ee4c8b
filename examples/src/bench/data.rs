//! The source of weights and batches: a file that every framework reads, or numbers drawn by seed and name.

use crate::{Error, Result};
use safetensors::{Dtype, tensor::Metadata};
use std::{
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use wgrad::{Array, Data, Shape};

/// The distribution of the numbers that are drawn without a file.
#[derive(Clone, Copy, Debug)]
pub enum Draw {
    /// Uniform in `[-limit, limit)`.
    Uniform(f64),
    /// Normal, with this mean and standard deviation.
    Normal(f64, f64),
}

/// Tensors by name.
#[derive(Debug)]
pub enum Source {
    /// A safetensors file.
    File(File),
    /// Numbers drawn from this seed.
    Seed(u64),
}

/// An open safetensors file. Tensors are read one by one, because a file may hold far more than a result needs.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: fs::File,
    metadata: Metadata,
    /// The offset of the first tensor in the file, in bytes.
    start: u64,
}

impl Source {
    /// A tensor of floats: read from the file, or drawn from the distribution.
    ///
    /// # Errors
    /// If the file does not hold a tensor of this name, type and shape.
    pub fn floats(&mut self, name: &str, shape: &[usize], draw: Draw) -> Result<Array> {
        let values: Vec<f32> = match self {
            Source::File(file) => return file.floats(name, shape),
            Source::Seed(seed) => {
                let random = Random::new(*seed, name);
                (0..shape.iter().product::<usize>() as u64).map(|i| random.draw(draw, i) as f32).collect()
            }
        };
        Ok(Array::new(shape, values))
    }

    /// A tensor of class indices: read from the file, or drawn uniformly.
    ///
    /// # Errors
    /// If the file does not hold a tensor of this name, type and shape, or one of its integers is not a class.
    pub fn classes(&mut self, name: &str, shape: &[usize], classes: u32) -> Result<Array> {
        let values: Vec<u32> = match self {
            Source::File(file) => return file.classes(name, shape, classes),
            Source::Seed(seed) => {
                let random = Random::new(*seed, name);
                let numel = shape.iter().product::<usize>() as u64;
                (0..numel).map(|i| (random.unit(i) * f64::from(classes)) as u32).collect()
            }
        };
        Ok(Array::new(shape, values))
    }
}

impl File {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read, is no safetensors file, or is cut short.
    pub fn open(path: &Path) -> Result<Self> {
        let unreadable = |source| wgrad_nn::Error::Io { action: "read", path: path.into(), source };
        let malformed = |why: &str| wgrad_nn::Error::Malformed { path: path.into(), why: why.into() };
        let mut file = fs::File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(unreadable(io::ErrorKind::IsADirectory.into()).into());
        }
        let len = file.metadata().map_err(unreadable)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| malformed("it has no header"))?;
        let start = u64::from_le_bytes(size).checked_add(8).filter(|start| *start <= len);
        let start = start.ok_or_else(|| malformed("it is shorter than its header"))?;
        let mut header = vec![0; (start - 8) as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| malformed(&error.to_string()))?;
        let want = start.checked_add(metadata.data_len() as u64);
        if want != Some(len) {
            return Err(malformed("its length differs from the length in its header").into());
        }
        Ok(Self { path: path.into(), file, metadata, start })
    }

    /// A tensor of floats.
    ///
    /// # Errors
    /// If the file does not hold a tensor of this name, type and shape.
    pub fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Array> {
        let bytes = self.read(name, Dtype::F32, shape)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Ok(Array::new(shape, values))
    }

    /// A tensor of class indices, stored as i64.
    fn classes(&mut self, name: &str, shape: &[usize], classes: u32) -> Result<Array> {
        let bytes = self.read(name, Dtype::I64, shape)?;
        let class = |bytes: &[u8; 8]| {
            let value = i64::from_le_bytes(*bytes);
            u32::try_from(value).ok().filter(|&class| class < classes).ok_or_else(|| Error::NoClass {
                path: self.path.display().to_string(),
                tensor: name.into(),
                value,
                last: classes - 1,
            })
        };
        Ok(Array::new(shape, bytes.as_chunks().0.iter().map(class).collect::<Result<Vec<u32>>>()?))
    }

    /// The bytes of a tensor of this type and shape.
    fn read(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>> {
        let path = || self.path.clone();
        let Some(info) = self.metadata.info(name) else {
            return Err(wgrad_nn::Error::Missing { path: path(), tensor: name.into() }.into());
        };
        if (info.dtype, &info.shape[..]) != (dtype, shape) {
            let show =
                |dtype: Dtype, shape: &[usize]| format!("{}{}", dtype.to_string().to_lowercase(), Shape::from(shape));
            return Err(wgrad_nn::Error::Mismatch {
                path: path(),
                tensor: name.into(),
                want: show(dtype, shape),
                have: show(info.dtype, &info.shape),
            }
            .into());
        }
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        let read =
            self.file.seek(SeekFrom::Start(self.start + from as u64)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|source| wgrad_nn::Error::Io { action: "read", path: path(), source })?;
        Ok(bytes)
    }
}

/// Random numbers that are a pure function of a seed, a name and a counter.
struct Random(u64);

impl Random {
    fn new(seed: u64, name: &str) -> Self {
        Self(name.bytes().fold(mixed(seed), |key, byte| mixed(key ^ u64::from(byte))))
    }

    /// Uniform in `[0, 1)`.
    fn unit(&self, counter: u64) -> f64 {
        (mixed(self.0 ^ mixed(counter)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn draw(&self, draw: Draw, i: u64) -> f64 {
        match draw {
            Draw::Uniform(limit) => limit * (2.0 * self.unit(i) - 1.0),
            // Box & Muller 1958. `1 - unit` is above 0, so the logarithm is finite.
            Draw::Normal(mean, deviation) => {
                let radius = (-2.0 * (1.0 - self.unit(2 * i)).ln()).sqrt();
                mean + deviation * radius * (std::f64::consts::TAU * self.unit(2 * i + 1)).cos()
            }
        }
    }
}

/// A step of SplitMix64 (Steele, Lea & Flood 2014).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Splits an array along its first axis, which the parts do not have.
pub fn split(array: &Array) -> Vec<Array> {
    let part = &array.shape()[1..];
    let len: usize = part.iter().product();
    (0..array.shape()[0]).map(|i| Array::new(part, array.data().slice(i * len..(i + 1) * len))).collect()
}

/// The transpose of a matrix of floats.
pub fn transposed(array: &Array) -> Array {
    let (shape, Data::F32(values)) = (array.shape(), array.data()) else { panic!("transpose of {}", array.dtype()) };
    let (rows, columns) = (shape[0], shape[1]);
    let elements = (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c]));
    Array::new([columns, rows], elements.collect::<Vec<f32>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::abs_diff_eq;

    #[test]
    fn a_transpose_has_rows_for_columns() {
        let matrix = Array::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(transposed(&matrix), Array::new([3, 2], vec![1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0]));
        assert_eq!(split(&matrix), [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]].map(|row| Array::new([3], row.to_vec())));
    }

    #[test]
    fn drawn_numbers_have_their_distribution_and_depend_on_seed_and_name() {
        let mut source = Source::Seed(1);
        let mut moments = |draw| {
            let values = source.floats("x", &[100_000], draw).expect("nothing to read").to_f64();
            let mean = values.iter().sum::<f64>() / 1e5;
            (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5).sqrt())
        };
        for (draw, mean, deviation) in [(Draw::Uniform(3.0), 0.0, 3f64.sqrt()), (Draw::Normal(1.0, 0.5), 1.0, 0.5)] {
            let (m, d) = moments(draw);
            assert!(
                abs_diff_eq!(m, mean, epsilon = 0.02) && abs_diff_eq!(d, deviation, epsilon = 0.01 * deviation),
                "{draw:?}: {m} and {d}"
            );
        }
        let draw = |seed, name| Source::Seed(seed).floats(name, &[8], Draw::Uniform(1.0)).expect("nothing to read");
        assert_eq!(draw(1, "x"), draw(1, "x"));
        assert!(draw(1, "x") != draw(2, "x") && draw(1, "x") != draw(1, "y"));
        let classes = Source::Seed(1).classes("y", &[1000], 10).expect("nothing to read").to_f64();
        assert!((0..10).all(|class| classes.contains(&f64::from(class))) && classes.iter().all(|c| *c < 10.0));
    }
}
