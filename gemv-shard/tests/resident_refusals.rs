//! What products with resident vectors cannot do is refused in one sentence, and x and y stay as they were.
#![forbid(unsafe_code)]

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{SPLITS, reference};
use gemv::half::f16;
use gemv::ndarray::{Array1, Array2};
use gemv::num_complex::Complex;
use gemv::{Device, Element, GpuDot, Times};
use gemv_core::{Checked, Error as CoreError, Job, Prepared, Record, ShapeMismatch};
use gemv_shard::{Error, Sharded, ShardedVector, Split, SumElement};
use gemv_testkit::{Host, compute};

/// A device that counts what it is asked, copies included, and fails at one of these.
#[derive(Default)]
struct Calls {
    count: AtomicUsize,
    fails_at: AtomicUsize,
    panics: bool,
}

impl Calls {
    fn before(&self) -> Result<(), CoreError> {
        let call = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if call != self.fails_at.load(Ordering::SeqCst) {
            return Ok(());
        }
        assert!(!self.panics, "two\n   lines");
        let (device, reason) = ("fake:0".into(), "late".into());
        Err(CoreError::Device { device, call: "launch", reason })
    }

    /// Fails at this call from now on; 0 is none.
    fn fail_at(&self, call: usize) {
        self.count.store(0, Ordering::SeqCst);
        self.fails_at.store(call, Ordering::SeqCst);
    }
}

/// What a device has in common with the others.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Alone,
    /// Its memory is the host's.
    Host,
    /// They copy from each other.
    Peer,
}

fn device(calls: &Arc<Calls>, kind: Kind) -> Device {
    let [one, copy] = [(); 2].map(|()| calls.clone());
    let mut host = Host::new("fake:0");
    host.info.host = kind == Kind::Host;
    (host.info.peers, host.info.asynchronous) = (kind == Kind::Peer, kind == Kind::Peer);
    Host {
        // It has written its result when it fails.
        compute: Box::new(move |job, _| {
            compute(job);
            one.before()
        }),
        transfer: Arc::new(move |_| copy.before()),
        ..host
    }
    .device()
}

fn parts(of: &ShardedVector<f32>) -> Vec<Array1<f32>> {
    of.parts().map(|(_, part)| part.download().unwrap()).collect()
}

/// Whatever fails on a device, wherever it is among the others, it is named, and all is as it was.
#[test]
fn failing_devices() {
    let (a, x) = (Array2::<f32>::ones((600, 600)), Array1::<f32>::ones(600));
    let b = Array1::<f32>::from_elem(600, 7.0);
    for (at, split) in (0..3).flat_map(|at| SPLITS.map(|split| (at, split))) {
        let kinds = [Kind::Alone, Kind::Host, Kind::Peer];
        for (panics, kind) in [false, true].into_iter().flat_map(|of| kinds.map(|kind| (of, kind)))
        {
            let calls = Arc::new(Calls { panics, ..Calls::default() });
            let other = match kind {
                Kind::Peer => device(&Arc::default(), kind),
                _ => reference(),
            };
            let mut devices = vec![other; 3];
            devices[at] = device(&calls, kind);
            let shared = Sharded::new(&a, &devices, split).unwrap();
            for (whole, beta, again) in
                [(true, 1.0, false), (false, 1.0, true), (true, 0.0, true), (false, 0.0, false)]
            {
                let x = if whole { shared.broadcast(&x) } else { shared.scatter(&x) }.unwrap();
                let mut y = if whole { shared.broadcast(&b) } else { shared.scatter(&b) }.unwrap();
                let before = (parts(&x), parts(&y));
                calls.fail_at(0);
                let want = shared.try_gpu_dot(&x).unwrap().gather().unwrap();
                let mut call = 0;
                loop {
                    // A product that succeeds leaves memory for the next one; one that fails leaves none.
                    if again {
                        shared.try_gpu_dot(&x).unwrap();
                    }
                    call += 1;
                    calls.fail_at(call);
                    let done = shared.try_gemv(1.0, &x, beta, &mut y);
                    calls.fail_at(0);
                    let Err(e) = done else { break };
                    let said = e.to_string();
                    let known = match panics {
                        true => "fake:0: its part of the matrix failed: panic: two lines",
                        false => "fake:0: launch failed: late",
                    };
                    assert_eq!(said, known, "{split:?}, device {at}, call {call}");
                    assert_eq!((parts(&x), parts(&y)), before);
                }
                assert!(call > 1, "it was asked something");
                assert_eq!(y.gather().unwrap(), want + &b * beta);
            }
        }
    }
}

