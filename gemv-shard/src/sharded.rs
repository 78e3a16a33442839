//! One matrix over several devices of a process.

use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "packed")]
use gemv_core::ToDevice;
use gemv_core::float_mode::in_default;
use gemv_core::order::SEGMENT;
use gemv_core::{
    Device, DeviceMatrix, Element, Error as CoreError, GpuDot, ShapeMismatch, Times, packed,
};
use ndarray::{
    Array1, Array2, ArrayBase, ArrayRef1, ArrayRef2, ArrayView1, ArrayView2, ArrayViewMut1,
    ArrayViewMut2, Axis, Data, Ix1, Ix2,
};

use crate::dealt::Dealt;
use crate::element::SumElement;
use crate::kept::Kept;
use crate::part::Matrix;
use crate::split::Split;
use crate::threads::{Task, at_once};
use crate::{Error, Result, product};

/// A matrix of m × n whose parts are resident on several devices of this process, of any kinds.
///
/// Products are those of [`GpuDot`]: `a.gpu_dot(&x)`, `a.try_gemv(alpha, &x, beta, &mut y)`. x and y are on the host, or
/// resident on the devices as a [`ShardedVector`](crate::ShardedVector); on the host they may be matrices of several
/// columns. Products have the bits of the product on one
/// device, whatever the devices, the split and the weights. All devices compute at the same time, and no device
/// holds more of the matrix than its part.
///
/// By rows, each device needs x and gives its entries of y. By columns, it needs its entries of x and gives the
/// [sums](crate::Partial) of its columns: one number for each row and 256 columns, or with [cyclic
/// columns](Split::CyclicColumns) for each row and 65,536. GPUs of CUDA copy these from each other, and each adds up those of its share of the rows; the matrix keeps the memory for them from one product to the next.
/// (Sums that are complex, or of y in f16 or bf16, pass through the host's memory, as everything does that other devices
/// exchange.) With a device whose memory is the host's, such as the CPU, that device adds them up.
///
/// Devices that compute while the caller goes on, such as GPUs, are all started by the calling thread. Another one
/// has a thread of its own; parts of the CPU are computed one after another on the caller's pool of rayon. Copies between
/// the host and several devices have threads too.
///
/// ```
/// use gemv::{GpuDot, open_devices};
/// use gemv_shard::{Sharded, Split};
/// use ndarray::{Array1, Array2};
/// # gemv::Engine::global().set_default("reference")?;
///
/// let a = Array2::from_shape_fn((6, 1000), |(i, j)| ((i + 3 * j) as f64).sin());
/// let x = Array1::from_shape_fn(1000, |j| 1.0 / (1 + j) as f64);
/// let devices = open_devices("reference, reference")?; // or "cuda:*", or "cuda:*, cpu"
///
/// let mut y = Array1::ones(6);
/// for split in [Split::Rows, Split::Columns, Split::Grid { rows: 2, columns: 1 }] {
///     let shared = Sharded::new(&a, &devices, split)?; // uploaded once, used many times
///     assert_eq!(shared.gpu_dot(&x), a.gpu_dot(&x)); // to the last bit
///     shared.try_gemv(2.0, &x, 0.0, &mut y)?;
///     assert_eq!(y, a.gpu_dot(&x) * 2.0);
/// }
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sharded<T: Element> {
    pub(crate) dim: (usize, usize),
    pub(crate) devices: Vec<Device>,
    /// Of rows that follow one another; all of them together have all rows, if there are columns.
    pub(crate) bands: Vec<Band<T>>,
    /// Memory for the sums of products by columns.
    pub(crate) kept: Arc<Kept>,
}

