//! The shapes that are measured: a logarithmic mesh, and shapes between its points.

use std::ops::RangeInclusive;

use super::class::ProblemClass;
use super::problem::{largest, many};
use gemv_core::{Desc, Dtype, Layout};

/// A logarithmic mesh of shapes: the same sizes for rows and columns, without matrices that are
/// too large.
///
/// The alignment of a dense matrix follows from the length of its lines. In the class of an
/// alignment, lengths are rounded up to the next that has it.
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, Mesh};
/// use gemv_core::{Align, Dtype, Layout};
///
/// let mesh = Mesh::new(5, 16, 4096, 1 << 20);
/// assert_eq!(mesh.sizes(), [16, 64, 256, 1024, 4096]);
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
/// assert_eq!(mesh.desc(class, (0, 3)).unwrap().to_string(), "f32 row 16x1024");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    sizes: Vec<usize>,
    /// The sizes that count for every layout, as lengths of lines and as their number.
    base: Vec<usize>,
    further: Vec<Further>,
    max_bytes: u64,
}

/// Sizes that count for one layout only.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Further {
    layout: Layout,
    /// Whether these are lengths of lines, or else numbers of lines.
    lengths: bool,
    sizes: Vec<usize>,
    /// The numbers of lines, or else their lengths, for which they count.
    with: RangeInclusive<usize>,
}

impl Mesh {
    /// `count` sizes from `from` to `to` (at most; equal ones are taken once), evenly spaced on a
    /// logarithmic scale. Sizes of 64 and more are rounded to multiples of 16: whole vectors, as
    /// most matrices have them, but no powers of two among them to meet a cache's worst case.
    ///
    /// `max_bytes` is the size of the largest matrix that is measured, of A and of several right-hand
    /// sides or results.
    ///
    /// ```
    /// use gemv_lab::tuner::Mesh;
    /// assert_eq!(Mesh::new(4, 10, 10_000, 1 << 30).sizes(), [10, 96, 992, 10_000]);
    /// ```
    ///
    /// # Panics
    /// If `count` or `from` is 0, or `to` is less than `from`.
    pub fn new(count: usize, from: usize, to: usize, max_bytes: u64) -> Mesh {
        assert!(count > 0 && from > 0 && to >= from, "an empty mesh");
        let step = (to as f64 / from as f64).ln() / (count.max(2) - 1) as f64;
        let mut sizes: Vec<usize> = (0..count)
            .map(|k| {
                let size = from as f64 * (step * k as f64).exp();
                if size < 64.0 {
                    size.round() as usize
                } else {
                    16 * (size / 16.0).round() as usize
                }
            })
            .collect();
        sizes.dedup();
        Mesh::of(sizes, max_bytes)
    }

    /// A mesh of these sizes.
    ///
    /// ```
    /// use gemv_lab::tuner::Mesh;
    /// assert_eq!(Mesh::of(vec![1, 7, 1000], 1 << 30).sizes(), [1, 7, 1000]);
    /// ```
    ///
    /// # Panics
    /// If there are none, or they do not ascend.
    pub fn of(sizes: Vec<usize>, max_bytes: u64) -> Mesh {
        assert!(!sizes.is_empty() && sizes.is_sorted_by(|a, b| a < b), "sizes must ascend");
        Mesh { base: sizes.clone(), sizes, further: Vec::new(), max_bytes }
    }

    /// The same mesh with further lengths of lines (columns if row-major, rows if
    /// column-major), within its ends, for one layout and for these numbers of lines of the
    /// base mesh. Kernels have capacities, and full waves end at certain sizes: the best
    /// choice changes there at once, between the points of a logarithmic mesh.
    ///
    /// ```
    /// use gemv_lab::tuner::{ProblemClass, Mesh};
    /// use gemv_core::{Align, Dtype, Layout};
    ///
    /// let mesh = Mesh::of(vec![16, 256], 1 << 30).with_lengths(Layout::Row, &[64], 1..=100);
    /// assert_eq!(mesh.sizes(), [16, 64, 256]);
    /// let class = |layout| ProblemClass { dtype: Dtype::F32, layout, align: Align::WHOLE, rhs: 1 };
    /// let is = |layout, i, j| mesh.desc(class(layout), (i, j)).is_some();
    /// assert!(is(Layout::Row, 0, 1)); // 16 x 64
    /// assert!(!is(Layout::Row, 2, 1)); // but not 256 x 64: more lines
    /// assert!(!is(Layout::Row, 1, 0) && !is(Layout::Col, 1, 0)); // nor 64 x 16: not of this length, not this layout
    /// ```
    #[must_use]
    pub fn with_lengths(
        self,
        layout: Layout,
        lengths: &[usize],
        lines: RangeInclusive<usize>,
    ) -> Mesh {
        self.with(layout, true, lengths, lines)
    }

