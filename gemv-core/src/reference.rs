//! The order of additions as a program: the oracle of every test, and the answer where no backend
//! is linked. Written to be read, not to be fast.

use std::any::Any;
use std::sync::Arc;

use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, Ix3, indices};

use crate::backend::BuiltinTable;
use crate::element::scale;
use crate::float_mode::in_default;
use crate::host::host_zeros;
use crate::order::{LANES, SEGMENT};
use crate::step::{Step, VectorJob};
#[cfg(feature = "packed")]
use crate::tensor::{PackedMatrix, PackedPlace};
use crate::{
    Accumulator, AnySlice, AnySliceMut, AnyVectorJob, Backend, Checked, Desc, DeviceInfo, Dtype,
    Element, Error, Job, Memory, Params, Prepared, Result, Tensor, TensorMut, Times, Window,
    for_any, for_types,
};

/// The sum of `len` terms in the order: `lane = visit(j, lane)` adds term `j` to its lane.
///
/// This is rules 1 to 5 of the [order](crate::order). `visit` is called once for each `j` below
/// `len`, lane by lane in ascending `j`; a product's `visit` is `lane.fma(a[j], x[j])`. As all functions of this
/// module it computes in the default [floating-point mode](crate::float_mode), `visit` included.
///
/// ```
/// use gemv::unstable::reference::ordered_sum;
///
/// // 2^24 + 1 is no float: a 1 that meets 2^24 is lost, two that meet each other first are not.
/// let sum = |terms: &[f32; 256]| ordered_sum(256, &|j, lane: f32| lane + terms[j]);
/// let mut terms = [0.0; 256];
/// (terms[5], terms[69], terms[133]) = (16_777_216.0, 1.0, 1.0); // all three in lane 5
/// assert_eq!(sum(&terms), 16_777_216.0);
/// terms.rotate_right(1); // all in lane 6: the same
/// assert_eq!(sum(&terms), 16_777_216.0);
/// terms.swap(6, 7); // the large one in lane 7: the ones meet in lane 6
/// assert_eq!(sum(&terms), 16_777_218.0);
/// ```
pub fn ordered_sum<A: Accumulator>(len: usize, visit: &dyn Fn(usize, A) -> A) -> A {
    in_default(|| sum(len, visit))
}

/// The same in the mode of this thread.
fn sum<A: Accumulator>(len: usize, visit: &dyn Fn(usize, A) -> A) -> A {
    // Rules 1 and 2: segments of 256 terms; lane l of a segment takes terms l, l + 64, ...
    let segment = |s: usize| {
        let mut lane = [A::ZERO; LANES];
        for j in s * SEGMENT..len.min((s + 1) * SEGMENT) {
            lane[j % LANES] = visit(j, lane[j % LANES]);
        }
        // Rule 3: halving.
        for h in [32, 16, 8, 4, 2, 1] {
            for l in 0..h {
                lane[l] = lane[l].add(lane[l + h]);
            }
        }
        lane[0]
    };
    match len.div_ceil(SEGMENT) {
        0 => A::ZERO, // rule 5
        1 => segment(0),
        // Rule 4: the segments' sums are summed the same way. Each is asked for once, when it is added: none
        // has to be kept.
        count => sum(count, &|s, lane: A| lane.add(segment(s))),
    }
}

/// The dot product of one row with `x`, before scaling.
///
/// `row` and `x` have n entries, of any stride; with `conj` the conjugate of `row` is used. The entries
/// of `x` may be of a wider type, in which the sum is then kept.
///
/// ```
/// use gemv::{half::f16, num_complex::Complex, unstable::reference::dot};
/// use ndarray::array;
///
/// // Narrow types are summed in f32, in which 2049 has a place.
/// let x = array![f16::from_f32(2048.0), f16::ONE];
/// assert_eq!(dot(array![f16::ONE, f16::ONE].view(), x.view(), false), 2049.0_f32);
///
/// let (row, x) = (array![0.1f32], array![10.0f64]);
/// assert_eq!(dot(row.view(), x.view(), false), f64::from(0.1f32) * 10.0);
///
/// let z = array![Complex::new(3.0, 4.0)];
/// assert_eq!(dot(z.view(), z.view(), true), Complex::new(25.0, 0.0)); // |z|²
/// assert_eq!(dot(z.view(), z.view(), false), Complex::new(-7.0, 24.0)); // z²
/// ```
///
/// # Panics
/// If `x` has fewer entries than `row`.
pub fn dot<T, V>(row: ArrayView1<'_, T>, x: ArrayView1<'_, V>, conj: bool) -> V::Acc
where
    T: Element + Times<V>,
    V: Element,
{
    in_default(|| sum_of_products(row, x, conj))
}

