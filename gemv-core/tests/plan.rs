//! Plans: when the work is started, when it is recorded, and when a record is replayed.
#![deny(unsafe_code)]

use std::cell::Cell;

use gemv_core::reference::Reference;
use gemv_core::{
    Device, DeviceVector, Engine, Error, GpuDot, Plan, Record, Result, call_each_time,
};
use gemv_testkit::Host;
use ndarray::{Axis, array, s};

thread_local! {
    /// Whether records hold, and how often one was replayed.
    static HOLDS: Cell<bool> = const { Cell::new(true) };
    static REPLAYS: Cell<usize> = const { Cell::new(0) };
    /// Checks that fail before records hold again: other threads have scratch memory moved.
    static MOVES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Counting;

impl Record for Counting {
    fn holds(&self, _: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let moves = MOVES.get();
        MOVES.set(moves.saturating_sub(1));
        Ok(HOLDS.get() && moves == 0)
    }

    fn replay(&self) -> Result<()> {
        REPLAYS.set(REPLAYS.get() + 1);
        Ok(())
    }
}

fn recording() -> Device {
    Host { record: Some(|| Box::new(Counting)), ..Host::new("recording") }.device()
}

fn late() -> Error {
    Error::Device { device: "recording".into(), call: "launch", reason: "late".into() }
}

#[test]
fn the_first_run_starts_the_work_and_later_ones_replay_it() {
    let mut plan = recording().plan(0, |starts: &mut usize| {
        *starts += 1;
        Ok(())
    });
    // Started; then recorded and replayed; then replayed.
    for (run, replays) in [(1, 0), (2, 1), (3, 2)] {
        plan.run().unwrap();
        assert_eq!((REPLAYS.get(), *plan.state()), (replays, 1), "run {run}");
    }
    // The record no longer holds: the work is started, and recorded anew by the run after.
    *plan.state_mut() += 10;
    HOLDS.set(false);
    plan.run().unwrap();
    HOLDS.set(true);
    assert_eq!((REPLAYS.get(), *plan.state()), (2, 12));
    plan.run().unwrap();
    plan.run().unwrap();
    assert_eq!((REPLAYS.get(), plan.into_state()), (4, 12));
}

#[test]
fn a_record_is_trusted_until_the_state_is_touched() {
    let mut plan = recording().plan((), |()| Ok(()));
    plan.run().unwrap();
    plan.run().unwrap();
    HOLDS.set(false);
    plan.run().unwrap();
    assert_eq!(REPLAYS.get(), 2);
    let () = plan.state_mut();
    plan.run().unwrap();
    assert_eq!(REPLAYS.get(), 2);
}

#[test]
fn a_record_is_compared_again_once_an_array_may_be_shared() {
    let device = Device::new(Reference::open());
    let x = device.vector(&array![1.0, 3.0]).unwrap();
    let mut plan = recording().plan(x, |_: &mut DeviceVector<f64>| Ok(()));
    plan.run().unwrap();
    plan.run().unwrap();
    HOLDS.set(false);
    // Tests beside this one make arrays, too: then the record is compared for nothing.
    let kept = plan.state().clone();
    plan.run().unwrap();
    assert_eq!((REPLAYS.get(), kept.len()), (1, 2));
}

#[test]
fn reading_a_state_costs_no_comparison() {
    let mut plan = recording().plan(1, |_: &mut i32| Ok(()));
    // A try in which no test beside this one makes an array.
    let quiet = (0..1000).any(|_| {
        HOLDS.set(true);
        plan.run().and_then(|()| plan.run()).unwrap();
        HOLDS.set(false);
        let (before, _) = (REPLAYS.get(), plan.state());
        plan.run().unwrap();
        REPLAYS.get() > before
    });
    assert!(quiet);
}

#[test]
fn work_that_is_another_each_time_is_refused() {
    let mut plan = recording().plan((), |()| Ok(()));
    plan.run().unwrap();
    HOLDS.set(false);
    for _ in 0..2 {
        let e = plan.run().unwrap_err().to_string();
        assert!(e.ends_with("the work that is started is another each time"), "{e}");
    }
    HOLDS.set(true);
    plan.run().unwrap();
    assert_eq!(REPLAYS.get(), 1);
}

#[test]
fn work_that_no_record_repeats_is_called_each_time() {
    let device = recording();
    call_each_time("outside of a plan it says nothing");
    let mut plan = device.plan(0, |starts: &mut usize| {
        *starts += 1;
        call_each_time("told at every start");
        Ok(())
    });
    (0..4).for_each(|_| plan.run().unwrap());
    // As is work that has such a plan in it.
    let mut outer = device.plan(plan, |plan| plan.run());
    (0..4).for_each(|_| outer.run().unwrap());
    assert_eq!((REPLAYS.get(), *outer.into_state().state()), (0, 8));
    let mut inner = device.plan((), |()| {
        call_each_time("told");
        Ok(())
    });
    let mut outer = device.plan(0, |starts: &mut usize| {
        *starts += 1;
        inner.run()
    });
    (0..4).for_each(|_| outer.run().unwrap());
    assert_eq!((REPLAYS.get(), outer.into_state()), (0, 4));
    // The next plan of this thread is another's business.
    let mut plan = device.plan((), |()| Ok(()));
    (0..3).for_each(|_| plan.run().unwrap());
    assert_eq!(REPLAYS.get(), 2);
}

#[test]
fn work_is_recorded_again_when_scratch_memory_has_moved() {
    let mut plan = recording().plan((), |()| Ok(()));
    plan.run().unwrap();
    MOVES.set(2);
    plan.run().unwrap();
    assert_eq!((REPLAYS.get(), MOVES.get()), (1, 0));
}

#[test]
fn an_error_of_the_work_is_that_of_the_run() {
    let mut failing = recording().plan(true, |fails: &mut bool| match fails {
        true => Err(late()),
        false => Ok(()),
    });
    assert_eq!(failing.run().unwrap_err(), late());
    assert_eq!(failing.run().unwrap_err(), late());
    *failing.state_mut() = false;
    failing.run().unwrap();
    assert_eq!(REPLAYS.get(), 0);
    failing.run().unwrap();
    assert_eq!(REPLAYS.get(), 1);
}

#[test]
fn what_a_plan_computes_is_no_clones_business() {
    let device = Device::new(Reference::open());
    let a = device.matrix(&array![[0.0, 1.0], [2.0, 0.0]]).unwrap();
    let (x, y) = (device.vector(&array![1.0, 3.0]).unwrap(), device.zeros(2).unwrap());
    type State = (DeviceVector<f64>, DeviceVector<f64>);
    let mut plan = device.plan((x, y), move |(x, y): &mut State| {
        a.try_gpu_dot_into(&*x, &mut *y)?;
        x.assign(&*y)
    });
    plan.run().unwrap();
    let kept = plan.state().0.clone();
    for _ in 0..3 {
        plan.run().unwrap();
    }
    assert_eq!(kept.download().unwrap(), array![3.0, 2.0]);
    assert_eq!(plan.state().0.download().unwrap(), array![4.0, 12.0]);
    plan.state_mut().0.assign(&[1.0, 0.0]).unwrap();
    plan.run().unwrap();
    assert_eq!(plan.into_state().0.download().unwrap(), array![0.0, 2.0]);
}

/// As a device that records refuses it, so that what runs here runs there.
#[test]
fn what_cannot_be_recorded_is_refused_on_every_device() {
    fn refused<S>(plan: &mut Plan<S, impl FnMut(&mut S) -> Result<()>>, part: &str) {
        let e = plan.run().unwrap_err().to_string();
        assert!(e.contains(part) && e.ends_with("cannot be recorded"), "{e}");
    }
    let device = Device::new(Reference::open());
    let a = device.matrix(&array![[0.0, 1.0], [2.0, 0.0]]).unwrap();
    let x = || device.vector(&array![1.0, 3.0]).unwrap();
    let host = || array![1.0, 1.0];
    refused(&mut device.plan(x(), |x| x.axpy(1.0, &host())), "on the host");
    refused(&mut device.plan(x(), |x| a.try_gpu_dot_into(&host(), x)), "on the host");
    let v = x();
    refused(&mut device.plan(host(), |y| a.try_gpu_dot_into(&v, y)), "on the host");
    refused(&mut device.plan(host(), |y| a.try_gpu_dot_into(&a.row(0), y)), "on the host");
    refused(&mut device.plan(x(), |x| x.download().map(drop)), "downloads");
    refused(&mut device.plan(x(), |x| x.sum().map(drop)), "on the host");
    refused(&mut device.plan(x(), |x| x.nrm2().map(drop)), "on the host");
    refused(&mut device.plan((), |()| device.synchronize()), "waits");
    // Small products of the host go by a way of their own.
    Engine::global().set_default("reference").unwrap();
    refused(
        &mut device.plan(host(), |y| {
            host().view().insert_axis(Axis(0)).try_gpu_dot_into(&host(), y.slice_mut(s![..1]))
        }),
        "on the host",
    );

    // Memory is a matter of the first run, and of one after the state was touched.
    let mut newly = device.plan(x(), |x| x.assign(&a.try_gpu_dot(&*x)?));
    newly.run().unwrap();
    for _ in 0..2 {
        refused(&mut newly, "makes an array in each run");
    }
    assert_eq!(newly.into_state().download().unwrap(), array![3.0, 2.0]);
    let mut copying = device.plan(a.clone(), |a| {
        let row = a.row(0);
        a.row_mut(1)?.assign(&row)
    });
    copying.run().unwrap();
    refused(&mut copying, "while a clone or a view of it is alive");
    // What was refused is over.
    assert_eq!(device.vector(&host()).unwrap().download().unwrap(), host());
}
