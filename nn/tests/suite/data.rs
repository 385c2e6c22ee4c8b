//! Data: files that are read and files that are refused, and loaders that give the same batches however they are run.

use proptest::prelude::*;
use std::{fs, path::Path};
use wgrad::Array;
use wgrad_nn::{
    Error,
    data::{Augment, Batch, DataError, Dataset, Digits, ImageData, Loader, LoaderConfig, Position, Split, Text},
};

/// Numbered samples: a batch names them, and the epoch.
#[derive(Clone)]
struct Numbers(usize);

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.0
    }

    fn batch(&self, samples: &[usize], epoch: u64) -> Result<Batch, DataError> {
        let x: Vec<u32> = samples.iter().map(|&sample| sample as u32).collect();
        Ok(Batch::new(Array::new([samples.len()], x), Array::new([], vec![epoch as u32])))
    }
}

fn loader(samples: usize, config: LoaderConfig, position: Position) -> Loader {
    Loader::new(Numbers(samples), config, position).expect("it has batches")
}

fn next(loader: &mut Loader) -> Batch {
    loader.next().expect("there always is one").expect("it is prepared")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any number of batches prepared ahead gives the same, and so does going on from any position, at any number.
    #[test]
    fn batches_depend_on_the_position_alone(
        samples in 1usize..40,
        batch in 1usize..12,
        shuffle: bool,
        keep_last: bool,
        seed: u64,
        prefetch in 1usize..4,
        stop in 0usize..30,
    ) {
        let batch = if keep_last { batch } else { batch.min(samples) };
        let config = LoaderConfig { batch, shuffle, keep_last, seed, prefetch: 0 };
        let mut whole = loader(samples, config, Position::default());
        let mut ahead = loader(samples, LoaderConfig { prefetch, ..config }, Position::default());
        let mut saved = Position::default();
        let mut batches = vec![];
        for step in 0..40 {
            if step == stop {
                saved = whole.position().to_string().parse().expect("it was printed");
            }
            batches.push(next(&mut whole));
            prop_assert_eq!(&next(&mut ahead), &batches[step]);
            prop_assert_eq!(ahead.position(), whole.position());
        }
        for prefetch in [0, prefetch] {
            let mut resumed = loader(samples, LoaderConfig { prefetch, ..config }, saved);
            prop_assert_eq!(resumed.position(), saved);
            for batch in &batches[stop..] {
                prop_assert_eq!(&next(&mut resumed), batch);
            }
        }
    }

    /// An epoch has every sample once, or all but those that make no whole batch.
    #[test]
    fn an_epoch_has_every_sample_once(samples in 1usize..40, batch in 1usize..12, keep_last: bool, seed: u64) {
        let batch = if keep_last { batch } else { batch.min(samples) };
        let config = LoaderConfig { batch, keep_last, seed, ..LoaderConfig::default() };
        let mut loader = loader(samples, config, Position::default());
        for epoch in 0..3 {
            let mut seen = vec![];
            while loader.position().epoch == epoch {
                let [x, y] = next(&mut loader).take(["x", "y"]);
                prop_assert_eq!(y.item(0) as u64, epoch);
                prop_assert!(x.shape().numel() == batch || keep_last && loader.position().epoch > epoch);
                seen.extend(x.to_f64().into_iter().map(|sample| sample as usize));
            }
            let want = if keep_last { samples } else { samples / batch * batch };
            prop_assert_eq!(seen.len(), want);
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), want, "each at most once");
        }
    }
}

#[test]
fn orders_differ_between_epochs_and_seeds_and_are_kept_without_shuffling() {
    let first = |seed, shuffle, epoch| {
        let config = LoaderConfig { batch: 20, shuffle, seed, ..LoaderConfig::default() };
        next(&mut loader(20, config, Position { epoch, sample: 0 }))["x"].to_f64()
    };
    assert_ne!(first(1, true, 0), first(1, true, 1));
    assert_ne!(first(1, true, 0), first(2, true, 0));
    assert_eq!(first(1, false, 3), (0..20).map(f64::from).collect::<Vec<_>>());
}

