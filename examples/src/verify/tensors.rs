//! The tensors of golden vectors, read from a safetensors file as inputs and expected values.

use super::{Attempt, Expected, Refusal};
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use wgrad::{Array, DType, Data, f16};

/// The number of bytes that hold the length of the header.
const LENGTH: usize = 8;

/// A safetensors file in memory.
#[derive(Debug)]
pub struct Tensors {
    name: String,
    bytes: Vec<u8>,
    metadata: Metadata,
    /// The offset of the first tensor in `bytes`.
    start: usize,
}

/// One tensor of a file.
struct View<'a> {
    info: &'a TensorInfo,
    bytes: &'a [u8],
}

impl Tensors {
    /// Reads the bytes of a file of this name.
    ///
    /// # Errors
    /// The reason that the bytes are no safetensors file.
    pub fn parse(name: &str, bytes: Vec<u8>) -> Result<Self, String> {
        // `SafeTensors::read_metadata` is not used, because a hostile header can make its sum of lengths overflow.
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)).ok_or("it has no header")?;
        let start = usize::try_from(length).ok().and_then(|length| length.checked_add(LENGTH));
        let (start, header) =
            start.and_then(|start| Some((start, bytes.get(LENGTH..start)?))).ok_or("it is shorter than its header")?;
        let metadata: Metadata = serde_json::from_slice(header).map_err(|error| error.to_string())?;
        if start.checked_add(metadata.data_len()) != Some(bytes.len()) {
            return Err("its length differs from the length in its header".into());
        }
        Ok(Self { name: name.into(), bytes, metadata, start })
    }

    /// A tensor of this name.
    fn view(&self, tensor: &str) -> Attempt<View<'_>> {
        let found = self.metadata.info(tensor).and_then(|info| {
            let (from, to) = info.data_offsets;
            Some(View { info, bytes: self.bytes.get(self.start + from..self.start + to)? })
        });
        found.ok_or_else(|| Refusal::Tensor { file: self.name.clone(), tensor: tensor.into() })
    }

    /// A tensor as an input of a program. Integers become u32, or i32 if one is below 0.
    ///
    /// # Errors
    /// If there is no tensor of this name, wgrad does not have its type, or an integer fits neither u32 nor i32.
    pub fn array(&self, tensor: &str) -> Attempt<Array> {
        let view = &self.view(tensor)?;
        let data = match view.info.dtype {
            Dtype::F64 => Data::F64(elements(view, f64::from_le_bytes)),
            Dtype::F32 => Data::F32(elements(view, f32::from_le_bytes)),
            Dtype::F16 => Data::F16(elements(view, f16::from_le_bytes)),
            Dtype::BOOL => Data::Bool(elements(view, |[byte]| byte != 0)),
            Dtype::I64 => integers(tensor, &elements(view, i64::from_le_bytes))?,
            Dtype::I32 => integers(tensor, &elements(view, |bytes| i32::from_le_bytes(bytes).into()))?,
            Dtype::U32 => Data::U32(elements(view, u32::from_le_bytes)),
            dtype => return Err(self.unknown(tensor, dtype)),
        };
        Ok(Array::new(&view.info.shape[..], data))
    }

    /// A tensor as the expected value of a result.
    ///
    /// # Errors
    /// If there is no tensor of this name, or no result can have its type.
    pub fn expected(&self, tensor: &str) -> Attempt<Expected> {
        let view = &self.view(tensor)?;
        // wgrad has no i64. Its indices are u32 or i32, which count as equal if the values are.
        let integers = &[DType::U32, DType::I32][..];
        let (dtypes, values) = match view.info.dtype {
            Dtype::F64 => (&[DType::F64][..], elements(view, f64::from_le_bytes)),
            Dtype::F32 => (&[DType::F32][..], elements(view, |bytes| f32::from_le_bytes(bytes).into())),
            Dtype::F16 => (&[DType::F16][..], elements(view, |bytes| f16::from_le_bytes(bytes).to_f64())),
            Dtype::BOOL => (&[DType::Bool][..], elements(view, |[byte]| f64::from(byte != 0))),
            Dtype::I64 => (integers, elements(view, |bytes| i64::from_le_bytes(bytes) as f64)),
            Dtype::I32 => (integers, elements(view, |bytes| i32::from_le_bytes(bytes).into())),
            Dtype::U32 => (integers, elements(view, |bytes| u32::from_le_bytes(bytes).into())),
            dtype => return Err(self.unknown(tensor, dtype)),
        };
        let stored = view.info.dtype.to_string().to_lowercase();
        Ok(Expected { dtypes, stored, shape: view.info.shape[..].into(), values })
    }

    fn unknown(&self, tensor: &str, dtype: Dtype) -> Refusal {
        let (file, dtype) = (self.name.clone(), dtype.to_string().to_lowercase());
        Refusal::Type { file, tensor: tensor.into(), dtype, want: "f64, f32, f16, i64, i32, u32 or bool" }
    }
}