/// [`dot`] in the mode of this thread.
fn sum_of_products<T, V>(row: ArrayView1<'_, T>, x: ArrayView1<'_, V>, conj: bool) -> V::Acc
where
    T: Element + Times<V>,
    V: Element,
{
    sum(row.len(), &|j, lane: V::Acc| {
        let a = if conj { row[j].conj() } else { row[j] };
        lane.fma(Times::<V>::promote(a), x[j].widen())
    })
}

/// `y = alpha * A x + beta * y` in the order, with every rule of it.
///
/// `a` is m × n, of any strides; `x` has n entries, `y` m. With `conj` the conjugate of `a` is
/// used.
///
/// ```
/// use gemv::unstable::reference::gemv;
/// use ndarray::array;
///
/// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
/// let mut y = array![f64::NAN, f64::NAN];
/// gemv(1.0, a.view(), false, x.view(), 0.0, y.view_mut()); // beta = 0: y is not read
/// assert_eq!(y, array![3.0, 7.0]);
/// gemv(2.0, a.view(), false, x.view(), -1.0, y.view_mut());
/// assert_eq!(y, array![3.0, 7.0]); // 2 A x - y
///
/// let nothing = array![[f64::NAN, f64::NAN], [f64::NAN, f64::NAN]];
/// gemv(0.0, nothing.view(), false, x.view(), 0.5, y.view_mut()); // alpha = 0: A is not read
/// assert_eq!(y, array![1.5, 3.5]);
/// ```
///
/// # Panics
/// If the shapes do not fit.
pub fn gemv<T, V>(
    alpha: V::Acc,
    a: ArrayView2<'_, T>,
    conj: bool,
    x: ArrayView1<'_, V>,
    beta: V::Acc,
    y: ArrayViewMut1<'_, V>,
) where
    T: Element + Times<V>,
    V: Element,
{
    in_default(|| product(alpha, a, conj, x, beta, y));
}

/// [`gemv`] in the mode of this thread.
fn product<T, V>(
    alpha: V::Acc,
    a: ArrayView2<'_, T>,
    conj: bool,
    x: ArrayView1<'_, V>,
    beta: V::Acc,
    mut y: ArrayViewMut1<'_, V>,
) where
    T: Element + Times<V>,
    V: Element,
{
    assert_eq!((y.len(), x.len()), a.dim(), "shapes do not fit");
    let zero = V::Acc::ZERO;
    for (i, y) in y.iter_mut().enumerate() {
        if alpha == zero {
            // A and x are not read, and y is only scaled.
            *y = match beta {
                b if b == zero => V::default(),
                b if b == V::Acc::ONE => *y,
                b => V::narrow(b.mul(y.widen())),
            };
        } else {
            let old = (beta != zero).then_some(*y);
            *y = scale(alpha, sum_of_products(a.row(i), x, conj), beta, old);
        }
    }
}

/// One elementwise step, entry by entry; `block` is all elements of y's block, and `read` those of
/// another.
///
/// # Panics
/// If an operand does not lie in its block, or one that the step reads is not there.
pub fn vector<'a, T: Element>(
    job: &VectorJob<'a, T, ()>,
    read: impl Fn(&'a dyn Memory) -> &'a [T],
    block: &mut [T],
) {
    in_default(|| step(job, read, block));
}

/// [`vector`] in the mode of this thread.
fn step<'a, T: Element>(
    job: &VectorJob<'a, T, ()>,
    read: impl Fn(&'a dyn Memory) -> &'a [T],
    block: &mut [T],
) {
    let number = |memory, at| read(memory)[at];
    let [x, z] = [&job.x, &job.z].map(|window| window.as_ref().map(|w| (read(w.memory), w)));
    let entry = |of: Option<(&[T], &Window<_, Ix3>)>, at| {
        of.map_or(T::default(), |(elements, window)| elements[window.place(at)])
    };
    for_each_index(job.y.dim, &mut |at| {
        let (z, y) = (entry(z, at), &mut block[job.y.place(at)]);
        let x = if job.x.is_none() && job.step.takes_y() { *y } else { entry(x, at) };
        let factors = [&job.alpha, &job.beta].map(|factor| factor.value_at(at, number));
        *y = match job.step {
            Step::Assign => x,
            step => T::narrow(widened(step, factors, x.widen(), z.widen(), y.widen())),
        };
    });
}

