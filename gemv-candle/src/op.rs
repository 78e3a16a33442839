//! The operation that candle calls.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Error, Layout, Result, Shape, Tensor, WithDType};
use gemv::half::{bf16, f16};
use gemv::ndarray::{ArrayView2, ArrayViewMut2, Ix2, ShapeBuilder, StrideShape};
use gemv::unstable::zeros_on_host;
use gemv::{Accumulator, Element};

use crate::rows::{Matrix, Part, Rows};

/// `x Wᵀ`.
pub(crate) struct Product;

const NAME: &str = "gemv";

/// Runs an expression with the type of both operands.
macro_rules! with_type {
    ($x:expr, $w:expr, $t:ident => $body:expr) => {
        match same($x.dtype(), $w.dtype())? {
            DType::F32 => with_type!(@ f32, $t, $body),
            DType::F64 => with_type!(@ f64, $t, $body),
            DType::F16 => with_type!(@ f16, $t, $body),
            DType::BF16 => with_type!(@ bf16, $t, $body),
            other => Err(Error::UnsupportedDTypeForOp(other, NAME).bt()),
        }
    };
    (@ $type:ty, $t:ident, $body:expr) => {{
        type $t = $type;
        $body
    }};
}

/// The type of both operands.
fn same(lhs: DType, rhs: DType) -> Result<DType> {
    if lhs == rhs { Ok(lhs) } else { Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: NAME }.bt()) }
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_type!(x, w, T => {
            let rows = Rows::new(x_layout, w_layout)?;
            let y = on_host::<T>(T::cpu_storage_as_slice(x)?, T::cpu_storage_as_slice(w)?, &rows)?;
            Ok((T::to_cpu_storage_owned(y), rows.shape))
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        x_layout: &Layout,
        w: &candle_core::CudaStorage,
        w_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        with_type!(x, w, T => {
            let rows = Rows::new(x_layout, w_layout)?;
            Ok((crate::cuda::on_device::<T>(x, w, &rows)?, rows.shape))
        })
    }

    /// Of the rows g of the result's gradient: `g W` of x, and `Σ gᵀ x` of W.
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (out, n) = w.dims2()?;
        let rows: usize = x.dims().iter().rev().skip(1).product();
        let (g, rows) = (gradient.reshape((rows, out))?, x.reshape((rows, n))?);
        let of_x = gradient.apply_op2(&w.t()?, Product)?;
        Ok((Some(of_x), Some(g.t()?.apply_op2(&rows.t()?, Product)?)))
    }
}

/// On gemv's CPU, whatever the default device is.
fn on_host<T: Element>(x: &[T], w: &[T], rows: &Rows) -> Result<Vec<T>> {
    let mut y = zeros_on_host(rows.shape.elem_count()).map_err(Error::wrap)?;
    if y.is_empty() {
        return Ok(y);
    }
    let device = gemv::device("cpu").map_err(Error::wrap)?;
    for Part { a, b, y: to } in rows.parts(x, w) {
        let (a, b) = (view(a)?, view(b)?);
        let mut y =
            ArrayViewMut2::from_shape(shape(to), &mut y[to.first..]).map_err(Error::wrap)?;
        let done = if b.nrows() == 1 {
            device.gemv(T::Acc::ONE, a, b.row(0), T::Acc::ZERO, y.column_mut(0))
        } else {
            device.product(a, b.t()).to(y)
        };
        done.map_err(Error::wrap)?;
    }
    Ok(y)
}

/// # Errors
/// Where the matrix does not lie in the slice.
fn view<T>((matrix, of): (Matrix, &[T])) -> Result<ArrayView2<'_, T>> {
    let from = of.get(matrix.first..).unwrap_or_default();
    ArrayView2::from_shape(shape(matrix), from).map_err(Error::wrap)
}

fn shape(matrix: Matrix) -> StrideShape<Ix2> {
    matrix.dim.strides(matrix.strides)
}
