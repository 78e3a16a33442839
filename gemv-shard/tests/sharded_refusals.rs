//! What a shared matrix cannot do is refused in one sentence, and y stays as it was; and what is asked of the
//! devices.
#![forbid(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{SPLITS, reference, text};
use gemv::ndarray::{Array1, Array2, Axis, Slice};
use gemv::{Device, GpuDot};
use gemv_core::{DeviceInfo, Error as CoreError, ShapeMismatch};
use gemv_shard::{Error, Sharded, Split};
use gemv_testkit::{Host, compute};

/// A device that does this before it computes what it is asked. It is told how many elements the memory of a
/// resident matrix has.
fn device(
    info: DeviceInfo,
    before: impl Fn(usize) -> Result<(), CoreError> + Send + Sync + 'static,
) -> Device {
    let host = Host::new(&info.id);
    Host {
        info,
        compute: Box::new(move |job, _| {
            before(job.a.window().map_or(0, |a| a.memory.len()))?;
            compute(job);
            Ok(())
        }),
        ..host
    }
    .device()
}

/// What a device says whose memory is the host's.
fn near(id: &str) -> DeviceInfo {
    let mut info = DeviceInfo::new(id);
    info.host = true;
    info
}

fn far(id: &str) -> DeviceInfo {
    let mut info = near(id);
    info.host = false;
    info
}

fn failure(device: &str) -> CoreError {
    CoreError::Device { device: device.into(), call: "launch", reason: "late".into() }
}

#[test]
fn devices_and_weights() {
    let (a, one) = (Array2::<f32>::ones((3, 700)), reference());
    let shared = |count: usize, split, weights: &[f64]| {
        text(Sharded::weighted(&a, &vec![one.clone(); count], split, weights))
    };
    for split in SPLITS {
        let e = Sharded::new(&a, &[], split).unwrap_err();
        assert_eq!(e, Error::NoDevices);
        assert_eq!(shared(3, split, &[1.0; 2]), "weights do not fit: 2 for 3 devices");
        for (weight, said) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (-1.0, "-1"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let e = shared(3, split, &[1.0, weight, 1.0]);
            let said = format!("that of device 1 is {said}, not positive and finite");
            assert_eq!(e, format!("weights do not fit: {said}"));
        }
    }
    let grid = |rows, columns| shared(3, Split::Grid { rows, columns }, &[1.0; 3]);
    assert_eq!(grid(2, 2), "a grid of 2 × 2 has 4 places, but there are 3 devices");
    assert_eq!(grid(0, 3), "a grid of 0 × 3 has 0 places, but there are 3 devices");
    assert!(grid(usize::MAX, 3).contains("18446744073709551615 places"));
}

#[test]
fn shapes() {
    let a = Array2::<f32>::ones((3, 700));
    for split in SPLITS {
        let shared = Sharded::new(&a, &vec![reference(); 3], split).unwrap();
        let mut y = [7.0f32; 3];
        let mismatch = |x, y| ShapeMismatch::MatrixVector { matrix: (3, 700), x, y };
        let e = shared.try_gpu_dot(&[1.0; 699]).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(699, None)));
        let e = shared.try_gemv(1.0, &[1.0; 701], 0.0, &mut y).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(701, Some(3))));
        let e = shared.try_gemv(1.0, &[1.0; 700], 0.0, &mut y[..2]).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(700, Some(2))));
        // Also where nothing would be computed.
        let e = shared.gemv_mixed(0.0, &[1.0f32; 700], 1.0, &mut y[..2]).unwrap_err();
        assert_eq!(e, CoreError::Shape(mismatch(700, Some(2))).into());
        assert_eq!(y, [7.0; 3]);
    }
}