/// Copies to the host and from it: each result is whole, or an error.
#[test]
fn failing_copies() {
    let (a, x) = (Array2::<f32>::ones((9, 9)), Array1::<f32>::ones(9));
    let calls = Arc::new(Calls::default());
    let devices = [reference(), device(&calls, Kind::Alone), reference()];
    let shared = Sharded::new(&a, &devices, Split::Rows).unwrap();
    let y = shared.scatter(&x).unwrap();
    for copy in [
        &|| shared.broadcast(&x).map(drop),
        &|| shared.scatter(&x).map(drop),
        &|| y.gather().map(drop),
        &|| y.all_gather().map(drop),
    ] as [&dyn Fn() -> gemv_shard::Result<()>; 4]
    {
        calls.fail_at(1);
        let e = copy().unwrap_err();
        assert_eq!(e.to_string(), "fake:0: launch failed: late");
        calls.fail_at(0);
        copy().unwrap();
        assert_eq!(y.gather().unwrap(), x);
    }
}

#[test]
fn shapes() {
    let a = Array2::<f32>::ones((3, 700));
    for split in SPLITS {
        let shared = Sharded::new(&a, &vec![reference(); 3], split).unwrap();
        let x = |len| shared.broadcast(&Array1::<f32>::ones(len)).unwrap();
        let mut y = shared.scatter(&[7.0; 3]).unwrap();
        let mismatch = |x, y| ShapeMismatch::MatrixVector { matrix: (3, 700), x, y };
        let e = shared.try_gpu_dot(&x(699)).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(699, None)));
        let e = shared.try_gemv(1.0, &x(701), 0.0, &mut y).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(701, Some(3))));
        // Also where nothing would be computed.
        let e = shared.gemv_mixed_resident(0.0, &x(700), 1.0, &mut x(2)).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(700, Some(2))).into());
        let e = shared.scatter(&[1.0f32; 4]).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(700, Some(4))).into());
        assert_eq!(y.gather().unwrap(), Array1::from_elem(3, 7.0));
    }
}

/// A vector in whose parts others were put.
#[test]
fn parts_of_another_length() {
    let a = Array2::<f32>::ones((700, 700));
    for split in SPLITS {
        let shared = Sharded::new(&a, &vec![reference(); 3], split).unwrap();
        let good = shared.scatter(&Array1::ones(700)).unwrap();
        for len in [0, 699, 701] {
            let mut bad = shared.broadcast(&Array1::ones(700)).unwrap();
            let (_, part) = bad.parts_mut().nth(1).unwrap();
            *part = part.device().zeros(len).unwrap();
            let said =
                CoreError::Shape(ShapeMismatch::Step { axes: 1, x: [len, 1, 1], y: [700, 1, 1] });
            assert_eq!(bad.gather().unwrap_err(), Error::Product(said.clone()));
            assert_eq!(bad.all_gather().unwrap_err(), Error::Product(said.clone()));
            assert_eq!(shared.try_gpu_dot(&bad).unwrap_err(), said);
            assert_eq!(shared.try_gemv(1.0, &good, 1.0, &mut bad).unwrap_err(), said);
        }
    }
}

/// The vectors are on the devices of the matrix, in their order.
#[test]
fn other_devices() {
    let other = |id| Host::new(id).device();
    let (one, two) = (other("fake:1"), other("fake:2"));
    let a = Array2::<f32>::ones((4, 4));
    let shared = |on: &[&Device]| {
        let on: Vec<Device> = on.iter().copied().cloned().collect();
        Sharded::new(&a, &on, Split::Rows).unwrap()
    };
    let here = shared(&[&one, &two]);
    let good = here.broadcast(&[1.0; 4]).unwrap();
    for (devices, operand) in [
        (vec![&two, &one], "fake:2, fake:1"),
        (vec![&one], "fake:1"),
        (vec![&one, &two, &two], "fake:1, fake:2, fake:2"),
    ] {
        let mut bad = shared(&devices).broadcast(&[3.0; 4]).unwrap();
        let (device, operand) = ("fake:1, fake:2".into(), operand.into());
        let said = CoreError::WrongDevice { device, operand };
        assert_eq!(here.try_gpu_dot(&bad).unwrap_err(), said);
        assert_eq!(here.try_gemv(1.0, &good, 0.0, &mut bad).unwrap_err(), said);
        assert_eq!(bad.gather().unwrap(), Array1::from_elem(4, 3.0));
    }
}