#[test]
fn the_last_batch_is_smaller_or_left_out() {
    let sizes = |keep_last| {
        let config = LoaderConfig { batch: 4, keep_last, ..LoaderConfig::default() };
        let loader = loader(10, config, Position::default());
        loader.take(4).map(|batch| batch.expect("prepared")["x"].shape().numel()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(true), [4, 4, 2, 4]);
    assert_eq!(sizes(false), [4, 4, 4, 4]);
}

#[test]
fn positions_and_data_that_do_not_fit_are_refused() {
    let error = |samples, keep_last, sample| {
        let config = LoaderConfig { batch: 4, keep_last, ..LoaderConfig::default() };
        Loader::new(Numbers(samples), config, Position { epoch: 2, sample }).expect_err("refused").to_string()
    };
    assert_eq!(error(0, true, 0), "the data has 0 samples, and a batch takes at least 1");
    assert_eq!(error(3, false, 0), "the data has 3 samples, and a batch takes at least 4");
    assert_eq!(error(10, true, 11), "\"2:11\" is no position in the data: the data has 10 samples");
    for text in ["", "3", "3:", "a:1", "1:-2", "1:2:3"] {
        assert!(matches!(text.parse::<Position>(), Err(Error::Position { .. })), "{text}");
    }
    // The end of an epoch is the beginning of the next.
    let end = loader(10, LoaderConfig::default(), Position { epoch: 2, sample: 10 });
    assert_eq!(end.position(), Position { epoch: 3, sample: 0 });
}

#[test]
fn augmented_images_are_the_same_in_any_batch() {
    let split = Digits::embedded(0).images();
    let moments = split.train.moments();
    let augment = Some((Augment { padding: 2, flip: true }, 9));
    let data = ImageData { images: split.train.take(50), moments, augment };
    let batches = |batch, prefetch| {
        let config = LoaderConfig { batch, prefetch, shuffle: false, ..LoaderConfig::default() };
        let loader = Loader::new(data.clone(), config, Position::default()).expect("it has batches");
        loader.take(100 / batch).flat_map(|batch| batch.expect("prepared")["x"].to_f64()).collect::<Vec<_>>()
    };
    let whole = batches(50, 0);
    assert_eq!(whole, batches(10, 1));
    assert_ne!(whole[..50 * 64], whole[50 * 64..], "epochs differ");
    assert_ne!(whole[..50 * 64], data.pick(&(0..50).collect::<Vec<_>>(), 2)["x"].to_f64(), "and the third");
}

/// Writes a file of a folder.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("the folder can be written to");
}

/// An IDX file of bytes.
fn idx(extents: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = [0, 0, 8, extents.len() as u8].into_iter();
    header.chain(extents.iter().flat_map(|extent| extent.to_be_bytes())).chain(bytes.iter().copied()).collect()
}

/// A folder of two training images of 2x3 and one to test with.
fn mnist() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let pixels: Vec<u8> = (0..12).map(|i| i * 20).collect();
    put(folder.path(), "train-images-idx3-ubyte", &idx(&[2, 2, 3], &pixels));
    put(folder.path(), "train-labels-idx1-ubyte", &idx(&[2], &[7, 0]));
    put(folder.path(), "t10k-images-idx3-ubyte", &idx(&[1, 2, 3], &[255; 6]));
    put(folder.path(), "t10k-labels-idx1-ubyte", &idx(&[1], &[9]));
    folder
}

/// What reading a folder says, without the folder's own path.
fn refusal(folder: &Path) -> String {
    let error = Split::read(folder).expect_err("refused");
    error.to_string().replace(&folder.display().to_string(), "DIR")
}

#[test]
fn mnist_reads_as_written() {
    let Split { train, test } = Split::read(mnist().path()).expect("a sound folder");
    assert_eq!((train.shape(), train.labels(), train.classes()), ([1, 2, 3], &[7, 0][..], 10));
    assert_eq!(train.pixels(1), [120, 140, 160, 180, 200, 220]);
    assert_eq!((test.labels(), test.pixels(0)), (&[9][..], &[255; 6][..]));
}

#[test]
fn broken_mnist_is_refused_in_a_sentence() {
    let labels = "train-labels-idx1-ubyte";
    let images = "train-images-idx3-ubyte";
    let whole = idx(&[2, 2, 3], &[0; 12]);
    for (name, bytes, want) in [
        (images, &b"not at all"[..], "an IDX file of bytes: it does not begin with the bytes 0, 0, 8"),
        (images, &[][..], "an IDX file of bytes: it does not begin with the bytes 0, 0, 8"),
        (images, &[0, 0, 13, 3][..], "an IDX file of bytes: it does not begin with the bytes 0, 0, 8"),
        (images, &[0x1f, 0x8b, 8, 0][..], "an IDX file of bytes: it is compressed; unpack it with gunzip"),
        (images, &whole[..10], "an IDX file of bytes: it is cut short within its header"),
        (
            images,
            &whole[..20],
            "an IDX file of bytes: it is cut short: 4 bytes follow the header, which says [2, 2, 3]",
        ),
        (
            images,
            &idx(&[2, 2, 3], &[0; 13]),
            "an IDX file of bytes: it is too long: 13 bytes follow the header, which says [2, 2, 3]",
        ),
        (
            images,
            &idx(&[u32::MAX; 3], &[]),
            "an IDX file of bytes: it is cut short: 0 bytes follow the header, which says [4294967295, 4294967295, 4294967295]",
        ),
        (
            images,
            &idx(&[12], &[0; 12]),
            "an IDX file of bytes: its dimensions are [12]; 3 dimensions above 0 are expected",
        ),
        (
            images,
            &idx(&[0, 2, 3], &[]),
            "an IDX file of bytes: its dimensions are [0, 2, 3]; 3 dimensions above 0 are expected",
        ),
        (labels, &idx(&[3], &[0; 3]), "labels of digits: it has 3 labels for 2 images"),
        (labels, &idx(&[2], &[0, 10]), "labels of digits: the label 10 is above 9"),
    ] {
        let folder = mnist();
        put(folder.path(), name, bytes);
        assert_eq!(refusal(folder.path()), format!("DIR/{name} is not {want}"));
    }
    let folder = mnist();
    put(folder.path(), "t10k-images-idx3-ubyte", &idx(&[1, 3, 2], &[0; 6]));
    let want =
        "DIR/t10k-images-idx3-ubyte is not of the same data set: its images are [1, 3, 2], those to train on [1, 2, 3]";
    assert_eq!(refusal(folder.path()), want);
    fs::remove_file(folder.path().join(labels)).expect("it is there");
    assert!(refusal(folder.path()).starts_with("cannot read DIR/train-labels-idx1-ubyte: "));
}

