//! CLBlast as a rival. `GEMV_TEST_CLBLAST` has its path; without, nothing but the refusal is tested.

use gemv_core::ndarray::{Array2, Array3, Axis, Ix3, s};
use gemv_core::{
    Accumulator, Backend, Desc, Dtype, Element, Job, Layout, Number, Params, Slices, SlicesMut,
    Tensor, TensorMut, Times, Window,
};

const PATH: &str = "GEMV_TEST_CLBLAST";
const NAME: &str = "vendor-clblast";

/// Each test in a process of its own, since the library is looked for once a process.
fn child(test: &str, path: &str) {
    let program = std::env::current_exe().unwrap();
    let out = std::process::Command::new(program)
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(gemv_opencl::CLBLAST_ENV, path)
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
    child("no_library", "/nowhere/libclblast.so");
    child("no_name", "");
}

#[test]
#[ignore = "a part of another test"]
fn no_library() {
    let why = gemv_opencl::load_clblast().unwrap_err();
    let words = "GEMV_CLBLAST=/nowhere/libclblast.so cannot be loaded: ";
    assert!(why.starts_with(words) && !why.contains('\n'), "{why}");
}

#[test]
#[ignore = "a part of another test"]
fn no_name() {
    let why = gemv_opencl::load_clblast().unwrap_err();
    assert_eq!(why, "GEMV_CLBLAST names no library");
}

/// Small whole numbers, so that every sum is exact.
fn numbers<T: Element<Acc = T> + From<i8>>(dim: (usize, usize)) -> Array2<T> {
    Array2::from_shape_fn(dim, |(i, j)| T::from(((i * 31 + j * 7) % 17) as i8 - 8))
}

fn check<T: Element<Acc = T> + Times<T> + Accumulator + From<i8>>(
    opencl: &dyn Backend,
    shapes: &[[usize; 3]],
) {
    let params = Params::new(NAME);
    // What must not be read.
    let nan = T::from_parts(f64::NAN, 0.0);
    for &[m, n, k] in shapes {
        let (a, x, y) = (numbers::<T>((m, n)), numbers::<T>((n, k)), numbers::<T>((m, k)));
        for factors in [(1, 0), (2, -1)].map(|(alpha, beta)| (T::from(alpha), T::from(beta))) {
            let mut want = y.clone();
            let y = if factors.1 == T::default() { y.mapv(|_| nan) } else { y.clone() };
            for (x, y) in x.columns().into_iter().zip(want.columns_mut()) {
                gemv_core::reference::gemv(factors.0, a.view(), false, x, factors.1, y);
            }
            // Each operand by rows and by columns.
            for lies in 0..8 {
                let place = |of: &Array2<T>, bit: u32| match lies >> bit & 1 {
                    0 => of.clone(),
                    _ => of.t().as_standard_layout().into_owned().reversed_axes(),
                };
                let (a, x, mut got) = (place(&a, 0), place(&x, 1), place(&y, 2));
                let (alpha, beta) = factors;
                let (alpha, beta) = (Number::new(alpha), Number::new(beta));
                let (a, x, y) = (a.view().into(), x.view().into(), got.view_mut().into());
                let job = Job { alpha, a, conj: false, x, beta, y };
                let desc = job.desc();
                let prepared = opencl.prepare(&desc, &params).unwrap();
                opencl.product(&mut job.check().unwrap(), &prepared).unwrap();
                assert_eq!(opencl.vendor(&desc), Some(params), "{desc}");
                assert_eq!(got, want, "{desc}, {lies}");
            }
        }
    }
}

