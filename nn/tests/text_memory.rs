//! What a large text takes: alone in its process, whose memory is measured.
#![cfg(target_os = "linux")]

use std::{fs, io::Write};
use wgrad_nn::data::{Dataset, Loader, LoaderConfig, Position, Text};

/// The most memory that this process has had, in bytes.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the high-water mark");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("kilobytes") * 1024
}

/// Up to batches: the loader has data and order.
#[test]
fn a_text_of_many_characters_takes_no_more_than_half_as_much_memory_again() {
    const BYTES: u64 = 96 << 20;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    // More characters than a byte could number, most of them of one byte.
    let wide: String = (0..300).map(|i| char::from_u32(0x4e00 + i).expect("a character")).collect();
    let line = "abcdefgh\n".repeat(2000) + &wide;
    for _ in 0..BYTES / line.len() as u64 {
        file.write_all(line.as_bytes()).expect("there is room");
    }
    let before = most_memory();
    let text = Text::read(file.path(), 64, 1).expect("a text");
    assert_eq!(text.vocabulary().len(), 300 + 9);
    let config = LoaderConfig { batch: 8, ..LoaderConfig::default() };
    let again = text.clone();
    let mut loader = Loader::new(text, config, Position::default()).expect("it has batches");
    assert!(again.len() > 1_000_000 && loader.next().is_some_and(|batch| batch.is_ok()));
    let took = most_memory() - before;
    assert!(took > BYTES * 9 / 10 && took < BYTES * 3 / 2, "{took} bytes for a text of {BYTES}");
}