/// Rows, and who has their columns: all of them together have all columns.
#[derive(Debug, Clone)]
pub(crate) struct Band<T: Element> {
    pub rows: Range<usize>,
    pub parts: Vec<Part<T>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Part<T: Element> {
    /// Which of the devices has it.
    pub device: usize,
    /// With cyclic columns, from the first one to the last: what the part needs of x. A vector in these parts is read by
    /// each alone, and not put together: they overlap.
    pub columns: Range<usize>,
    /// Of cyclic columns, which: other devices have those between.
    pub dealt: Option<Dealt>,
    pub a: Matrix<T>,
}

/// What a device has of a matrix, and computes of y.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub columns: Range<usize>,
    /// The rows whose entries of y it computes, from what all devices of these rows have.
    pub computes: Range<usize>,
}

impl<T: Element> Sharded<T> {
    /// Uploads to each device its part of a matrix, all parts of about one size.
    ///
    /// `a` is m × n on the host, of any strides; m or n may be 0. A device may be listed twice: it has two parts
    /// then. For devices of different speed there is [`weighted`](Self::weighted).
    ///
    /// ```
    /// use gemv::open_devices;
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
    /// let shared = Sharded::new(&a.t(), &open_devices("reference, reference")?, Split::Rows)?;
    /// assert_eq!((shared.dim(), shared.parts().count()), ((2, 3), 2));
    /// let none = Sharded::new(&a, &[], Split::Rows).unwrap_err();
    /// assert_eq!(none.to_string(), "a matrix is shared by one device or more, but there is none");
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevices`]; [`Error::Grid`] if the grid has not a place for each device;
    /// [`Error::CyclicDevices`] if columns cannot be dealt cyclically to so many; [`Error::Product`] of
    /// what a device reports, such as too little memory.
    pub fn new<'a>(
        a: impl Into<ArrayView2<'a, T>>,
        devices: &[Device],
        split: Split,
    ) -> Result<Sharded<T>> {
        Sharded::weighted(a, devices, split, &vec![1.0; devices.len()])
    }

    /// As [`new`](Self::new), with parts in proportion to weights: one for each device, such as its memory
    /// bandwidth in any unit, or one over the seconds of a product.
    ///
    /// By rows, a device has rows by its weight; by columns, blocks of 256 columns. In a grid, the devices of a
    /// row share their columns by their weights, and have rows by the sum of these. A device with too small a
    /// weight has nothing.
    ///
    /// ```
    /// use gemv::open_devices;
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::Array2;
    ///
    /// let (a, devices) = (Array2::<f32>::eye(100), open_devices("reference, reference")?);
    /// let shared = Sharded::weighted(&a, &devices, Split::Rows, &[4.8, 1.2])?; // TB/s
    /// assert!(shared.parts().map(|(_, rows, _)| rows).eq([0..80, 80..100]));
    /// let e = Sharded::weighted(&a, &devices, Split::Rows, &[1.0]).unwrap_err();
    /// assert_eq!(e.to_string(), "weights do not fit: 1 for 2 devices");
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::Weights`] if there are more or fewer than devices, if one is not
    /// positive and finite, or if they differ and columns are dealt cyclically.
    pub fn weighted<'a>(
        a: impl Into<ArrayView2<'a, T>>,
        devices: &[Device],
        split: Split,
        weights: &[f64],
    ) -> Result<Sharded<T>> {
        let a = a.into();
        weigh(devices, weights)?;
        let mut of = devices.iter().enumerate();
        // A single segment has no second level: its sum is the product's.
        let processes = devices.len();
        let cyclic = split == Split::CyclicColumns && processes > 1 && a.ncols() > SEGMENT;
        let (mut bands, mut uploads) = (Vec::new(), Vec::<Task<'_, Part<T>>>::new());
        for (rows, blocks) in in_default(|| split.cut(a.dim(), weights))? {
            let before = uploads.len();
            for (columns, (which, device)) in blocks.into_iter().zip(&mut of) {
                if rows.is_empty() || columns.is_empty() {
                    continue;
                }
                let dealt = cyclic.then_some(Dealt { process: which, processes });
                let mut mine = a.slice_axis(Axis(0), rows.clone().into());
                let upload = move || {
                    let a = match dealt {
                        Some(dealt) => upload(device, dealt, mine)?,
                        None => {
                            mine.slice_axis_inplace(Axis(1), columns.clone().into());
                            device.matrix(mine)?
                        }
                    };
                    Ok(Part { device: which, columns, dealt, a: Matrix::Elements(a) })
                };
                uploads.push((device, Box::new(upload)));
            }
            bands.push((rows, uploads.len() - before));
        }
        let mut parts = at_once(uploads)?.into_iter();
        let bands = bands
            .into_iter()
            .map(|(rows, count)| Band { rows, parts: parts.by_ref().take(count).collect() });
        let bands = bands.filter(|band| !band.parts.is_empty()).collect();
        let kept = Arc::default();
        Ok(Sharded { dim: a.dim(), devices: devices.to_vec(), bands, kept })
    }

    /// `Y = alpha * A X + beta * Y`, with several right-hand sides of a type that may be wider than the matrix'.
    ///
    /// `x` is n × k and `y` m × k, both on the host, of any strides. Column c of Y has the bits of
    /// [`gemv_mixed`](Self::gemv_mixed) of column c. By rows each device reads its part once for several columns, and else
    /// once for each. (`try_gemv` of [`GpuDot`] is the same for X and Y of the matrix' own type.)
    ///
    /// ```
    /// use gemv::{GpuDot, open_devices};
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    /// # gemv::Engine::global().set_default("reference")?;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
    /// let shared = Sharded::new(&a, &open_devices("reference, reference")?, Split::Rows)?;
    /// assert_eq!(shared.gpu_dot(&a.t()), a.gpu_dot(&a.t()));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv_mixed`](Self::gemv_mixed).
    pub fn gemm_mixed<'x, 'y, V, S>(
        &self,
        alpha: S,
        x: impl Into<ArrayView2<'x, V>>,
        beta: S,
        y: impl Into<ArrayViewMut2<'y, V>>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let (x, mut y, (m, n)) = (x.into(), y.into(), self.dim);
        if (x.dim(), y.nrows()) != ((n, y.ncols()), m) {
            let (matrix, x, y) = ((m, n), x.dim(), Some(y.dim()));
            return Err(CoreError::Shape(ShapeMismatch::MatrixMatrix { matrix, x, y }).into());
        }
        // Of its own memory: y stays as it is if a device fails.
        let result = match beta.is_zero() {
            true => product::zeros(m, y.ncols())?,
            false => packed(&y.view())?,
        };
        let mut result = Array2::from_shape_vec(y.dim(), result).expect("as many as y has");
        let by_rows = self.bands.iter().all(|band| band.parts.len() == 1);
        if !by_rows || self.bands.is_empty() || alpha.is_zero() {
            for (x, y) in x.columns().into_iter().zip(result.columns_mut()) {
                self.gemv_mixed(alpha, x, beta, y)?;
            }
        } else {
            let (mut rest, mut tasks) = (result.view_mut(), Vec::<Task<'_, ()>>::new());
            for part in self.bands.iter().map(|Band { rows, parts }| (rows.len(), &parts[0].a)) {
                let (rows, a) = part;
                let (y, other) = rest.split_at(Axis(0), rows);
                rest = other;
                let product = move || a.multiply(alpha, x.into(), beta, y.into());
                tasks.push((a.device(), Box::new(product)));
            }
            at_once(tasks)?;
        }
        y.assign(&result);
        Ok(())
    }

    /// Rows and columns of the whole matrix.
    pub fn dim(&self) -> (usize, usize) {
        self.dim
    }

    /// The devices, as they were listed.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The parts in the order of the devices: the device, its rows and its columns. Devices that have nothing
    /// are left out. Cyclic columns go from the device's first one to its last; see [`Split::CyclicColumns`].
    pub fn parts(&self) -> impl Iterator<Item = (&Device, Range<usize>, Range<usize>)> {
        self.bands.iter().flat_map(|band| {
            let rows = &band.rows;
            band.parts.iter().map(|part| (part.a.device(), rows.clone(), part.columns.clone()))
        })
    }

    /// `y = alpha * A x + beta * y`, with x and y of a type that may be wider than the matrix'.
    ///
    /// `x` has n entries and `y` m, both on the host, of any strides. `alpha = 0` reads neither the matrix nor x,
    /// `beta = 0` does not read y. (`try_gemv` of [`GpuDot`] is the same for vectors of the matrix' own type.)
    ///
    /// ```
    /// use gemv::{half::bf16, open_devices};
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    ///
    /// let weights = array![[0.5f32, 1.0], [2.0, -1.0]].mapv(bf16::from_f32);
    /// let shared = Sharded::new(&weights, &open_devices("reference, reference")?, Split::Rows)?;
    /// let mut y = [f32::NAN; 2];
    /// shared.gemv_mixed(1.0, &[1.0f32 / 3.0, 3.0], 0.0, &mut y)?;
    /// assert_eq!(y, [1.0 / 6.0 + 3.0, 2.0 / 3.0 - 3.0]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Product`] of [`Shape`](gemv_core::Error::Shape) if x or y has another length, or of what a device
    /// reports; a panic of a device's thread is an error of that device. `y` is then as it was.
    pub fn gemv_mixed<'x, 'y, V, S>(
        &self,
        alpha: S,
        x: impl Into<ArrayView1<'x, V>>,
        beta: S,
        y: impl Into<ArrayViewMut1<'y, V>>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let (x, mut y) = (x.into(), y.into());
        self.fits(x.len(), Some(y.len()))?;
        let places = self.places();
        let columns = places.iter().map(|place| match alpha.is_zero() {
            true => 0..0,
            false => place.columns.clone(),
        });
        let there = self.upload(&x, columns.collect())?;
        let rows = places.iter().map(|place| place.computes.clone());
        let before = match beta.is_zero() {
            true => None,
            false => Some(self.upload(&y.view(), rows.collect())?),
        };
        let result = self.computed(alpha, &there, beta, before.as_ref())?.gather()?;
        y.assign(&result);
        Ok(())
    }

    /// What each device has of the matrix, and computes of y.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut places = vec![Place::default(); self.devices.len()];
        for Band { rows, parts } in &self.bands {
            // Sums that pass through the host are added up there, by a device that has its memory. Else those who
            // share rows share the work.
            let near = parts.iter().position(|part| part.a.device().info().host);
            let cut = |part: usize| match near {
                Some(near) if part <= near => rows.start,
                Some(_) => rows.end,
                None => rows.start + rows.len() * part / parts.len(),
            };
            for (which, part) in parts.iter().enumerate() {
                let (columns, computes) = (part.columns.clone(), cut(which)..cut(which + 1));
                places[part.device] = Place { columns, computes };
            }
        }
        // A matrix without columns has no parts, and y nevertheless.
        if self.bands.is_empty() {
            places[0] = Place { columns: 0..0, computes: 0..self.dim.0 };
        }
        places
    }

