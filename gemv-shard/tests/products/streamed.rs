//! Products in parts of matrices in files and in memory have the bits of the product of the whole, whatever the
//! window.
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::common::{Random, devices, element, held, same, whole};
use bytemuck::Pod;
use gemv::ndarray::{Array1, Array2, ArrayView2, Axis};
use gemv::{Device, Element, Times};
use gemv_core::{Error as CoreError, PieceSource};
use gemv_shard::{Error, Streamed, SumElement};
use gemv_testkit::{Host, npy_of};
use rayon::ThreadPoolBuilder;

/// A device with memory of its own, which is filled by pieces of so many bytes, at the host's reference's speed.
/// It fails where `fails` says so, of its call that fills or computes, from 0.
pub fn feeding(
    piece: usize,
    fails: impl Fn(usize) -> bool + Clone + Send + Sync + 'static,
) -> (Device, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let next = {
        let calls = calls.clone();
        move || {
            let late =
                CoreError::Device { device: "fake:0".into(), call: "it", reason: "late".into() };
            if fails(calls.fetch_add(1, Ordering::Relaxed)) { Err(late) } else { Ok(()) }
        }
    };
    let fill = next.clone();
    let host = Host {
        fill: Box::new(move |to, bytes, source| {
            // In any order, and the same memory for all pieces, of which nothing is left from the one before.
            let mut slot = vec![0u8; piece];
            for first in (0..bytes).step_by(piece).rev() {
                let slot = &mut slot[..piece.min(bytes - first)];
                slot.fill(0xff);
                if !source(first, slot) {
                    break;
                }
                gemv_testkit::write_bytes(to, first, slot);
            }
            if bytes > 0 {
                fill()?;
            }
            Ok(true)
        }),
        compute: Box::new(move |job, _| {
            gemv_testkit::compute(job);
            next()
        }),
        ..Host::new("fake:0")
    };
    (host.device(), calls)
}

/// A device that computes on rayon's pool: each thread reads and computes. Each call asks `ends`, which tells the number of
/// the call, from 0.
fn threaded(ends: impl Fn(usize) -> bool + Send + Sync + 'static) -> (Device, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let next = {
        let calls = calls.clone();
        Arc::new(move || {
            let reason = "it is late".to_owned();
            let late = CoreError::Device { device: "cores".into(), call: "it", reason };
            if ends(calls.fetch_add(1, Ordering::Relaxed)) { Err(late) } else { Ok(()) }
        })
    };
    let mut host = Host {
        compute: Box::new(move |job, _| {
            gemv_testkit::compute(job);
            next()
        }),
        ..Host::new("cores")
    };
    (host.info.host, host.info.rayon) = (true, true);
    (host.device(), calls)
}

/// Runs in a pool of so many threads.
fn with_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(work)
}

/// Writes a matrix as NumPy does, in either order and byte order.
pub fn write<T: Element + Pod>(path: &Path, a: &Array2<T>, fortran: bool, big_endian: bool) {
    fs::write(path, npy_of(a, fortran, big_endian)).unwrap();
}

fn check<T, V, S>(seed: u64)
where
    T: Element + Pod + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let (fed, calls) = feeding(1 << 12, |_| false);
    let mut on = devices::<T, V>();
    on.push(fed);
    let random = &mut Random(seed);
    let odd = S::from_parts(-0.7, 0.3);
    let mut most = 0;
    for (m, n) in [(0, 300), (5, 0), (1, 1), (3, 700), (40, 257), (300, 300), (2, 9000)] {
        for (fortran, transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            let (a, x): (Array2<T>, Array1<V>) = (random.matrix(m, n), random.vector(n));
            let stored = if transposed { a.t().to_owned() } else { a.clone() };
            write(&path, &stored, fortran, random.below(2) == 0);
            let view = held(random, stored.view());
            for (window, file) in [0, 5000, 60_000, 1 << 20, Streamed::WINDOW]
                .into_iter()
                .flat_map(|w| [(w, true), (w, false)])
            {
                let mut there =
                    if file { Streamed::open(&path).unwrap() } else { Streamed::of(&view) };
                there = there.window(window);
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
                    let what = format!(
                        "{m} x {n}, {fortran} {transposed}, {window}, a file: {file}, on {device}"
                    );
                    same(&got, &want, &what);
                    if alpha == S::ZERO {
                        assert!(told.is_empty(), "{what}: the file was read");
                    } else if m > 0 {
                        let bytes = (m * n * size_of::<T>()) as u64;
                        let end = (bytes > 0).then_some((bytes, bytes));
                        assert_eq!(told.last().copied(), end, "{what}");
                        assert!(told.is_sorted(), "{what}");
                        most = most.max(told.len());
                    }
                }
            }
        }
    }
    assert!(most > 30, "a file was read in {most} parts at most");
    assert!(calls.load(Ordering::Relaxed) > 30, "no part was filled");
}

