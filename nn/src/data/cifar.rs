//! CIFAR-10 in its binary version: files of records, each a label and the planes of an image.

use super::{Images, Split};
use crate::error::{Error, Result};
use std::{fs, path::Path};

/// A folder that has this file holds this data set.
pub(super) const FIRST: &str = "data_batch_1.bin";

const SHAPE: [usize; 3] = [3, 32, 32];
const CLASSES: usize = 10;
/// A label and the pixels of an image.
const RECORD: usize = 1 + 3 * 32 * 32;

/// Reads the training and the test images of a folder.
pub(super) fn read(folder: &Path) -> Result<Split> {
    let train: Vec<String> = (1..=5).map(|i| format!("data_batch_{i}.bin")).collect();
    Ok(Split { train: part(folder, &train)?, test: part(folder, &["test_batch.bin".into()])? })
}

fn part(folder: &Path, names: &[String]) -> Result<Images> {
    let (mut pixels, mut labels) = (vec![], vec![]);
    for name in names {
        let path = folder.join(name);
        let bytes = fs::read(&path).map_err(|source| Error::Io { action: "read", path: path.clone(), source })?;
        records(&bytes, &mut pixels, &mut labels).map_err(|why| Error::Format {
            path,
            format: "a batch of CIFAR-10 (binary)",
            why,
        })?;
    }
    Ok(Images::new(SHAPE, u8::MAX, CLASSES, pixels, labels))
}

fn records(bytes: &[u8], pixels: &mut Vec<u8>, labels: &mut Vec<u32>) -> std::result::Result<(), String> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
        return Err(format!("its {} bytes are no whole number of records of {RECORD}", bytes.len()));
    }
    for (i, record) in bytes.chunks(RECORD).enumerate() {
        if usize::from(record[0]) >= CLASSES {
            return Err(format!("the label {} of record {i} is above {}", record[0], CLASSES - 1));
        }
        labels.push(u32::from(record[0]));
        pixels.extend_from_slice(&record[1..]);
    }
    Ok(())
}
