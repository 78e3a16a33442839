//! Packed matrices over several devices, and through one in parts, have the bits of the whole on one.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, Ix3, s};
use gemv::{Device, Element, Format, GpuDot, Packed, ToDevice};
use gemv_core::reference::Reference;
use gemv_core::{
    AnySliceMut, Backend, Checked, Desc, DeviceInfo, Error as CoreError, Job, Memory, PackedMatrix,
    PackedPlace, Prepared, Result, Tensor,
};
use gemv_shard::{Error, Sharded, ShardedVector, Split, StreamedPacked};
use gemv_testkit::Host;
use gemv_weights::{Elements, WeightFile};

use crate::common::{Random, devices, reference};

fn packed(random: &mut Random, format: Format, (m, n): (usize, usize)) -> Packed {
    Packed::quantize(format, &random.matrix::<f32>(m, n)).unwrap()
}

fn numbers<V: Element<Acc = f32>>(random: &mut Random, m: usize, k: usize) -> Array2<V> {
    Array2::from_shape_simple_fn((m, k), || V::narrow(random.part() as f32))
}

/// The product on the reference, whose bits all devices have.
fn whole<V: Element<Acc = f32>>(
    (alpha, beta): (f32, f32),
    a: &Packed,
    x: &Array2<V>,
    y: &Array2<V>,
) -> Array2<V> {
    let mut y = y.clone();
    reference().product(a, x).scaled(alpha, beta).to(&mut y).unwrap();
    y
}

#[track_caller]
fn same<V: Element>(got: &Array2<V>, want: &Array2<V>, what: &str) {
    let bits = |a: &Array2<V>| a.mapv(|v| v.bits());
    assert_eq!(bits(got), bits(want), "{what}");
}

/// One device, one twice, of one kind and of all.
fn sets() -> Vec<Vec<Device>> {
    let on = devices::<f32, f32>();
    let (first, last) = (&on[0], &on[on.len() - 1]);
    vec![
        vec![first.clone()],
        vec![last.clone(), last.clone(), last.clone()],
        on.iter().chain([first]).cloned().collect(),
    ]
}

const FACTORS: [(f32, f32); 5] = [(1.0, 0.0), (1.0, 1.0), (-0.7, 0.3), (0.0, 0.3), (0.0, 0.0)];

macro_rules! over_devices {
    ($($name:ident: $v:ty, $format:expr, $dims:expr;)*) => { $(
        #[test]
        fn $name() {
            let random = &mut Random(17);
            for (dim, on) in $dims.into_iter().flat_map(|dim| sets().into_iter().map(move |on| (dim, on))) {
                let (m, n): (usize, usize) = dim;
                let a = packed(random, $format, dim);
                let shared = Sharded::<$v>::packed(&a, &on).unwrap();
                let rows: usize = shared.parts().map(|(_, rows, _)| rows.len()).sum();
                assert_eq!((shared.dim(), rows), (dim, if n > 0 { m } else { 0 }));
                for (k, factors) in [1, 2, 5].into_iter().flat_map(|k| FACTORS.map(|of| (k, of))) {
                    let (x, old) = (numbers::<$v>(random, n, k), numbers::<$v>(random, m, k));
                    let want = whole(factors, &a, &x, &old);
                    let what = format!("{m} x {n} with {k} columns by {factors:?} on {on:?}");
                    // Columns and rows that lie apart.
                    let back = x.t().as_standard_layout().into_owned();
                    let mut y = Array2::from_elem((2 * m + 1, k), <$v>::default());
                    y.slice_mut(s![..2 * m;2, ..]).assign(&old);
                    let (alpha, beta) = factors;
                    shared.try_gemv(alpha, &back.t(), beta, y.slice_mut(s![..2 * m;2, ..])).unwrap();
                    same(&y.slice(s![..2 * m;2, ..]).to_owned(), &want, &what);
                    assert!(y.slice(s![1..;2, ..]).iter().all(|v| *v == <$v>::default()), "{what}");
                    if k > 1 {
                        continue;
                    }
                    let (x, mut y) = (x.column(0), old.column(0).to_owned());
                    shared.try_gemv(alpha, &x, beta, &mut y).unwrap();
                    same(&y.insert_axis(gemv::ndarray::Axis(1)), &want, &what);
                    // Resident vectors, whole on each device and scattered.
                    let x = shared.broadcast(&x).unwrap();
                    let old = old.column(0);
                    for mut y in [shared.broadcast(&old).unwrap(), shared.scatter(&old).unwrap()] {
                        shared.try_gemv(alpha, &x, beta, &mut y).unwrap();
                        let y = y.gather().unwrap().insert_axis(gemv::ndarray::Axis(1));
                        same(&y, &want, &what);
                    }
                }
            }
        }
    )* };
}
over_devices! {
    of_f32: f32, Format::Q8_0, [(0, 64), (5, 0), (1, 32), (2, 288), (70, 1280)];
    of_f16: f16, Format::Q8_0, [(9, 544)];
    of_bf16: bf16, Format::Q4K, [(9, 512)];
}