thread_local! {
    static COMPARES: Cell<bool> = const { Cell::new(false) };
    /// How often this thread compared a record with the work.
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

static COMPARING: AtomicBool = AtomicBool::new(false);

/// A record that is compared with the work, as CUDA's are.
#[derive(Debug)]
struct Compared;

impl Record for Compared {
    fn holds(&self, start: &mut dyn FnMut() -> Result<(), CoreError>) -> Result<bool, CoreError> {
        COMPARISONS.set(COMPARISONS.get() + 1);
        COMPARES.set(true);
        COMPARING.store(true, Ordering::SeqCst);
        let started = start();
        COMPARES.set(false);
        COMPARING.store(false, Ordering::SeqCst);
        started.map(|()| true)
    }

    fn replay(&self) -> Result<(), CoreError> {
        Ok(())
    }
}

/// A record has the work of the plan's devices: what others do would not be done again.
#[test]
fn several_devices_in_a_plan() {
    let recording = |is_recording: fn() -> bool| {
        let record: Option<fn() -> Box<dyn Record>> = Some(|| Box::new(Compared));
        // Only the thread that records may enter the device meanwhile, as on CUDA.
        let enter = || assert_eq!(COMPARING.load(Ordering::SeqCst), COMPARES.get());
        let compute = Box::new(move |job: &mut Checked<Job<'_>>, _: &Prepared| {
            if is_recording() {
                enter();
            }
            compute(job);
            Ok(())
        });
        let mut host = Host::new("fake:0");
        host.info.peers = true;
        Host { record, is_recording, compute, ..host }.device()
    };
    let (one, other) = (recording(|| COMPARES.get()), recording(|| false));
    let a = Array2::<f32>::ones((4, 600));
    for (devices, refused) in [([&one, &one], false), ([&one, &other], true)] {
        for split in [Split::Rows, Split::Columns] {
            let shared = Sharded::new(&a, &devices.map(Device::clone), split).unwrap();
            let x = shared.broadcast(&Array1::ones(600)).unwrap();
            let y = shared.scatter(&Array1::zeros(4)).unwrap();
            let mut plan = one.plan(y, |y| shared.try_gemv(1.0, &x, 1.0, y).map(|_| ()));
            plan.run().unwrap();
            let again = plan.run().map_err(|e| e.to_string());
            let want = "fake:0: Plan::run failed: the plan records other devices, and not this one: see Sharded::plan";
            assert_eq!(again, if refused { Err(want.into()) } else { Ok(()) }, "{split:?}");
            let ran = if refused { 1.0 } else { 2.0 };
            assert_eq!(plan.into_state().gather().unwrap(), Array1::from_elem(4, 600.0 * ran));
            // The record has ended: the same work runs.
            let y = shared.try_gpu_dot(&x).unwrap();
            assert_eq!(y.gather().unwrap(), Array1::from_elem(4, 600.0));
        }
    }
}

/// A device that copies from others of its kind, and refuses while it is recorded what a record cannot have, as CUDA does.
fn recorded(which: usize, cyclic: bool) -> Device {
    let id = format!("fake:{which}");
    let mut host = Host::new(&id);
    (host.info.peers, host.info.asynchronous) = (true, true);
    let transfer = Arc::new(move |what: &str| match COMPARES.get() {
        true if matches!(what, "alloc" | "upload" | "download") => {
            let (device, reason) = (id.clone(), "it cannot be recorded".into());
            Err(CoreError::Device { device, call: "transfer", reason })
        }
        _ => Ok(()),
    });
    let record: Option<fn() -> Box<dyn Record>> = Some(|| Box::new(Compared));
    Host { record, is_recording: || COMPARES.get(), transfer, cyclic, ..host }.device()
}

