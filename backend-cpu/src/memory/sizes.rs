//! The sizes of tiles, blocks and parts, for caches and threads.

/// The sizes of the parts of index spaces. Results depend on them, so they do not depend on the number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The elements of a register, where a block is several rows or a whole one: small enough for many threads to have tiles.
    pub block: usize,
    /// As `block`, where a block is a part of a row, or of a vector in segments: large, so that work per block is rare.
    pub long: usize,
    /// The number of tiles from which on tiles are as large as `long`: there is work for many threads even so.
    pub many: usize,
    /// Lines of a block shorter than this have their values repeated for each element, rather than looked up by line.
    pub narrow: usize,
    /// The shortest contiguous pieces of memory that chains read in place, rather than from a copy.
    pub piece: usize,
    /// Rows and columns of a block some of whose operands are transposed.
    pub square: usize,
    /// Elements of a chunk, at least.
    pub chunk: usize,
    /// Chunks per row, at most.
    pub chunks: usize,
    /// The longest row whose intermediate values are kept from one walk to the next, rather than computed again.
    pub resident: usize,
    /// Elements of the copies of images that a convolution makes at a time, about: half of a cache of the second level.
    pub packed: usize,
    /// Convolutions by 3x3 weights with fewer multiplications: the least channels of results, and of images, the same for
    /// gradients of weights, and the shortest half rows of results.
    pub winograd: [usize; 3],
    /// Queries and keys that attention compares at a time.
    pub attended: [usize; 2],
    /// Parts of a product that pack a transposed right side, from which on it is transposed once for all.
    pub transposed: usize,
    /// The least inner dimension of a product with a transposed left side whose halves are summed separately.
    pub halved: usize,
    /// Weighted elements below which a kernel runs on the calling thread: about 20 us of work.
    pub serial: usize,
    /// Threads that share a kernel.
    pub threads: usize,
}

impl Sizes {
    /// For speed.
    pub const FAST: Sizes = Sizes {
        block: 8192,
        long: 16384,
        many: 64,
        narrow: 32,
        piece: 128,
        square: 64,
        chunk: 1 << 16,
        chunks: 128,
        resident: 1 << 16,
        packed: 1 << 17,
        winograd: [32, 16, 4],
        attended: [32, 512],
        transposed: 2,
        halved: 512,
        serial: 1 << 16,
        threads: 1,
    };
    /// For tests: the smallest spaces are cut up, too.
    pub const TINY: Sizes = Sizes {
        block: 16,
        long: 24,
        many: 8,
        narrow: 5,
        piece: 2,
        square: 4,
        chunk: 12,
        chunks: 5,
        resident: 20,
        packed: 300,
        winograd: [2, 2, 1],
        attended: [2, 3],
        transposed: 1,
        halved: 6,
        serial: 0,
        threads: 1,
    };
}
