//! Classes of problems: what one part of a table is for.

use gemv_core::{Align, Desc, Dtype, Layout};

/// A class of problems: what one part of a table is for.
///
/// ```
/// use gemv_tune::ProblemClass;
/// use gemv_core::{Align, Dtype, Layout};
/// let class = ProblemClass { dtype: Dtype::F64, layout: Layout::Col, align: Align::WHOLE };
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
}

impl ProblemClass {
    /// The classes of a type and layout, one for each class of alignment that is tuned: vectors of 16
    /// bytes may be loaded from the beginning of every line, or those of 8 bytes, or none.
    ///
    /// ```
    /// use gemv_tune::ProblemClass;
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
        let class = |align| ProblemClass { dtype, layout, align };
        classes.into_iter().map(class).collect()
    }

    /// Whether a problem is of this class.
    ///
    /// ```
    /// use gemv_tune::ProblemClass;
    /// use gemv_core::{Align, Desc, Dtype, Layout};
    /// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE };
    /// let desc = |n: isize| Desc::new(Dtype::F32, 10, n as usize, (n, 1), 0);
    /// assert!(class.holds(&desc(100)) && !class.holds(&desc(101))); // 400 bytes a row, and 404
    /// ```
    pub fn holds(&self, desc: &Desc) -> bool {
        (desc.dtype, desc.layout) == (self.dtype, self.layout) && self.align.holds(desc.align)
    }

    /// The first length of a line, from `size` on, that has this alignment, where lines follow on
    /// one another; `None` if none has.
    pub(super) fn line(&self, size: usize) -> Option<usize> {
        let bytes = self.dtype.bytes();
        let align = |s: &usize| ((s * bytes) | 64).trailing_zeros() as u8;
        (size..size + 64).find(|s| self.align.holds(align(s)))
    }
}