/// Whether a plan of `y = alpha A x + beta y` with ones is recorded; its results are right either way.
#[track_caller]
fn is_recorded<T, S>(
    one: T,
    shared: &Sharded<T>,
    (whole, alpha, beta): (bool, S, S),
    want: impl Fn(&T) -> bool,
) -> bool
where
    T: Element<Acc = S> + Times<S>,
    S: SumElement,
{
    let (m, n) = shared.dim();
    let (ones, before) = (Array1::from_elem(n, one), Array1::from_elem(m, one));
    let (x, y) = match whole {
        true => (shared.broadcast(&ones), shared.broadcast(&before)),
        false => (shared.scatter(&ones), shared.scatter(&before)),
    };
    let state = (x.unwrap(), y.unwrap());
    COMPARISONS.set(0);
    let mut plan = shared.plan(state, |(x, y)| shared.try_gemv(alpha, x, beta, y));
    // The record that compares replays nothing: the second run did the work once.
    for _ in 0..2 {
        for (_, y) in plan.state_mut().1.parts_mut() {
            y.assign(&Array1::from_elem(y.len(), one)).unwrap();
        }
        plan.run().unwrap();
        let (x, y) = plan.state();
        assert!(y.gather().unwrap().iter().all(&want));
        assert!(y.parts().all(|(_, part)| part.download().unwrap().iter().all(&want)));
        assert!(x.gather().unwrap() == ones);
    }
    COMPARISONS.get() > 0
}

/// Work that no record repeats is called each time, on devices that record as on all others.
#[test]
fn plans_that_are_not_recorded() {
    let devices = |count, cyclic| (0..count).map(|k| recorded(k, cyclic)).collect::<Vec<_>>();
    for split in [Split::Rows, Split::Columns, Split::CyclicColumns] {
        let on = |cyclic| devices(4, cyclic);
        let of = |on: &[Device]| Sharded::new(&Array2::<f32>::ones((600, 600)), on, split).unwrap();
        let shared = of(&on(true));
        let product =
            |whole, beta| is_recorded(1.0, &shared, (whole, 1.0, beta), |y| *y == 600.0 + beta);
        assert!(product(true, 0.0) && product(true, 1.0), "{split:?}");
        // In parts, x of each device's rows is not what it needs.
        assert!(!product(false, 0.0) && !product(false, 1.0), "{split:?}");
        assert!(!is_recorded(1.0, &shared, (true, 0.0, 3.0), |y| *y == 3.0), "{split:?}");
        let without = is_recorded(1.0, &of(&on(false)), (true, 1.0, 0.0), |y| *y == 600.0);
        assert_eq!(without, split != Split::CyclicColumns, "{split:?}");

        let rows = split == Split::Rows;
        let a = Array2::from_elem((600, 600), f16::ONE);
        let half = Sharded::new(&a, &on(true), split).unwrap();
        let half = is_recorded(f16::ONE, &half, (true, 1.0, 0.0), |y| f32::from(*y) == 600.0);
        assert_eq!(half, rows, "{split:?}");
        let one = Complex::new(1.0f64, 0.0);
        let pair = Sharded::new(&Array2::from_elem((600, 600), one), &on(true), split).unwrap();
        let zero = Complex::new(0.0, 0.0);
        let pair = is_recorded(one, &pair, (true, one, zero), |y| *y == one * 600.0);
        assert_eq!(pair, rows, "{split:?}");
    }
    for (rows, columns) in [(1, 4), (2, 2), (4, 1)] {
        let a = Array2::from_elem((600, 600), f16::ONE);
        let shared = Sharded::new(&a, &devices(4, true), Split::Grid { rows, columns }).unwrap();
        let half = is_recorded(f16::ONE, &shared, (true, 1.0, 0.0), |y| f32::from(*y) == 600.0);
        assert_eq!(half, columns == 1);
    }
    // Without columns a product reads no matrix.
    let a = Array2::<f32>::ones((4, 0));
    let shared = Sharded::new(&a, &devices(2, true), Split::Rows).unwrap();
    assert!(!is_recorded(1.0, &shared, (true, 1.0, 2.0), |y| *y == 2.0));
}

