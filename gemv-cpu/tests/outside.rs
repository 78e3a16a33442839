//! Kernels touch nothing outside of their operands, which lie here beside pages that nobody may touch: a program
//! that does ends with a signal.
#![cfg(unix)]

use std::ptr::{NonNull, null_mut};

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3, ShapeBuilder};
use gemv_core::num_complex::Complex;
use gemv_core::{Accumulator, Backend, Element, Job, Number, Params, Times};
use gemv_testkit::Numbers;

/// A multiple of every page size in use.
const PAGE: usize = 1 << 16;
/// Bytes for one operand.
const BYTES: usize = 64 * PAGE;

/// Memory between two pages that nobody may touch.
struct Fenced {
    /// The first page of all.
    start: NonNull<u8>,
}

impl Fenced {
    fn new() -> Fenced {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place that the system chooses.
        let start =
            unsafe { libc::mmap(null_mut(), BYTES + 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast::<u8>()).unwrap();
        // SAFETY: inside of the mapping, which is of this function alone.
        let done = unsafe {
            let middle = start.add(PAGE).as_ptr().cast();
            libc::mprotect(middle, BYTES, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(done, 0);
        Fenced { start }
    }

    /// A copy of the values, that ends where the second closed page begins, or begins where the first one ends.
    fn hold<T: Element>(&mut self, values: &[T], at_end: bool) -> &mut [T] {
        let bytes = size_of_val(values);
        assert!(bytes <= BYTES);
        let first = if at_end { BYTES - bytes } else { 0 };
        // SAFETY: BYTES bytes from the second page on are open, and borrowed as `self` is; every type's size divides
        // PAGE, so the place is aligned; any bytes of a new mapping, zeros or what was here before, are numbers.
        let memory = unsafe {
            let place = self.start.add(PAGE + first).cast::<T>();
            std::slice::from_raw_parts_mut(place.as_ptr(), values.len())
        };
        memory.copy_from_slice(values);
        memory
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES + 2 * PAGE) };
    }
}

/// Strides of a batch x lines x columns operand, and its elements: by rows or by columns, with `pad` elements between
/// lines but none behind the last. `apart` is the distance of neighbours.
fn place(
    [b, m, n]: [usize; 3],
    by_rows: bool,
    pad: usize,
    apart: usize,
) -> (([usize; 3], [usize; 3]), usize) {
    let (lines, length) = if by_rows { (m, n) } else { (n, m) };
    let line = length * apart + pad;
    let matrix = lines * line + pad;
    let strides = if by_rows { [matrix, line, apart] } else { [matrix, apart, line] };
    let len = (b - 1) * matrix + (lines - 1) * line + (length - 1) * apart + 1;
    (([b, m, n], strides), len)
}

/// All kernels that fit one product, each with some of its parameters.
fn params(cpu: &dyn Backend, desc: &gemv_core::Desc) -> Vec<Params> {
    let mut all = cpu.candidates(desc);
    for kernel in ["gemm-row", "gemm-col", "gemm-strided"] {
        for (rows, columns) in [(1, 1), (16, 4), (64, 16)] {
            all.push(Params::new(kernel).with("rows", rows).with("tile_rhs", columns));
        }
    }
    all.push(Params::new("gemm-narrow"));
    all.retain(|p| cpu.fits(desc, p).is_ok());
    assert!(!all.is_empty(), "{desc}");
    all
}

/// One product by all kernels that fit it. The operands are at the ends of their pages, or at the beginnings.
fn check<T: Element + Times<V>, V: Element>(
    cpu: &dyn Backend,
    [a_memory, x_memory, y_memory]: &mut [Fenced; 3],
    rng: &mut Numbers,
    (batch, m, n, columns): (usize, usize, usize, usize),
    at_end: bool,
) {
    let (apart, pad) = ([1, 1, 1, 2, 3, 5][rng.below(6)], [0, 3][rng.below(2)]);
    let (place_a, len_a) = place([batch, m, n], rng.below(2) > 0, pad, apart);
    let (place_x, len_x) = place([batch, n, columns], rng.below(2) > 0, pad, 1);
    let (place_y, len_y) = place([batch, m, columns], rng.below(2) > 0, pad, 1);
    let shape = |(dim, strides): ([usize; 3], [usize; 3])| dim.strides(strides);
    let (a, x, old) = (rng.elements(len_a), rng.elements(len_x), rng.elements::<V>(len_y));
    let beta = [V::Acc::ZERO, V::Acc::ONE][rng.below(2)];
    let mut want = old.clone();
    {
        let a = ArrayView3::<T>::from_shape(shape(place_a), &a).unwrap();
        let x = ArrayView3::<V>::from_shape(shape(place_x), &x).unwrap();
        let want = ArrayViewMut3::from_shape(shape(place_y), &mut want).unwrap();
        gemv_testkit::gemm(V::Acc::ONE, a, false, x, beta, want);
    }
    let (a, x) = (a_memory.hold(&a, at_end), x_memory.hold(&x, at_end));
    let a = ArrayView3::<T>::from_shape(shape(place_a), a).unwrap();
    let x = ArrayView3::<V>::from_shape(shape(place_x), x).unwrap();
    let mut all: Option<Vec<Params>> = None;
    let mut next = 0;
    while all.as_ref().is_none_or(|all| next < all.len()) {
        let y = y_memory.hold(&old, at_end);
        let to = ArrayViewMut3::from_shape(shape(place_y), &mut *y).unwrap();
        let job = Job {
            alpha: Number::new(V::Acc::ONE),
            a: a.into(),
            conj: false,
            x: x.into(),
            beta: Number::new(beta),
            y: to.into(),
        };
        let desc = job.desc();
        let params = all.get_or_insert_with(|| params(cpu, &desc))[next];
        let prepared = cpu.prepare(&desc, &params).unwrap();
        cpu.product(&mut job.check().unwrap(), &prepared).unwrap();
        let same = y.iter().zip(&want).all(|(a, b)| a.bits() == b.bits());
        assert!(same, "{} {desc} {params}, by {apart}, {pad} between lines", cpu.device().arch);
        next += 1;
    }
}

fn all<T: Element + Times<V>, V: Element>(seed: u64) {
    let (rng, memory) = (&mut Numbers::new(seed), &mut [(); 3].map(|()| Fenced::new()));
    for isa in gemv_cpu::isas() {
        let cpu = gemv_cpu::open(Some(isa)).unwrap();
        for columns in [1, 1, 1, 2, 3, 5, 16, 17] {
            for m in [1, 2, 3, 5, 8, 15, 17, 33, 100, 300] {
                for n in [1, 2, 3, 4, 7, 16, 31, 65, 130, 257, 600] {
                    let batch = if m * n * columns < 500 { [1, 3][rng.below(2)] } else { 1 };
                    for at_end in [false, true] {
                        if m * n * columns < 40_000 {
                            let dim = (batch, m, n, columns);
                            check::<T, V>(&*cpu, memory, rng, dim, at_end);
                        }
                    }
                }
            }
        }
    }
}

macro_rules! types {
    ($($name:ident: $t:ty, $v:ty;)*) => { $(
        #[test]
        fn $name() {
            all::<$t, $v>(line!().into());
        }
    )* };
}
types! {
    f32_: f32, f32;
    f64_: f64, f64;
    f16_: f16, f16;
    bf16_: bf16, bf16;
    c32_: Complex<f32>, Complex<f32>;
    c64_: Complex<f64>, Complex<f64>;
    f16_by_f32: f16, f32;
    bf16_by_f32: bf16, f32;
    f32_by_f64: f32, f64;
}
