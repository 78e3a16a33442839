//! Products of packed matrices: decoded in registers where the instruction set has kernels for it. Else a few rows at a time
//! are decoded to the caches, and multiplied there as rows of f32.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView2, ArrayViewMut2, ArrayViewMut3, Axis, s};
use gemv_core::{
    Checked, Element, Format, Job, Memory, PackedMatrix, PackedPlace, Params, Result, bytes_of,
    bytes_of_mut, host_is_full, scale,
};

use crate::kernels;
use crate::run::{self, Work, sharing};
use crate::simd::{
    Allocation, Fused, Isa, Product, ROWS, VectorArgs, decode, elements, elements_mut,
};

/// The blocks of a packed matrix, as files have them.
#[derive(Debug)]
struct Rows {
    rows: usize,
    /// Bytes of the blocks; the elements have no meaning.
    blocks: Allocation<f32>,
}

impl Memory for Rows {
    fn len(&self) -> usize {
        self.rows
    }
}

/// A copy of a matrix of the host, or the number of bytes that were refused.
pub(crate) fn upload(matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>, u64> {
    let PackedPlace::Host(bytes) = matrix.place else { panic!("a matrix of the host") };
    let mut blocks = Allocation::<f32>::zeros(bytes.len().div_ceil(4))?;
    bytes_of_mut(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
    Ok(Box::new(Rows { rows: matrix.dim.0, blocks }))
}

/// The blocks of the rows, and the bytes of a row.
fn blocks(matrix: PackedMatrix<'_>) -> (&[u8], usize) {
    let (m, n) = matrix.dim;
    let row = matrix.format.row_bytes(n).expect("compared when the matrix was made");
    let all = match matrix.place {
        PackedPlace::Host(blocks) => blocks,
        PackedPlace::Device(memory, first) => {
            let memory: &dyn Any = memory;
            let rows: &Rows = memory.downcast_ref().expect("a packed matrix of this backend");
            &bytes_of(&rows.blocks)[first * row..]
        }
    };
    (&all[..m * row], row)
}

/// Bytes of decoded rows: of one vector they should stay in the first cache, of several in the second.
const TILE: (usize, usize) = (32 << 10, 256 << 10);

/// Computes one job, on several threads if each has at least `grain` KiB of blocks.
pub(crate) fn product<V: Element<Acc = f32>>(
    isa: Isa,
    matrix: PackedMatrix<'_>,
    job: &mut Checked<Job<'_>>,
    grain: usize,
) -> Result<()> {
    let ((m, n), columns) = (matrix.dim, job.x.dim()[2]);
    let (alpha, beta): (f32, f32) = (job.alpha.get(), job.beta.get());
    let (blocks, row) = blocks(matrix);
    let tasks = match (blocks.len() >> 10) / grain.max(1) {
        0 | 1 => 1,
        parts => gemv_threads::count().min(parts),
    };
    let fused = Fused::of(isa);
    let bytes = if columns == 1 { TILE.0 } else { TILE.1 };
    let tile = match fused {
        Some(_) => ROWS,
        None => (bytes / (4 * n.max(1))).next_multiple_of(4).clamp(4, m.next_multiple_of(4).max(4)),
    };
    // X as f32, in one array.
    let x = job.x.view_with::<V>(elements);
    let x = x.index_axis(Axis(0), 0);
    let full = |bytes| host_is_full("cpu", bytes);
    let mut wide = Allocation::<f32>::zeros(n.saturating_mul(columns)).map_err(full)?;
    // Column by column for one or few: each is a vector of neighbours.
    for (to, from) in wide.chunks_exact_mut(n.max(1)).zip(x.columns()) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
    }
    // All memory is had before any of Y is written.
    let scratch = (0..tasks).map(|_| match fused {
        Some(_) => Ok((zeros(Fused::scratch(n))?, Vec::new())),
        None => Ok((zeros(tile * n)?, zeros(tile * columns)?)),
    });
    let scratch = Mutex::new(scratch.collect::<Result<Vec<_>>>()?);
    let (x, dim, format) = (&*wide, (n, columns), matrix.format);
    let all = Shared { isa, fused, format, row, tile, x, dim, alpha, beta, scratch };
    let mut place = job.y();
    let y: ArrayViewMut3<'_, V> = place.view_mut_with(elements_mut);
    let y = y.index_axis_move(Axis(0), 0);
    let mut part = Part { all: &all, blocks, y };
    match tasks {
        1 => part.run(),
        _ => in_default(|| sharing(part, tasks, tile)),
    }
    Ok(())
}

fn zeros(len: usize) -> Result<Vec<f32>> {
    let mut zeros = Vec::new();
    let full = |_| host_is_full("cpu", (len as u64).saturating_mul(4));
    zeros.try_reserve_exact(len).map_err(full)?;
    zeros.resize(len, 0.0);
    Ok(zeros)
}

/// What all parts have in common.
struct Shared<'a> {
    isa: Isa,
    fused: Option<Fused>,
    format: Format,
    /// Bytes of a row of blocks.
    row: usize,
    /// Rows that are taken at a time.
    tile: usize,
    /// One column after the other.
    x: &'a [f32],
    /// The dimensions of X.
    dim: (usize, usize),
    alpha: f32,
    beta: f32,
    /// For each task: decoded rows and their sums, or the sums of segments.
    scratch: Mutex<Vec<(Vec<f32>, Vec<f32>)>>,
}