/// A folder of CIFAR-10 with one record in each file.
fn cifar() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let record = |label: u8| std::iter::once(label).chain((0..3072).map(|i| (i / 12) as u8)).collect::<Vec<u8>>();
    (1..=5).for_each(|i| put(folder.path(), &format!("data_batch_{i}.bin"), &record(i)));
    put(folder.path(), "test_batch.bin", &[record(9), record(0)].concat());
    folder
}

#[test]
fn cifar_reads_as_written() {
    let Split { train, test } = Split::read(cifar().path()).expect("a sound folder");
    assert_eq!((train.shape(), train.labels(), test.labels()), ([3, 32, 32], &[1, 2, 3, 4, 5][..], &[9, 0][..]));
    assert_eq!((train.pixels(4)[0], train.pixels(4)[3071]), (0, 255));
}

#[test]
fn broken_cifar_is_refused_in_a_sentence() {
    let mut wrong = vec![0; 2 * 3073];
    wrong[3073] = 10;
    for (bytes, want) in [
        (&[][..], "its 0 bytes are no whole number of records of 3073"),
        (&[1; 3072][..], "its 3072 bytes are no whole number of records of 3073"),
        (&wrong[..], "the label 10 of record 1 is above 9"),
    ] {
        let folder = cifar();
        put(folder.path(), "data_batch_3.bin", bytes);
        let want = format!("DIR/data_batch_3.bin is not a batch of CIFAR-10 (binary): {want}");
        assert_eq!(refusal(folder.path()), want);
    }
    let folder = cifar();
    fs::remove_file(folder.path().join("test_batch.bin")).expect("it is there");
    assert!(refusal(folder.path()).starts_with("cannot read DIR/test_batch.bin: "));
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let want = "DIR is not a folder of CIFAR-10 (binary) or MNIST: it has neither data_batch_1.bin nor train-images-idx3-ubyte";
    assert_eq!(refusal(folder.path()), want);
    assert!(refusal(&folder.path().join("none")).starts_with("cannot read DIR: "));
    put(folder.path(), "file", b"");
    assert!(refusal(&folder.path().join("file")).starts_with("cannot read DIR: "));
}

#[test]
fn texts_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |name: &str| {
        let error = Text::read(folder.path().join(name), 8, 0).expect_err("refused");
        error.to_string().replace(&folder.path().display().to_string(), "DIR")
    };
    put(folder.path(), "empty", b"");
    put(folder.path(), "bytes", b"abc\xff");
    put(folder.path(), "short", b"to be");
    assert_eq!(error("empty"), "DIR/empty is not a text: it is empty");
    assert_eq!(error("bytes"), "DIR/bytes is not a text: its byte 3 is not UTF-8");
    assert_eq!(error("short"), "the text has 5 characters, and training on windows of it takes at least 25");
    assert!(error("none").starts_with("cannot read DIR/none: "));
}

#[test]
fn a_text_resumes_in_the_middle_of_an_epoch() {
    let text: String = ('a'..='z').cycle().take(500).collect();
    let open = |position, prefetch| {
        let data = Text::new(&text, 8, 3).expect("long enough");
        let config = LoaderConfig { batch: 5, prefetch, ..LoaderConfig::default() };
        Loader::new(data, config, position).expect("it has batches")
    };
    let mut whole = open(Position::default(), 2);
    let saved = whole.by_ref().take(17).last().map(|_| whole.position()).expect("there are batches");
    assert!(saved.epoch > 0 && saved.sample > 0, "{saved}");
    let rest: Vec<Batch> = whole.take(20).collect::<Result<_, _>>().expect("prepared");
    for prefetch in [0, 1] {
        let resumed: Result<Vec<Batch>, Error> = open(saved, prefetch).take(20).collect();
        assert_eq!(resumed.expect("prepared"), rest);
    }
}
