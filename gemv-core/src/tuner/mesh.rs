//! The shapes that are measured: a logarithmic mesh, and shapes between its points.

use crate::{Desc, Dtype, Layout};

/// A logarithmic mesh of shapes: the same sizes for rows and columns, without the shapes whose
/// matrix is too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    sizes: Vec<usize>,
    max_bytes: u64,
}

/// Where a shape stands in a [`Mesh`]: indices of its rows and columns among the sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// Index of the number of rows.
    pub i: usize,
    /// Index of the number of columns.
    pub j: usize,
}

impl Mesh {
    /// `count` sizes from `from` to `to` (at most; equal ones are taken once), evenly spaced on a
    /// logarithmic scale. Sizes of 64 and more are rounded to multiples of 16: whole vectors, as
    /// most matrices have them, but no powers of two among them to meet a cache's worst case.
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
        Mesh { sizes, max_bytes }
    }

    /// A mesh of these sizes.
    ///
    /// # Panics
    /// If there are none, or they do not ascend.
    pub fn of(sizes: Vec<usize>, max_bytes: u64) -> Mesh {
        assert!(!sizes.is_empty() && sizes.is_sorted_by(|a, b| a < b), "sizes must ascend");
        Mesh { sizes, max_bytes }
    }

    /// The sizes, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The largest matrix, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The problem at a point: `None` where the matrix is too large, or where its layout is another
    /// one by definition (a single row or column).
    pub fn desc(&self, dtype: Dtype, layout: Layout, at: Point) -> Option<Desc> {
        let (&m, &n) = (self.sizes.get(at.i)?, self.sizes.get(at.j)?);
        self.shape(dtype, layout, m, n)
    }

    fn shape(&self, dtype: Dtype, layout: Layout, m: usize, n: usize) -> Option<Desc> {
        let fits = m as u64 * n as u64 * dtype.bytes() as u64 <= self.max_bytes;
        let desc = packed(dtype, layout, m, n);
        (fits && desc.layout == layout).then_some(desc)
    }

    /// Every point that has a problem.
    pub fn points(&self, dtype: Dtype, layout: Layout) -> Vec<Point> {
        let side = self.sizes.len();
        (0..side * side)
            .map(|k| Point { i: k / side, j: k % side })
            .filter(|&at| self.desc(dtype, layout, at).is_some())
            .collect()
    }

    /// About `count` shapes halfway between points of the mesh, spread evenly over it; every third
    /// one of sizes that are not rounded, as they come.
    pub fn between(&self, dtype: Dtype, layout: Layout, count: usize) -> Vec<Desc> {
        let mid = |k: usize| {
            let (a, b) = (self.sizes[k] as f64, self.sizes[k + 1] as f64);
            (a * b).sqrt()
        };
        let side = self.sizes.len() - 1;
        let mut shapes: Vec<(Point, Desc)> = Vec::new();
        for k in 0..side * side {
            let at = Point { i: k / side, j: k % side };
            let size = |v: f64| match k % 3 {
                0 => v.round() as usize,
                _ if v < 64.0 => v.round() as usize,
                _ => 16 * (v / 16.0).round() as usize,
            };
            if let Some(desc) = self.shape(dtype, layout, size(mid(at.i)), size(mid(at.j))) {
                shapes.push((at, desc));
            }
        }
        // Every so many-th along a line that visits the plane evenly: the golden ratio's multiples.
        let total = shapes.len();
        let order = |at: Point| ((at.i as f64 * 0.618_034 + at.j as f64 * 0.754_878) % 1.0, at);
        shapes.sort_by(|a, b| order(a.0).partial_cmp(&order(b.0)).expect("finite"));
        let step = total.div_ceil(count.max(1)).max(1);
        shapes.into_iter().step_by(step).map(|s| s.1).collect()
    }

    /// The point nearest to a shape, by distance in powers of two.
    pub fn nearest(&self, m: usize, n: usize) -> Point {
        let index = |v: usize| {
            let at = (v.max(1) as f64).ln();
            let off = |s: usize| ((s as f64).ln() - at).abs();
            (0..self.sizes.len())
                .min_by(|&a, &b| off(self.sizes[a]).total_cmp(&off(self.sizes[b])))
                .expect("a mesh has sizes")
        };
        Point { i: index(m), j: index(n) }
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
        for dtype in [Dtype::F32, Dtype::F64] {
            for layout in [Layout::Row, Layout::Col] {
                let points = mesh.points(dtype, layout);
                assert!(points.len() > 60, "{}", points.len());
                let held = mesh.between(dtype, layout, 20);
                assert!((15..=40).contains(&held.len()), "{}", held.len());
                let on_mesh = points.iter().filter_map(|&at| mesh.desc(dtype, layout, at));
                for desc in on_mesh.chain(held.iter().copied()) {
                    assert_eq!((desc.dtype, desc.layout), (dtype, layout));
                    assert!(desc.m * desc.n * dtype.bytes() <= 1 << 24, "{desc}");
                }
                let odd = held.iter().filter(|d| d.m % 16 != 0 && d.m > 64).count();
                assert!(odd > 0 && odd < held.len());
            }
        }
        // One column is a column, whatever it was called.
        assert!(mesh.desc(Dtype::F32, Layout::Row, Point { i: 3, j: 0 }).is_none());
    }

    #[test]
    fn the_nearest_point_is_nearest_in_powers_of_two() {
        let mesh = Mesh::new(5, 16, 1 << 12, 1 << 30);
        assert_eq!(mesh.sizes(), [16, 64, 256, 1024, 4096]);
        assert_eq!(mesh.nearest(31, 33), Point { i: 0, j: 1 });
        assert_eq!(mesh.nearest(0, 1 << 30), Point { i: 0, j: 4 });
    }
}