    pub(crate) fn fits(&self, x: usize, y: Option<usize>) -> Result<()> {
        let (m, n) = self.dim;
        if x == n && y.is_none_or(|y| y == m) {
            return Ok(());
        }
        Err(CoreError::Shape(ShapeMismatch::MatrixVector { matrix: (m, n), x, y }).into())
    }
}

/// Whether there is a weight for each device.
fn weigh(devices: &[Device], weights: &[f64]) -> Result<()> {
    if devices.len() == weights.len() {
        return Ok(());
    }
    let reason = format!("{} for {} devices", weights.len(), devices.len());
    Err(Error::Weights { reason })
}

/// Packed matrices, cut by rows.
#[cfg(feature = "packed")]
impl<T: Element<Acc = f32>> Sharded<T> {
    /// Uploads to each device some rows of a packed matrix, for vectors of f32, f16 or bf16: those of `T`. All parts are of
    /// about one size.
    ///
    /// Products have the bits of the product with the whole matrix on one device, for one vector and for several.
    ///
    /// ```
    /// use gemv::{Format, GpuDot, Packed, open_devices};
    /// use gemv_shard::Sharded;
    /// use ndarray::{Array1, Array2};
    /// # gemv::Engine::global().set_default("reference")?;
    ///
    /// let a = Array2::from_shape_fn((10, 64), |(i, j)| ((i * 64 + j) as f32).sin());
    /// let a = Packed::quantize(Format::Q8_0, &a)?; // or `Packed::new` of the bytes of a file
    /// let shared = Sharded::packed(&a, &open_devices("reference, reference")?)?; // or "cuda:*"
    /// let x = Array1::from_shape_fn(64, |j| (j as f32).cos());
    /// assert_eq!(shared.gpu_dot(&x), a.gpu_dot(&x));
    /// let x = Array2::from_elem((64, 3), 0.5);
    /// assert_eq!(shared.gpu_dot(&x), a.gpu_dot(&x)); // three columns
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn packed(a: &gemv_core::Packed, devices: &[Device]) -> Result<Sharded<T>> {
        Sharded::packed_weighted(a, devices, &vec![1.0; devices.len()])
    }

