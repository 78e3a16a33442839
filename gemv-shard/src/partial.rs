//! The value, and what it is made from.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{
    Device, Dtype, Element, Error as CoreError, MatrixRef, ShapeMismatch, Times, VectorRef,
};

use crate::dealt::Dealt;
use crate::element::{SumElement, Vectors};
use crate::memory::collected;
use crate::{Error, Result, product};

/// The sums that a part of the columns contributes to every row of `A x`: one number a row and segment of
/// 256 columns.
///
/// `S` is the accumulator of x's elements, in which sums are kept: f32 for f16, bf16 and f32. The parts of
/// one product are computed anywhere, by [`new`](Self::new) or [`cyclic`](Self::cyclic); travel as
/// [bytes](Self::to_bytes); and are [merged](Self::merge) in any order. [`finish`](Self::finish) adds them up.
/// The result has the bits of the product of the whole matrix.
///
/// ```
/// use gemv::{GpuDot, device};
/// use gemv_shard::Partial;
/// use ndarray::{Array1, Array2, s};
/// # gemv::Engine::global().set_default("reference")?;
///
/// let a = Array2::from_shape_fn((3, 1000), |(i, j)| ((i + 7 * j) as f32).sin());
/// let x = Array1::from_shape_fn(1000, |j| (j as f32).cos());
/// let here = device("reference")?; // or "cuda:0"
///
/// let mut parts = Vec::new();
/// for columns in [512..1000, 0..256, 256..512] {
///     let (first, range) = (columns.start, s![columns.clone()]);
///     let part = Partial::new(&here, a.slice(s![.., columns]), x.slice(range), first, 1000)?;
///     parts.push(part.to_bytes()?); // 12 bytes for each segment, and a header
/// }
/// let parts = parts.iter().map(|bytes| Partial::<f32>::from_bytes(bytes));
/// let whole = Partial::merge(parts.collect::<Result<Vec<_>, _>>()?)?;
/// let mut y = Array1::<f32>::zeros(3);
/// whole.finish(&here, 1.0, 0.0, &mut y)?;
/// assert_eq!(y, a.gpu_dot(&x)); // bit for bit
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Partial<S> {
    pub(crate) rows: usize,
    /// Of the whole matrix.
    pub(crate) columns: usize,
    pub(crate) cut: Cut,
    /// The units that are here: in ascending order, each run apart from the next.
    pub(crate) held: Vec<Range<usize>>,
    /// Unit by unit; of each, [`width`](Partial::width) times all rows.
    pub(crate) sums: Vec<S>,
}

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A segment of columns: its sums.
    Segments,
    /// A process of so many in a block-cyclic distribution: what it has left of its lanes of the second
    /// level, for each 256 segments.
    Lanes(usize),
}

impl<S: SumElement> Partial<S> {
    /// The sums of some columns, computed on this device.
    ///
    /// `a` is m × k, columns `first` to `first + k - 1` of a matrix of `total` columns; `x` has the k entries
    /// that belong to them. Each is on the host or resident on the device. `a` may be of a narrower type than
    /// `x`, as in a product. `first` is a multiple of 256, and so is `first + k`, if that is not `total`. With
    /// k = 0 the part is empty, and may as well be left out.
    ///
    /// # Errors
    /// [`Error::Cut`] if the columns are not so, or [`Error::Product`] of
    /// [`Error::Shape`](gemv_core::Error::Shape), [`Error::WrongDevice`](gemv_core::Error::WrongDevice) or what
    /// the device reports.
    pub fn new<'a, 'x, T, V>(
        device: &Device,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, V>>,
        first: usize,
        total: usize,
    ) -> Result<Partial<S>>
    where
        T: Element + Times<S>,
        V: Element<Acc = S>,
    {
        let a = a.into();
        let columns = a.dim().1;
        let end = first.checked_add(columns).filter(|&end| end <= total);
        let whole = |at: usize| at.is_multiple_of(SEGMENT);
        let fits = |end: usize| columns == 0 || (whole(first) && (whole(end) || end == total));
        let Some(end) = end.filter(|&end| fits(end)) else {
            return Err(Error::Cut { first, columns, total });
        };
        let run = Some(first / SEGMENT..end.div_ceil(SEGMENT)).filter(|_| columns > 0);
        let held = run.into_iter().collect();
        Partial::of(device, a, x.into(), held, total)
    }

    /// The sums of the columns of one process in a block-cyclic distribution with blocks of 256, computed on
    /// this device.
    ///
    /// Of a matrix of `total` columns, process p of P (from 0) has blocks p, p + P, p + 2 P and so on, one after
    /// the other: `a` is m × k, as ScaLAPACK stores it (`numroc(total, 256, p, 0, P)` is k), and `x` has the
    /// k entries that belong to them. Where P is a power of two, the sums can be [reduced](Self::reduce).
    ///
    /// ```
    /// use gemv::device;
    /// use gemv_shard::Partial;
    /// use ndarray::{Array1, Array2};
    ///
    /// // Processes 0 and 1 of 2 have columns 0..256 and 512..600, and columns 256..512.
    /// let (here, ones) = (device("reference")?, |n| (Array2::<f64>::ones((2, n)), Array1::<f64>::ones(n)));
    /// let parts = [(0, ones(344)), (1, ones(256))]
    ///     .map(|(process, (a, x))| Partial::cyclic(&here, &a, &x, process, 2, 600));
    /// let mut y = [0.0; 2];
    /// Partial::merge(parts.into_iter().collect::<Result<Vec<_>, _>>()?)?
    ///     .finish(&here, 1.0, 0.0, &mut y)?;
    /// assert_eq!(y, [600.0; 2]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Cyclic`] if there is no such process or it has another number of columns; else as
    /// [`new`](Self::new).
    pub fn cyclic<'a, 'x, T, V>(
        device: &Device,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, V>>,
        process: usize,
        processes: usize,
        total: usize,
    ) -> Result<Partial<S>>
    where
        T: Element + Times<S>,
        V: Element<Acc = S>,
    {
        let a = a.into();
        let (columns, segments) = (a.dim().1, total.div_ceil(SEGMENT));
        let dealt = Dealt { process, processes };
        let holds = (process < processes).then(|| dealt.columns(total));
        if holds != Some(columns) {
            return Err(Error::Cyclic { process, processes, columns, holds, total });
        }
        // The blocks of a single process follow one another.
        let run = if processes == 1 { segments } else { 1 };
        let starts = (process..segments).step_by(processes.max(run));
        let held = collected(starts.map(|start| start..start + run))?;
        Partial::of(device, a, x.into(), held, total)
    }