/// The elements of a tensor, of `N` bytes each.
fn elements<const N: usize, T>(view: &View<'_>, read: impl Fn([u8; N]) -> T) -> Vec<T> {
    view.bytes.as_chunks().0.iter().map(|bytes| read(*bytes)).collect()
}

/// Integers in a type that holds them all: u32, or i32 if one is negative.
fn integers(tensor: &str, values: &[i64]) -> Attempt<Data> {
    let unsigned: Option<Vec<u32>> = values.iter().map(|&value| value.try_into().ok()).collect();
    if let Some(values) = unsigned {
        return Ok(Data::U32(values));
    }
    let narrow = |&value: &i64| i32::try_from(value).map_err(|_| Refusal::Integer { tensor: tensor.into(), value });
    Ok(Data::I32(values.iter().map(narrow).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_type_that_holds_them_all() {
        let narrowed = |values: &[i64]| integers("t", values);
        assert_eq!(narrowed(&[0, 4_294_967_295]).ok(), Some(Data::U32(vec![0, u32::MAX])));
        assert_eq!(narrowed(&[3, -100]).ok(), Some(Data::I32(vec![3, -100])));
        assert_eq!(narrowed(&[]).ok(), Some(Data::U32(vec![])));
        for values in [&[-1, 4_294_967_295][..], &[i64::MIN], &[i64::MAX]] {
            assert!(narrowed(values).is_err(), "{values:?}");
        }
    }

    /// A file with one tensor of each type.
    fn file() -> Vec<u8> {
        use safetensors::tensor::TensorView;
        let types = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BOOL, Dtype::I64, Dtype::I32, Dtype::U32, Dtype::U8];
        let bytes = types.map(|dtype| vec![1; 2 * dtype.bitsize() / 8]);
        let view = |(dtype, bytes)| TensorView::new(dtype, vec![2], bytes).expect("two values");
        let tensors =
            types.into_iter().zip(&bytes).map(|(dtype, bytes)| (dtype.to_string(), view((dtype, &bytes[..]))));
        safetensors::serialize(tensors, None).expect("serializes")
    }

    #[test]
    fn every_type_reads_as_input_and_as_expected_value() {
        let tensors = Tensors::parse("f", file()).expect("a file");
        for (name, dtype) in [
            ("F64", DType::F64),
            ("F32", DType::F32),
            ("F16", DType::F16),
            ("BOOL", DType::Bool),
            ("I64", DType::U32),
            ("I32", DType::U32),
            ("U32", DType::U32),
        ] {
            if name != "I64" {
                assert_eq!(tensors.array(name).expect(name).dtype(), dtype, "{name}");
            }
            let expected = tensors.expected(name).expect(name);
            assert!(expected.dtypes.contains(&dtype) && expected.values.len() == 2, "{expected:?}");
        }
        // The integer 0x0101010101010101 does not fit into 32 bits.
        assert!(tensors.array("I64").is_err() && tensors.array("U8").is_err() && tensors.expected("U8").is_err());
        assert!(tensors.array("none").is_err());
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        let whole = file();
        for len in 0..whole.len() {
            assert!(Tensors::parse("f", whole[..len].to_vec()).is_err(), "{len} bytes");
        }
        let names = ["F64", "F32", "F16", "BOOL", "I64", "I32", "U32", "U8"];
        let read = |bytes: Vec<u8>| {
            let tensors = Tensors::parse("f", bytes).ok()?;
            names.iter().for_each(|name| drop((tensors.array(name), tensors.expected(name))));
            Some(())
        };
        for at in 0..whole.len() {
            for byte in [0, b'0', b'9', b'}', b'"', 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                read(bytes);
            }
        }
        // The lengths in these headers add up beyond the address space.
        let header = |offsets: &str| {
            let header = format!(r#"{{"a":{{"dtype":"U8","shape":[18446744073709551608],"data_offsets":{offsets}}}}}"#);
            [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes()].concat()
        };
        assert_eq!(read(header("[0,18446744073709551608]")), None);
        assert_eq!(read([[0xff; 8], [b'{'; 8]].concat()), None);
        assert_eq!(read(whole), Some(()));
    }
}
