//! Products in a child that `fork` made, and where no thread can be made.
#![cfg(target_os = "linux")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gemv_baselines as _;
use gemv_core::fork::{Once, forks};
use gemv_core::ndarray::{Array, Array1, Array2, Array3, Axis, Dimension, ShapeBuilder, s};
use gemv_core::{BackendEntry, Device, DeviceInfo, Engine, GpuDot, Params};
use gemv_testkit::Numbers;
use gemv_testkit::processes::{in_a_child, in_a_process, limit_addresses};

/// Longer than any child takes.
const LONG: Duration = Duration::from_secs(20);

/// As many threads on every machine.
const FOUR: (&str, &str) = ("RAYON_NUM_THREADS", "4");

fn array<D: Dimension, Sh: ShapeBuilder<Dim = D>>(shape: Sh, seed: u64) -> Array<f32, D> {
    let mut numbers = Numbers::new(seed);
    Array::from_shape_simple_fn(shape, || numbers.element())
}

/// The bits of a product of each kind, each large enough for several threads.
fn products(device: &Device) -> Result<Vec<Vec<u32>>, gemv_core::Error> {
    fn bits<D: Dimension>(y: &Array<f32, D>) -> Vec<u32> {
        y.iter().map(|v| v.to_bits()).collect()
    }
    let mut all = Vec::new();
    // By rows, by columns, by segments, with gaps.
    let (a, x) = (array((1500, 1000), 1), array(1500, 2));
    all.push(bits(&device.try_gpu_dot(&a, &x.slice(s![..1000]))?));
    all.push(bits(&device.try_gpu_dot(&a.t(), &x)?));
    all.push(bits(&device.try_gpu_dot(&a.slice(s![.., ..;3]), &x.slice(s![..334]))?));
    let (wide, long) = (array((2, 700_000), 3), array(700_000, 4));
    all.push(bits(&device.try_gpu_dot(&wide, &long)?));
    // Resident, several columns, and batches.
    let there = device.matrix(&a)?;
    all.push(bits(&there.try_gpu_dot(&x.slice(s![..1000]))?.download()?));
    let columns: Array2<f32> = array((1000, 9), 5);
    all.push(bits(&there.try_gpu_dot(&columns)?.download()?));
    let (batch, vectors): (Array3<f32>, Array2<f32>) =
        (array((40, 150, 200), 6), array((40, 200), 7));
    all.push(bits(&device.array(&batch)?.try_gpu_dot(&vectors)?.download()?));
    // A step of each entry, and a dot product.
    let (mut z, r) = (device.vector(&long)?, device.vector(&array(700_000, 8))?);
    z.axpy(0.25, &r)?;
    all.push(bits(&z.download()?));
    let mut sum = device.zeros(())?;
    r.dot_into(&z, &mut sum)?;
    all.push(bits(&sum.download()?));
    // Another library's product, and the pass that only reads.
    let mut y = Array3::zeros((1, 1500, 9));
    let (a3, x3) = (a.view().insert_axis(Axis(0)), columns.view().insert_axis(Axis(0)));
    device.product(&a3, &x3).with(&Params::new("vendor-matrixmul")).to(&mut y)?;
    all.push(bits(&y));
    let read = Params::new(gemv_core::READ).with("grain_kib", 1);
    device.product(&a, &x.slice(s![..1000])).with(&read).to(&mut Array1::zeros(1500))?;
    Ok(all)
}

fn device() -> Device {
    Device::new(gemv_cpu::open(None).unwrap())
}

fn computes(device: &Device, want: &[Vec<u32>]) -> Result<(), String> {
    match products(device) {
        Ok(found) if found == want => Ok(()),
        Ok(_) => Err("other bits".into()),
        Err(why) => Err(why.to_string()),
    }
}

/// A child, a child of it, and so on.
fn descendants(
    depth: u32,
    work: &(dyn Fn(u32) -> Result<(), String> + Sync),
) -> Result<(), String> {
    in_a_child(LONG, || {
        work(depth)?;
        if depth > 1 { descendants(depth - 1, work) } else { Ok(()) }
    })
}