    /// The same mesh with further numbers of lines (rows if row-major, columns if
    /// column-major), within its ends, for one layout and for lines of these lengths of the
    /// base mesh.
    ///
    /// ```
    /// use gemv_lab::tuner::{ProblemClass, Mesh};
    /// use gemv_core::{Align, Dtype, Layout};
    ///
    /// let mesh = Mesh::of(vec![16, 256], 1 << 30).with_lines(Layout::Row, &[64], 100..=1000);
    /// let class = |layout| ProblemClass { dtype: Dtype::F32, layout, align: Align::WHOLE, rhs: 1 };
    /// let is = |layout, i, j| mesh.desc(class(layout), (i, j)).is_some();
    /// assert!(is(Layout::Row, 1, 2)); // 64 x 256
    /// assert!(!is(Layout::Row, 1, 0)); // but not 64 x 16: shorter lines
    /// assert!(!is(Layout::Row, 2, 1) && !is(Layout::Col, 1, 2)); // nor 256 x 64: not so many lines, not this layout
    /// ```
    #[must_use]
    pub fn with_lines(
        self,
        layout: Layout,
        lines: &[usize],
        lengths: RangeInclusive<usize>,
    ) -> Mesh {
        self.with(layout, false, lines, lengths)
    }

    fn with(
        mut self,
        layout: Layout,
        lengths: bool,
        sizes: &[usize],
        with: RangeInclusive<usize>,
    ) -> Mesh {
        let ends = self.base[0]..=self.base[self.base.len() - 1];
        let inside = |size: &usize| ends.contains(size);
        let sizes: Vec<usize> = sizes.iter().copied().filter(inside).collect();
        self.sizes.extend(&sizes);
        self.sizes.sort_unstable();
        self.sizes.dedup();
        self.further.push(Further { layout, lengths, sizes, with });
        self
    }

    /// Whether this number of lines of this length is on the mesh.
    fn has(&self, layout: Layout, length: usize, lines: usize) -> bool {
        // At least one of the two is a size of the base mesh.
        let further = |lengths: bool, size: usize, with: usize| {
            let for_these = |f: &&Further| f.layout == layout && f.lengths == lengths;
            let mut all = self.further.iter().filter(for_these);
            self.base.contains(&with)
                && all.any(|f| f.with.contains(&with) && f.sizes.contains(&size))
        };
        self.base.contains(&lines) && self.base.contains(&length)
            || further(true, length, lines)
            || further(false, lines, length)
    }

    /// The sizes, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The problem at a point: indices of its rows and columns among the sizes. `None` where A, X or Y is too large, where its layout is
    /// another one by definition (a single row or column), where it cannot have this
    /// alignment, and where a smaller size is rounded to the same.
    ///
    /// ```
    /// use gemv_lab::tuner::{ProblemClass, Mesh};
    /// use gemv_core::{Align, Dtype, Layout};
    ///
    /// let mesh = Mesh::of(vec![30, 1000], 1 << 20);
    /// let class = |align| ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align, rhs: 1 };
    /// let text = |align, i, j| mesh.desc(class(align), (i, j)).map(|d| d.to_string());
    /// assert_eq!(text(Align::WHOLE, 1, 0), Some("f32 row 1000x32".into())); // rows of 128 bytes
    /// assert_eq!(text(Align::parse("4").unwrap(), 1, 0), Some("f32 row 1000x31".into()));
    /// assert_eq!(text(Align::WHOLE, 1, 1), None); // 4 MB
    /// ```
    pub fn desc(&self, class: ProblemClass, (i, j): (usize, usize)) -> Option<Desc> {
        let (&m, &n) = (self.sizes.get(i)?, self.sizes.get(j)?);
        let (length, lines) = if class.layout == Layout::Col { (m, n) } else { (n, m) };
        if !self.has(class.layout, length, lines) {
            return None;
        }
        let round = |k: usize| {
            let size = class.line(self.sizes[k])?;
            let mut before = self.sizes[..k].iter().rev();
            let before = before.find(|&&length| self.has(class.layout, length, lines));
            (before.and_then(|&length| class.line(length)) != Some(size)).then_some(size)
        };
        match class.layout {
            // The length does not matter where there is one line.
            Layout::Col => self.shape(class, if n == 1 { m } else { round(i)? }, n),
            _ => self.shape(class, m, if m == 1 { n } else { round(j)? }),
        }
    }

