//! Classes of problems: what one part of a table is for.

use gemv_core::table::Row;
use gemv_core::{Align, Desc, Dtype, Layout, Params};

/// A class of problems: what one part of a table is for.
///
/// ```
/// use gemv_lab::tuner::ProblemClass;
/// use gemv_core::{Align, Dtype, Layout};
/// let class = ProblemClass { dtype: Dtype::F64, layout: Layout::Col, align: Align::WHOLE, rhs: 1 };
/// assert!(ProblemClass::all(Dtype::F64, Layout::Col).contains(&class));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProblemClass {
    /// Element type.
    pub dtype: Dtype,
    /// Layout.
    pub layout: Layout,
    /// Class of alignment.
    pub align: Align,
    /// The number of right-hand sides that is measured. It stands for all of its
    /// [class](ProblemClass::counts).
    pub rhs: usize,
}

/// The classes of the number of right-hand sides: the first of each.
const COUNTS: [usize; 6] = [1, 2, 3, 5, 9, 17];

impl ProblemClass {
    /// The classes of a type and layout, one for each class of alignment that is tuned: vectors of 16
    /// bytes may be loaded from the beginning of every line, or those of 8 bytes, or none.
    ///
    /// ```
    /// use gemv_lab::tuner::ProblemClass;
    /// use gemv_core::{Dtype, Layout};
    /// let classes = |dtype| -> Vec<String> {
    ///     ProblemClass::all(dtype, Layout::Row).iter().map(|class| class.align.to_string()).collect()
    /// };
    /// assert_eq!(classes(Dtype::F32), ["16..", "8", "..4"]); // bytes
    /// assert_eq!(classes(Dtype::F64), ["16..", "..8"]);
    /// ```
    pub fn all(dtype: Dtype, layout: Layout) -> Vec<ProblemClass> {
        let halves = Align { low: 3, high: 3 };
        let classes = match dtype.bytes() {
            // An element is no less.
            8.. => vec![Align::WHOLE, Align { low: 0, high: 3 }],
            _ => vec![Align::WHOLE, halves, Align { low: 0, high: 2 }],
        };
        let class = |align| ProblemClass { dtype, layout, align, rhs: 1 };
        classes.into_iter().map(class).collect()
    }

    /// The least and the most right-hand sides that a table's row for this class is for: 2, 3 to 4, 5 to
    /// 8, 9 to 16, or 17 and more. `None` for one: such rows do not say.
    ///
    /// ```
    /// use gemv_lab::tuner::ProblemClass;
    /// use gemv_core::{Dtype, Layout};
    /// let class = ProblemClass::all(Dtype::F32, Layout::Row)[0];
    /// let counts = |rhs| ProblemClass { rhs, ..class }.counts();
    /// assert_eq!((counts(1), counts(2), counts(4)), (None, Some((2, 2)), Some((3, 4))));
    /// assert_eq!((counts(8), counts(16), counts(64)), (Some((5, 8)), Some((9, 16)), Some((17, usize::MAX))));
    /// ```
    pub fn counts(&self) -> Option<(usize, usize)> {
        let next = COUNTS.iter().position(|&first| first > self.rhs).unwrap_or(COUNTS.len());
        let first = COUNTS[next.max(1) - 1];
        (first > 1).then(|| (first, COUNTS.get(next).map_or(usize::MAX, |next| next - 1)))
    }

    /// A row for this class with these ranges of m and n, as logarithms.
    pub(super) fn row(&self, m: (f32, f32), n: (f32, f32), params: Params) -> Row {
        Row {
            dtype: Some(self.dtype),
            layout: Some(self.layout),
            align: self.align,
            rhs: self.counts(),
            batch: self.batch(),
            m,
            n,
            params,
            partial: false,
        }
    }

    /// The batches that its rows are for: single products, where there are several right-hand sides.
    /// Rows for one right-hand side do not say.
    pub(super) fn batch(&self) -> Option<(usize, usize)> {
        self.counts().map(|_| (1, 1))
    }

    /// Whether a problem is of this class.
    ///
    /// ```
    /// use gemv_lab::tuner::ProblemClass;
    /// use gemv_core::{Align, Desc, Dtype, Layout};
    /// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
    /// let desc = |n: isize| Desc::new(Dtype::F32, 10, n as usize, (n, 1), 0);
    /// assert!(class.holds(&desc(100)) && !class.holds(&desc(101))); // 400 bytes a row, and 404
    /// assert!(!ProblemClass { rhs: 8, ..class }.holds(&desc(100)));
    /// ```
    pub fn holds(&self, desc: &Desc) -> bool {
        (desc.dtype, desc.layout) == (self.dtype, self.layout)
            && (desc.rhs, desc.batch) == (self.rhs, 1)
            && self.align.holds(desc.align)
    }

    /// The first length of a line, from `size` on, that has this alignment, where lines follow on
    /// one another; `None` if none has.
    pub(super) fn line(&self, size: usize) -> Option<usize> {
        let bytes = self.dtype.bytes();
        let align = |s: &usize| ((s * bytes) | 64).trailing_zeros() as u8;
        (size..size + 64).find(|s| self.align.holds(align(s)))
    }
}
