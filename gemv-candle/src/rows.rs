//! What a product is of, by the layouts of its operands.

use candle_core::{Error, Layout, Result, Shape};

/// A matrix in a tensor's storage: entry (i, j) lies at `first + i * strides[0] + j * strides[1]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) first: usize,
    pub(crate) dim: [usize; 2],
    pub(crate) strides: [usize; 2],
}

impl Matrix {
    pub(crate) fn transposed(self) -> Matrix {
        let Matrix { first, dim: [m, n], strides: [row, column] } = self;
        Matrix { first, dim: [n, m], strides: [column, row] }
    }
}

/// `Y = A Bᵀ`, and in which memory A and B are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<M> {
    pub(crate) a: (Matrix, M),
    pub(crate) b: (Matrix, M),
    pub(crate) y: Matrix,
}

/// The products of a matrix W with the rows of x.
#[derive(Debug)]
pub(crate) struct Rows {
    w: Matrix,
    /// The shape of the result, whose entries follow one another.
    pub(crate) shape: Shape,
    /// The rows of x at one stride, and their results: one product takes them all.
    x: Matrix,
    y: Matrix,
    /// The other axes of x: entries, the stride in x, the stride in the result.
    others: Vec<[usize; 3]>,
}

impl Rows {
    /// # Errors
    /// One sentence where there is no such product.
    pub(crate) fn new(x: &Layout, w: &Layout) -> Result<Rows> {
        let (dims, strides) = (x.dims(), x.stride());
        let (&[out, n], &[w_row, w_column]) = (w.dims(), w.stride()) else {
            let dims = w.dims();
            return Err(Error::msg(format!("a weight has two axes, [out, in], and not {dims:?}")));
        };
        let (Some((&len, rows)), Some((&column, strides))) =
            (dims.split_last(), strides.split_last())
        else {
            let what = "a number has no product with a weight: x has an axis or more, [.., in]";
            return Err(Error::msg(what));
        };
        if len != n {
            let weight = w.dims();
            let what = format!("{dims:?} has no product with a weight [out, in] of {weight:?}");
            return Err(Error::msg(format!("x of {what}: their last axes differ")));
        }
        let mut shape = rows.to_vec();
        shape.push(out);
        // From the last axis on: those that follow one another are one.
        let mut axes: Vec<[usize; 3]> = Vec::new();
        let mut y_stride = out;
        for (&count, &stride) in rows.iter().zip(strides).rev() {
            match axes.last_mut() {
                _ if count == 1 => {}
                Some([all, step, _]) if stride == *all * *step => *all *= count,
                _ => axes.push([count, stride, y_stride]),
            }
            y_stride *= count;
        }
        // The most rows that one product can take.
        let most = (0..axes.len()).max_by_key(|&axis| axes[axis][0]);
        let [count, x_stride, y_stride] = most.map_or([1, n, out], |axis| axes.swap_remove(axis));
        Ok(Rows {
            w: Matrix { first: w.start_offset(), dim: [out, n], strides: [w_row, w_column] },
            shape: shape.into(),
            x: Matrix { first: x.start_offset(), dim: [count, n], strides: [x_stride, column] },
            y: Matrix { first: 0, dim: [count, out], strides: [y_stride, 1] },
            others: axes,
        })
    }

    /// Whether each entry of the result is a sum of no products.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_of_nothing(&self) -> bool {
        self.w.dim[1] == 0
    }

    /// The products that it takes: one, where the rows of x lie at one stride.
    ///
    /// A is W or the rows of x, whichever has more of them: it is read once, and the rows of B are its right-hand sides.
    pub(crate) fn parts<M: Copy>(&self, of_x: M, of_w: M) -> impl Iterator<Item = Part<M>> {
        self.places().map(move |(x, y)| {
            let (x, w) = ((x, of_x), (self.w, of_w));
            if x.0.dim[0] > w.0.dim[0] {
                Part { a: x, b: w, y }
            } else {
                Part { a: w, b: x, y: y.transposed() }
            }
        })
    }

    /// Rows of x, and of the result.
    fn places(&self) -> impl Iterator<Item = (Matrix, Matrix)> {
        let parts = self.others.iter().map(|axis| axis[0]).product();
        (0..parts).map(|mut part| {
            let (mut x, mut y) = (self.x, self.y);
            for [count, x_stride, y_stride] in &self.others {
                let index = part % count;
                part /= count;
                x.first += index * x_stride;
                y.first += index * y_stride;
            }
            (x, y)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[usize], strides: &[usize], first: usize) -> Layout {
        Layout::new(dims.into(), strides.into(), first)
    }

    /// Where the first entry of each row lies in x and in the result, and how many products there are.
    fn places(x: &Layout, w: &Layout) -> (usize, Vec<(usize, usize)>) {
        let rows = Rows::new(x, w).unwrap();
        let mut all = Vec::new();
        for (x, y) in rows.places() {
            let of = |m: Matrix, i: usize| m.first + i * m.strides[0];
            all.extend((0..x.dim[0]).map(|i| (of(x, i), of(y, i))));
        }
        all.sort_by_key(|&(_, y)| y);
        (rows.places().count(), all)
    }

    #[test]
    fn axes_that_follow_one_another_are_one() {
        let w = layout(&[5, 7], &[7, 1], 0);
        let expected: Vec<_> = (0..6).map(|i| (3 + 7 * i, 5 * i)).collect();
        for dims in [&[6, 7][..], &[2, 3, 7], &[2, 1, 3, 7], &[1, 6, 1, 7]] {
            let x = Layout::contiguous_with_offset(dims, 3);
            assert_eq!(places(&x, &w), (1, expected.clone()), "{dims:?}");
        }
        assert_eq!(places(&layout(&[7], &[1], 3), &w), (1, vec![(3, 0)]));
    }

    #[test]
    fn others_are_products_of_the_longest() {
        let w = layout(&[5, 7], &[7, 1], 0);
        // Two tokens of four in each of three sequences.
        let x = layout(&[3, 2, 7], &[28, 7, 1], 0);
        let expected = [(0, 0), (7, 5), (28, 10), (35, 15), (56, 20), (63, 25)];
        assert_eq!(places(&x, &w), (2, expected.to_vec()));
        // A broadcast axis before and behind.
        let x = layout(&[2, 3, 2, 7], &[0, 7, 0, 1], 1);
        let expected = (0..12).map(|i| (1 + 7 * (i / 2 % 3), 5 * i)).collect();
        assert_eq!(places(&x, &w), (4, expected));
        let none = layout(&[0, 3, 7], &[21, 7, 1], 0);
        assert_eq!(Rows::new(&none, &w).unwrap().shape.dims(), [0, 3, 5]);
    }

    #[test]
    fn the_matrix_with_more_rows_is_read_once() {
        let (few, many) = (Layout::contiguous((2, 7)), Layout::contiguous((5, 7)));
        let part = |x, w| Rows::new(x, w).unwrap().parts("x", "w").next().unwrap();
        let of_few = part(&few, &many);
        assert_eq!((of_few.a.1, of_few.b.1), ("w", "x"));
        assert_eq!((of_few.y.dim, of_few.y.strides), ([5, 2], [1, 5]));
        let of_many = part(&many, &few);
        assert_eq!((of_many.a.1, of_many.b.1), ("x", "w"));
        assert_eq!((of_many.y.dim, of_many.y.strides), ([5, 2], [2, 1]));
    }
}