    pub(super) fn shape(&self, class: ProblemClass, m: usize, n: usize) -> Option<Desc> {
        let desc = many(packed(class.dtype, class.layout, m, n), class.rhs, 1);
        (largest(&desc) <= self.max_bytes && class.holds(&desc)).then_some(desc)
    }

    /// Every problem of a class, by rows and columns.
    ///
    /// ```
    /// use gemv_lab::tuner::{ProblemClass, Mesh};
    /// use gemv_core::{Align, Dtype, Layout};
    ///
    /// let class = ProblemClass { dtype: Dtype::F64, layout: Layout::Col, align: Align::WHOLE, rhs: 1 };
    /// let mesh = Mesh::of(vec![64, 256, 1024], 1 << 20);
    /// assert_eq!(mesh.problems(class).len(), 6); // 1 MiB: not 256 x 1024, 1024 x 256, 1024 x 1024
    /// ```
    pub fn problems(&self, class: ProblemClass) -> Vec<Desc> {
        self.placed(class).map(|(_, desc)| desc).collect()
    }

    /// The same, each with its point.
    pub(super) fn placed(
        &self,
        class: ProblemClass,
    ) -> impl Iterator<Item = ((usize, usize), Desc)> + '_ {
        let side = self.sizes.len();
        let points = (0..side * side).map(move |k| (k / side, k % side));
        points.filter_map(move |at| Some((at, self.desc(class, at)?)))
    }

    /// `count` shapes within the mesh's ends that are not on it, the same at every call.
    /// The logarithms of their rows and columns are multiples of two irrational numbers,
    /// modulo 1; they are rounded only to the class's alignment.
    ///
    /// The two numbers are powers of the inverse of the plastic number, as in M. Roberts's
    /// R2 sequence (2018), which leaves no large gap.
    ///
    /// ```
    /// use gemv_lab::tuner::{ProblemClass, Mesh};
    /// use gemv_core::{Align, Dtype, Layout};
    ///
    /// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
    /// let mesh = Mesh::new(5, 16, 4096, 1 << 30);
    /// let shapes = mesh.between(class, 20);
    /// assert_eq!((shapes.len(), &shapes), (20, &mesh.between(class, 20)));
    /// let on_it = |size| mesh.sizes().contains(&size);
    /// assert!(shapes.iter().all(|d| class.holds(d) && !(on_it(d.m) && on_it(d.n))));
    /// ```
    pub fn between(&self, class: ProblemClass, count: usize) -> Vec<Desc> {
        let (from, to) = (self.sizes[0], self.sizes[self.sizes.len() - 1]);
        let size = |share: f64| {
            let log = (from as f64).ln() + share * (to as f64 / from as f64).ln();
            log.exp().round() as usize
        };
        let mut shapes = Vec::new();
        // The largest shapes do not fit.
        for k in 1000..1000 + 64 * count {
            let (u, v) = ((k as f64 * 0.754_877_666) % 1.0, (k as f64 * 0.569_840_29) % 1.0);
            let (mut m, mut n) = (size(u), size(v));
            let along = if class.layout == Layout::Col { &mut m } else { &mut n };
            let Some(line) = class.line(*along) else { continue };
            *along = line;
            let on_line =
                |size| self.sizes.iter().any(|&s| s == size || class.line(s) == Some(size));
            let on_mesh = on_line(m) && on_line(n);
            match self.shape(class, m, n) {
                Some(desc) if !on_mesh && !shapes.contains(&desc) => shapes.push(desc),
                _ => {}
            }
            if shapes.len() == count {
                break;
            }
        }
        shapes
    }
}