/// The device that fails is named, wherever it is among the others.
#[test]
fn failing_devices() {
    let (a, x) = (Array2::<f32>::ones((9, 900)), Array1::<f32>::ones(900));
    let memory = CoreError::OutOfMemory { device: "fake:0".into(), asked: 9, free: Some(1) };
    for (at, split) in (0..3).flat_map(|at| SPLITS.map(|split| (at, split))) {
        for (fault, said) in [
            (Some(failure("fake:0")), "fake:0: launch failed: late"),
            (Some(memory.clone()), "fake:0 is out of memory: 9 bytes asked, 1 bytes free"),
            (None, "fake:0: its part of the matrix failed: panic: two lines"),
        ] {
            let faulty = device(near("fake:0"), move |_| match &fault {
                Some(e) => Err(e.clone()),
                None => panic!("two\n   lines"),
            });
            let mut devices = vec![reference(); 3];
            devices[at] = faulty;
            let shared = Sharded::new(&a, &devices, split).unwrap();
            let mut y = [7.0f32; 9];
            for beta in [0.0, 1.0] {
                let e = shared.try_gemv(1.0, &x, beta, &mut y).unwrap_err();
                assert_eq!(e.to_string(), said, "{split:?}, device {at}");
                assert_eq!(y, [7.0; 9]);
            }
            assert_eq!(shared.try_gpu_dot(&x).unwrap_err().to_string(), said);
            // It is not asked where there is nothing to compute.
            shared.try_gemv(0.0, &x, 2.0, &mut y).unwrap();
            assert_eq!(y, [14.0; 9]);
        }
    }
}

/// Of two devices that fail, the first in the list is named.
#[test]
fn the_first_error() {
    let (a, x) = (Array2::<f32>::ones((9, 900)), Array1::<f32>::ones(900));
    let fails = |id: &'static str| device(near(id), move |_| Err(failure(id)));
    let devices = [reference(), fails("fake:1"), fails("fake:2")];
    for split in SPLITS {
        let shared = Sharded::new(&a, &devices, split).unwrap();
        let e = shared.try_gpu_dot(&x).unwrap_err().to_string();
        assert_eq!(e, "fake:1: launch failed: late", "{split:?}");
    }
}

/// Sums are added up where the memory is the host's, or else by each device for its share of the rows: also by one
/// that fails only then.
#[test]
fn who_adds_up_sums() {
    let (a, x) = (Array2::<f32>::ones((9, 768)), Array1::<f32>::ones(768));
    for (infos, adds) in [
        ([far("fake:0"), near("fake:1"), near("fake:2")], 1..2),
        ([far("fake:0"), far("fake:1"), near("fake:2")], 2..3),
        ([far("fake:0"), far("fake:1"), far("fake:2")], 0..3),
    ] {
        for fails in [false, true] {
            let asked: Vec<_> = infos.iter().map(|_| Arc::new(AtomicUsize::new(0))).collect();
            let devices = infos.iter().zip(&asked).map(|(info, asked)| {
                let (asked, id) = (asked.clone(), info.id.clone());
                // Its part of the matrix, of one segment, is resident, but the sums are not.
                device(info.clone(), move |resident| match resident {
                    0 => {
                        asked.fetch_add(1, Ordering::SeqCst);
                        if fails { Err(failure(&id)) } else { Ok(()) }
                    }
                    _ => Ok(()),
                })
            });
            let devices: Vec<Device> = devices.collect();
            let shared = Sharded::new(&a, &devices, Split::Columns).unwrap();
            let mut y = [7.0f32; 9];
            let done = shared.try_gemv(1.0, &x, 1.0, &mut y);
            if fails {
                assert_eq!((done, y), (Err(failure(&infos[adds.start].id)), [7.0; 9]));
            } else {
                assert_eq!((done, y), (Ok(()), [775.0; 9]));
            }
            let asked = asked.iter().map(|asked| asked.load(Ordering::SeqCst));
            assert!(asked.eq((0..3).map(|device| usize::from(adds.contains(&device)))));
        }
    }
}