    /// The sums of a matrix whose columns are these segments.
    fn of<T, V>(
        device: &Device,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, V>,
        held: Vec<Range<usize>>,
        columns: usize,
    ) -> Result<Partial<S>>
    where
        T: Element + Times<S>,
        V: Element<Acc = S>,
    {
        let (rows, entries) = (a.dim().0, x.len());
        if entries != a.dim().1 {
            let shapes = ShapeMismatch::MatrixVector { matrix: a.dim(), x: entries, y: None };
            return Err(CoreError::Shape(shapes).into());
        }
        product::owns(device, [a.device(), x.device()])?;
        let x = S::vector(V::any::<Vectors>(x))?;
        let sums = product::segment_sums(device, a, x.get())?;
        Ok(Partial { rows, columns, cut: Cut::Segments, held, sums })
    }
}

impl<S: Element> Partial<S> {
    /// The sums of a matrix of so many rows that has no columns.
    pub(crate) fn of_nothing(rows: usize) -> Partial<S> {
        Partial { rows, columns: 0, cut: Cut::Segments, held: Vec::new(), sums: Vec::new() }
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the whole matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The type of the sums.
    pub fn dtype(&self) -> Dtype {
        S::DTYPE
    }

    /// Numbers that it holds: of what it was made from, one of each row and segment.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Whether every column is in it, so that it can be [finished](Self::finish).
    pub fn is_complete(&self) -> bool {
        self.missing().is_none()
    }

    /// The sums of some rows alone: what the process needs that finishes these rows.
    ///
    /// Several processes share the work of finishing so. Each gets its rows from all others, merges them, and has
    /// these entries of y.
    ///
    /// ```
    /// use gemv::device;
    /// use gemv_shard::Partial;
    /// use ndarray::array;
    ///
    /// let here = device("reference")?;
    /// let sums = Partial::new(&here, &array![[1.0], [2.0], [3.0]], &[2.0], 0, 1)?;
    /// let mut y = [0.0; 2];
    /// sums.slice_rows(1..3)?.finish(&here, 1.0, 0.0, &mut y)?;
    /// assert_eq!(y, [4.0, 6.0]);
    /// assert_eq!(sums.slice_rows(2..4).unwrap_err().to_string(), "partial sums of 3 rows have no rows 2 to 3");
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rows`] if there are no such rows, and [`Error::Product`] without memory.
    pub fn slice_rows(&self, rows: Range<usize>) -> Result<Partial<S>> {
        if rows.start > rows.end || rows.end > self.rows {
            return Err(Error::Rows { first: rows.start, end: rows.end, rows: self.rows });
        }
        // Of no rows there may be any number of units.
        let units = self.sums.len().checked_div(self.rows).unwrap_or(0);
        let mut sums = product::zeros::<S>(units, rows.len())?;
        if !rows.is_empty() {
            let all = self.sums.chunks_exact(self.rows);
            for (to, unit) in sums.chunks_exact_mut(rows.len()).zip(all) {
                to.copy_from_slice(&unit[rows.clone()]);
            }
        }
        let held = collected(self.held.iter().cloned())?;
        Ok(Partial { rows: rows.len(), columns: self.columns, cut: self.cut, held, sums })
    }

    /// What is missing first.
    pub(crate) fn missing(&self) -> Option<Range<usize>> {
        let units = self.units();
        match self.held.first() {
            None => (units > 0).then_some(0..units),
            Some(first) if first.start > 0 => Some(0..first.start),
            Some(first) => {
                let next = self.held.get(1).map_or(units, |run| run.start);
                (first.end < next).then_some(first.end..next)
            }
        }
    }

    /// Segments of the whole matrix.
    pub(crate) fn segments(&self) -> usize {
        self.columns.div_ceil(SEGMENT)
    }

    /// How many units the whole has.
    pub(crate) fn units(&self) -> usize {
        match self.cut {
            Cut::Segments => self.segments(),
            // The others have no columns.
            Cut::Lanes(processes) => processes.min(self.segments()),
        }
    }

    /// How many numbers a unit has for each row.
    pub(crate) fn width(&self) -> usize {
        match self.cut {
            Cut::Segments => 1,
            Cut::Lanes(_) => self.segments().div_ceil(SEGMENT),
        }
    }

    /// Units as a person reads them.
    pub(crate) fn name(&self, units: Range<usize>) -> String {
        match self.cut {
            Cut::Segments => {
                // The end of the last segment can be more than a number holds.
                let end = units
                    .end
                    .checked_mul(SEGMENT)
                    .map_or(self.columns, |end| end.min(self.columns));
                format!("columns {} to {}", units.start * SEGMENT, end - 1)
            }
            Cut::Lanes(of) if units.len() == 1 => format!("process {} of {of}", units.start),
            Cut::Lanes(of) => format!("processes {} to {} of {of}", units.start, units.end - 1),
        }
    }
}
