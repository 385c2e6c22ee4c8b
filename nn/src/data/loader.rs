//! Batches of a data set, epoch after epoch, shuffled by a seed, and prepared ahead on a thread.

use super::{Batch, DataError};
use crate::{
    error::{Error, Result},
    random::generator,
};
use rand::seq::SliceRandom;
use std::{
    fmt, panic, result,
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
    ///
    /// # Errors
    /// Any error of the data set, such as one of a file. A [`Loader`] passes it on as [`Error::Batch`], and asks for the
    /// same batch again if it is used further.
    fn batch(&self, samples: &[usize], epoch: u64) -> result::Result<Batch, DataError>;
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
#[derive(Clone)]
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
#[derive(Clone)]
struct Source {
    data: Arc<dyn Dataset>,
    order: Order,
    next: Position,
}

impl Source {
    /// The next batch. It remains the next one if it cannot be prepared.
    fn step(&mut self) -> Result<Batch> {
        let Position { epoch, sample } = self.next;
        let (samples, next) = self.order.batch(self.next);
        match self.data.batch(&samples, epoch) {
            Ok(batch) => {
                self.next = next;
                Ok(batch)
            }
            Err(source) => Err(Error::Batch { epoch, sample, samples, source }),
        }
    }
}

/// A thread that prepares batches ahead. It ends after an error.
struct Ahead {
    /// Batches, each with the position after it.
    receive: Receiver<Result<(Batch, Position)>>,
    thread: JoinHandle<()>,
}

impl Ahead {
    fn start(mut source: Source) -> Result<Self> {
        // The thread itself holds one prepared batch, so the channel needs room for one less.
        let (send, receive) = sync_channel(source.order.config.prefetch - 1);
        let work = move || {
            loop {
                let prepared = source.step().map(|batch| (batch, source.next));
                let is_last = prepared.is_err();
                if send.send(prepared).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("wgrad-loader".into()).spawn(work);
        Ok(Self { receive, thread: thread.map_err(|source| Error::Thread { source })? })
    }
}

/// An endless iterator over batches.
///
/// The batches are a function of the data, the settings and the position. So stopping loses no batch that was prepared
/// ahead: a loader that starts from a saved [`Position`] goes on with the same batches.
///
/// A batch that the data set cannot prepare is an [`Error::Batch`] in its turn: all batches before it come first,
/// prepared ahead or not. The loader's position is then that of the batch, and the next call tries it again. Nothing is
/// skipped, so a loop that ignores errors may have no end.
///
/// ```no_run
/// # use wgrad::Session;
/// # use wgrad_nn::{Trainer, data::Loader};
/// # fn train(trainer: &mut Trainer, session: &mut Session, loader: &mut Loader) -> Result<(), Box<dyn std::error::Error>> {
/// for batch in loader.take(1000) {
///     trainer.step(session, &batch?.inputs())?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// ```
/// use wgrad_nn::data::{Digits, ImageData, Loader, LoaderConfig, Position};
/// # fn main() -> Result<(), wgrad_nn::Error> {
/// let split = Digits::embedded(0).images();
/// let moments = split.train.moments();
/// let data = ImageData::plain(split.train, moments);
/// let mut loader = Loader::new(data.clone(), LoaderConfig::default(), Position::default())?;
/// let first = loader.next().transpose()?;
/// let saved = loader.position().to_string();
/// let mut resumed = Loader::new(data, LoaderConfig::default(), saved.parse()?)?;
/// assert_eq!(loader.next().transpose()?, resumed.next().transpose()?);
/// # Ok(())
/// # }
/// ```
pub struct Loader {
    /// The source at the place of the next batch.
    source: Source,
    /// The thread that prepares batches; `None` without one, and after an error.
    ahead: Option<Ahead>,
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
        let next = order.settled(position);
        let source = Source { data: Arc::new(data), order, next };
        let ahead = if config.prefetch == 0 { None } else { Some(Ahead::start(source.clone())?) };
        Ok(Self { source, ahead })
    }

    /// The place where the next batch begins.
    pub fn position(&self) -> Position {
        self.source.next
    }

    /// The number of samples in an epoch.
    pub fn samples(&self) -> usize {
        self.source.order.samples
    }

    fn advance(&mut self) -> Result<Batch> {
        if self.source.order.config.prefetch == 0 {
            return self.source.step();
        }
        let ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => Ahead::start(self.source.clone())?,
        };
        let Ok(prepared) = ahead.receive.recv() else {
            // Without an error, the thread ends by itself only when the data set panics.
            panic::resume_unwind(ahead.thread.join().expect_err("its channel is closed"))
        };
        let (batch, next) = prepared?;
        self.source.next = next;
        self.ahead = Some(ahead);
        Ok(batch)
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    /// The next batch; there always is one.
    ///
    /// It is [`Error::Batch`] if the data set cannot prepare it, and [`Error::Thread`] if the thread cannot be started
    /// again after an error. The position is then that of the batch, and the next call tries again.
    ///
    /// # Panics
    /// If the data set panics, with its panic. The next call tries the same batch again.
    fn next(&mut self) -> Option<Result<Batch>> {
        Some(self.advance())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Some(Ahead { receive, thread }) = self.ahead.take() {
            // Without a receiver, the thread's next send fails, which ends the thread.
            drop(receive);
            // Ignore a panic of the thread: nobody will read its batch.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("position", &self.position()).finish_non_exhaustive()
    }
}
