//! Digits and their descriptions, such as `seven, odd`.

use wgrad::Array;
use wgrad_nn::data::{Augment, Batch, DataError, Dataset, Digits, ImageData, Split, Vocabulary};

/// The descriptions, by class.
const DESCRIPTIONS: [&str; 10] = [
    "zero, even",
    "one, odd",
    "two, even",
    "three, odd",
    "four, even",
    "five, odd",
    "six, even",
    "seven, odd",
    "eight, even",
    "nine, odd",
];

/// The symbol that ends a description and pads it.
const END: char = '.';

/// The symbols of each description, all of the same length.
#[derive(Clone, Debug)]
pub(crate) struct Descriptions {
    pub vocabulary: Vocabulary,
    symbols: Vec<Vec<u32>>,
}

impl Descriptions {
    pub fn new() -> Self {
        let longest = DESCRIPTIONS.iter().map(|text| text.len()).max().unwrap_or_default();
        // Each description ends with at least one end symbol.
        let texts = DESCRIPTIONS.map(|text| format!("{text}{}", END.to_string().repeat(longest + 1 - text.len())));
        let vocabulary = Vocabulary::of(&texts.concat());
        let symbols = texts.iter().map(|text| vocabulary.encode(text).expect("of its own characters")).collect();
        Self { vocabulary, symbols }
    }

    /// The number of symbols per description.
    pub fn length(&self) -> usize {
        self.symbols[0].len()
    }

    /// The text of symbols up to the first end symbol.
    pub fn decode(&self, symbols: &[u32]) -> String {
        let text = self.vocabulary.decode(symbols);
        text.split(END).next().unwrap_or_default().to_string()
    }
}

/// Images with their descriptions.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub images: ImageData,
    pub descriptions: Descriptions,
}

impl Described {
    /// The training set and the held-out set.
    pub fn digits(seed: u64) -> [Self; 2] {
        let Split { train, test } = Digits::embedded(seed).images();
        let moments = train.moments();
        let mut train = ImageData::plain(train, moments.clone());
        train.augment = Some((Augment { padding: 1, flip: false }, seed));
        [train, ImageData::plain(test, moments)].map(|images| Self { images, descriptions: Descriptions::new() })
    }
}

impl Described {
    /// Images, f32 `[batch, 1, 8, 8]`; and for each image its class, then the symbols of its description, u32 `[batch,
    /// 1 + length]`.
    pub fn pick(&self, samples: &[usize], epoch: u64) -> Batch {
        let batch = self.images.pick(samples, epoch);
        let classes = batch["y"].to_f64().into_iter().map(|class| class as u32);
        let rows = classes.flat_map(|class| [&[class], &self.descriptions.symbols[class as usize][..]].concat());
        let width = 1 + self.descriptions.length();
        let described = Array::new([samples.len(), width], rows.collect::<Vec<u32>>());
        batch.with("y", described)
    }
}

impl Dataset for Described {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn batch(&self, samples: &[usize], epoch: u64) -> Result<Batch, DataError> {
        Ok(self.pick(samples, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_those_of_the_classes() {
        let [data, _] = Described::digits(0);
        let (plain, batch) = (data.images.pick(&[3, 8], 0), data.pick(&[3, 8], 0));
        let rows = batch["y"].to_f64();
        for (i, row) in rows.chunks(1 + data.descriptions.length()).enumerate() {
            let class = plain["y"].item(i);
            assert_eq!(row[0], class);
            let symbols: Vec<u32> = row[1..].iter().map(|symbol| *symbol as u32).collect();
            assert_eq!(data.descriptions.decode(&symbols), DESCRIPTIONS[class as usize]);
            assert_eq!(data.descriptions.vocabulary.decode(&symbols).chars().last(), Some(END));
        }
        assert_eq!(batch["x"], plain["x"]);
    }
}