/// The problem of a matrix without gaps that starts on a cache line.
pub(crate) fn packed(dtype: Dtype, layout: Layout, m: usize, n: usize) -> Desc {
    let strides = match layout {
        Layout::Col => (1, m as isize),
        _ => (n as isize, 1),
    };
    Desc::new(dtype, m, n, strides, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_and_reach_both_ends() {
        let mesh = Mesh::new(24, 1, 1 << 22, 1 << 32);
        assert_eq!((mesh.sizes()[0], *mesh.sizes().last().unwrap()), (1, 1 << 22));
        assert!(mesh.sizes().is_sorted_by(|a, b| a < b), "{:?}", mesh.sizes());
        assert!(mesh.sizes().iter().all(|s| *s < 64 || s % 16 == 0));
        assert_eq!(Mesh::new(1, 7, 7, 1).sizes(), [7]);
    }

    #[test]
    fn shapes_fit_and_are_what_they_are_called() {
        let mesh = Mesh::new(12, 1, 1 << 20, 1 << 24);
        let mesh = mesh.with_lengths(Layout::Row, &[12, 16, 60], 1..=usize::MAX);
        let mesh = mesh.with_lengths(Layout::Col, &[12, 13, 4208, 4240], 8..=5000);
        let mesh = mesh.with_lines(Layout::Row, &[13, 4208], 8..=5000);
        for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16] {
            for layout in [Layout::Row, Layout::Col] {
                for class in ProblemClass::all(dtype, layout) {
                    let mut on_mesh = mesh.problems(class);
                    let count = on_mesh.len();
                    assert!(count > 50, "{class:?}: {count}");
                    let held = mesh.between(class, 20);
                    assert_eq!((held.len(), &held), (20, &mesh.between(class, 20)));
                    assert!(held.iter().all(|d| !on_mesh.contains(d)));
                    for desc in on_mesh.iter().chain(&held) {
                        assert!(class.holds(desc), "{desc} {}", desc.align);
                        assert!(desc.m * desc.n * dtype.bytes() <= 1 << 24, "{desc}");
                    }
                    on_mesh.sort();
                    on_mesh.dedup();
                    assert_eq!(on_mesh.len(), count, "a problem stands at two points");
                }
            }
        }
        // One column is a column, whatever it was called.
        let row = ProblemClass::all(Dtype::F32, Layout::Row)[0];
        assert!(mesh.problems(row).iter().all(|desc| desc.n > 1));
    }

    #[test]
    fn further_lengths_are_of_one_layout_and_of_so_many_lines() {
        let mesh =
            Mesh::new(5, 16, 1 << 12, 1 << 30).with_lengths(Layout::Row, &[8, 60, 64], 1..=64);
        let mesh = mesh.with_lengths(Layout::Col, &[61, 100], 256..=1024);
        let mesh = mesh.with_lines(Layout::Col, &[60, 8192], 256..=1024);
        assert_eq!(mesh.sizes(), [16, 60, 61, 64, 100, 256, 1024, 4096]);
        let rows = ProblemClass::all(Dtype::F32, Layout::Row);
        let (row, odd, col) = (rows[0], rows[2], ProblemClass::all(Dtype::F32, Layout::Col)[2]);
        let size = |size| mesh.sizes().iter().position(|s| *s == size).unwrap();
        let at = |class, m, n| mesh.desc(class, (size(m), size(n))).map(|d| (d.m, d.n));
        assert_eq!(at(row, 16, 60), Some((16, 60)));
        assert_eq!(at(odd, 16, 60), Some((16, 61)));
        // More rows, and columns that are the other layout's.
        assert_eq!((at(row, 256, 60), at(row, 16, 61), at(row, 60, 16)), (None, None, None));
        assert_eq!((at(col, 61, 256), at(col, 100, 1024)), (Some((61, 256)), Some((101, 1024))));
        assert_eq!((at(col, 61, 64), at(col, 61, 4096), at(col, 60, 256)), (None, None, None));
        assert_eq!((at(col, 256, 60), at(col, 1024, 60)), (Some((257, 60)), Some((1025, 60))));
        // Columns of another length, of a further length; rows.
        assert_eq!((at(col, 64, 60), at(col, 61, 60), at(row, 60, 256)), (None, None, None));
        // 61 again, but what is before it is not of this layout.
        assert_eq!(at(odd, 64, 64), Some((64, 65)));
        assert_eq!(at(odd, 256, 60), None);
    }
}
