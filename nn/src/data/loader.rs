//! Batches of a data set, epoch after epoch, shuffled by a seed, and prepared ahead on a thread.

use super::Batch;
use crate::{
    error::{Error, Result},
    random::generator,
};
use rand::seq::SliceRandom;
use std::{
    fmt, panic,
    str::FromStr,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread::{self, JoinHandle},
};

/// A data set: samples numbered from 0.
pub trait Dataset: Send + Sync + 'static {
    /// The number of samples.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A batch of some samples, in their order. Its random variation depends on the epoch and the samples alone.
    fn batch(&self, samples: &[usize], epoch: u64) -> Batch;
}

/// Settings of a [`Loader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoaderConfig {
    /// Samples per batch, at least 1.
    pub batch: usize,
    /// True if each epoch has an order of its own, decided by the seed.
    pub shuffle: bool,
    /// True if the samples left at the end of an epoch make a smaller batch; otherwise the epoch leaves them out.
    pub keep_last: bool,
    /// The seed of the epochs' orders.
    pub seed: u64,
    /// The number of batches that a thread prepares ahead; 0 prepares each when it is asked for. The batches are the
    /// same.
    pub prefetch: usize,
}

impl Default for LoaderConfig {
    /// Shuffled batches of 32, the last one kept, two prepared ahead.
    fn default() -> Self {
        Self { batch: 32, shuffle: true, keep_last: true, seed: 0, prefetch: 2 }
    }
}

/// The position of a loader, for a checkpoint's metadata, as text such as `3:128`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position {
    /// The number of whole epochs before the position.
    pub epoch: u64,
    /// The number of samples of this epoch before the position.
    pub sample: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.sample)
    }
}

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once(':').and_then(|(epoch, sample)| {
            let (epoch, sample) = (epoch.parse().ok()?, sample.parse().ok()?);
            Some(Self { epoch, sample })
        });
        parsed.ok_or_else(|| Error::Position { text: text.into(), why: "needs an epoch and a sample".into() })
    }
}

/// The samples of each batch: a function of the settings and the position.
struct Order {
    samples: usize,
    config: LoaderConfig,
    /// The current epoch, and the order of its samples.
    epoch: Option<(u64, Vec<usize>)>,
}

impl Order {
    /// The samples of the batch at a position, and the position after it.
    fn batch(&mut self, at: Position) -> (Vec<usize>, Position) {
        let first = at.sample as usize;
        let end = (first + self.config.batch).min(self.samples);
        let chosen = self.of(at.epoch)[first..end].to_vec();
        let next = Position { epoch: at.epoch, sample: end as u64 };
        (chosen, self.settled(next))
    }

    /// The position itself, or the start of the next epoch if no batch is left in this one.
    fn settled(&self, at: Position) -> Position {
        let left = self.samples - at.sample as usize;
        let least = if self.config.keep_last { 1 } else { self.config.batch };
        if left >= least { at } else { Position { epoch: at.epoch + 1, sample: 0 } }
    }

    /// The order of an epoch.
    fn of(&mut self, epoch: u64) -> &[usize] {
        let known = self.epoch.take().filter(|(of, _)| *of == epoch);
        let (_, order) = self.epoch.insert(known.unwrap_or_else(|| {
            let mut order: Vec<usize> = (0..self.samples).collect();
            if self.config.shuffle {
                order.shuffle(&mut generator(self.config.seed, "loader", epoch));
            }
            (epoch, order)
        }));
        order
    }
}

/// Prepares batches one after another.
struct Source {
    data: Arc<dyn Dataset>,
    order: Order,
    next: Position,
}

impl Source {
    /// The next batch, and the position after it.
    fn step(&mut self) -> (Batch, Position) {
        let (samples, next) = self.order.batch(self.next);
        let batch = self.data.batch(&samples, self.next.epoch);
        self.next = next;
        (batch, next)
    }
}

/// A thread that prepares batches ahead.
struct Ahead {
    receive: Receiver<(Batch, Position)>,
    thread: JoinHandle<()>,
}