    /// As [`packed`](Self::packed), with rows in proportion to weights: see [`weighted`](Self::weighted).
    ///
    /// # Errors
    /// As [`weighted`](Self::weighted).
    pub fn packed_weighted(
        a: &gemv_core::Packed,
        devices: &[Device],
        weights: &[f64],
    ) -> Result<Sharded<T>> {
        weigh(devices, weights)?;
        let cut = in_default(|| Split::Rows.cut(a.dim(), weights))?.into_iter();
        let cut = cut.zip(devices).enumerate();
        let cut =
            cut.filter(|(_, ((rows, columns), _))| !rows.is_empty() && !columns[0].is_empty());
        let uploads = cut.map(|(device, ((rows, columns), on))| -> Task<'_, Band<T>> {
            let (mine, columns) = (a.rows(rows.clone()), columns[0].clone());
            let upload = move || {
                let a = Matrix::Packed(mine.to_device(on)?);
                Ok(Band { rows, parts: vec![Part { device, columns, dealt: None, a }] })
            };
            (on, Box::new(upload))
        });
        let bands = at_once(uploads.collect())?;
        Ok(Sharded { dim: a.dim(), devices: devices.to_vec(), bands, kept: Arc::default() })
    }
}

/// The rows of cyclic columns begin at multiples of so many elements: loads of 16 bytes are whole there.
const ALIGNED: usize = 64;

