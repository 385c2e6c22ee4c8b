//! Host data: a shape and the elements, row-major, that go into a session and come out of it.

use crate::{DType, Error, Shape, f16_from_f64, random::fnv1a_bytes};
use ::half::f16;

/// Elements on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// f64 elements.
    F64(Vec<f64>),
    /// f32 elements.
    F32(Vec<f32>),
    /// f16 elements.
    F16(Vec<f16>),
    /// u32 elements.
    U32(Vec<u32>),
    /// i32 elements.
    I32(Vec<i32>),
    /// Truth values.
    Bool(Vec<bool>),
}

/// Runs one expression for whichever element type a [`Data`] holds.
macro_rules! for_data {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F64($v) => $body,
            Data::F32($v) => $body,
            Data::F16($v) => $body,
            Data::U32($v) => $body,
            Data::I32($v) => $body,
            Data::Bool($v) => $body,
        }
    };
}

impl Data {
    /// `len` zeros (or `false`) of a type.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F64 => Data::F64(vec![0.0; len]),
            DType::F32 => Data::F32(vec![0.0; len]),
            DType::F16 => Data::F16(vec![f16::ZERO; len]),
            DType::U32 => Data::U32(vec![0; len]),
            DType::I32 => Data::I32(vec![0; len]),
            DType::Bool => Data::Bool(vec![false; len]),
        }
    }

    /// Converts `f64` values to a type, rounding to nearest for floats and truncating for integers.
    pub fn from_f64(dtype: DType, values: &[f64]) -> Self {
        match dtype {
            DType::F64 => Data::F64(values.to_vec()),
            DType::F32 => Data::F32(values.iter().map(|&v| v as f32).collect()),
            DType::F16 => Data::F16(values.iter().map(|&v| f16_from_f64(v)).collect()),
            DType::U32 => Data::U32(values.iter().map(|&v| v as u32).collect()),
            DType::I32 => Data::I32(values.iter().map(|&v| v as i32).collect()),
            DType::Bool => Data::Bool(values.iter().map(|&v| v != 0.0).collect()),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F64(_) => DType::F64,
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::U32(_) => DType::U32,
            Data::I32(_) => DType::I32,
            Data::Bool(_) => DType::Bool,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        for_data!(self, v => v.len())
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends elements of the same type, then zeros up to a multiple of `align`.
    ///
    /// # Panics
    /// If the types differ.
    pub(crate) fn append_padded(&mut self, other: &Data, align: usize) {
        let len = (self.len() + other.len()).next_multiple_of(align);
        match (self, other) {
            (Data::F64(a), Data::F64(b)) => {
                a.extend(b);
                a.resize(len, 0.0);
            }
            (Data::F32(a), Data::F32(b)) => {
                a.extend(b);
                a.resize(len, 0.0);
            }
            (a, b) => panic!("an arena of {} does not take {}", a.dtype(), b.dtype()),
        }
    }

    /// The elements of a range.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Data {
        for_data!(self, v => v[range].to_vec().into())
    }

    /// The elements of some data, one after the other. `None` if there are none, or if their types differ.
    pub fn concat(parts: impl IntoIterator<Item = Data>) -> Option<Data> {
        let mut parts = parts.into_iter();
        let mut all = parts.next()?;
        for part in parts {
            match (&mut all, part) {
                (Data::F64(a), Data::F64(b)) => a.extend(b),
                (Data::F32(a), Data::F32(b)) => a.extend(b),
                (Data::F16(a), Data::F16(b)) => a.extend(b),
                (Data::U32(a), Data::U32(b)) => a.extend(b),
                (Data::I32(a), Data::I32(b)) => a.extend(b),
                (Data::Bool(a), Data::Bool(b)) => a.extend(b),
                _ => return None,
            }
        }
        Some(all)
    }

    /// Overwrites the elements from `start` on with others of the same type; false if the types differ.
    pub(crate) fn overwrite(&mut self, start: usize, other: &Data) -> bool {
        let end = start + other.len();
        match (self, other) {
            (Data::F64(a), Data::F64(b)) => a[start..end].copy_from_slice(b),
            (Data::F32(a), Data::F32(b)) => a[start..end].copy_from_slice(b),
            (Data::F16(a), Data::F16(b)) => a[start..end].copy_from_slice(b),
            (Data::U32(a), Data::U32(b)) => a[start..end].copy_from_slice(b),
            (Data::I32(a), Data::I32(b)) => a[start..end].copy_from_slice(b),
            (Data::Bool(a), Data::Bool(b)) => a[start..end].copy_from_slice(b),
            _ => return false,
        }
        true
    }

    /// Extends a hash by the bits of these elements.
    pub(crate) fn hashed(&self, hash: u64) -> u64 {
        match self {
            Data::F64(v) => fnv1a_bytes(hash, v.iter().flat_map(|x| x.to_le_bytes())),
            Data::F32(v) => fnv1a_bytes(hash, v.iter().flat_map(|x| x.to_le_bytes())),
            Data::F16(v) => fnv1a_bytes(hash, v.iter().flat_map(|x| x.to_le_bytes())),
            Data::U32(v) => fnv1a_bytes(hash, v.iter().flat_map(|x| x.to_le_bytes())),
            Data::I32(v) => fnv1a_bytes(hash, v.iter().flat_map(|x| x.to_le_bytes())),
            Data::Bool(v) => fnv1a_bytes(hash, v.iter().map(|x| u8::from(*x))),
        }
    }

    /// The elements as `f64` (`false` is 0, `true` is 1); every type converts exactly.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Data::F64(v) => v.clone(),
            Data::F32(v) => v.iter().map(|&x| x as f64).collect(),
            Data::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::U32(v) => v.iter().map(|&x| x as f64).collect(),
            Data::I32(v) => v.iter().map(|&x| x as f64).collect(),
            Data::Bool(v) => v.iter().map(|&x| x as u8 as f64).collect(),
        }
    }
}