every_pair!(check, 1);

/// A part has many pieces, more than a device holds at one time, and the next one comes before the last is used.
#[test]
fn many_pieces() {
    let number =
        |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let (m, n) = (1300, 5000);
    let a = Array2::from_shape_fn((m, n), |(i, j)| number(i * n + j));
    let x = Array1::from_shape_fn(n, |j| number(j * j + 7));
    let folder = tempfile::tempdir().unwrap();
    let mut on = devices::<f32, f32>();
    on.retain(|device| !device.info().host || device.info().id == "cpu");
    on.push(feeding(1 << 20, |_| false).0);
    let by_columns = a.t().as_standard_layout().reversed_axes().into_owned();
    let want = whole(1.0, &a, &x, 0.0, &Array1::zeros(m));
    for fortran in [false, true] {
        let path = folder.path().join(format!("{fortran}.npy"));
        write(&path, &a, fortran, false);
        for (device, window) in
            on.iter().flat_map(|device| [16 << 20, 200 << 20].map(|window| (device, window)))
        {
            let array = if fortran { &by_columns } else { &a };
            for there in [Streamed::open(&path).unwrap(), Streamed::of(array)] {
                let mut y = Array1::from_elem(m, f32::NAN);
                let there = there.window(window);
                there.gemv::<f32, f32, _>(device, 1.0, &x, 0.0, &mut y, |_, _| ()).unwrap();
                same(&y, &want, &format!("{fortran}, {window}, on {device}"));
            }
        }
    }
}

/// Whatever the number of threads and the form of the parts, each has its place.
#[test]
fn threads_of_the_cpu() {
    let random = &mut Random(12);
    let (device, _) = threaded(|_| false);
    // Rows that are whole and that are cut, columns of one part and of several, few and many.
    for (m, n) in [(1, 70_000), (21, 20_000), (3000, 40), (700, 700), (2000, 300), (5, 3)] {
        let (a, x): (Array2<f32>, Array1<f32>) = (random.matrix(m, n), random.vector(n));
        let by_columns = a.t().as_standard_layout().reversed_axes().into_owned();
        let before: Array1<f32> = random.vector(m);
        let want = whole(0.5, &a, &x, -1.0, &before);
        for (threads, window) in
            [1, 2, 3, 7].into_iter().flat_map(|t| [0, 100_000, 3 << 20, 1 << 28].map(|w| (t, w)))
        {
            for array in [&a, &by_columns] {
                let there = Streamed::of(array).window(window);
                let (mut y, mut read) = (before.clone(), 0);
                with_threads(threads, || {
                    let told = |bytes, _| read = bytes;
                    there.gemv::<f32, f32, _>(&device, 0.5, &x, -1.0, &mut y, told).unwrap();
                });
                same(&y, &want, &format!("{m} x {n}, {threads} threads, window {window}"));
                assert_eq!(read, 4 * (m * n) as u64);
            }
        }
    }
}

/// A part that fails on any thread, or panics: the others end soon, y is as it was, and a next product is right.
#[test]
fn faults_of_the_cpu() {
    let (m, n) = (400, 5000);
    let random = &mut Random(13);
    let (a, x): (Array2<f32>, Array1<f32>) = (random.matrix(m, n), random.vector(n));
    let by_columns = a.t().as_standard_layout().reversed_axes().into_owned();
    let before: Array1<f32> = random.vector(m);
    let want = whole(1.0, &a, &x, -1.0, &before);
    for array in [&a, &by_columns] {
        let there = Streamed::of(array).window(400_000); // enough for three threads

        let product =
            |device: &Device, y: &mut Array1<f32>, told: &mut (dyn FnMut(u64, u64) + Send)| {
                with_threads(3, || there.gemv::<f32, f32, _>(device, 1.0, &x, -1.0, y, told))
            };
        let (fine, calls) = threaded(|_| false);
        let mut y = before.clone();
        product(&fine, &mut y, &mut |_, _| ()).unwrap();
        same(&y, &want, "without a fault");
        let count = calls.load(Ordering::Relaxed);
        assert!(count > 50, "{count} calls");
        for at in (0..count).step_by(7).chain([count - 1]) {
            let (device, calls) = threaded(move |call| call == at);
            let mut y = before.clone();
            let e = product(&device, &mut y, &mut |_, _| ()).unwrap_err();
            assert_eq!(e.to_string(), "cores: it failed: it is late");
            same(&y, &before, &format!("call {at} failed"));
            // Each thread is in the middle of one part.
            let calls = calls.load(Ordering::Relaxed);
            assert!(calls <= at + 40, "{calls} calls, of which {at} failed");
            product(&device, &mut y, &mut |_, _| ()).unwrap();
            same(&y, &want, &format!("after call {at}"));

            let (device, _) =
                threaded(move |call| if call == at { panic!("it broke") } else { false });
            let mut y = before.clone();
            let ended = catch_unwind(AssertUnwindSafe(|| product(&device, &mut y, &mut |_, _| ())));
            assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"it broke"));
            same(&y, &before, &format!("call {at} broke"));
        }
        // Whoever listens may end it.
        let mut y = before.clone();
        let (device, calls) = threaded(|_| false);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            product(&device, &mut y, &mut |_, _| panic!("it is over"))
        }));
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"it is over"));
        same(&y, &before, "a panic of the caller's");
        assert!(calls.load(Ordering::Relaxed) < count, "all parts were read");
    }
}