/// Resident operands that lie by rows or by columns, behind other elements, with gaps between lines, or steps of a vector.
fn resident<T: Element<Acc = T> + Times<T> + Accumulator + From<i8>>(
    opencl: &dyn Backend,
    k: usize,
) {
    let (m, n, first) = (5, 7, 3);
    for lies in 0..8 {
        let window = |bit: u32, (rows, cols): (usize, usize)| {
            let strides = match lies >> bit & 1 {
                0 => Ix3(0, cols + 2, 1),
                _ => Ix3(0, 1, rows + 2),
            };
            Window { memory: (), first, dim: Ix3(1, rows, cols), strides }
        };
        let places = [window(0, (m, n)), window(1, (n, k)), window(2, (m, k))];
        let numbers = |at: usize| -> Vec<T> {
            (0..100).map(|i| T::from(((i * 31 + at * 7) % 17) as i8 - 8)).collect()
        };
        let [a, x, y] = [0, 1, 2].map(numbers);
        let mut want = y.clone();
        let (alpha, beta) = (T::from(2), T::from(-1));
        for c in 0..k {
            let (a, x) = (places[0].view(&a), places[1].view(&x));
            let y = places[2].view_mut(&mut want);
            let (a, x) = (a.index_axis_move(Axis(0), 0), x.slice_move(s![0, .., c]));
            gemv_core::reference::gemv(alpha, a, false, x, beta, y.slice_move(s![0, .., c]));
        }
        let [a, x, mut y] = [a, x, y].map(|of| opencl.upload(T::any::<Slices>(&of)).unwrap());
        let on = |place: Window<(), Ix3>, memory| {
            let Window { first, dim, strides, .. } = place;
            Window { memory, first, dim, strides }
        };
        let device = |at: usize, memory| Tensor::device(T::DTYPE, on(places[at], memory));
        let (a, x) = (device(0, &*a), device(1, &*x));
        let Window { first, dim, strides, .. } = places[2];
        let to = TensorMut::device(T::DTYPE, Window { memory: &mut *y, first, dim, strides });
        let (alpha, beta) = (Number::new(alpha), Number::new(beta));
        let job = Job { alpha, a, conj: false, x, beta, y: to };
        let prepared = opencl.prepare(&job.desc(), &Params::new(NAME)).unwrap();
        opencl.product(&mut job.check().unwrap(), &prepared).unwrap();
        let mut got = vec![T::default(); want.len()];
        opencl.download(&*y, 0, T::any::<SlicesMut>(&mut got)).unwrap();
        assert_eq!(got, want, "{k}, {lies}");
    }
}

#[test]
#[ignore = "a part of another test"]
fn whole_numbers() {
    let opencl = gemv_opencl::OpenCl::open(0).unwrap();
    check::<f32>(&opencl, &[[1, 1, 1], [37, 300, 1], [300, 37, 1], [37, 300, 5]]);
    // Without its product of matrices, which takes PoCL long to compile.
    check::<f64>(&opencl, &[[37, 300, 1], [300, 37, 1]]);
    resident::<f32>(&opencl, 1);
    resident::<f32>(&opencl, 3);
    resident::<f64>(&opencl, 1);
    let one = Desc::of(Dtype::F32, Layout::Row, (9, 9), 6);
    for (desc, words) in [
        (Desc { batch: 2, ..one }, "is for one product"),
        (one.of_type(Dtype::Bf16), "is for f32 and f64"),
        (Desc { n: 0, ..one }, "is for matrices with columns"),
    ] {
        let why = opencl.fits(&desc, &Params::new(NAME)).unwrap_err().to_string();
        assert!(
            why.ends_with(&format!("{NAME} {words}")) && opencl.vendor(&desc).is_none(),
            "{why}"
        );
    }
    // An X that runs backwards.
    let (a, x) = (numbers::<f32>((3, 3)).insert_axis(Axis(0)), numbers::<f32>((3, 2)));
    let mut x = x.view().insert_axis(Axis(0));
    x.invert_axis(Axis(1));
    let mut y = Array3::<f32>::ones((1, 3, 2));
    let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
    let (a, x, to) = (a.view().into(), x.into(), y.view_mut().into());
    let job = Job { alpha, a, conj: false, x, beta, y: to };
    let prepared = opencl.prepare(&job.desc(), &Params::new(NAME)).unwrap();
    let why = opencl.product(&mut job.check().unwrap(), &prepared).unwrap_err().to_string();
    assert!(why.ends_with("has one distance for each operand, which is positive"), "{why}");
    assert_eq!(y, Array3::ones((1, 3, 2)));
}