/// Implements `From` between vectors and [`Data`].
macro_rules! data_from {
    ($($t:ty => $v:ident),*) => { $(
        impl From<Vec<$t>> for Data {
            fn from(values: Vec<$t>) -> Self {
                Data::$v(values)
            }
        }
    )* };
}
data_from!(f64 => F64, f32 => F32, f16 => F16, u32 => U32, i32 => I32, bool => Bool);

/// A tensor on the host: shape and elements.
///
/// ```
/// use wgrad::{Array, DType};
/// let a = Array::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0]);
/// assert_eq!((a.dtype(), a.item(3)), (DType::F32, 4.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Shape,
    data: Data,
}

impl Array {
    /// An array of `shape` with the given elements, row-major.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, data: impl Into<Data>) -> Self {
        let (shape, data) = (shape.into(), data.into());
        assert_eq!(shape.numel(), data.len(), "array: shape {shape} does not hold {} elements", data.len());
        Self { shape, data }
    }

    /// A scalar f64.
    pub fn scalar(value: f64) -> Self {
        Self::new([], vec![value])
    }

    /// An array of zeros.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Self {
        let shape = shape.into();
        let data = Data::zeros(dtype, shape.numel());
        Self { shape, data }
    }

    /// Converts i64 elements, as other frameworks store labels, to u32.
    ///
    /// # Errors
    /// [`Error::IntegerRange`] if an element does not fit.
    pub fn from_i64(shape: impl Into<Shape>, values: &[i64]) -> Result<Self, Error> {
        let narrow = |&v: &i64| u32::try_from(v).map_err(|_| Error::IntegerRange { value: v });
        Ok(Self::new(shape, values.iter().map(narrow).collect::<Result<Vec<u32>, _>>()?))
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements, row-major.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, taken out.
    pub fn into_data(self) -> Data {
        self.data
    }

    /// The elements as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        self.data.to_f64()
    }

    /// One element as `f64`, by its row-major index.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn item(&self, index: usize) -> f64 {
        match &self.data {
            Data::F64(v) => v[index],
            Data::F32(v) => v[index] as f64,
            Data::F16(v) => v[index].to_f64(),
            Data::U32(v) => v[index] as f64,
            Data::I32(v) => v[index] as f64,
            Data::Bool(v) => v[index] as u8 as f64,
        }
    }

    /// The same elements converted to another type.
    pub fn cast(&self, dtype: DType) -> Self {
        Self { shape: self.shape.clone(), data: Data::from_f64(dtype, &self.to_f64()) }
    }
}
