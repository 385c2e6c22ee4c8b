//! Text as symbols, one per character, and windows of symbols to predict.

use super::{Batch, DataError, Dataset};
use crate::{
    error::{Error, Result},
    random::generator,
};
use rand::RngExt;
use std::{collections::BTreeSet, fs, path::Path, sync::Arc, thread};
use wgrad::{Array, random::fnv1a};

/// The share of a text, at its end, that is kept for validation.
const VALIDATION: f64 = 0.1;

/// The mark that some programs write before a text, to tell its encoding.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// One in this number of characters has its byte offset remembered.
const STRIDE: usize = 256;

/// The characters that a model knows. A character's number is its place in their sorted order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vocabulary {
    characters: Vec<char>,
}

impl Vocabulary {
    /// All characters of a text.
    pub fn of(text: &str) -> Self {
        let mut known = Known::default();
        text.chars().for_each(|character| known.add(character));
        known.vocabulary()
    }

    /// The number of characters.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// True if there are no characters.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// The characters in their order, as a checkpoint's metadata keeps them.
    pub fn characters(&self) -> String {
        self.characters.iter().collect()
    }

    /// The numbers of a text's characters.
    ///
    /// # Errors
    /// [`Error::Character`] for the first character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let symbol = |(at, character)| self.symbol(character).ok_or(Error::Character { character, at });
        text.chars().enumerate().map(symbol).collect()
    }

    /// The number of a character, if it is known.
    fn symbol(&self, character: char) -> Option<u32> {
        self.characters.binary_search(&character).ok().map(|symbol| symbol as u32)
    }

    /// The text that some numbers stand for.
    ///
    /// # Panics
    /// If a number is not below [`Vocabulary::len`].
    #[track_caller]
    pub fn decode(&self, symbols: &[u32]) -> String {
        let character = |symbol: &u32| self.characters.get(*symbol as usize).copied();
        let text: Option<String> = symbols.iter().map(character).collect();
        text.unwrap_or_else(|| panic!("vocabulary of {} characters: {symbols:?} has a larger number", self.len()))
    }

    /// Checks that a checkpoint was made with this vocabulary. `saved` is the text that [`Vocabulary::characters`]
    /// gave.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] if it was another vocabulary.
    pub fn check(&self, saved: &str) -> Result<()> {
        if self.characters() == saved {
            return Ok(());
        }
        let (ours, theirs) = (BTreeSet::from_iter(self.characters.iter().copied()), BTreeSet::from_iter(saved.chars()));
        let only = |a: &BTreeSet<char>, b: &BTreeSet<char>| a.difference(b).take(8).copied().collect::<String>();
        Err(Error::Vocabulary {
            text: self.len(),
            saved: saved.chars().count(),
            only_text: only(&ours, &theirs),
            only_saved: only(&theirs, &ours),
        })
    }
}

/// A flag for each character: true if it has occurred.
struct Known(Vec<bool>);

impl Default for Known {
    fn default() -> Self {
        Self(vec![false; char::MAX as usize + 1])
    }
}

impl Known {
    fn add(&mut self, character: char) {
        self.0[character as usize] = true;
    }

    fn vocabulary(&self) -> Vocabulary {
        let of = |(code, known): (u32, &bool)| known.then(|| char::from_u32(code)).flatten();
        Vocabulary { characters: (0..).zip(&self.0).filter_map(of).collect() }
    }
}

/// A text with access to its characters by number. It stays in UTF-8: symbols would take up to four times the memory.
#[derive(Debug)]
struct Characters {
    text: String,
    /// The byte offsets of characters 0, [`STRIDE`], 2 [`STRIDE`]..
    places: Vec<usize>,
    len: usize,
}

impl Characters {
    /// The text, with its vocabulary and its hash.
    fn of(text: String) -> (Self, Vocabulary, u64) {
        let (mut known, mut places, mut len) = (Known::default(), Vec::with_capacity(text.len() / STRIDE + 1), 0);
        let hash = thread::scope(|scope| {
            // The hash takes half of the time, byte after byte, so it has a thread of its own.
            let hash = scope.spawn(|| fnv1a(&text));
            for (place, character) in text.char_indices() {
                if len % STRIDE == 0 {
                    places.push(place);
                }
                known.add(character);
                len += 1;
            }
            hash.join().expect("a hash does not panic")
        });
        (Self { text, places, len }, known.vocabulary(), hash)
    }

    /// The characters from number `at` on.
    fn from(&self, at: usize) -> impl Iterator<Item = char> {
        self.text[self.places[at / STRIDE]..].chars().skip(at % STRIDE)
    }
}