enum Supply {
    /// Prepares each batch when it is asked for.
    Here(Source),
    /// A thread prepares batches ahead; `None` once the thread has ended.
    Thread(Option<Ahead>),
}

/// An endless iterator over batches.
///
/// The batches are a function of the data, the settings and the position. So stopping loses no batch that was prepared
/// ahead: a loader that starts from a saved [`Position`] goes on with the same batches.
///
/// ```
/// use wgrad_nn::data::{Digits, ImageData, Loader, LoaderConfig, Position};
/// # fn main() -> Result<(), wgrad_nn::Error> {
/// let split = Digits::embedded(0).images();
/// let moments = split.train.moments();
/// let data = ImageData::plain(split.train, moments);
/// let mut loader = Loader::new(data.clone(), LoaderConfig::default(), Position::default())?;
/// let first = loader.next();
/// let saved = loader.position().to_string();
/// let mut resumed = Loader::new(data, LoaderConfig::default(), saved.parse()?)?;
/// assert_eq!(loader.next(), resumed.next());
/// # Ok(())
/// # }
/// ```
pub struct Loader {
    supply: Supply,
    position: Position,
    samples: usize,
}

impl Loader {
    /// A loader that starts at a position: the default one, or a saved one.
    ///
    /// # Errors
    /// [`Error::TooFew`] if the data has too few samples for a batch, [`Error::Position`] if the position is beyond the
    /// end of the data, [`Error::Thread`] if the thread cannot be started.
    ///
    /// # Panics
    /// If `config.batch` is 0.
    #[track_caller]
    pub fn new(data: impl Dataset, config: LoaderConfig, position: Position) -> Result<Self> {
        assert!(config.batch > 0, "loader: batches of 0 samples");
        let (samples, need) = (data.len(), if config.keep_last { 1 } else { config.batch });
        if samples < need {
            return Err(Error::TooFew { have: samples, need });
        }
        if position.sample > samples as u64 {
            let why = format!("the data has {samples} samples");
            return Err(Error::Position { text: position.to_string(), why });
        }
        let order = Order { samples, config, epoch: None };
        let position = order.settled(position);
        let mut source = Source { data: Arc::new(data), order, next: position };
        let supply = if config.prefetch == 0 {
            Supply::Here(source)
        } else {
            // The thread itself holds one prepared batch, so the channel needs room for one less.
            let (send, receive) = sync_channel(config.prefetch - 1);
            let work = move || while send.send(source.step()).is_ok() {};
            let thread = thread::Builder::new().name("wgrad-loader".into()).spawn(work);
            let thread = thread.map_err(|source| Error::Thread { source })?;
            Supply::Thread(Some(Ahead { receive, thread }))
        };
        Ok(Self { supply, position, samples })
    }

    /// The place where the next batch begins.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The number of samples in an epoch.
    pub fn samples(&self) -> usize {
        self.samples
    }
}

impl Iterator for Loader {
    type Item = Batch;

    /// The next batch; there always is one.
    ///
    /// # Panics
    /// If the data set panics.
    fn next(&mut self) -> Option<Batch> {
        let (batch, position) = match &mut self.supply {
            Supply::Here(source) => source.step(),
            Supply::Thread(running) => {
                let received = running.as_ref()?.receive.recv();
                received.unwrap_or_else(|_| {
                    // The thread ends by itself only when the data set panics.
                    let Ahead { thread, .. } = running.take().expect("it was there to receive from");
                    panic::resume_unwind(thread.join().expect_err("its channel is closed"))
                })
            }
        };
        self.position = position;
        Some(batch)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Supply::Thread(running) = &mut self.supply
            && let Some(Ahead { receive, thread }) = running.take()
        {
            // Without a receiver, the thread's next send fails, which ends the thread.
            drop(receive);
            // Ignore a panic of the thread: nobody will read its batch.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("position", &self.position).finish_non_exhaustive()
    }
}
