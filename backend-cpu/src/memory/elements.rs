//! The places of operands, and the one place where threads share memory that is being written.

use super::half::widen;
use wgrad::{DType, Data, f16, f16_from_f64};

/// The place where an operand's elements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Slot(usize),
    Buffer(usize),
    Input(usize),
    /// One of the stretches of memory that the kernel writes.
    Target(usize),
    /// The product of the rows at hand, in scratch.
    Product,
}

/// Element types, found inside [`Data`].
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;
    fn slice(data: &Data) -> &[Self];
    fn slice_mut(data: &mut Data) -> &mut [Self];
    /// A constant of this type: rounded to nearest for floats, truncated for integers, `!= 0` for bool.
    fn from_f64(value: f64) -> Self;
    fn into_f64(self) -> f64;
}

macro_rules! elements {
    ($($t:ty => $v:ident, $x:ident, $from:expr, $into:expr;)*) => { $(
        impl Element for $t {
            const DTYPE: DType = DType::$v;
            fn slice(data: &Data) -> &[$t] {
                match data {
                    Data::$v(v) => v,
                    other => panic!("a kernel of {} was given {}", stringify!($t), other.dtype()),
                }
            }
            fn slice_mut(data: &mut Data) -> &mut [$t] {
                match data {
                    Data::$v(v) => v,
                    other => panic!("a kernel of {} was given {}", stringify!($t), other.dtype()),
                }
            }
            #[inline(always)]
            fn from_f64($x: f64) -> $t {
                $from
            }
            #[inline(always)]
            fn into_f64(self) -> f64 {
                let $x = self;
                $into
            }
        }
    )* };
}
elements! {
    f64 => F64, x, x, x;
    f32 => F32, x, x as f32, x as f64;
    f16 => F16, x, f16_from_f64(x), widen(x) as f64;
    u32 => U32, x, x as u32, x as f64;
    i32 => I32, x, x as i32, x as f64;
    bool => Bool, x, x != 0.0, x as u8 as f64;
}

/// Runs `$body` with `$t` naming the element type that `$dtype` stands for.
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            wgrad::DType::F64 => {
                type $t = f64;
                $body
            }
            wgrad::DType::F32 => {
                type $t = f32;
                $body
            }
            wgrad::DType::F16 => {
                type $t = wgrad::f16;
                $body
            }
            wgrad::DType::U32 => {
                type $t = u32;
                $body
            }
            wgrad::DType::I32 => {
                type $t = i32;
                $body
            }
            wgrad::DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}
pub(crate) use with_type;

/// Memory that a kernel writes, taken apart by the threads that run it.
///
/// It stands for a mutable borrow of a [`Data`] that lasts as long as the kernel runs.
#[derive(Debug)]
pub(crate) struct Target {
    dtype: DType,
    start: *mut u8,
    len: usize,
}

// SAFETY: a target is a mutable borrow of plain elements. Both methods that hand out its elements are unsafe, and their
// callers promise that what one thread writes no other touches.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    pub fn new(data: &mut Data) -> Self {
        let (dtype, len) = (data.dtype(), data.len());
        let start = with_type!(dtype, T => T::slice_mut(data).as_mut_ptr().cast::<u8>());
        Self { dtype, start, len }
    }

    fn check(&self, dtype: DType, start: usize, len: usize) {
        assert!(dtype == self.dtype && start.checked_add(len).is_some_and(|end| end <= self.len));
    }

    /// A stretch of the elements, to be read.
    ///
    /// # Safety
    /// The data is alive, and nobody writes any of these elements while the result is in use.
    pub unsafe fn seen<T: Element>(&self, start: usize, len: usize) -> &[T] {
        self.check(T::DTYPE, start, len);
        // SAFETY: within the vector, by the check; of its type, by the check; not written, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.cast::<T>().add(start), len) }
    }

    /// A stretch of the elements, some of which are to be written, as a pointer and a length.
    ///
    /// # Safety
    /// The data is alive while the result is in use, and nobody else touches those elements that are written.
    pub unsafe fn span<T: Element>(&self, start: usize, len: usize) -> (*mut T, usize) {
        self.check(T::DTYPE, start, len);
        // SAFETY: within the vector, by the check.
        (unsafe { self.start.cast::<T>().add(start) }, len)
    }

    /// All elements, as a pointer and a length, for callers that touch only their own.
    pub fn all<T: Element>(&self) -> (*mut T, usize) {
        self.check(T::DTYPE, 0, self.len);
        (self.start.cast(), self.len)
    }

    /// A stretch of the elements, to be written.
    ///
    /// # Safety
    /// The data is alive, and nobody else reads or writes any of these elements while the result is in use.
    #[allow(clippy::mut_from_ref, reason = "the caller promises what a mutable borrow would prove")]
    pub unsafe fn part<T: Element>(&self, start: usize, len: usize) -> &mut [T] {
        self.check(T::DTYPE, start, len);
        // SAFETY: within the vector, by the check; of its type, by the check; not shared, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<T>().add(start), len) }
    }
}

