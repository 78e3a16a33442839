//! Devices in a child that `fork` made: the host's compute, and a driver's answer with one sentence.

use std::process::ExitCode;
use std::time::Duration;

use gemv::{Device, Engine, Error, GpuDot};
use gemv_testkit::processes::{again, in_a_child};
use libtest_mimic::Trial;
use ndarray::{Array1, Array2};

use crate::common::{Check, text, trial};

/// Set in a process of its own, to which of both and the device's id.
const PROCESS: &str = "GEMV_TEST_FORKS";

/// Longer than a child takes, which may compile a program.
const LONG: Duration = Duration::from_secs(30);

/// The trials of a device, each of which is a process.
pub fn trials(id: &str) -> impl Iterator<Item = Trial> {
    let one = |what: &str| {
        let value = format!("{what} {id}");
        trial(format!("{id}/{what}"), move || {
            again(&[], &[(PROCESS, &value), ("RAYON_NUM_THREADS", "4")]);
            Ok(())
        })
    };
    ["used-before-a-fork", "used-after-a-fork"].map(one).into_iter()
}

/// What such a process does.
pub fn process() -> Option<ExitCode> {
    let value = std::env::var(PROCESS).ok()?;
    let done = match value.split_once(' ') {
        Some(("used-before-a-fork", id)) => before(id),
        Some((_, id)) => after(id),
        None => Err("no device".into()),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{value}: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Whether it computes without a driver.
fn is_host(device: &Device) -> bool {
    device.info().rayon || device.info().id == "reference"
}

/// A child has the device of its parent: every call says that it does not work, and what is dropped is left alone.
fn before(id: &str) -> Check {
    let engine = Engine::new(None);
    let device = engine.device(id).map_err(text)?;
    let (a, x) = (Array2::from_elem((900, 700), 0.5f32), Array1::from_elem(700, 2.0f32));
    let there = device.matrix(&a).map_err(text)?;
    let (z, mut y) = (device.vector(&x).map_err(text)?, device.zeros::<f32, _>(900).map_err(text)?);
    let want = device.try_gpu_dot(&a, &x).map_err(text)?;
    there.try_gemv(1.0, &z, 0.0, &mut y).map_err(text)?;
    there.try_gpu_dot(&Array2::from_elem((700, 9), 1.0f32)).map_err(text)?;
    // Replayed, where the device can.
    let state = (z.clone(), device.zeros::<f32, _>(900).map_err(text)?);
    let (matrix, start) = (there.clone(), there.clone());
    let mut plan = device.plan(state, move |(x, y)| start.try_gpu_dot_into(&*x, &mut *y));
    (0..3).try_for_each(|_| plan.run()).map_err(text)?;
    let mut host = Array1::zeros(900);
    in_a_child(LONG, || {
        let calls = [
            ("a product", device.gemv(1.0, &a, &x, 0.0, &mut host)),
            ("a resident product", there.try_gpu_dot(&z).map(drop)),
            ("a product into y", there.try_gemv(1.0, &z, 1.0, &mut y)),
            ("several columns", there.try_gpu_dot(&Array2::<f32>::ones((700, 9))).map(drop)),
            ("another product", there.t().try_gpu_dot(&y).map(drop)),
            ("an upload", device.vector(&x).map(drop)),
            ("zeros", device.zeros::<f32, _>(5).map(drop)),
            ("a download", y.download().map(drop)),
            ("a step", y.scal(2.0)),
            ("a plan", plan.run()),
            ("a wait", device.synchronize()),
            ("a time", device.backend().timed(&mut || Ok(())).map(drop)),
            ("another engine", Engine::new(None).device(id).map(drop)),
        ];
        let compile = device.backend().compile("void f() {}", "f").map(drop);
        let host_computes = is_host(&device);
        drop((plan, matrix, there, z, y, device, engine));
        let fits = |done: &Result<(), Error>| match host_computes {
            true => done.is_ok(),
            false => matches!(done, Err(Error::Forked { .. })),
        };
        let wrong = calls.iter().filter(|(_, done)| !fits(done));
        let mut wrong: Vec<_> = wrong.map(|(call, done)| format!("{call}: {done:?}")).collect();
        if !host_computes && !fits(&compile) {
            wrong.push(format!("a kernel: {compile:?}"));
        }
        if host_computes && host != want {
            wrong.push("other bits".into());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    })
}

/// A child uses the device first, and its own child again if it is the host's.
fn after(id: &str) -> Check {
    in_a_child(LONG, || {
        let device = Engine::new(None).device(id).map_err(text)?;
        let (a, x) = (Array2::<f32>::ones((900, 700)), Array1::ones(700));
        let computes = || match device.try_gpu_dot(&a, &x) {
            Ok(y) if y == Array1::from_elem(900, 700.0) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        computes()?;
        in_a_child(LONG, || match is_host(&device) {
            true => computes(),
            false => match device.try_gpu_dot(&a, &x) {
                Err(Error::Forked { .. }) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        })
    })
}
