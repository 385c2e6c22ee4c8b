//! The elements of tensors in safetensors files.

use safetensors::{Dtype, tensor::TensorView};
use wgrad::{DType, Data, f16};

/// Pairs of our element types and the file's.
const DTYPES: [(DType, Dtype); 6] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::U32, Dtype::U32),
    (DType::I32, Dtype::I32),
    (DType::Bool, Dtype::BOOL),
];

/// The file's type for one of ours.
pub(super) fn stored(dtype: DType) -> Dtype {
    DTYPES.iter().find(|(ours, _)| *ours == dtype).expect("every type has a stored form").1
}

/// The type that elements of a file have once they are read: their own, and f32 for bf16. `None` if they cannot be read.
pub(super) fn read_as(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::F32),
        _ => DTYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours),
    }
}

/// True if a type holds all values of a file's type, which is that type or bf16.
pub(super) fn holds(dtype: DType, stored_as: Dtype) -> bool {
    match stored_as {
        Dtype::BF16 => matches!(dtype, DType::F32 | DType::F64),
        _ => stored(dtype) == stored_as,
    }
}

/// A file's type, as messages name it.
pub(super) fn named(dtype: Dtype) -> String {
    dtype.to_string().to_lowercase()
}

/// The elements, little-endian; bools one byte each.
pub(super) fn encode(data: &Data) -> Vec<u8> {
    fn bytes<const N: usize, T: Copy>(values: &[T], element: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().map(|value| element(*value)).collect::<Vec<_>>().into_flattened()
    }
    match data {
        Data::F64(v) => bytes(v, f64::to_le_bytes),
        Data::F32(v) => bytes(v, f32::to_le_bytes),
        Data::F16(v) => bytes(v, f16::to_le_bytes),
        Data::U32(v) => bytes(v, u32::to_le_bytes),
        Data::I32(v) => bytes(v, i32::to_le_bytes),
        Data::Bool(v) => bytes(v, |x| [x as u8]),
    }
}

/// The elements of a tensor, of the type that [`read_as`] gives; `None` if they cannot be read.
pub(super) fn decode(view: &TensorView<'_>) -> Option<Data> {
    fn chunks<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| element(*chunk)).collect()
    }
    let bytes = view.data();
    if view.dtype() == Dtype::BF16 {
        // A bf16 is the upper half of the f32 of the same value; for NaN, of the same payload.
        return Some(Data::F32(chunks(bytes, |[low, high]| f32::from_le_bytes([0, 0, low, high]))));
    }
    Some(match read_as(view.dtype())? {
        DType::F64 => Data::F64(chunks(bytes, f64::from_le_bytes)),
        DType::F32 => Data::F32(chunks(bytes, f32::from_le_bytes)),
        DType::F16 => Data::F16(chunks(bytes, f16::from_le_bytes)),
        DType::U32 => Data::U32(chunks(bytes, u32::from_le_bytes)),
        DType::I32 => Data::I32(chunks(bytes, i32::from_le_bytes)),
        DType::Bool => Data::Bool(bytes.iter().map(|&x| x != 0).collect()),
    })
}

/// As [`decode`], and converted to a type. Elements of that type keep their bits.
pub(super) fn decode_as(view: &TensorView<'_>, dtype: DType) -> Option<Data> {
    let data = decode(view)?;
    Some(if data.dtype() == dtype { data } else { Data::from_f64(dtype, &data.to_f64()) })
}