/// Whatever call of a device fails, and whoever panics: y is as it was, and a next product is right.
#[test]
fn faults() {
    let (m, n) = (200, 700); // more rows than a part of the columns has
    let random = &mut Random(11);
    let (a, x): (Array2<f32>, Array1<f32>) = (random.matrix(m, n), random.vector(n));
    let by_columns = a.t().as_standard_layout().reversed_axes().into_owned();
    let before: Array1<f32> = random.vector(m);
    let want = whole(1.0, &a, &x, -1.0, &before);
    for array in [&a, &by_columns] {
        let there = Streamed::of(array).window(40_000);
        let product = |device: &Device, y: &mut Array1<f32>, told: &mut dyn FnMut(u64, u64)| {
            there.gemv::<f32, f32, _>(device, 1.0, &x, -1.0, y, told)
        };
        let (fine, calls) = feeding(1000 * 4, |_| false);
        let mut y = before.clone();
        product(&fine, &mut y, &mut |_, _| ()).unwrap();
        same(&y, &want, "without a fault");
        let count = calls.load(Ordering::Relaxed);
        assert!(count > 5, "{count} calls");
        for at in 0..count {
            let (device, _) = feeding(1000 * 4, move |call| call == at);
            let mut y = before.clone();
            let e = product(&device, &mut y, &mut |_, _| ()).unwrap_err();
            assert!(matches!(e, Error::Product(CoreError::Device { .. })), "{e}");
            same(&y, &before, &format!("call {at} failed"));
            product(&device, &mut y, &mut |_, _| ()).unwrap();
            same(&y, &want, &format!("after call {at}"));
        }
        for device in devices::<f32, f32>().iter().chain([&fine]) {
            let (mut y, mut parts) = (before.clone(), 0);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                product(device, &mut y, &mut |_, _| {
                    parts += 1;
                    assert!(parts < 2, "it is over");
                })
            }));
            assert!(ended.is_err() && parts == 2, "{parts} parts on {device}");
            same(&y, &before, "a panic");
            product(device, &mut y, &mut |_, _| ()).unwrap();
            same(&y, &want, "after a panic");
        }
    }
}

/// Each byte is asked for once and arrives, and what is filled again has the new ones.
#[test]
fn filled_memory() {
    let byte = |at: usize, round: usize| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8 ^ round as u8;
    let mut on = devices::<f32, f32>();
    on.push(feeding(1 << 12, |_| false).0);
    for device in &on {
        for len in [1, 1000, 5000, 800_001, 5 << 20] {
            let mut there = device.zeros::<f32, _>(len).unwrap();
            let mut fill = |bytes: usize, source: PieceSource<'_>| {
                let memory = there.window_mut().unwrap().memory;
                let fills = device.backend().fill(memory, bytes, source).unwrap();
                (fills, there.download().unwrap())
            };
            let mut want = vec![0; 4 * len];
            for (round, bytes) in [4 * len, 4 * (len / 3), 0, 4 * len].into_iter().enumerate() {
                let pieces = Mutex::new(Vec::new());
                let (fills, got) = fill(bytes, &|first, piece| {
                    pieces.lock().unwrap().push((first, piece.len()));
                    piece.iter_mut().enumerate().for_each(|(i, to)| *to = byte(first + i, round));
                    true
                });
                let mut pieces = pieces.into_inner().unwrap();
                if !fills {
                    assert!(pieces.is_empty(), "{device} asked for a piece, and takes none");
                    continue;
                }
                pieces.sort_unstable();
                let mut end = 0;
                for (first, len) in pieces {
                    assert!(
                        first == end && len.is_multiple_of(4),
                        "{first} after {end} on {device}"
                    );
                    end += len;
                }
                assert_eq!(end, bytes, "on {device}");
                (0..bytes).for_each(|at| want[at] = byte(at, round));
                let got: &[u8] = bytemuck::cast_slice(got.as_slice().unwrap());
                assert!(got == want, "{len} elements in round {round} on {device}");
            }
            let calls = AtomicUsize::new(0);
            fill(4 * len, &|_, _| {
                calls.fetch_add(1, Ordering::Relaxed);
                false
            });
            // Once by each thread.
            let most = std::thread::available_parallelism().unwrap().get();
            let calls = calls.into_inner();
            assert!(calls <= most, "a source that had ended was asked {calls} times on {device}");
        }
    }
}

