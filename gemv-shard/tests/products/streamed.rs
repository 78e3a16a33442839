//! Products of matrices in files have the bits of the product of the whole, whatever the window.
use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::common::{Random, devices, element, same, whole};
use bytemuck::Pod;
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, ArrayView2, Axis};
use gemv::num_complex::Complex;
use gemv::{Dtype, Element, Times};
use gemv_shard::{Error, Streamed, SumElement};

/// Writes a matrix as NumPy does, in either order and byte order.
fn write<T: Element + Pod>(path: &Path, a: &Array2<T>, fortran: bool, big_endian: bool) {
    let kind = match T::DTYPE {
        Dtype::F16 => "f2",
        Dtype::F32 => "f4",
        Dtype::F64 => "f8",
        Dtype::C32 => "c8",
        Dtype::C64 => "c16",
        Dtype::Bf16 => "V2",
    };
    let elements: Vec<T> =
        if fortran { a.t().iter().copied().collect() } else { a.iter().copied().collect() };
    let mut data = bytemuck::cast_slice(&elements).to_vec();
    if big_endian != cfg!(target_endian = "big") {
        let parts = if T::DTYPE.is_complex() { 2 } else { 1 };
        data.chunks_exact_mut(size_of::<T>() / parts).for_each(<[u8]>::reverse);
    }
    let (order, fortran) =
        (if big_endian { '>' } else { '<' }, if fortran { "True" } else { "False" });
    let dict = format!(
        "{{'descr': '{order}{kind}', 'fortran_order': {fortran}, 'shape': {:?}, }}",
        a.dim()
    );
    let header = format!("{dict:<117}\n");
    fs::write(path, [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &data].concat()).unwrap();
}

fn check<T, V, S>(seed: u64)
where
    T: Element + Pod + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let on = devices::<T, V>();
    let random = &mut Random(seed);
    let odd = S::from_parts(-0.7, 0.3);
    let mut most = 0;
    for (m, n) in [(0, 300), (5, 0), (1, 1), (3, 700), (40, 257), (700, 300), (2, 9000)] {
        for (fortran, transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
            let stored = if transposed { a.t().to_owned() } else { a.clone() };
            write(&path, &stored, fortran, random.below(2) == 0);
            for window in [0, 5000, 60_000, 1 << 20, Streamed::WINDOW] {
                let mut there = Streamed::open(&path).unwrap().window(window);
                if transposed {
                    there = there.transposed();
                }
                assert_eq!((there.dim(), there.dtype()), ((m, n), T::DTYPE));
                let part = |random: &mut Random, len: usize| {
                    let first = random.below(len + 1);
                    first..first + random.below(len - first + 1)
                };
                let (rows, columns) = (part(random, m), part(random, n));
                let read = there.read_part::<T>(rows.clone(), columns.clone()).unwrap();
                let want = a.slice_axis(Axis(0), rows.into());
                let want = want.slice_axis(Axis(1), columns.into());
                let bits = |of: ArrayView2<'_, T>| of.mapv(Element::bits);
                assert_eq!(bits(read.view()), bits(want), "a part of {m} x {n}");
                let device = &on[random.below(on.len())];
                for (alpha, beta) in [(S::ONE, S::ZERO), (odd, S::ONE), (odd, odd), (S::ZERO, odd)]
                {
                    let y = match beta == S::ZERO {
                        true => Array1::from_elem(m, element(f64::NAN, f64::NAN)),
                        false => random.vector(m),
                    };
                    let want = whole(alpha, &a, &x, beta, &y);
                    let (mut got, mut told) = (y, Vec::new());
                    let tell = |read, of| told.push((read, of));
                    there.gemv::<T, V, S>(device, alpha, &x, beta, &mut got, tell).unwrap();
                    let what = format!("{m} x {n}, {fortran} {transposed}, {window}, on {device}");
                    same(&got, &want, &what);
                    if alpha == S::ZERO {
                        assert!(told.is_empty(), "{what}: the file was read");
                    } else if m > 0 {
                        let bytes = (m * n * size_of::<T>()) as u64;
                        assert_eq!(told.last(), Some(&(bytes, bytes)), "{what}");
                        assert!(told.is_sorted(), "{what}");
                        most = most.max(told.len());
                    }
                }
            }
        }
    }
    assert!(most > 30, "a file was read in {most} parts at most");
}