/// Uploads the columns of a process, row by row.
fn upload<T: Element>(
    device: &Device,
    dealt: Dealt,
    a: ArrayView2<'_, T>,
) -> Result<DeviceMatrix<T>> {
    let (rows, columns) = (a.nrows(), dealt.columns(a.ncols()));
    let width = columns.next_multiple_of(ALIGNED);
    let mut all = product::zeros::<T>(rows, width)?;
    dealt.copy(a, width, &mut all);
    Ok(device.vector(&all)?.as_matrix((rows, width)).columns(..columns))
}

/// What the trait reports: of this crate's own errors none is left when a product is computed.
pub(crate) fn told(e: Error) -> CoreError {
    match e {
        Error::Product(e) => e,
        e => {
            let device = "the host".into();
            CoreError::Device { device, call: "a product in parts", reason: e.to_string() }
        }
    }
}

/// Products with the vectors that are on the host.
macro_rules! vectors {
    ($([$($generic:tt)*] $vector:ty, $view:path $(, $data:ident)?;)*) => { $(
        impl<T, S, $($generic)*> GpuDot<$vector> for Sharded<T>
        where
            T: Element<Acc = S> + Times<S>,
            S: SumElement,
            $($data: Data<Elem = T>,)?
        {
            type Elem = T;
            type Output = Array1<T>;
            type Target<'y> = ArrayViewMut1<'y, T>;

            fn try_gpu_dot(&self, x: &$vector) -> gemv_core::Result<Array1<T>> {
                // Before memory is allocated for it.
                self.fits(x.len(), None).map_err(told)?;
                let y = product::zeros(self.dim.0, 1).map_err(told)?;
                let mut y = Array1::from_vec(y);
                self.try_gemv(S::ONE, x, S::ZERO, &mut y)?;
                Ok(y)
            }

            fn try_gemv<'y>(
                &self,
                alpha: S,
                x: &$vector,
                beta: S,
                y: impl Into<ArrayViewMut1<'y, T>>,
            ) -> gemv_core::Result<()> {
                self.gemv_mixed(alpha, $view(x), beta, y).map_err(told)
            }
        }
    )* };
}
vectors!(
    [D] ArrayBase<D, Ix1>, ArrayRef1::view, D;
    [] ArrayRef1<T>, ArrayRef1::view;
    [] [T], ArrayView1::from;
    [] Vec<T>, ArrayView1::from;
    [const N: usize] [T; N], ArrayView1::from;
);

