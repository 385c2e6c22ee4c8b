//! The innermost loops: tiles of sums that stay in the registers of the machine.

use crate::simd::float::Real;
use pulp::{Arch, Simd, WithSimd};

/// The machine's vectors: how many elements they have, and how many registers there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub lanes: usize,
    pub registers: usize,
}

impl Machine {
    /// For sums in this type.
    pub fn new<A: Real>() -> Self {
        struct Ask<A>(std::marker::PhantomData<A>);
        impl<A: Real> WithSimd for Ask<A> {
            type Output = Machine;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> Machine {
                Machine { lanes: A::lanes::<S>(), registers: S::REGISTER_COUNT }
            }
        }
        Arch::new().dispatch(Ask::<A>(std::marker::PhantomData))
    }

    /// The results of a tile, and the vectors of each: as many as the registers hold beside the operands.
    pub fn tile(&self, results: usize) -> [usize; 2] {
        match (self.registers, results) {
            (32.., 8..) => [8, 3],
            (32.., 4..) => [4, 6],
            (_, 4..) => [4, 3],
            (_, 2..) => [2, 3],
            _ => [1, 6],
        }
    }

    /// The numbers of results of the tiles that so many results are cut into.
    pub fn tiles(self, results: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let size = (first < results).then(|| self.tile(results - first)[0])?;
            first += size;
            Some((first - size, size))
        })
    }
}

/// The most sums that a tile has, in vectors.
pub(super) const TILE: usize = 24;

#[inline(always)]
unsafe fn load<S: Simd, A: Real>(from: *const A) -> A::Vector<S> {
    // SAFETY: the caller says that a vector's elements are there; any bits are a vector.
    unsafe { from.cast::<A::Vector<S>>().read_unaligned() }
}

/// The sums of a tile: `M` results at the positions of `V` vectors.
///
/// # Safety
/// For each channel and each tap there are `M` weights; a vector's elements lie at each `x + base + tap` and at that
/// `stride` elements further on for each channel; `out` has room for `M V` vectors.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
unsafe fn correlate<S: Simd, A: Real, const M: usize, const V: usize>(
    simd: S,
    mut w: *const A,
    mut x: *const A,
    bases: &[usize],
    (channels, stride): (usize, usize),
    taps: &[usize],
    out: *mut A,
) {
    // Loops, here and below: a closure would be compiled without the machine's vectors.
    let zero = A::splat(simd, A::from_f64(0.0));
    let mut sums = [[zero; V]; M];
    let mut begins = [0; V];
    begins.copy_from_slice(&bases[..V]);
    for _ in 0..channels {
        for &tap in taps {
            // SAFETY: within the packed images and weights, by the caller's promise.
            unsafe {
                let mut xs = [zero; V];
                for v in 0..V {
                    xs[v] = load::<S, A>(x.add(begins[v] + tap));
                }
                for m in 0..M {
                    let w = A::splat(simd, *w.add(m));
                    for v in 0..V {
                        sums[m][v] = A::mul_add(simd, w, xs[v], sums[m][v]);
                    }
                }
                w = w.add(M);
            }
        }
        x = x.wrapping_add(stride);
    }
    let out = out.cast::<A::Vector<S>>();
    for (m, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: there is room, by the caller's promise.
            unsafe { out.add(m * V + v).write_unaligned(sum) };
        }
    }
}

/// The operands of [`correlate`]: packed channels, and the weights of some results for each of these, tap by tap.
pub(super) struct Products<'a, A> {
    pub weights: &'a [A],
    pub packed: &'a [A],
    /// The beginnings of the tile's vectors, ascending.
    pub bases: &'a [usize],
    pub channels: usize,
    /// Elements of a channel.
    pub stride: usize,
    /// The place where each tap reads.
    pub taps: &'a [usize],
}

impl<A: Real> Products<'_, A> {
    /// The sums of a tile of `results` results. Gives the number of vectors that it has computed, at most as many as there are.
    #[inline(always)]
    pub fn sums<S: Simd>(&self, simd: S, results: usize, vectors: usize, out: &mut [A]) -> usize {
        macro_rules! run {
            ($m:literal, $($v:literal)*) => {
                match self.bases.len().min(vectors) {
                    $(n if n >= $v => { self.run::<S, $m, $v>(simd, out); $v })*
                    _ => 0,
                }
            };
        }
        match results {
            8 => run!(8, 3 2 1),
            4 => run!(4, 6 3 2 1),
            2 => run!(2, 3 2 1),
            _ => run!(1, 6 3 1),
        }
    }

    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(&self, simd: S, out: &mut [A]) {
        let lanes = A::lanes::<S>();
        let last = self.bases[V - 1] + self.taps.iter().max().unwrap_or(&0) + lanes;
        assert!(self.channels == 0 || (self.channels - 1) * self.stride + last <= self.packed.len());
        assert!(self.weights.len() == M * self.channels * self.taps.len() && out.len() >= M * V * lanes);
        let (w, x) = (self.weights.as_ptr(), self.packed.as_ptr());
        let channels = (self.channels, self.stride);
        // SAFETY: by the assertions.
        unsafe { correlate::<S, A, M, V>(simd, w, x, self.bases, channels, self.taps, out.as_mut_ptr()) };
    }
}

/// Packed cotangents and images, of some blocks one behind the other.
pub(super) struct Pairs<'a, A> {
    pub cotangents: &'a [A],
    /// Elements of the cotangents of one result.
    pub cotangent: usize,
    pub images: &'a [A],
    /// The beginning of each vector in a channel of the images, ascending.
    pub vectors: &'a [usize],
}

impl<A: Real> Pairs<'_, A> {
    /// Adds, for `M` results from `result` on and `T` taps, products summed over all positions to
    /// `out[m * width + t]`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
    pub fn add<S: Simd, const M: usize, const T: usize>(
        &self,
        simd: S,
        result: usize,
        taps: &[usize],
        (out, width): (&mut [A], usize),
    ) {
        let lanes = A::lanes::<S>();
        if self.vectors.is_empty() {
            return;
        }
        let mut reads = [0; T];
        reads.copy_from_slice(&taps[..T]);
        let farthest = self.vectors[self.vectors.len() - 1] + reads.iter().max().expect("some") + lanes;
        assert!(farthest <= self.images.len());
        assert!((result + M - 1) * self.cotangent + self.vectors.len() * lanes <= self.cotangents.len());
        let zero = A::splat(simd, A::from_f64(0.0));
        let mut sums = [[zero; T]; M];
        // SAFETY: within both slices, by the assertions.
        unsafe {
            let mut g = self.cotangents.as_ptr().add(result * self.cotangent);
            let x = self.images.as_ptr();
            for &base in self.vectors {
                let mut xs = [zero; T];
                for t in 0..T {
                    xs[t] = load::<S, A>(x.add(base + reads[t]));
                }
                for m in 0..M {
                    let g = load::<S, A>(g.add(m * self.cotangent));
                    for t in 0..T {
                        sums[m][t] = A::mul_add(simd, g, xs[t], sums[m][t]);
                    }
                }
                g = g.wrapping_add(lanes);
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_mut(width)) {
            for (&sum, out) in sums.iter().zip(out) {
                *out = *out + A::sum(simd, sum);
            }
        }
    }
}