macro_rules! types {
    ($($name:ident: $t:ty, $v:ty, $seed:expr;)*) => { $(
        #[test]
        fn $name() {
            check::<$t, $v, _>($seed);
        }
    )* };
}
types! {
    single: f32, f32, 1;
    double: f64, f64, 2;
    half: f16, f16, 3;
    brain: bf16, bf16, 4;
    pair: Complex<f32>, Complex<f32>, 5;
    double_pair: Complex<f64>, Complex<f64>, 6;
    brain_single: bf16, f32, 7;
    single_double: f32, f64, 8;
}

/// One sentence, and y as it was.
#[test]
fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let device = &devices::<f32, f32>()[0];
    let text = |e: Error| {
        assert!(matches!(e, Error::File { .. }), "{e}");
        let text = e.to_string();
        text.strip_prefix(&format!("{}: ", path.display())).expect("the file's name").to_owned()
    };
    let opened = || text(Streamed::open(&path).unwrap_err());

    assert!(!opened().is_empty()); // the system's words for a file that is not there
    fs::write(&path, "PK\x03\x04").unwrap();
    assert_eq!(opened(), "this is an archive (.npz): it has to be a file");
    let a = Array2::<f32>::ones((300, 300));
    for fortran in [false, true] {
        write(&path, &a, fortran, false);
        let mut bytes = fs::read(&path).unwrap();
        let mut y = [7.0f64; 300];
        let mut there = Streamed::open(&path).unwrap().window(10_000);
        let e = there.gemv::<f64, f64, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, |_, _| ());
        assert_eq!(text(e.unwrap_err()), "the array holds f32, where f64 is asked");
        assert_eq!(y, [7.0; 300]);
        let mut y = [7.0f32; 299];
        let e = there.gemv::<f32, f32, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, |_, _| ());
        assert!(e.unwrap_err().to_string().ends_with("y must have 300 entries, but it has 299"));

        let e = there.read_part::<f64>(0..0, 0..0);
        assert_eq!(text(e.unwrap_err()), "the array holds f32, where f64 is asked");
        for (rows, columns) in [(0..301, 0..1), (0..1, 299..301), (0..1, 301..301)] {
            let e = text(there.read_part::<f32>(rows.clone(), columns.clone()).unwrap_err());
            let part = format!("no part of rows {rows:?} and columns {columns:?}");
            assert_eq!(e, format!("a matrix of 300 × 300 has {part}"));
        }

        // It becomes shorter while it is read.
        let mut y = [7.0f32; 300];
        let shorten = |read, of| {
            assert!(read < of / 2, "parts were read that are not there");
            OpenOptions::new().write(true).open(&path).unwrap().set_len(150_000).unwrap();
        };
        let e = there.gemv::<f32, f32, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, shorten);
        assert_eq!(text(e.unwrap_err()), "the file became shorter while it was read");
        assert_eq!(y, [7.0; 300]);
        assert_eq!(
            opened(),
            "the file is truncated: its header announces 360000 bytes of data, but 149872 follow"
        );
        bytes.push(0);
        fs::write(&path, &bytes).unwrap();
        assert!(opened().starts_with("the file is too long"));
    }
    let cube = Array1::<f32>::ones(8).into_shape_with_order((2, 4)).unwrap();
    write(&path, &cube, false, false);
    let bytes = fs::read(&path).unwrap();
    let shape = bytes.windows(6).position(|text| text == b"(2, 4)").unwrap();
    let flat = [&bytes[..shape], b"(8,)  ", &bytes[shape + 6..]].concat();
    fs::write(&path, flat).unwrap();
    assert_eq!(opened(), "the array has 1 axis, but a matrix has 2");
}
