//! A library with the C interface of the BLAS as a rival. `GEMV_TEST_CBLAS` has its path; without, nothing but the refusal is
//! tested.

use gemv_baselines as _;
use gemv_core::ndarray::{Array3, Axis, LinalgScalar, ShapeBuilder, s};
use gemv_core::{Accumulator, Backend, Desc, Dtype, Element, Job, Layout, Number, Params, Times};

const PATH: &str = "GEMV_TEST_CBLAS";
/// What the backend reads.
const VARIABLE: &str = "GEMV_CBLAS";

/// Each test in a process of its own, since the library is looked for once a process.
fn child(test: &str, path: &str) {
    let program = std::env::current_exe().unwrap();
    let out = std::process::Command::new(program)
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(VARIABLE, path)
        .output()
        .unwrap();
    let text = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(out.status.success() && text[0].contains("1 passed"), "{}", text.concat());
}

#[test]
fn it_multiplies_whole_numbers_exactly() {
    match std::env::var(PATH) {
        Ok(path) => child("whole_numbers", &path),
        Err(_) => eprintln!("not tested: {PATH} is not set"),
    }
}

#[test]
fn what_is_no_library_is_refused_in_one_sentence() {
    child("no_library", "/nowhere/libblas.so");
    child("no_name", "");
}

fn refused(desc: &Desc) -> String {
    let cpu = gemv_cpu::open(None).unwrap();
    assert_ne!(cpu.vendor(desc), Some(Params::new("vendor-cblas")));
    let why = cpu.fits(desc, &Params::new("vendor-cblas")).unwrap_err().to_string();
    assert!(!why.contains('\n'), "{why}");
    why
}

#[test]
#[ignore = "a part of another test"]
fn no_library() {
    let why = refused(&Desc::of(Dtype::F32, Layout::Row, (9, 9), 6));
    let words = "vendor-cblas is not there: GEMV_CBLAS=/nowhere/libblas.so cannot be loaded: ";
    assert!(why.contains(words), "{why}");
}

#[test]
#[ignore = "a part of another test"]
fn no_name() {
    let why = refused(&Desc::of(Dtype::F32, Layout::Row, (9, 9), 6));
    assert!(why.contains("vendor-cblas is not there: GEMV_CBLAS names no library"), "{why}");
}

/// How an array lies in memory.
#[derive(Clone, Copy)]
enum Lies {
    ByRows,
    ByColumns,
    /// With gaps between entries.
    Apart,
    /// With gaps between rows alone.
    RowsApart,
    /// Both axes backwards.
    Reversed,
}
const ALL: [Lies; 5] =
    [Lies::ByRows, Lies::ByColumns, Lies::Apart, Lies::RowsApart, Lies::Reversed];

fn array<T: Clone>(dim: (usize, usize, usize), lies: Lies, entry: impl FnMut() -> T) -> Array3<T> {
    let (b, rows, cols) = dim;
    let shape = match lies {
        Lies::ByColumns => dim.strides((rows * cols, 1, rows)),
        Lies::Apart => dim.strides((1, 2 * cols, 2)),
        Lies::RowsApart => dim.strides((1, cols + 3, 1)),
        Lies::ByRows => return Array3::from_shape_simple_fn((b, rows, cols), entry),
        Lies::Reversed => {
            let mut array = Array3::from_shape_simple_fn((b, rows, cols), entry);
            array.invert_axis(Axis(1));
            array.invert_axis(Axis(2));
            return array;
        }
    };
    let len = 2 * rows * (cols + 3);
    let full = Array3::from_shape_simple_fn((1, 1, len), entry).into_raw_vec_and_offset().0;
    Array3::from_shape_vec(shape, full).unwrap()
}

fn check<T: Element<Acc = T> + Accumulator + Times<T> + LinalgScalar + From<i8>>(
    cpu: &dyn Backend,
) {
    let mut at = 3_usize;
    let mut number = move || {
        at = (at * 31 + 7) % 1009;
        T::from((at % 17) as i8 - 8)
    };
    for (m, n, k) in
        [(1, 1, 1), (7, 30, 1), (30, 7, 1), (1, 9, 1), (9, 1, 4), (7, 30, 5), (1, 5, 2)]
    {
        for (a_lies, x_lies) in ALL.into_iter().flat_map(|a| ALL.map(|x| (a, x))) {
            for y_lies in ALL {
                let (a, x) =
                    (array((1, m, n), a_lies, &mut number), array((1, n, k), x_lies, &mut number));
                for (alpha, beta) in
                    [(1, 0), (2, -1), (0, 3)].map(|(a, b)| (T::from(a), T::from(b)))
                {
                    let mut got = array((1, m, k), y_lies, &mut number);
                    let mut want = got.clone();
                    for ((_, i, c), y) in want.indexed_iter_mut() {
                        let (row, column) = (a.slice(s![0, i, ..]), x.slice(s![0, .., c]));
                        let sum =
                            row.iter().zip(column).fold(T::from(0), |sum, (a, x)| sum + *a * *x);
                        *y = alpha * sum + beta * *y;
                    }
                    if beta == T::from(0) {
                        // Must not be read.
                        got.fill(T::from(1) / T::from(0) - T::from(1) / T::from(0));
                    }
                    let (a, x, y) = (a.view().into(), x.view().into(), got.view_mut().into());
                    let (alpha, beta) = (Number::new(alpha), Number::new(beta));
                    let job = Job { alpha, a, conj: false, x, beta, y };
                    let desc = job.desc();
                    let params = cpu.vendor(&desc).expect("it computes such a problem");
                    assert_eq!(params, Params::new("vendor-cblas"));
                    let prepared = cpu.prepare(&desc, &params).unwrap();
                    cpu.product(&mut job.check().unwrap(), &prepared).unwrap();
                    assert_eq!(got, want, "{m} x {n} x {k}");
                }
            }
        }
    }
}

#[test]
#[ignore = "a part of another test"]
fn whole_numbers() {
    let cpu = gemv_cpu::open(None).unwrap();
    check::<f32>(&*cpu);
    check::<f64>(&*cpu);
    let one = Desc::of(Dtype::F32, Layout::Row, (9, 9), 6);
    let why = cpu.fits(&Desc { batch: 2, ..one }, &Params::new("vendor-cblas")).unwrap_err();
    assert!(why.to_string().ends_with("vendor-cblas is for one product"), "{why}");
    let far = Desc::of(Dtype::F32, Layout::Row, (9, 1 << 31), 6);
    let why = cpu.fits(&far, &Params::new("vendor-cblas")).unwrap_err();
    assert!(
        why.to_string().ends_with("vendor-cblas has 32-bit sizes, and 2147483648 is more"),
        "{why}"
    );
}