/// Some of the rows.
struct Part<'a, V> {
    all: &'a Shared<'a>,
    blocks: &'a [u8],
    y: ArrayViewMut2<'a, V>,
}

impl<V: Element<Acc = f32>> Work for Part<'_, V> {
    fn len(&self) -> usize {
        self.y.nrows()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Part { all, blocks, y } = self;
        let at = at.next_multiple_of(all.tile).min(y.nrows());
        let (y, rest) = y.split_at(Axis(0), at);
        let (first, second) = blocks.split_at(at * all.row);
        (Part { all, blocks: first, y }, Part { all, blocks: second, y: rest })
    }

    fn run(&mut self) {
        let lock = || self.all.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rows, mut sums) = lock().pop().expect("one for each task");
        match self.all.fused {
            Some(fused) => self.fused(fused, &mut rows),
            None => self.tiles(&mut rows, &mut sums),
        }
        lock().push((rows, sums));
    }
}

impl<V: Element<Acc = f32>> Part<'_, V> {
    /// Several columns of X are taken four, two and one at a time, while the rows are in the caches.
    fn fused(&mut self, fused: Fused, scratch: &mut [f32]) {
        let Shared { format, row, tile, x, dim: (n, columns), alpha, beta, .. } = *self.all;
        let mut blocks = self.blocks;
        for mut y in self.y.axis_chunks_iter_mut(Axis(0), tile) {
            let rows;
            (rows, blocks) = blocks.split_at(y.nrows() * row);
            let mut first = 0;
            while first < columns {
                let few = match columns - first {
                    1 => 1,
                    2 | 3 => 2,
                    _ => 4,
                };
                let x = (&x[first * n..][..few * n], few);
                let mut y = y.slice_mut(s![.., first..first + few]);
                let sums = fused.sums(format, (rows, row), x, scratch);
                finish(y.iter_mut(), &sums, (alpha, beta));
                first += few;
            }
        }
    }

    fn tiles(&mut self, rows: &mut [f32], sums: &mut [f32]) {
        let Shared { isa, format, row, tile, x, dim: (n, columns), alpha, beta, .. } = *self.all;
        let x = ArrayView2::from_shape((columns, n), x).expect("as many as were made");
        let x = x.reversed_axes();
        let blocks = self.blocks.chunks(tile * row.max(1));
        for (mut y, blocks) in self.y.axis_chunks_iter_mut(Axis(0), tile).zip(blocks) {
            let m = y.nrows();
            let (rows, sums) = (&mut rows[..m * n], &mut sums[..m * columns]);
            decode(isa, format, blocks, rows);
            let a = ArrayView2::from_shape((m, n), rows).expect("so many rows");
            let mut sums = ArrayViewMut2::from_shape((m, columns), sums).expect("so many sums");
            multiply(isa, a, x, sums.view_mut());
            finish(y.iter_mut(), sums.iter(), (alpha, beta));
        }
    }
}

/// Rule 6.
fn finish<'a, V: Element<Acc = f32> + 'a>(
    y: impl Iterator<Item = &'a mut V>,
    sums: impl IntoIterator<Item = &'a f32>,
    (alpha, beta): (f32, f32),
) {
    for (y, sum) in y.zip(sums) {
        *y = scale(alpha, *sum, beta, (beta != 0.0).then_some(*y));
    }
}

/// The sums of decoded rows with all columns of X.
fn multiply(
    isa: Isa,
    a: ArrayView2<'_, f32>,
    x: ArrayView2<'_, f32>,
    mut y: ArrayViewMut2<'_, f32>,
) {
    // On this thread alone.
    let grain = usize::MAX / 2;
    if x.ncols() == 1 {
        let (x, y) = (x.column(0), y.column_mut(0));
        let args = VectorArgs::CACHED;
        return run::vector(&Product::new(isa, args, 1.0, a, false, x, 0.0, y), grain);
    }
    let args = kernels::panel_args(&Params::new(kernels::GEMM_ROW.as_str()));
    let (a, x, y) = (a.insert_axis(Axis(0)), x.insert_axis(Axis(0)), y.insert_axis(Axis(0)));
    run::panels(isa, args, 1.0, a, false, x, 0.0, y, grain);
}
