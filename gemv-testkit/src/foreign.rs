//! Products on memory that another library owns: one body for every driver that shares it. The test plays that library.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::ndarray::{Array2, Ix1, Ix2, s};
use gemv_core::{
    Desc, Device, DeviceArray, DeviceMatrix, DeviceVector, Dtype, Element, Error, Foreign, GpuDot,
    Params, Times, bytes_of, bytes_of_mut, device, for_types, half,
};

/// A library with memory and a queue of its own on a device.
pub trait Owner {
    /// A device on its queue.
    fn device(&self) -> Device;
    /// A device on another queue of the same GPU: a stranger to the first one's arrays.
    fn stranger(&self) -> Device;
    /// Memory of so many bytes: its handle.
    fn alloc(&self, bytes: usize) -> usize;
    /// Queues a copy to memory, from a byte on. The slice stays as it is until the queue is waited for.
    fn write(&self, handle: usize, at: usize, bytes: &'static [u8]);
    /// Copies from memory, behind all that is queued.
    fn read(&self, handle: usize, at: usize, to: &mut [u8]);
    /// Whether a handle is an address, so that one further on is of the same memory.
    fn addresses(&self) -> bool;
}

/// Keeps memory, and counts that it was dropped.
struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Some memory of another library.
struct Region<'o> {
    of: &'o dyn Owner,
    handle: usize,
    bytes: usize,
    dropped: Arc<AtomicUsize>,
}

/// What no product gives.
const CANARY: u8 = 0xA5;

