//! Strided matrices: those that products read, and the places where they go.

/// A strided matrix within a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub start: isize,
    pub strides: [isize; 2],
}

/// The place of a product: a strided matrix within some elements.
#[derive(Clone, Copy)]
pub(crate) struct Place<T> {
    pub data: *mut T,
    pub len: usize,
    pub start: isize,
    pub strides: [isize; 2],
}

impl<T> Place<T> {
    /// A matrix in these elements, its rows so far apart.
    pub fn of(elements: &mut [T], stride: usize) -> Self {
        Self { data: elements.as_mut_ptr(), len: elements.len(), start: 0, strides: [stride as isize, 1] }
    }

    /// The matrix without its first rows.
    #[inline(always)]
    pub fn from(&self, row: usize) -> Self {
        Self { start: self.start + row as isize * self.strides[0], ..*self }
    }

    /// A row of so many elements that follow one another.
    ///
    /// # Panics
    /// If it does not lie within the elements.
    ///
    /// # Safety
    /// The elements are alive, and nobody else touches the row's while the result is in use.
    #[inline(always)]
    pub unsafe fn row<'a>(&self, row: usize, columns: usize) -> &'a mut [T] {
        if columns == 0 {
            return &mut [];
        }
        let start = self.start + row as isize * self.strides[0];
        assert!(within(self.len, start, [1, columns], [0, 1]) && self.strides[1] == 1);
        // SAFETY: within the elements, by the assertion; the rest is promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.data.offset(start), columns) }
    }

    /// True if a matrix of this shape lies within the elements.
    pub fn holds(&self, shape: [usize; 2]) -> bool {
        within(self.len, self.start, shape, self.strides)
    }
}

impl<T> Matrix<'_, T> {
    /// Its transpose.
    pub fn transposed(self) -> Self {
        Self { strides: [self.strides[1], self.strides[0]], ..self }
    }

    /// True if a matrix of this shape lies within the elements.
    pub fn holds(&self, shape: [usize; 2]) -> bool {
        within(self.data.len(), self.start, shape, self.strides)
    }
}

/// The distances of the first and the last element of a strided matrix from its corner.
pub(super) fn reach(shape: [usize; 2], strides: [isize; 2]) -> (isize, isize) {
    let ends = [0, 1].map(|i| (shape[i] as isize - 1) * strides[i]);
    (ends.iter().map(|end| end.min(&0)).sum(), ends.iter().map(|end| end.max(&0)).sum())
}

/// True if a strided matrix lies within `len` elements.
fn within(len: usize, start: isize, shape: [usize; 2], strides: [isize; 2]) -> bool {
    let (low, high) = reach(shape, strides);
    start + low >= 0 && start + high < len as isize
}