/// A text to train on, with its end kept for validation.
///
/// As a data set, its samples are adjacent windows of `context` symbols; the targets are the symbols that follow each.
/// Each epoch draws the start of the first window from the seed, so that over the epochs every symbol occurs at every
/// position of a window.
///
/// It takes as much memory as the text in UTF-8, and about 3 % more; clones share it.
#[derive(Clone, Debug)]
pub struct Text {
    vocabulary: Vocabulary,
    characters: Arc<Characters>,
    /// The number of characters, at the beginning, to train on.
    train: usize,
    context: usize,
    seed: u64,
    fingerprint: String,
}

impl Text {
    /// A data set from a text, with a vocabulary of its own. It leaves out a byte-order mark at the beginning.
    ///
    /// # Errors
    /// [`Error::OneCharacter`] if it has no two different characters; [`Error::TooShort`] if it has too few for windows
    /// of this length.
    ///
    /// # Panics
    /// If the context is 0.
    #[track_caller]
    pub fn new(text: impl Into<String>, context: usize, seed: u64) -> Result<Self> {
        assert!(context > 0, "text: windows of 0 symbols");
        let mut text = text.into();
        if text.starts_with(BYTE_ORDER_MARK) {
            text.remove(0);
        }
        let (characters, vocabulary, hash) = Characters::of(text);
        if let [character] = vocabulary.characters[..] {
            return Err(Error::OneCharacter { character });
        }
        let (len, need) = (characters.len, 3 * context + 1);
        if len < need {
            return Err(Error::TooShort { have: len, need });
        }
        let kept = ((len as f64 * VALIDATION) as usize).max(context + 1);
        let fingerprint = format!("{hash:016x} ({len} characters)");
        Ok(Self { vocabulary, characters: Arc::new(characters), train: len - kept, context, seed, fingerprint })
    }