#[test]
fn a_child_of_any_depth_computes_by_as_many_threads() {
    if !in_a_process("a_child_of_any_depth_computes_by_as_many_threads", &[FOUR]) {
        return;
    }
    let device = device();
    let want = products(&device).unwrap();
    assert_eq!((rayon::current_num_threads(), gemv_threads::count()), (4, 4));
    descendants(3, &|depth| {
        computes(&device, &want)?;
        computes(&self::device(), &want)?;
        match (forks() + depth, gemv_threads::count()) {
            (4, 4) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    // What the child did is nothing to the parent.
    computes(&device, &want).unwrap();
    assert_eq!(forks(), 0);
}

/// The program has used rayon, and nothing of this library.
#[test]
fn a_child_computes_first() {
    if !in_a_process("a_child_computes_first", &[FOUR]) {
        return;
    }
    rayon::join(|| (), || ());
    in_a_child(LONG, || {
        let (device, one) = (device(), rayon::ThreadPoolBuilder::new().num_threads(1).build());
        let want = one.unwrap().install(|| products(&device).unwrap());
        computes(&device, &want)
    })
    .unwrap();
}

/// A worker forks, in the global pool and in one of the caller's; and a child has pools of its own.
#[test]
fn a_worker_that_forks_computes_in_the_child() {
    if !in_a_process("a_worker_that_forks_computes_in_the_child", &[FOUR]) {
        return;
    }
    let device = &device();
    let want = &products(device).unwrap();
    let fork = || {
        in_a_child(LONG, || {
            computes(device, want)?;
            if gemv_threads::count() != 1 {
                return Err("a worker of a pool without threads waits for them".into());
            }
            // Beside it, threads that the child has made.
            let pool = || rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let other = || pool().install(|| (gemv_threads::count(), computes(device, want)));
            let other = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
            if other == (3, Ok(())) { Ok(()) } else { Err(format!("{other:?}")) }
        })
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(fork).unwrap();
    // The other half waits in the worker's queue, or runs on another thread.
    rayon::scope(|scope| {
        scope.spawn(|_| {
            rayon::join(|| fork().unwrap(), || ());
        });
    });
}

/// Forks while other threads open devices, compute products of new shapes, and start pools.
#[test]
fn a_child_waits_for_no_thread_of_its_parent() {
    if !in_a_process("a_child_waits_for_no_thread_of_its_parent", &[FOUR]) {
        return;
    }
    let (want, ended) = (products(&device()).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for t in 0..3 {
            let ended = &ended;
            scope.spawn(move || {
                let mut n = t;
                while !ended.load(Ordering::Relaxed) {
                    n += 3;
                    let a: Array2<f32> = array((n % 500 + 1, 700), 1);
                    let device = Engine::new(None).default_device().unwrap();
                    assert_eq!(device.try_gpu_dot(&a, &a.row(0)).unwrap().len(), a.nrows());
                }
            });
        }
        let all = (0..30).try_for_each(|_| {
            in_a_child(LONG, || computes(&Engine::new(None).default_device().unwrap(), &want))
        });
        ended.store(true, Ordering::Relaxed);
        all.unwrap();
    });
}

/// Forks while another thread of the parent is about to make a value, and to open a device.
#[test]
fn a_child_makes_what_its_parent_was_making() {
    if !in_a_process("a_child_makes_what_its_parent_was_making", &[]) {
        return;
    }
    static BEGUN: Barrier = Barrier::new(3);
    static FORKED: Barrier = Barrier::new(3);
    static VALUE: Once<u32> = Once::new();
    fn wait() {
        if forks() == 0 {
            BEGUN.wait();
            FORKED.wait();
        }
    }
    let slow = BackendEntry {
        name: "slow",
        rank: 0,
        discover: || {
            wait();
            Ok(vec![DeviceInfo::new("slow:0")])
        },
        open: |_| gemv_cpu::open(None),
    };
    let engine = &Engine::with_entries([slow], None);
    let made = || {
        wait();
        forks()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(*VALUE.get_or_init(made), 0));
        scope.spawn(|| engine.default_device().unwrap());
        BEGUN.wait();
        let child = in_a_child(LONG, || {
            let device = engine.default_device().map_err(|e| e.to_string())?;
            let one: Array1<f32> = Array1::ones(1);
            let y = device.try_gpu_dot(&Array2::ones((1, 1)), &one);
            match (y, VALUE.get_or_init(made)) {
                (Ok(y), 1) if y == one => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        FORKED.wait();
        child.unwrap();
    });
    assert_eq!(VALUE.get(), Some(&0));
}

/// More than a limit of addresses leaves, so that a thread cannot be made while there is memory for all else.
const STACK: (&str, &str) = ("RUST_MIN_STACK", "1073741824");

/// The bits, computed before the limit without rayon's global pool. The thread that computed them keeps its addresses.
fn by_one_thread(device: &Device) -> (Vec<Vec<u32>>, rayon::ThreadPool) {
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    (one.install(|| products(device).unwrap()), one)
}

#[test]
fn without_threads_the_caller_computes() {
    if !in_a_process("without_threads_the_caller_computes", &[FOUR, STACK]) {
        return;
    }
    let device = device();
    let (want, _one) = by_one_thread(&device);
    limit_addresses(Some(1 << 29));
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit limits nothing");
    computes(&device, &want).unwrap();
    assert_eq!(gemv_threads::count(), 1);
    // In a child as well.
    in_a_child(LONG, || computes(&device, &want)).unwrap();
    // It is tried again, and rayon's own pool is as it was.
    limit_addresses(None);
    std::thread::sleep(Duration::from_millis(1100));
    computes(&device, &want).unwrap();
    assert_eq!((gemv_threads::count(), rayon::current_num_threads()), (4, 4));
}

#[test]
fn with_few_threads_these_compute() {
    let eight = ("RAYON_NUM_THREADS", "8");
    if !in_a_process("with_few_threads_these_compute", &[eight, STACK]) {
        return;
    }
    let device = device();
    let (want, _one) = by_one_thread(&device);
    limit_addresses(Some(5 << 29));
    computes(&device, &want).unwrap();
    assert!((1..8).contains(&gemv_threads::count()), "{}", gemv_threads::count());
    computes(&device, &want).unwrap();
}