/// An iteration that is recorded, over devices that share the rows.
#[test]
fn a_plan() {
    let random = &mut Random(23);
    let a = packed(random, Format::Q8_0, (96, 96));
    let start = random.vector::<f32>(96);
    let mut want = start.clone().insert_axis(gemv::ndarray::Axis(1));
    (0..6).for_each(|_| want = whole((0.5, 0.0), &a, &want, &want));
    for on in sets() {
        let shared = Sharded::packed(&a, &on).unwrap();
        let x = shared.broadcast(&start).unwrap();
        let mut plan = shared.plan((x.clone(), x), |(x, y): &mut (ShardedVector<f32>, _)| {
            shared.try_gemv(0.5, &*x, 0.0, &mut *y)?;
            shared.try_gemv(0.5, &*y, 0.0, &mut *x)
        });
        (0..3).for_each(|_| plan.run().unwrap());
        let x = plan.state().0.gather().unwrap().insert_axis(gemv::ndarray::Axis(1));
        same(&x, &want, &format!("{on:?}"));
    }
}

/// Matrices of numbers have several columns, too: by rows, and cut otherwise.
#[test]
fn several_columns_of_numbers() {
    let random = &mut Random(29);
    let (a, x) = (random.matrix::<f64>(7, 700), random.matrix::<f64>(700, 3));
    let reference = reference();
    let on = vec![reference.clone(), devices::<f64, f64>()[0].clone()];
    let want = reference.matrix(&a).unwrap().gpu_dot(&x).download().unwrap();
    for split in [Split::Rows, Split::Columns, Split::CyclicColumns] {
        let shared = Sharded::new(&a, &on, split).unwrap();
        same(&shared.gpu_dot(&x), &want, &format!("{split:?}"));
        same(&shared.gpu_dot(&*x), &want, &format!("{split:?}"));
        let e = shared.try_gpu_dot(&a).unwrap_err();
        assert!(matches!(e, CoreError::Shape(_)), "{e}");
        let mut y = Array2::from_elem((7, 2), 7.0);
        let e = shared.try_gpu_dot_into(&x, &mut y).unwrap_err();
        assert!(matches!(e, CoreError::Shape(_)) && y == Array2::from_elem((7, 2), 7.0), "{e}");
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let a = packed(&mut Random(3), Format::Q8_0, (6, 64));
    assert_eq!(Sharded::<f32>::packed(&a, &[]).unwrap_err(), Error::NoDevices);
    let two = [reference(), reference()];
    let e = Sharded::<f32>::packed_weighted(&a, &two, &[1.0]).unwrap_err();
    assert_eq!(e.to_string(), "weights do not fit: 1 for 2 devices");
    let shared = Sharded::<f32>::packed_weighted(&a, &two, &[2.0, 1.0]).unwrap();
    assert!(
        shared.parts().map(|(_, rows, columns)| (rows, columns)).eq([(0..4, 0..64), (4..6, 0..64)])
    );
    // Vectors of f64, which a matrix of f32 takes.
    let (x, mut y) = (Array1::<f64>::ones(64), Array1::<f64>::from_elem(6, 7.0));
    let e = shared.gemv_mixed(1.0, &x, 0.0, &mut y).unwrap_err();
    let why = "reference cannot compute f64: packed matrices have products with vectors of f32, f16 and bf16";
    assert_eq!((e.to_string().as_str(), y), (why, Array1::from_elem(6, 7.0)));
    // A device without kernels, of either kind of memory.
    for host in [true, false] {
        let mut backend = Host::new("fake:0");
        backend.info.host = host;
        let device = backend.device();
        let why = "fake:0 cannot compute f32: it has no kernels for matrices of q8_0";
        let e = Sharded::<f32>::packed(&a, &[reference(), device.clone()]).unwrap_err();
        assert_eq!(e.to_string(), why);
        let (x, mut y) = ([1f32; 64], [7f32; 6]);
        let streamed = StreamedPacked::of(&a);
        let e = streamed.gemv(&device, 1.0, &x, 1.0, &mut y, |_, _| ()).unwrap_err();
        assert_eq!((e.to_string().as_str(), y), (why, [7.0; 6]));
        let e = streamed.gemv(&device, 1.0, &x[1..], 1.0, &mut y, |_, _| ()).unwrap_err();
        assert!(matches!(e, Error::Product(CoreError::Shape(_))), "{e}");
        let x = Array2::<f32>::ones((64, 2));
        let e = streamed.gemm(&device, 1.0, &x, 1.0, &mut Array2::ones((6, 3)), |_, _| ());
        assert!(matches!(e, Err(Error::Product(CoreError::Shape(_)))), "{e:?}");
    }
}

/// A device with memory of its own that computes as the reference, and counts the bytes of packed blocks.
#[derive(Debug)]
struct Counting {
    info: DeviceInfo,
    reference: Arc<dyn Backend>,
    held: Arc<AtomicUsize>,
    most: AtomicUsize,
    /// Products before one fails.
    left: AtomicUsize,
    /// Products of packed matrices that nobody has waited for.
    running: AtomicUsize,
}

#[derive(Debug)]
struct Block {
    blocks: Box<dyn Memory>,
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Memory for Block {
    fn len(&self) -> usize {
        self.blocks.len()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

fn counting(products: usize) -> Arc<Counting> {
    Arc::new(Counting {
        info: DeviceInfo::new("counting"),
        reference: Reference::open(),
        held: Arc::default(),
        most: AtomicUsize::new(0),
        left: AtomicUsize::new(products),
        running: AtomicUsize::new(0),
    })
}

impl Backend for Counting {
    gemv_testkit::leave_to!(|self| self.reference);

    fn device(&self) -> &DeviceInfo {
        &self.info
    }
    fn accepts(&self, _: &Desc) -> Result<()> {
        Ok(())
    }
    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        self.synchronize()?;
        self.reference.download(from, first, to)
    }
    fn packed_formats(&self) -> &'static [Format] {
        Format::ALL
    }
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        let PackedPlace::Host(blocks) = matrix.place else { panic!("a matrix of the host") };
        let (bytes, held) = (blocks.len(), self.held.clone());
        // Else memory that is given back may still be in use.
        assert!(self.running.load(Ordering::SeqCst) <= 1, "more than one product is under way");
        self.most.fetch_max(held.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
        Ok(Box::new(Block { blocks: self.reference.upload_packed(matrix)?, bytes, held }))
    }
    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        let late =
            CoreError::Device { device: "counting".into(), call: "it", reason: "late".into() };
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .map_err(|_| late)?;
        let (alpha, beta, conj, x) = (job.alpha, job.beta, job.conj, job.x);
        // One without columns is not packed when it arrives.
        let Some(matrix) = job.a.packed_matrix() else {
            return self.reference.product(job, prepared);
        };
        let PackedPlace::Device(memory, first) = matrix.place else { panic!("a resident matrix") };
        let block: &Block = (memory as &dyn std::any::Any).downcast_ref().expect("its own memory");
        let a = PackedMatrix { place: PackedPlace::Device(&*block.blocks, first), ..matrix };
        let a = Tensor::of_packed(a, x.dtype());
        self.running.fetch_add(1, Ordering::SeqCst);
        self.reference.product(&mut Job { alpha, a, conj, x, beta, y: job.y() }.check()?, prepared)
    }
    fn synchronize(&self) -> Result<()> {
        self.running.store(0, Ordering::SeqCst);
        Ok(())
    }
}

macro_rules! in_parts {
    ($($name:ident: $v:ty, $format:expr;)*) => { $(
        #[test]
        fn $name() {
            let random = &mut Random(31);
            let backends: Vec<Device> =
                devices::<f32, f32>().into_iter().chain([Device::new(counting(usize::MAX))]).collect();
            for (m, n) in [(0, 256), (3, 0), (1, 256), (100, 256), (130, 1280)] {
                let a = packed(random, $format, (m, n));
                for (device, window) in backends.iter().flat_map(|d| [1, 30_000, 1 << 28].map(|w| (d, w))) {
                    // Each program of OpenCL takes a second.
                    let factors = if device.info().host { &FACTORS[..] } else { &FACTORS[..3] };
                    for (k, factors) in [1, 3].into_iter().flat_map(|k| factors.iter().map(move |f| (k, *f))) {
                        let (x, old) = (numbers::<$v>(random, n, k), numbers::<$v>(random, m, k));
                        let want = whole(factors, &a, &x, &old);
                        let what = format!("{m} x {n} with {k} columns by {factors:?}, {window} on {device:?}");
                        let ((alpha, beta), streamed) = (factors, StreamedPacked::of(&a).window(window));
                        let (mut read, mut last) = (0, 0);
                        let told = |bytes: u64, of: u64| {
                            assert!(bytes >= read && bytes <= of, "{what}");
                            (read, last) = (bytes, of);
                        };
                        if k == 1 {
                            let (x, mut y) = (x.column(0), old.column(0).to_owned());
                            let there = device.vector(&x).unwrap();
                            streamed.gemv(device, alpha, &there, beta, &mut y, told).unwrap();
                            same(&y.insert_axis(gemv::ndarray::Axis(1)), &want, &what);
                        } else {
                            let mut y = Array2::from_elem((m, 2 * k), <$v>::default());
                            y.slice_mut(s![.., ..;2]).assign(&old);
                            streamed.gemm(device, alpha, &x, beta, y.slice_mut(s![.., ..;2]), told).unwrap();
                            same(&y.slice(s![.., ..;2]).to_owned(), &want, &what);
                        }
                        let all = a.bytes().len() as u64;
                        let none = alpha == 0.0 || m == 0;
                        assert_eq!((read, last), if none { (0, 0) } else { (all, all) }, "{what}");
                    }
                }
            }
        }
    )* };
}
in_parts! {
    parts_for_f32: f32, Format::Q8_0;
    parts_for_f16: f16, Format::Q8_0;
    parts_for_bf16: bf16, Format::Q4K;
}

/// The device holds two parts at most, and a product that fails leaves y as it was.
#[test]
fn memory_of_the_device_is_bounded() {
    let a = packed(&mut Random(5), Format::Q8_0, (1000, 256));
    let row = a.bytes().len() / 1000;
    let (x, mut y) = (Array1::<f32>::ones(256), Array1::<f32>::from_elem(1000, 7.0));
    for (window, rows) in [(1, 32), (3 * 64 * row, 64), (3 * 99 * row, 96), (usize::MAX, 1000)] {
        let backend = counting(usize::MAX);
        let device = Device::new(backend.clone());
        let streamed = StreamedPacked::of(&a).window(window);
        streamed.gemv(&device, 1.0, &x, 0.0, &mut y, |_, _| ()).unwrap();
        let parts = if rows < 1000 { 2 } else { 1 };
        assert_eq!(backend.most.load(Ordering::SeqCst), parts * rows * row, "a window of {window}");
        assert_eq!(backend.held.load(Ordering::SeqCst), 0);
    }
    let device = Device::new(counting(5));
    y.fill(7.0);
    let streamed = StreamedPacked::of(&a).window(1);
    let e = streamed.gemv(&device, 1.0, &x, 0.5, &mut y, |_, _| ()).unwrap_err();
    assert!(matches!(e, Error::Product(CoreError::Device { .. })), "{e}");
    assert_eq!(y, Array1::from_elem(1000, 7.0));
}

/// Blocks of a mapped file of GGUF: in parts, over devices, and its experts as a stack.
#[test]
fn a_mapped_file() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../gemv-weights/tests/golden/model.gguf");
    let file = WeightFile::open(path).unwrap();
    let mut seen = 0;
    for tensor in file.tensors() {
        let Elements::Packed(format) = tensor.elements() else { continue };
        let matrix = file.matrix(tensor.name()).unwrap();
        let (m, n) = (matrix.rows, matrix.columns);
        let a = Packed::new(format, (m, n), matrix.bytes).unwrap();
        let random = &mut Random(7);
        let (x, none) = (numbers::<f32>(random, n, 2), Array2::zeros((m, 2)));
        let want = whole((1.0, 0.0), &a, &x, &none);
        let device = Device::new(counting(usize::MAX));
        let mut y = none.clone();
        StreamedPacked::of(&a).window(1).gemm(&device, 1.0, &x, 0.0, &mut y, |_, _| ()).unwrap();
        same(&y, &want, tensor.name());
        let shared = Sharded::packed(&a, &[device, reference()]).unwrap();
        same(&shared.gpu_dot(&x), &want, tensor.name());
        seen += 1;
        let &[b, m, n] = tensor.shape() else { continue };
        let stack =
            Packed::<Ix3>::new(format, (b, m, n), file.matrix(tensor.name()).unwrap().bytes);
        let stack = stack.unwrap().to_device(&reference()).unwrap();
        let x = x.broadcast((b, n, 2)).unwrap();
        let y = stack.gpu_dot(&x).download().unwrap();
        same(&y.into_shape_with_order((b * m, 2)).unwrap(), &want, tensor.name());
        seen += 100;
    }
    assert!(seen % 100 > 4 && seen >= 100, "{seen} matrices");
}