/// Whatever fails in a product by cyclic columns, y is as it was, and the next product is right.
#[test]
fn cyclic_columns_after_a_failure() {
    let (a, x) = (Array2::<f32>::ones((9, 1000)), Array1::<f32>::ones(1000));
    for what in ["alloc", "cyclic", "exchange", "finish"] {
        for which in 0..6 {
            // How many of these calls are still to succeed.
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let peers = (0..4).map(|of| {
                let (left, id) = (left.clone(), format!("fake:{of}"));
                let mut host = Host::new(&id);
                host.info.peers = true;
                let transfer = Arc::new(move |asked: &str| {
                    if asked == what && left.fetch_sub(1, Ordering::SeqCst) == 0 {
                        left.store(usize::MAX, Ordering::SeqCst);
                        let (device, reason) = (id.clone(), "late".into());
                        return Err(CoreError::Device { device, call: "launch", reason });
                    }
                    Ok(())
                });
                Host { transfer, cyclic: true, ..host }.device()
            });
            let shared =
                Sharded::new(&a, &peers.collect::<Vec<_>>(), Split::CyclicColumns).unwrap();
            let x = shared.broadcast(&x).unwrap();
            let mut y = shared.scatter(&Array1::from_elem(9, 7.0)).unwrap();
            for first in [true, false] {
                // There is one exchange. Memory for sums is kept from the first product on, so that later ones allocate
                // memory for the result alone.
                let calls = match what {
                    "exchange" | "finish" => 0,
                    "alloc" if !first => which % 4,
                    _ => which,
                };
                left.store(calls, Ordering::SeqCst);
                let failed = shared.try_gemv(1.0, &x, 0.0, &mut y);
                let said = failed.map_err(|e| e.to_string());
                let expected = said.as_ref().is_err_and(|e| e.ends_with("launch failed: late"));
                assert!(expected, "{what} {which} {first}: {said:?}");
                left.store(usize::MAX, Ordering::SeqCst);
                let seven = Array1::from_elem(9, if first { 7.0 } else { 1007.0 });
                assert_eq!(y.gather().unwrap(), seven, "{what} {which}");
                shared.try_gemv(1.0, &x, 1.0, &mut y).unwrap();
                assert_eq!(y.gather().unwrap(), seven + 1000.0, "{what} {which}");
            }
        }
    }
}

/// By rows, with x whole and y in parts, nothing passes through the host; between peers nothing does at all.
#[test]
fn no_copies() {
    let copies = Arc::new(AtomicUsize::new(0));
    let counting = |peers| {
        let copies = copies.clone();
        let transfer = Arc::new(move |what: &str| {
            let counts = matches!(what, "upload" | "download");
            copies.fetch_add(usize::from(counts), Ordering::SeqCst);
            Ok(())
        });
        let mut host = Host::new("fake:0");
        host.info.peers = peers;
        Host { transfer, cyclic: true, ..host }.device()
    };
    let peers: Vec<Device> = (0..4).map(|_| counting(true)).collect();
    let square = Array2::<f32>::ones((900, 900));
    for split in SPLITS.into_iter().chain([Split::CyclicColumns]) {
        let count = if split == Split::CyclicColumns { 4 } else { 3 };
        let shared = Sharded::new(&square, &peers[..count], split).unwrap();
        // The first product by columns uploads ones, which add up the sums.
        shared.gpu_dot(&shared.broadcast(&Array1::ones(900)).unwrap());
        for x in [shared.broadcast(&Array1::ones(900)), shared.scatter(&Array1::ones(900))] {
            let x = x.unwrap();
            copies.store(0, Ordering::SeqCst);
            let y = shared.gpu_dot(&shared.gpu_dot(&x)).all_gather().unwrap();
            assert_eq!(copies.load(Ordering::SeqCst), 0, "{split:?}");
            assert_eq!(y.gather().unwrap(), Array1::from_elem(900, 810_000.0));
        }
    }
    let a = Array2::<f32>::ones((9, 300));
    let devices: Vec<Device> = (0..3).map(|_| counting(false)).collect();
    let shared = Sharded::new(&a, &devices, Split::Rows).unwrap();
    let x = shared.broadcast(&Array1::ones(300)).unwrap();
    let mut y = shared.scatter(&Array1::ones(9)).unwrap();
    copies.store(0, Ordering::SeqCst);
    for _ in 0..3 {
        shared.gemv(1.0, &x, 1.0, &mut y);
    }
    assert_eq!(copies.load(Ordering::SeqCst), 0);
    // Where y is whole on each device, each gives its rows and gets all.
    let y = shared.gpu_dot(&x);
    assert_eq!(copies.load(Ordering::SeqCst), 6);
    assert_eq!(y.gather().unwrap(), Array1::from_elem(9, 300.0));
}