/// Each device waits until all have begun.
#[test]
fn all_at_once() {
    let (a, x) = (Array2::<f32>::ones((9, 768)), Array1::<f32>::ones(768));
    for split in SPLITS {
        let begun = Arc::new((Mutex::new(0), Condvar::new()));
        let devices: Vec<Device> = (0..3)
            .map(|_| {
                let begun = begun.clone();
                device(near("fake:0"), move |_| {
                    let (count, changed) = &*begun;
                    let mut count = count.lock().unwrap();
                    *count += 1;
                    changed.notify_all();
                    let wait = Duration::from_secs(20);
                    let all = changed.wait_timeout_while(count, wait, |count| *count < 3).unwrap();
                    let (device, reason) = ("fake:0".into(), "the others wait for this one".into());
                    let alone = CoreError::Device { device, call: "waiting", reason };
                    if all.1.timed_out() { Err(alone) } else { Ok(()) }
                })
            })
            .collect();
        let shared = Sharded::new(&a, &devices, split).unwrap();
        assert_eq!(shared.gpu_dot(&x), Array1::from_elem(9, 768.0));
    }
}

/// What computes on rayon's pool does so on the caller's, whatever its name. On a thread of its own it would take the
/// global pool, and wait for ever if that is where the caller runs.
#[test]
fn the_pool_of_the_caller() {
    let (a, x) = (Array2::<f32>::ones((9, 768)), Array1::<f32>::ones(768));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for split in SPLITS {
        let devices = ["mine:0", "fake:0", "mine:1"].map(|id| {
            let mut info = near(id);
            info.rayon = id.starts_with("mine");
            let here = info.rayon;
            device(info, move |_| match here == rayon::current_thread_index().is_some() {
                true => Ok(()),
                false => Err(failure(id)),
            })
        });
        let shared = Sharded::new(&a, &devices, split).unwrap();
        let y = pool.install(|| shared.try_gpu_dot(&x));
        assert_eq!(y, Ok(Array1::from_elem(9, 768.0)), "{split:?}");
    }
}

/// No device has more in its memory than its part, whatever the matrix is a view of.
#[test]
fn parts_alone_are_uploaded() {
    let memory = Array2::<f32>::ones((20, 2000));
    let x = Array1::<f32>::ones(1000);
    let views = [Slice::new(0, None, -2), Slice::from(..1000)];
    let views = views.map(|columns| memory.slice_axis(Axis(1), columns));
    for (a, split) in views.into_iter().flat_map(|a| SPLITS.map(|split| (a, split))) {
        let held: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let devices = held.iter().cloned().map(|held| {
            device(near("fake:0"), move |resident| {
                held.fetch_max(resident, Ordering::SeqCst);
                Ok(())
            })
        });
        let shared = Sharded::new(a, &devices.collect::<Vec<_>>(), split).unwrap();
        assert_eq!(shared.gpu_dot(&x), Array1::from_elem(20, 1000.0));
        let sizes = shared.parts().map(|(_, rows, columns)| rows.len() * columns.len());
        assert!(held.iter().map(|held| held.load(Ordering::SeqCst)).eq(sizes), "{split:?}");
    }
}

/// With more devices than rows, or blocks of columns, some have nothing and are not asked.
#[test]
fn nothing_to_do() {
    let never = || device(near("fake:0"), |_| Err(failure("fake:0")));
    let a = Array2::<f32>::ones((1, 256));
    for split in SPLITS {
        // The last has the row, and the block of columns.
        let shared = Sharded::new(&a, &[never(), never(), reference()], split).unwrap();
        assert_eq!(shared.parts().count(), 1, "{split:?}");
        assert_eq!(shared.gpu_dot(&[1.0; 256]), Array1::from_elem(1, 256.0));
        for dim in [(0, 0), (0, 300), (4, 0)] {
            let (a, x) = (Array2::<f32>::ones(dim), Array1::<f32>::ones(dim.1));
            let shared = Sharded::new(&a, &[never(), never(), never()], split).unwrap();
            let mut y = Array1::from_elem(dim.0, 3.0);
            shared.gemv(2.0, &x, 0.5, &mut y);
            assert_eq!((y, shared.parts().count()), (Array1::from_elem(dim.0, 1.5), 0));
            assert_eq!(shared.gpu_dot(&x), Array1::zeros(dim.0));
        }
    }
}