/// Calls `f` with each index. A function of its own for the sake of the size of programs: all types share it.
#[inline(never)]
fn for_each_index(dim: Ix3, f: &mut dyn FnMut([usize; 3])) {
    indices(dim).into_iter().for_each(|(i, j, k)| f([i, j, k]));
}

/// One entry of a step. A function of its own for the sake of the size of programs: all types share those of their
/// accumulators.
#[inline(never)]
fn widened<A: Accumulator>(step: Step, factors: [A; 2], x: A, z: A, y: A) -> A {
    step.widened(factors, x, z, y)
}

/// The reference as a device, `reference`: what answers when no backend is linked, and what the
/// others are tested against.
///
/// It takes every element type and layout, has one kernel, `reference`, and keeps resident operands
/// in the host's memory. It is on no list of devices and is had by its name.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{GpuDot, device};
/// use ndarray::Array2;
///
/// let a = Array2::from_shape_fn((5, 700), |(i, j)| ((i + 3 * j) as f32).sin());
/// let x = a.row(2);
/// let reference = device("reference")?;
/// assert_eq!(reference.info().id, "reference");
/// // Whatever device the product goes to, equal to the last bit.
/// assert_eq!(a.gpu_dot(&x), reference.try_gpu_dot(&a, &x)?);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct Reference {
    info: DeviceInfo,
}

impl Reference {
    /// The device.
    ///
    /// ```
    /// use gemv::{Device, unstable::reference::Reference};
    /// use ndarray::array;
    ///
    /// let device = Device::new(Reference::open());
    /// assert_eq!(device.try_gpu_dot(&array![[2.0, 3.0]], &array![10.0, 1.0])?, array![23.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn open() -> Arc<dyn Backend> {
        let mut info = DeviceInfo::new("reference");
        info.name = "the order of additions, written to be read".into();
        info.arch = "any".into();
        info.driver = concat!("gemv-core ", env!("CARGO_PKG_VERSION")).into();
        info.units = 1;
        info.host = true;
        Arc::new(Reference { info })
    }
}

/// Its one kernel.
const PARAMS: Params = Params::new("reference");

struct HostMemory<T>(Vec<T>);

impl<T: Element> std::fmt::Debug for HostMemory<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.0.len(), T::DTYPE)
    }
}

impl<T: Element> Memory for HostMemory<T> {
    fn len(&self) -> usize {
        self.0.len()
    }
}

fn elements<T: Element>(memory: &dyn Memory) -> &[T] {
    let memory: &dyn Any = memory;
    &memory.downcast_ref::<HostMemory<T>>().expect("memory of the reference").0
}

fn elements_mut<T: Element>(memory: &mut dyn Memory) -> &mut Vec<T> {
    let memory: &mut dyn Any = memory;
    &mut memory.downcast_mut::<HostMemory<T>>().expect("memory of the reference").0
}

#[inline(never)] // all pairs of types share it
fn matrix<'a, T: Element>(of: &Tensor<'a>) -> ArrayView2<'a, T> {
    of.matrix_with(elements)
}

#[inline(never)] // as above
fn vector_of<'a, T: Element>(of: &Tensor<'a>) -> ArrayView1<'a, T> {
    of.vector_with(elements)
}

#[inline(never)] // as above
fn vector_mut<'a, T: Element>(of: &'a mut TensorMut<'_>) -> ArrayViewMut1<'a, T> {
    of.vector_mut_with(|memory| elements_mut(memory))
}

/// One column.
fn run<T: Element + Times<V>, V: Element>(job: &mut Checked<Job<'_>>) {
    let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
    let (a, x) = (matrix::<T>(&job.a), vector_of::<V>(&job.x));
    product(alpha, a, conj, x, beta, vector_mut(&mut job.y()));
}

/// The blocks of a packed matrix.
#[cfg(feature = "packed")]
#[derive(Debug)]
struct PackedMemory {
    rows: usize,
    blocks: Vec<u8>,
}

