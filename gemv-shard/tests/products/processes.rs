//! Products in parts in a child that `fork` made, and where no thread can be made.
use std::path::Path;
use std::time::Duration;

use crate::common::{Random, same};
use gemv::ndarray::{Array1, Array2};
use gemv::{Device, Engine, GpuDot};
use gemv_shard::{Sharded, Split, Streamed};
use gemv_testkit::Host;
use gemv_testkit::processes::{in_a_child, in_a_process, limit_addresses};

use crate::streamed::write;

/// As many threads on every machine, with addresses that a limit does not leave.
const FOUR: [(&str, &str); 2] = [("RAYON_NUM_THREADS", "4"), ("RUST_MIN_STACK", "1073741824")];

/// The CPU, the reference, and two devices that copy from each other.
fn all() -> Vec<Device> {
    let engine = Engine::new(None);
    let own = ["cpu", "reference"].map(|name| engine.device(name).unwrap());
    let peers = [0, 1].map(|which| {
        let mut host = Host::new(&format!("fake:{which}"));
        host.info.peers = true;
        host.device()
    });
    own.into_iter().chain(peers).collect()
}

/// Products of every kind that starts threads.
fn products(path: &Path, a: &Array2<f32>, x: &Array1<f32>) -> gemv_shard::Result<Vec<Array1<f32>>> {
    let (all, mut results) = (all(), Vec::new());
    let (m, n) = a.dim();
    for device in &all[..3] {
        for transposed in [false, true] {
            let streamed = Streamed::open(path)?.window(1 << 19);
            let streamed = if transposed { streamed.transposed() } else { streamed };
            let (rows, columns) = streamed.dim();
            let (x, mut y) = (&x.as_slice().unwrap()[..columns], Array1::zeros(rows));
            streamed.gemv::<f32, f32, _>(device, 1.0, x, 0.0, &mut y, |_, _| ())?;
            results.push(y);
        }
    }
    let part = Streamed::open(path)?.read_part::<f32>(0..m, 1..n)?;
    results.push(part.sum_axis(gemv::ndarray::Axis(1)));
    for split in [Split::Rows, Split::Columns, Split::CyclicColumns] {
        let shared = Sharded::new(a, &all, split)?;
        results.push(shared.try_gpu_dot(x)?);
        let x = shared.broadcast(x)?;
        results.push(shared.try_gpu_dot(&x)?.gather()?);
    }
    Ok(results)
}

fn compares(
    found: gemv_shard::Result<Vec<Array1<f32>>>,
    want: &[Array1<f32>],
) -> Result<(), String> {
    let found = found.map_err(|e| e.to_string())?;
    assert_eq!(found.len(), want.len());
    let pairs = found.iter().zip(want).enumerate();
    pairs.for_each(|(k, (found, want))| same(found, want, &format!("product {k}")));
    Ok(())
}

#[test]
fn a_child_computes_and_so_does_a_caller_without_threads() {
    let name = "processes::a_child_computes_and_so_does_a_caller_without_threads";
    if !in_a_process(name, &FOUR) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let random = &mut Random(46);
    let (a, x): (Array2<f32>, Array1<f32>) = (random.matrix(700, 900), random.vector(900));
    write(&path, &a, false, false);
    // By threads that keep their addresses, and without rayon's global pool.
    let four = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let want = four.install(|| products(&path, &a, &x)).unwrap();
    // Others have ended, and their addresses are free.
    std::thread::sleep(Duration::from_millis(200));
    limit_addresses(Some(1 << 29));
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit limits nothing");
    compares(products(&path, &a, &x), &want).unwrap();
    limit_addresses(None);
    std::thread::sleep(Duration::from_millis(1100));
    compares(products(&path, &a, &x), &want).unwrap();
    assert_eq!(gemv_threads::count(), 4);
    in_a_child(Duration::from_secs(20), || {
        compares(products(&path, &a, &x), &want)?;
        // A thread of the parent's pool is not there.
        if gemv_threads::count() == 4 { Ok(()) } else { Err("fewer threads".into()) }
    })
    .unwrap();
    drop(four);
}