    /// Reads a text from a file. Line ends stay as they are.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Format`] if it is empty or not UTF-8, and as [`Text::new`].
    ///
    /// # Panics
    /// As [`Text::new`].
    #[track_caller]
    pub fn read(path: impl AsRef<Path>, context: usize, seed: u64) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| Error::Io { action: "read", path: path.into(), source })?;
        let fail = |why: String| Error::Format { path: path.into(), format: "a text", why };
        let text = String::from_utf8(bytes)
            .map_err(|error| fail(format!("its byte {} is not UTF-8", error.utf8_error().valid_up_to())))?;
        if text.trim_start_matches(BYTE_ORDER_MARK).is_empty() {
            return Err(fail("it is empty".into()));
        }
        Self::new(text, context, seed)
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The fingerprint of this text: a hash of it, and its length.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The number of symbols in a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Some of the windows to train on: symbols, u32 `[batch, context]`, as `x`, and the symbol that follows each, of the
    /// same shape, as `y`. The epoch decides a shift of all windows.
    ///
    /// # Panics
    /// If a sample is beyond the end.
    pub fn pick(&self, samples: &[usize], epoch: u64) -> Batch {
        let shift = generator(self.seed, "text", epoch).random_range(0..self.context);
        self.windows(samples.iter().map(|sample| sample * self.context + shift))
    }

    /// The number of windows kept for validation.
    pub fn validation_windows(&self) -> usize {
        (self.characters.len - self.train - 1) / self.context
    }

    /// Some of the windows kept for validation, which lie side by side: `count` from `first` on, fewer at the end.
    ///
    /// # Panics
    /// If `first` is beyond the end.
    #[track_caller]
    pub fn validation(&self, first: usize, count: usize) -> Batch {
        let windows = self.validation_windows();
        assert!(first <= windows, "validation: window {first} of {windows}");
        let chosen = first..windows.min(first + count);
        self.windows(chosen.map(|window| self.train + window * self.context))
    }

    /// The windows that start at some places, and as targets the same windows one symbol later.
    fn windows(&self, starts: impl Iterator<Item = usize>) -> Batch {
        let (mut x, mut y, context) = (vec![], vec![], self.context);
        let symbol = |character| self.vocabulary.symbol(character).expect("the vocabulary has all of the text");
        for start in starts {
            let symbols: Vec<u32> = self.characters.from(start).take(context + 1).map(symbol).collect();
            x.extend_from_slice(&symbols[..context]);
            y.extend_from_slice(&symbols[1..]);
        }
        let shape = [x.len() / context, context];
        Batch::new(Array::new(shape, x), Array::new(shape, y))
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        // One window less than fits, so that every shift leaves the last window and its targets within the text.
        self.train / self.context - 1
    }

    /// As [`Text::pick`].
    fn batch(&self, samples: &[usize], epoch: u64) -> std::result::Result<Batch, DataError> {
        Ok(self.pick(samples, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_numbered_in_their_order() {
        let vocabulary = Vocabulary::of("hello, wörld");
        assert_eq!(vocabulary.characters(), " ,dehlorwö");
        let symbols = vocabulary.encode("wö l").expect("known");
        assert_eq!((symbols.as_slice(), vocabulary.decode(&symbols).as_str()), (&[8, 9, 0, 5][..], "wö l"));
        let error = vocabulary.encode("öx").expect_err("unknown").to_string();
        assert_eq!(error, "the character 'x', number 2 of the text, is not in the vocabulary");
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let vocabulary = Vocabulary::of("abc");
        vocabulary.check("abc").expect("the same");
        let error = vocabulary.check("abde").expect_err("another").to_string();
        assert_eq!(
            error,
            "the text has another vocabulary (3 characters) than the model was saved with (4): \"c\" only in the text, \
             \"de\" only in the model; resume with the text that it was trained on"
        );
    }

    #[test]
    fn windows_lie_side_by_side_and_targets_follow() {
        let text: String = ('a'..='z').cycle().take(100).collect();
        let data = Text::new(&text, 8, 1).expect("long enough");
        assert_eq!((data.train, data.characters.len, Dataset::len(&data)), (90, 100, 10));
        let mut shifts = BTreeSet::new();
        for epoch in 0..60 {
            let [x, y] = data.pick(&(0..10).collect::<Vec<_>>(), epoch).take(["x", "y"]);
            assert_eq!(**x.shape(), [10, 8]);
            let (x, y) = (x.to_f64(), y.to_f64());
            assert!(x.windows(2).all(|pair| (pair[0] + 1.0) % 26.0 == pair[1]), "side by side");
            assert!(x.iter().zip(&y).all(|(x, y)| (x + 1.0) % 26.0 == *y));
            shifts.insert(x[0] as usize);
        }
        assert!(shifts.into_iter().eq(0..8), "each shift occurs, and the last window has its target");
    }

    #[test]
    fn the_end_is_for_validation() {
        let text: String = ('a'..='z').cycle().take(300).collect();
        let data = Text::new(&text, 7, 1).expect("long enough");
        assert_eq!(data.validation_windows(), 4);
        let whole = data.validation(0, 9);
        assert_eq!(**whole["x"].shape(), [4, 7]);
        assert_eq!(whole["x"].item(0), (270 % 26) as f64);
        assert_eq!(data.validation(3, 9)["x"].to_f64(), whole["x"].to_f64()[21..]);
        assert_eq!(data.validation(4, 1)["x"].shape().numel(), 0);
    }

    #[test]
    fn a_short_text_is_refused() {
        let error = Text::new("abc", 8, 1).expect_err("too short").to_string();
        assert_eq!(error, "the text has 3 characters, and training on windows of it takes at least 25");
        Text::new("ab".repeat(13), 8, 1).expect("26 are enough");
        assert!(Text::new("", 1, 1).is_err());
    }

    #[test]
    fn a_text_of_one_character_is_refused() {
        for text in ["a", "\u{feff}a", &"a".repeat(1000)] {
            let error = Text::new(text, 8, 1).expect_err("nothing to learn").to_string();
            assert_eq!(error, "every character of the text is 'a'; training needs at least two different characters");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_character() {
        let plain = "ab\r\nc".repeat(20);
        let [marked, plain] = [format!("\u{feff}{plain}"), plain].map(|text| Text::new(text, 8, 1).expect("a text"));
        assert_eq!(marked.vocabulary().characters(), "\n\rabc");
        assert_eq!((marked.vocabulary(), marked.fingerprint()), (plain.vocabulary(), plain.fingerprint()));
        assert_eq!(marked.pick(&[0, 3], 2), plain.pick(&[0, 3], 2));
        // In the middle of a text, the mark is a character like any other.
        assert_eq!(Text::new("a\u{feff}".repeat(20), 8, 1).expect("a text").vocabulary().len(), 2);
    }

    /// The text has characters of all widths in UTF-8; windows begin on both sides of the remembered offsets.
    #[test]
    fn windows_of_wide_characters_are_where_they_would_be_among_symbols() {
        let text: String = (0..3000u32).map(|i| ['a', 'ß', '語', '𝄞'][(i * i % 11 % 4) as usize]).collect();
        let data = Text::new(text.as_str(), 100, 1).expect("long enough");
        let symbols = data.vocabulary().encode(&text).expect("its own");
        assert_eq!(data.validation(0, 2)["x"].data(), &symbols[2700..2900].to_vec().into());
        assert_eq!(data.validation(0, 2)["y"].data(), &symbols[2701..2901].to_vec().into());
        for epoch in 0..5 {
            let [x, y] = data.pick(&(0..26).collect::<Vec<_>>(), epoch).take(["x", "y"]);
            let start =
                (0..100).find(|at| symbols[*at..][..2600] == x.to_f64().iter().map(|v| *v as u32).collect::<Vec<_>>());
            let start = start.expect("a stretch of the text");
            assert_eq!(y.data(), &symbols[start + 1..][..2600].to_vec().into());
        }
    }
}