impl<'o> Region<'o> {
    fn new(of: &'o dyn Owner, bytes: usize) -> Region<'o> {
        let region = Region { of, handle: of.alloc(bytes), bytes, dropped: Arc::default() };
        region.write(0, &vec![CANARY; bytes]);
        region
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // Until the end of the program: nobody waits for the copy.
        self.of.write(self.handle, at, Box::leak(bytes.to_vec().into_boxed_slice()));
    }

    fn read(&self) -> Vec<u8> {
        let mut all = vec![0; self.bytes];
        self.of.read(self.handle, 0, &mut all);
        all
    }

    /// All of it, from byte `at` on; the index of the first element there, if the handle cannot be moved.
    fn foreign(&self, at: usize, dtype: Dtype, writable: bool) -> (Foreign, usize) {
        let moved = if self.of.addresses() { at } else { 0 };
        let keep = Box::new(Kept(self.dropped.clone()));
        let (handle, bytes) = (self.handle + moved, self.bytes - moved);
        (Foreign { handle, bytes, dtype, writable, keep }, (at - moved) / dtype.bytes())
    }

    fn matrix<T: Element>(
        &self,
        device: &Device,
        (at, before): (usize, usize),
        dim: (usize, usize),
        strides: (isize, isize),
        writable: bool,
    ) -> Result<DeviceMatrix<T>, Error> {
        let (foreign, first) = self.foreign(at, T::DTYPE, writable);
        let first = first + before;
        let strides = Ix2(strides.0 as usize, strides.1 as usize);
        // SAFETY: the memory is never freed, and used in the order of the device's queue alone.
        unsafe { DeviceArray::from_foreign(device, foreign, first, Ix2(dim.0, dim.1), strides) }
    }

    fn vector<T: Element>(
        &self,
        device: &Device,
        at: usize,
        (len, stride): (usize, isize),
        writable: bool,
    ) -> Result<DeviceVector<T>, Error> {
        let (foreign, first) = self.foreign(at, T::DTYPE, writable);
        // SAFETY: as above.
        unsafe { DeviceArray::from_foreign(device, foreign, first, Ix1(len), Ix1(stride as usize)) }
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Numbers of few bits, of every sign: sums of them round.
fn values<T: Element>(len: usize, seed: usize) -> Vec<T> {
    let value = |k: usize| {
        let k = k.wrapping_mul(2654435761).wrapping_add(seed * 40503) >> 7;
        ((k % 2039) as f32 - 1019.0) / 64.0
    };
    let parts = T::DTYPE.bytes() / if T::DTYPE.is_complex() { 2 } else { 1 };
    let mut all = vec![T::default(); len];
    let bytes = bytes_of_mut(&mut all);
    for (k, part) in bytes.chunks_exact_mut(parts).enumerate() {
        match T::DTYPE {
            Dtype::F16 => part.copy_from_slice(&half::f16::from_f32(value(k)).to_ne_bytes()),
            Dtype::Bf16 => part.copy_from_slice(&half::bf16::from_f32(value(k)).to_ne_bytes()),
            Dtype::F32 | Dtype::C32 => part.copy_from_slice(&value(k).to_ne_bytes()),
            Dtype::F64 | Dtype::C64 => part.copy_from_slice(&f64::from(value(k)).to_ne_bytes()),
        }
    }
    all
}

/// Layouts of a matrix of m rows and n columns: strides, and elements before its first one.
fn layouts(m: usize, n: usize) -> [((isize, isize), usize); 5] {
    let (rows, columns) = (m as isize, n as isize);
    [
        ((columns, 1), 0),
        ((columns + 3, 1), 0),
        ((1, rows), 0),
        ((1, rows + 5), 0),
        ((-(columns + 1), 1), (m - 1) * (n + 1)),
    ]
}

/// Products with operands at bytes that are no multiple of 64 from the beginning of memory have the bits of those with an
/// uploaded operand, also with each of the parameters that `some` picks. Nothing beside y is written, and copies of the
/// other library that were queued before and after are not waited for.
pub fn bits<T: Element + Times<T>>(
    owner: &dyn Owner,
    shapes: &[(usize, usize)],
    some: &dyn Fn(&Device, &Desc) -> Vec<Params>,
) {
    let (device, size) = (owner.device(), T::DTYPE.bytes());
    let reference = device_named("reference");
    for (case, &(m, n)) in shapes.iter().enumerate() {
        for (layout, ((rs, cs), before)) in layouts(m, n).into_iter().enumerate() {
            let far = (m as isize - 1) * rs.max(0) + (n as isize - 1) * cs;
            let len = before + 1 + far as usize;
            let at = [0, 4, 20].map(|byte: usize| byte.next_multiple_of(size));
            let shift = |k: usize| at[(case + layout + k) % 3];
            let (a_at, x_at, y_at) = (shift(0), shift(1), shift(2));
            let a_values = values::<T>(len, case);
            let a_region = Region::new(owner, a_at + len * size);
            a_region.write(a_at, bytes_of(&a_values));
            let x_values = values::<T>(n, case + 7);
            let x_region = Region::new(owner, x_at + n * size);
            x_region.write(x_at, bytes_of(&x_values));
            let host = Array2::from_shape_fn((m, n), |(i, j)| {
                a_values[(before as isize + i as isize * rs + j as isize * cs) as usize]
            });
            let expected = reference.try_gpu_dot(&host, &x_values).unwrap();

            let a = a_region.matrix::<T>(&device, (a_at, before), (m, n), (rs, cs), false).unwrap();
            let x = x_region.vector::<T>(&device, x_at, (n, 1), false).unwrap();
            let mut all = vec![None];
            all.extend(some(&device, &a.desc()).into_iter().map(Some));
            for params in all {
                let y_region = Region::new(owner, y_at + m * size + 12);
                let mut y = y_region.vector::<T>(&device, y_at, (m, 1), true).unwrap();
                device.product(&a, &x).with_if(params.as_ref()).to(&mut y).unwrap();
                let mut want = vec![CANARY; y_at];
                want.extend(bytes_of(expected.as_slice().unwrap()));
                want.extend([CANARY; 12]);
                let what = params.map_or("the table".into(), |p| p.to_string());
                assert!(y_region.read() == want, "{} at {a_at}, {x_at}, {y_at}: {what}", a.desc());
            }
        }
    }
}

/// Memory that is there to be read is never written, and nothing is written elsewhere in its place.
pub fn read_only(owner: &dyn Owner) {
    let device = owner.device();
    let region = Region::new(owner, 400);
    region.write(0, bytes_of(&[3f32; 100]));
    let array = |writable| region.vector::<f32>(&device, 0, (100, 1), writable).unwrap();
    let a = device.matrix(&Array2::<f32>::eye(100)).unwrap();
    let refused = |outcome: Result<(), Error>, why: &str| {
        assert_eq!(outcome.unwrap_err().to_string(), format!("an array of foreign memory {why}"));
    };
    let mut y = array(false);
    assert!(y.window_mut().is_none(), "it may not be written");
    let why = "is written, and its memory is there to be read";
    refused(a.try_gemv(2.0, &[1f32; 100], 1.0, &mut y), why);
    refused(y.fill(7.0), why);
    refused(y.axpy(1.0, &device.vector(&[1f32; 100]).unwrap()), why);
    let mut y = array(true);
    let clone = y.clone();
    refused(y.fill(7.0), "is written while a clone or a view of it is there");
    drop(clone);
    assert_eq!(region.read(), bytes_of(&[3f32; 100]));
    y.fill(7.0).unwrap();
    assert_eq!(region.read(), bytes_of(&[7f32; 100]));
}

/// What keeps the memory is dropped once: with the last of an array, its clones, its views and a plan.
pub fn kept(owner: &dyn Owner) {
    let device = owner.device();
    let region = Region::new(owner, 4 * 64 * 64);
    region.write(0, bytes_of(&[1f32; 64 * 64]));
    let a = region.matrix::<f32>(&device, (0, 0), (64, 64), (64, 1), false).unwrap();
    let (view, clone) = (a.t(), a.clone());
    drop(a);
    drop(view);
    assert_eq!(region.dropped(), 0);
    let (x, y) = (device.vector(&[1f32; 64]).unwrap(), device.zeros::<f32, _>(64).unwrap());
    let mut plan = device.plan((x, y), move |(x, y)| clone.try_gpu_dot_into(&*x, &mut *y));
    for _ in 0..3 {
        plan.run().unwrap();
    }
    assert_eq!(region.dropped(), 0);
    assert_eq!(plan.into_state().1.download().unwrap().to_vec(), [64f32; 64]);
    assert_eq!(region.dropped(), 1);
    // An array that is refused gives its memory up as well.
    region.vector::<f32>(&device, 0, (1 << 30, 1), false).unwrap_err();
    assert_eq!(region.dropped(), 2);
}

/// What can be seen is refused in one sentence.
pub fn refusals(owner: &dyn Owner) {
    let device = owner.device();
    let region = Region::new(owner, 400);
    let why = |e: Error| {
        let text = e.to_string();
        assert!(!text.contains('\n') && text.len() > 20, "{text:?}");
        text
    };
    let vector = |at, len, stride| region.vector::<f32>(&device, at, (len, stride), false);
    for (at, len, stride) in [(0, 101, 1), (4, 100, 1), (0, 2, 100), (0, 2, -1), (0, 3, isize::MAX)]
    {
        let text = why(vector(at, len, stride).unwrap_err());
        assert!(text.contains("does not lie in its memory"), "{text}");
    }
    let back = region.matrix::<f32>(&device, (0, 99), (2, 1), (-99, 1), false);
    assert!(back.is_ok() && vector(0, 0, 1).is_ok());
    // Without entries, it may begin anywhere.
    let (foreign, _) = region.foreign(4, Dtype::F32, false);
    // SAFETY: nothing is read.
    let none = unsafe {
        DeviceVector::<f32>::from_foreign(&device, foreign, usize::MAX, Ix1(0), Ix1(usize::MAX))
    };
    let none = none.unwrap();
    assert!(none.device_ptr().is_some() && none.download().unwrap().is_empty());
    let (foreign, _) = region.foreign(0, Dtype::F64, false);
    // SAFETY: refused.
    let of = unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(10), Ix1(1)) };
    assert!(why(of.unwrap_err()).contains("of f64 would hold f32"));
    let (foreign, _) = region.foreign(0, Dtype::F32, false);
    let more = Foreign { bytes: 1 << 40, ..foreign };
    // SAFETY: refused.
    let of = unsafe { DeviceVector::<f32>::from_foreign(&device, more, 0, Ix1(10), Ix1(1)) };
    assert!(why(of.unwrap_err()).contains("bytes"));
    // Of a device that has no such memory.
    let (foreign, _) = region.foreign(0, Dtype::F32, false);
    let host = device_named("reference");
    // SAFETY: refused.
    let of = unsafe { DeviceVector::<f32>::from_foreign(&host, foreign, 0, Ix1(10), Ix1(1)) };
    assert!(why(of.unwrap_err()).contains("takes no memory"));
    // An array of one device is not another's, even on the same GPU.
    let stranger = owner.stranger();
    let a = device.matrix(&Array2::<f32>::eye(100)).unwrap();
    let x = stranger.vector(&[1f32; 100]).unwrap();
    let text = why(a.try_gpu_dot(&x).unwrap_err());
    assert!(text.contains("as it was opened another time"), "{text}");
    assert!(a.device_ptr().is_some() && a.device_ptr() != x.device_ptr());
}

/// Two arrays of one memory: what is written overlaps what is read, or does not.
pub fn overlaps(owner: &dyn Owner) {
    let device = owner.device();
    let region = Region::new(owner, 4 * 100 * 7);
    region.write(0, bytes_of(&values::<f32>(700, 3)));
    let a = device.matrix(&Array2::<f32>::eye(100)).unwrap();
    let column = |j: usize| region.vector::<f32>(&device, 4 * j, (100, 7), true).unwrap();
    let (x, mut y) = (column(2), column(2));
    let e = a.try_gpu_dot_into(&x, &mut y).unwrap_err().to_string();
    assert_eq!(e, "Y overlaps X, which is read");
    let e = y.axpy(1.0, &x).unwrap_err().to_string();
    assert_eq!(e, "y overlaps x, which is read");
    let matrix = region.matrix::<f32>(&device, (0, 0), (100, 7), (7, 1), false).unwrap();
    let e = matrix.try_gpu_dot_into(&[1f32; 7], &mut y).unwrap_err().to_string();
    assert_eq!(e, "Y overlaps A, which is read");
    // Of a device's own memory, adopted by itself.
    let before = region.read();
    assert!(column(2).download().unwrap() == x.download().unwrap());
    let mut other = column(3);
    a.try_gpu_dot_into(&x, &mut other).unwrap();
    let all = values::<f32>(700, 3);
    let mut want = Array2::from_shape_vec((100, 7), all).unwrap();
    let copied = want.column(2).to_owned();
    want.slice_mut(s![.., 3]).assign(&copied);
    assert_eq!(region.read(), bytes_of(want.as_slice().unwrap()), "{} bytes", before.len());
}

/// All of it, with the bits of these element types. `shapes` are a few, `some` picks parameters beside the table's.
pub fn all(
    owner: &dyn Owner,
    dtypes: &[Dtype],
    shapes: &[(usize, usize)],
    some: &dyn Fn(&Device, &Desc) -> Vec<Params>,
) {
    refusals(owner);
    read_only(owner);
    kept(owner);
    overlaps(owner);
    for dtype in dtypes {
        for_types!((*dtype, *dtype), T, _V => bits::<T>(owner, shapes, some));
    }
}

fn device_named(name: &str) -> Device {
    device(name).expect("it is always there")
}
