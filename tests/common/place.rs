//! Batches of matrices in memory: the order of their axes, steps, and what lies around them.

use gemv::Element;
use gemv::ndarray::{Array3, ArrayBase, Axis, Ix3, RawData, Slice};

/// How a batch × rows × columns array lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// The order of the axes in memory.
    pub order: [usize; 3],
    /// The steps of the view in its parent; negative for reversed.
    pub steps: [isize; 3],
    /// Entries of the parent before and after the view.
    pub pad: [usize; 3],
}

pub const ROW: Place = Place { order: [0, 1, 2], steps: [1, 1, 1], pad: [0, 0, 0] };
pub const COL: Place = Place { order: [0, 2, 1], ..ROW };
/// The columns (for A) or right-hand sides (for X and Y) of all entries next to each other.
pub const BATCH_LAST: Place = Place { order: [1, 2, 0], ..ROW };
pub const BETWEEN: Place = Place { order: [1, 0, 2], ..ROW };
/// Part of something larger, from an odd place on.
pub const PART: Place = Place { pad: [1, 1, 3], ..ROW };
pub const PART_COL: Place = Place { pad: [0, 3, 1], ..COL };
pub const STEPS: Place = Place { steps: [1, -2, 3], pad: [0, 1, 1], ..ROW };
pub const BACK: Place = Place { steps: [-1, 1, -1], ..COL };

impl Place {
    /// The array at this place, from one of the parent's shape in memory.
    pub fn view<S: RawData>(self, parent: ArrayBase<S, Ix3>) -> ArrayBase<S, Ix3> {
        let mut axes = [0; 3];
        for (at, axis) in self.order.into_iter().enumerate() {
            axes[axis] = at;
        }
        let mut view = parent.permuted_axes(axes);
        for axis in 0..3 {
            let (step, pad) = (self.steps[axis], self.pad[axis]);
            let end = view.len_of(Axis(axis)) - pad;
            let part = Slice::new(pad as isize, Some(end as isize), step);
            view.slice_axis_inplace(Axis(axis), part);
        }
        view
    }

    /// The parent, filled.
    pub fn parent<T: Element>(
        self,
        dim: [usize; 3],
        mut fill: impl FnMut(usize) -> T,
    ) -> Array3<T> {
        let len = |axis: usize| {
            let between = dim[axis].saturating_sub(1) * self.steps[axis].unsigned_abs();
            2 * self.pad[axis] + if dim[axis] == 0 { 0 } else { between + 1 }
        };
        let shape = self.order.map(len);
        let mut at = 0;
        Array3::from_shape_simple_fn(shape, || {
            at += 1;
            fill(at)
        })
    }

    /// These values at this place, and `around` where none of them is.
    pub fn hold<T: Element>(self, values: &Array3<T>, around: impl FnMut(usize) -> T) -> Array3<T> {
        let dim = values.dim();
        let mut parent = self.parent([dim.0, dim.1, dim.2], around);
        self.view(parent.view_mut()).assign(values);
        parent
    }
}
