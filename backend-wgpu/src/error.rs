//! Errors on a GPU, in sentences that say what to do about them.

use wgrad::DType;

/// The packages that bring an adapter.
const INSTALL: &str = if cfg!(target_os = "windows") {
    "the current driver of the GPU's vendor, which brings DirectX 12 and Vulkan"
} else if cfg!(any(target_os = "macos", target_os = "ios")) {
    "a current macOS on a machine with Metal"
} else {
    "a Vulkan driver (on Debian and Ubuntu mesa-vulkan-drivers, or that of the card's vendor)"
};

/// An error of the wgpu backend.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no adapter at all.
    #[error("no GPU adapter was found: install {INSTALL}, or use the CPU (--device cpu)")]
    NoAdapter,
    /// There are fewer adapters than the number asked for.
    #[error("there is no GPU adapter {index}: there {}, as `wgrad doctor` lists", numbers(*count))]
    NoSuchAdapter {
        /// The number asked for.
        index: usize,
        /// Their number.
        count: usize,
    },
    /// The driver gives no device.
    #[error("the adapter {adapter} cannot be opened: {why}")]
    Refused {
        /// The adapter's name.
        adapter: String,
        /// The driver's message.
        why: String,
    },
    /// An element type that GPUs do not have.
    #[error("{0} does not exist on the GPU: run this on the CPU (--device cpu), or in f32")]
    Unsupported(DType),
    /// A value that no binding of the adapter can hold.
    #[error(
        "a value of {bytes} bytes is more than the GPU can bind at once ({limit} bytes): make the batch or the model smaller, \
         or use the CPU (--device cpu)"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest.
        limit: u64,
    },
    /// The byte budget does not suffice. Nothing has been allocated.
    #[error("{wanted} bytes more are needed on the device, but {used} of its budget of {budget} bytes are in use")]
    OverBudget {
        /// The number that are asked for.
        wanted: u64,
        /// The number that are in use.
        used: u64,
        /// Their number.
        budget: u64,
    },
    /// A kernel that reads and writes more buffers than the adapter can bind at once.
    #[error("a kernel needs {needed} buffers, and the adapter binds {limit} at once")]
    TooManyBuffers {
        /// The number that it needs.
        needed: usize,
        /// The largest number.
        limit: usize,
    },
    /// A kernel would loop for longer than drivers allow.
    #[error("{what} would loop {iterations} times in one invocation, and drivers may stop at {limit}")]
    TooLong {
        /// The kernel.
        what: &'static str,
        /// The count.
        iterations: u64,
        /// The largest count.
        limit: u64,
    },
    /// The device is gone: it was removed or reset, or its driver has crashed.
    #[error("the GPU is lost ({0}): start again, from the last checkpoint if there is one")]
    Lost(String),
    /// The driver has run out of memory.
    #[error("the GPU has no memory left: {0}")]
    OutOfMemory(String),
    /// wgpu refuses what wgrad asks for: a fault of wgrad's.
    #[error("wgpu refuses a command, which is a bug of wgrad: {0}")]
    Validation(String),
}

/// The numbers that adapters have.
fn numbers(count: usize) -> String {
    if count == 1 { "is one, numbered 0".into() } else { format!("are {count}, numbered 0 to {}", count - 1) }
}

impl From<Error> for wgrad::Error {
    fn from(error: Error) -> Self {
        wgrad::Error::Backend(Box::new(error))
    }
}

impl From<wgpu::Error> for Error {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { source } => Error::OutOfMemory(source.to_string()),
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                Error::Validation(description)
            }
        }
    }
}

/// The result of the backend's calls.
pub type Result<T> = std::result::Result<T, Error>;