#[cfg(feature = "packed")]
impl Memory for PackedMemory {
    fn len(&self) -> usize {
        self.rows
    }
}

/// One column of the product of a packed matrix. `alpha` is not 0: then nothing is read, and the matrix has no columns.
#[cfg(feature = "packed")]
fn packed_column<V: Element<Acc = f32>>(
    matrix: PackedMatrix<'_>,
    job: &mut Checked<Job<'_>>,
) -> Result<()> {
    let ((m, n), format) = (matrix.dim, matrix.format);
    let bytes = format.row_bytes(n).map_err(Error::Packed)?;
    let blocks = match matrix.place {
        PackedPlace::Host(blocks) => blocks,
        PackedPlace::Device(memory, first) => {
            let memory: &dyn Any = memory;
            let memory: &PackedMemory = memory.downcast_ref().expect("memory of the reference");
            &memory.blocks[first * bytes..][..m * bytes]
        }
    };
    let (alpha, beta): (f32, f32) = (job.alpha.get(), job.beta.get());
    let x = vector_of::<V>(&job.x);
    let mut row: Vec<f32> = host_zeros("reference", n)?;
    for i in 0..m {
        format.dequantize(&blocks[i * bytes..][..bytes], &mut row);
        let mut place = job.y();
        let y = &mut vector_mut::<V>(&mut place)[i];
        let old = (beta != 0.0).then_some(*y);
        *y = scale(alpha, sum(n, &|j, lane: f32| lane.fma(row[j], x[j].widen())), beta, old);
    }
    Ok(())
}

impl Backend for Reference {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn accepts(&self, _: &Desc) -> Result<()> {
        Ok(())
    }

    fn candidates(&self, _: &Desc) -> Vec<Params> {
        vec![PARAMS]
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        if *params == PARAMS {
            return Ok(());
        }
        Err(Error::Params {
            device: self.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason: "the reference has one kernel, without arguments".into(),
        })
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        vec![BuiltinTable { name: "reference", text: "* * : reference" }]
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        fn copy<T: Element>(data: &[T]) -> Result<Box<dyn Memory>> {
            let mut copy = host_zeros("reference", data.len())?;
            copy.copy_from_slice(data);
            Ok(Box::new(HostMemory(copy)))
        }
        for_any!(AnySlice, data, data => copy(data))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        fn zeros<T: Element>(len: usize) -> Result<Box<dyn Memory>> {
            Ok(Box::new(HostMemory(host_zeros::<T>("reference", len)?)))
        }
        for_types!((dtype, dtype), T, _V => zeros::<T>(len))
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        for_any!(AnySliceMut, to, to => to.copy_from_slice(&elements(from)[first..][..to.len()]));
        Ok(())
    }

    #[cfg(feature = "packed")]
    fn packed_formats(&self) -> &'static [crate::Format] {
        crate::Format::ALL
    }

    fn packed_in_place(&self) -> bool {
        true
    }

    #[cfg(feature = "packed")]
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        let PackedPlace::Host(blocks) = matrix.place else { panic!("a matrix of the host") };
        let mut copy: Vec<u8> = host_zeros("reference", blocks.len())?;
        copy.copy_from_slice(blocks);
        Ok(Box::new(PackedMemory { rows: matrix.dim.0, blocks: copy }))
    }

    fn product(&self, job: &mut Checked<Job<'_>>, _: &Prepared) -> Result<()> {
        #[cfg(feature = "packed")]
        if let Some(matrix) = job.a.packed_matrix() {
            return in_default(|| {
                job.columns(|one| match one.x.dtype() {
                    Dtype::F32 => packed_column::<f32>(matrix, one),
                    Dtype::F16 => packed_column::<half::f16>(matrix, one),
                    Dtype::Bf16 => packed_column::<half::bf16>(matrix, one),
                    other => panic!("vectors of {other} with a packed matrix"),
                })
            });
        }
        let types = (job.a.dtype(), job.x.dtype());
        in_default(|| {
            job.columns(|one| {
                for_types!(types, T, V => run::<T, V>(one));
                Ok(())
            })
        })
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        in_default(|| {
            for_any!(AnyVectorJob, job, job => {
                let (job, memory) = job.into_inner().split();
                step(&job, elements, elements_mut(memory));
            });
        });
        Ok(())
    }
}