/// A device without memory for a part says so, and y is as it was.
#[test]
fn no_memory() {
    let full =
        CoreError::OutOfMemory { device: "fake:0".into(), asked: 1 << 40, free: Some(1 << 30) };
    let said = full.clone();
    let host = Host {
        fill: Box::new(move |_, bytes, _| if bytes == 0 { Ok(true) } else { Err(said.clone()) }),
        ..Host::new("fake:0")
    };
    let (a, mut y) = (Array2::<f32>::ones((3, 5)), [7.0f32; 3]);
    let there = Streamed::of(&a);
    let e = there.gemv::<f32, f32, _>(&host.device(), 1.0, &[1.0; 5], 0.0, &mut y, |_, _| ());
    assert_eq!((e.unwrap_err(), y), (full.into(), [7.0; 3]));
}

/// One sentence, and y as it was.
#[test]
fn refusals() {
    // Two threads, whatever the machine: each reads some parts before the first is told.
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| refuses(&devices::<f32, f32>()[0]));
    refuses(&feeding(1 << 12, |_| false).0);
    let a = Array2::<f32>::ones((3, 5));
    let there = Streamed::of(&a);
    let e = there.read_part::<f64>(0..3, 0..5).unwrap_err();
    assert_eq!(e.to_string(), "the array holds f32, where f64 is asked");
}

fn refuses(device: &Device) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let text = |e: Error| {
        assert!(matches!(e, Error::File { .. }), "{e}");
        let text = e.to_string();
        text.strip_prefix(&format!("{}: ", path.display())).expect("the file's name").to_owned()
    };
    let opened = || text(Streamed::open(&path).unwrap_err());

    assert!(!opened().is_empty()); // the system's words for a file that is not there
    fs::write(&path, "PK\x03\x04").unwrap();
    assert_eq!(opened(), "this is an archive (.npz): it has to be a file");
    let a = Array2::<f32>::ones((3000, 300));
    for fortran in [false, true] {
        write(&path, &a, fortran, false);
        let mut bytes = fs::read(&path).unwrap();
        let mut y = [7.0f64; 3000];
        let there = Streamed::open(&path).unwrap().window(1 << 18); // enough for two threads
        let e = there.gemv::<f64, f64, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, |_, _| ());
        assert_eq!(text(e.unwrap_err()), "the array holds f32, where f64 is asked");
        assert_eq!(y, [7.0; 3000]);
        let mut y = [7.0f32; 2999];
        let e = there.gemv::<f32, f32, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, |_, _| ());
        assert!(e.unwrap_err().to_string().ends_with("y must have 3000 entries, but it has 2999"));

        let e = there.read_part::<f64>(0..0, 0..0);
        assert_eq!(text(e.unwrap_err()), "the array holds f32, where f64 is asked");
        for (rows, columns) in [(0..3001, 0..1), (0..1, 299..301), (0..1, 301..301)] {
            let e = text(there.read_part::<f32>(rows.clone(), columns.clone()).unwrap_err());
            let part = format!("no part of rows {rows:?} and columns {columns:?}");
            assert_eq!(e, format!("a matrix of 3000 × 300 has {part}"));
        }

        // Another matrix of the same length takes its place while it is read. The time is set, since clocks of files
        // are coarse.
        let mut y = [7.0f32; 3000];
        let overwrite = |_, _| {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            (&file).write_all(&bytes).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
        };
        let e = there.gemv::<f32, f32, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, overwrite);
        assert_eq!(text(e.unwrap_err()), "the file was changed while it was read");
        assert_eq!(y, [7.0; 3000]);
        let e = there.read_part::<f32>(0..3, 0..3).unwrap_err();
        assert_eq!(text(e), "the file was changed while it was read");
        let there = Streamed::open(&path).unwrap().window(1 << 18);

        // It becomes shorter while it is read.
        let mut y = [7.0f32; 3000];
        let shorten = |read, of| {
            assert!(read < of / 2, "parts were read that are not there");
            OpenOptions::new().write(true).open(&path).unwrap().set_len(1_500_000).unwrap();
        };
        let e = there.gemv::<f32, f32, _>(device, 1.0, &[1.0; 300], 0.0, &mut y, shorten);
        assert_eq!(text(e.unwrap_err()), "the file became shorter while it was read");
        assert_eq!(y, [7.0; 3000]);
        assert_eq!(
            opened(),
            "the file is truncated: its header announces 3600000 bytes of data, but 1499872 follow"
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
