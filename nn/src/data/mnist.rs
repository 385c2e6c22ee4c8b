//! MNIST: files in the IDX format, one of images and one of labels for each part.

use super::{Images, Split};
use crate::error::{Error, Result};
use std::{fs, path::Path};

/// A folder that has this file holds this data set.
pub(super) const FIRST: &str = "train-images-idx3-ubyte";

const FORMAT: &str = "an IDX file of bytes";
const CLASSES: usize = 10;
/// The first bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the training and the test images of a folder.
pub(super) fn read(folder: &Path) -> Result<Split> {
    let part = |name: &str| {
        let at = |what: &str| folder.join(format!("{name}-{what}-ubyte"));
        pair(&at("images-idx3"), &at("labels-idx1"))
    };
    let (train, test) = (part("train")?, part("t10k")?);
    if test.shape() != train.shape() {
        let why = format!("its images are {:?}, those to train on {:?}", test.shape(), train.shape());
        return Err(Error::Format { path: folder.join("t10k-images-idx3-ubyte"), format: "of the same data set", why });
    }
    Ok(Split { train, test })
}

/// Reads images and their labels.
fn pair(images: &Path, labels: &Path) -> Result<Images> {
    let pixels = read_idx(images)?;
    let [count, height, width] = pixels.dims(images)?;
    let classes = read_idx(labels)?;
    let [labelled] = classes.dims(labels)?;
    let fail = |why: String| Err(Error::Format { path: labels.into(), format: "labels of digits", why });
    if labelled != count {
        return fail(format!("it has {labelled} labels for {count} images"));
    }
    if let Some(label) = classes.bytes.iter().find(|label| usize::from(**label) >= CLASSES) {
        return fail(format!("the label {label} is above {}", CLASSES - 1));
    }
    let labels = classes.bytes.iter().map(|&label| u32::from(label)).collect();
    Ok(Images::new([1, height, width], u8::MAX, CLASSES, pixels.bytes, labels))
}

/// An array of bytes.
struct Idx {
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

impl Idx {
    /// The `N` extents; an error if there are more or fewer, or if one is 0.
    fn dims<const N: usize>(&self, path: &Path) -> Result<[usize; N]> {
        let fit = <[usize; N]>::try_from(self.dims.clone()).ok().filter(|dims| !dims.contains(&0));
        fit.ok_or_else(|| {
            let why = format!("its dimensions are {:?}; {N} dimensions above 0 are expected", self.dims);
            Error::Format { path: path.into(), format: FORMAT, why }
        })
    }
}

/// Reads a file: two zero bytes, the type (8, bytes), the number of extents, the extents as big-endian u32, the
/// elements.
fn read_idx(path: &Path) -> Result<Idx> {
    let file = fs::read(path).map_err(|source| Error::Io { action: "read", path: path.into(), source })?;
    parse(file).map_err(|why| Error::Format { path: path.into(), format: FORMAT, why })
}

fn parse(file: Vec<u8>) -> std::result::Result<Idx, String> {
    if file.starts_with(&GZIP) {
        return Err("it is compressed; unpack it with gunzip".into());
    }
    let Some((&[0, 0, 8, rank], rest)) = file.split_first_chunk() else {
        return Err("it does not begin with the bytes 0, 0, 8".into());
    };
    let Some((extents, elements)) = rest.split_at_checked(4 * usize::from(rank)) else {
        return Err("it is cut short within its header".into());
    };
    let dims: Vec<usize> = extents.as_chunks().0.iter().map(|extent| u32::from_be_bytes(*extent) as usize).collect();
    let want = dims.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    if want != Some(elements.len()) {
        let cut = want.is_none_or(|want| want > elements.len());
        let what = if cut { "cut short" } else { "too long" };
        return Err(format!("it is {what}: {} bytes follow the header, which says {dims:?}", elements.len()));
    }
    let bytes = elements.to_vec();
    Ok(Idx { dims, bytes })
}