/// Products with several right-hand sides on the host.
macro_rules! matrices {
    ($([$($generic:tt)*] $matrix:ty $(, $data:ident)?;)*) => { $(
        impl<T, S, $($generic)*> GpuDot<$matrix> for Sharded<T>
        where
            T: Element<Acc = S> + Times<S>,
            S: SumElement,
            $($data: Data<Elem = T>,)?
        {
            type Elem = T;
            type Output = Array2<T>;
            type Target<'y> = ArrayViewMut2<'y, T>;

            fn try_gpu_dot(&self, x: &$matrix) -> gemv_core::Result<Array2<T>> {
                let ((m, n), x) = (self.dim, ArrayRef2::view(x));
                if x.nrows() != n {
                    let (matrix, x) = ((m, n), x.dim());
                    return Err(CoreError::Shape(ShapeMismatch::MatrixMatrix { matrix, x, y: None }));
                }
                let y = product::zeros(m, x.ncols()).map_err(told)?;
                let mut y = Array2::from_shape_vec((m, x.ncols()), y).expect("as many as there are");
                self.gemm_mixed(S::ONE, x, S::ZERO, &mut y).map_err(told)?;
                Ok(y)
            }

            fn try_gemv<'y>(
                &self,
                alpha: S,
                x: &$matrix,
                beta: S,
                y: impl Into<ArrayViewMut2<'y, T>>,
            ) -> gemv_core::Result<()> {
                self.gemm_mixed(alpha, ArrayRef2::view(x), beta, y).map_err(told)
            }
        }
    )* };
}
matrices!(
    [D] ArrayBase<D, Ix2>, D;
    [] ArrayRef2<T>;
);

impl<T: Element, X: ?Sized> GpuDot<&X> for Sharded<T>
where
    Sharded<T>: GpuDot<X>,
{
    type Elem = <Self as GpuDot<X>>::Elem;
    type Output = <Self as GpuDot<X>>::Output;
    type Target<'y> = <Self as GpuDot<X>>::Target<'y>;

    fn try_gpu_dot(&self, x: &&X) -> gemv_core::Result<Self::Output> {
        GpuDot::<X>::try_gpu_dot(self, *x)
    }

    fn try_gemv<'y>(
        &self,
        alpha: <Self::Elem as Element>::Acc,
        x: &&X,
        beta: <Self::Elem as Element>::Acc,
        y: impl Into<Self::Target<'y>>,
    ) -> gemv_core::Result<()> {
        GpuDot::<X>::try_gemv(self, alpha, *x, beta, y)
    }
}