/// The meaning of a kernel's sources while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub slots: &'a [Data],
    pub buffers: &'a [Data],
    pub inputs: &'a [&'a Data],
    pub targets: &'a [Target],
    /// In the epilogue of a matrix product: the product of the part at hand, and where it lies in the whole.
    pub product: &'a Data,
    pub shift: isize,
}

impl<'a> Env<'a> {
    /// The data of a source that the kernel does not write.
    pub fn data(&self, source: Source) -> &'a Data {
        match source {
            Source::Slot(slot) => &self.slots[slot],
            Source::Buffer(buffer) => &self.buffers[buffer],
            Source::Input(input) => self.inputs[input],
            Source::Target(_) | Source::Product => unreachable!("handled by who knows what is written when"),
        }
    }
}

/// Bytes of a line of memory, and of the widest vector. A vector that straddles two lines takes twice as long.
const LINE: usize = 64;

/// The number of spare elements that lets some of them begin a line.
pub(crate) fn spare(dtype: DType) -> usize {
    LINE / dtype.size()
}

/// Elements from the first that begins a line.
pub(crate) fn aligned<T>(elements: &[T]) -> &[T] {
    &elements[elements.as_ptr().align_offset(LINE).min(elements.len())..]
}

/// As [`aligned`], to be written.
pub(crate) fn aligned_mut<T>(elements: &mut [T]) -> &mut [T] {
    let start = elements.as_ptr().align_offset(LINE).min(elements.len());
    &mut elements[start..]
}

/// Prefetches elements, if they exist: for the cache of the second level. In that of the first they would be
/// in the way of what is computed meanwhile.
#[inline(always)]
pub(crate) fn prefetch<T>(start: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for i in (0..len).step_by(LINE / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which touches no memory as far as the program can tell.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(i).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// Zeros, so many and some to spare, and the first that begins a line; in long stretches, a large page.
pub(crate) fn room(dtype: DType, len: usize) -> (Data, usize) {
    let border = if len * dtype.size() < LARGE { LINE } else { LARGE };
    let data = Data::zeros(dtype, len + border / dtype.size());
    let start = with_type!(dtype, T => {
        let start = T::slice(&data).as_ptr().align_offset(border);
        large_pages(&T::slice(&data)[start..][..len]);
        start
    });
    (data, start)
}

/// The data at a place that kernels may write.
pub(crate) fn written<'a>(place: Source, slots: &'a mut [Data], buffers: &'a mut [Data]) -> &'a mut Data {
    match place {
        Source::Slot(slot) => &mut slots[slot],
        Source::Buffer(buffer) => &mut buffers[buffer],
        Source::Input(_) | Source::Target(_) | Source::Product => unreachable!("no kernel writes {place:?}"),
    }
}

/// The data itself; nothing is left at its place.
pub(crate) fn take(place: Source, slots: &mut [Data], buffers: &mut [Data]) -> Data {
    let data = written(place, slots, buffers);
    let empty = nothing(data.dtype());
    std::mem::replace(data, empty)
}

/// Zeros, so many and no more, so that all of the memory can change hands.
pub(crate) fn exact(dtype: DType, len: usize) -> Data {
    let data = Data::zeros(dtype, len);
    with_type!(dtype, T => large_pages(T::slice(&data)));
    data
}

/// Bytes of a large page, on most machines.
const LARGE: usize = 2 << 20;

/// Requests large pages for whole ones of these elements, so that the processor looks up fewer addresses of pages.
/// Pages that have been touched stay as they are.
fn large_pages<T>(elements: &[T]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let bytes = size_of_val(elements) / LARGE * LARGE;
        // SAFETY: it is advice, about pages that lie within the elements, and changes nothing that a program can see.
        // The system may ignore it.
        unsafe { libc::madvise(elements.as_ptr().cast_mut().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = elements;
}

/// Fills memory with values that no computation may read.
pub(crate) fn poison(data: &mut Data) {
    match data {
        Data::F64(v) => v.fill(f64::NAN),
        Data::F32(v) => v.fill(f32::NAN),
        Data::F16(v) => v.fill(f16::NAN),
        Data::U32(v) => v.fill(0xDEAD_BEEF),
        Data::I32(v) => v.fill(i32::MIN),
        Data::Bool(v) => v.fill(true),
    }
}

/// An empty value, to leave in the place of one that is taken out.
#[inline]
pub(crate) fn nothing(dtype: DType) -> Data {
    match dtype {
        DType::F64 => Data::F64(vec![]),
        DType::F32 => Data::F32(vec![]),
        DType::F16 => Data::F16(vec![]),
        DType::U32 => Data::U32(vec![]),
        DType::I32 => Data::I32(vec![]),
        DType::Bool => Data::Bool(vec![]),
    }
}
