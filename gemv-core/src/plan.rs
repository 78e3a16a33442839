//! A sequence of products and steps that is run many times.

use std::cell::Cell;
use std::fmt;

use crate::backend::Record;
use crate::device::Device;
use crate::memory::SharedMemory;
use crate::{Error, Result};

/// A sequence of products and vector steps on one device, run again and again on the same arrays.
///
/// It owns what it computes with, its state, and a function that starts the work. Where the device can
/// record (CUDA, as a graph), the first run starts the work as usual, the second one records it, and
/// from then on the record is replayed: nothing is allocated, and the host does nothing else. Other
/// devices call the function each time. The bits are the same.
///
/// The function starts the same work each time, on arrays that it neither swaps nor replaces, and does
/// not wait for the device: no downloads, no operands on the host, no kernels of your own,
/// no work of another device, which a replay would not repeat. What changes from run to run is what
/// the arrays hold. The function may be called more often than the plan is run,
/// while it is recorded and when the state was touched, so it changes nothing but these arrays.
///
/// ```
/// use gemv::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = device.matrix(&array![[0.5, 0.25], [0.25, 0.5]])?;
/// let (x, y) = (device.vector(&array![1.0, 0.0])?, device.zeros(2)?);
/// let mut twice = device.plan((x, y), move |(x, y)| {
///     a.try_gpu_dot_into(&*x, &mut *y)?;
///     a.try_gpu_dot_into(&*y, &mut *x)
/// });
/// twice.run()?;
/// assert_eq!(twice.state().0.download()?, array![0.3125, 0.25]);
/// twice.state_mut().0.assign(&[0.0, 1.0])?; // x is changed in place
/// twice.run()?;
/// assert_eq!(twice.into_state().0.download()?, array![0.25, 0.3125]);
/// # Ok::<(), gemv::Error>(())
/// ```
pub struct Plan<S, F> {
    device: Device,
    state: S,
    start: F,
    stage: Stage,
    touched: Cell<Touched>,
    /// [`SharedMemory::shares`] when the plan was last run.
    shares: u64,
}

/// How the state was handed out since the record was last found to be of it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Touched {
    Not,
    /// To be read. An array of it may be shared since, if any array is.
    Read,
    /// To be changed. An array of it may have been replaced.
    Changed,
}

/// Records of the same work that are made before it is called another each time.
const ATTEMPTS: usize = 3;

enum Stage {
    /// Not run: kernels may have to be compiled and scratch memory allocated.
    New,
    Warm,
    Recorded(Box<dyn Record>),
    /// The device has no records.
    Called,
}

impl<S: fmt::Debug, F> fmt::Debug for Plan<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("device", &self.device).field("state", &self.state).finish()
    }
}

impl Device {
    /// A plan of what `start` starts on this device, which computes with `state`; see [`Plan`]. Nothing
    /// runs yet.
    pub fn plan<S, F: FnMut(&mut S) -> Result<()>>(&self, state: S, start: F) -> Plan<S, F> {
        let (device, stage) = (self.clone(), Stage::New);
        let (touched, shares) = (Cell::new(Touched::Not), SharedMemory::shares());
        Plan { device, state, start, stage, touched, shares }
    }
}

impl<S, F: FnMut(&mut S) -> Result<()>> Plan<S, F> {
    /// Runs it once. The work may still be in flight on return.
    ///
    /// # Errors
    /// Those of the work that is started; [`Error::Device`] if the device can record, and the work
    /// cannot be recorded or is another each time.
    pub fn run(&mut self) -> Result<()> {
        let ran = self.start();
        // What the work itself shared, such as views of its arrays, is over.
        self.shares = SharedMemory::shares();
        ran
    }

    fn start(&mut self) -> Result<()> {
        let Plan { device, state, start, stage, touched, shares } = self;
        let mut start = || start(state);
        let same = match touched.replace(Touched::Not) {
            Touched::Not => true,
            Touched::Read => *shares == SharedMemory::shares(),
            Touched::Changed => false,
        };
        if let Stage::Recorded(record) = stage {
            // An error is an array that has to move first, or that of the work itself: either is the
            // call's.
            if same || record.holds(&mut start).unwrap_or(false) {
                return record.replay();
            }
            *stage = Stage::New;
        }
        match stage {
            Stage::New => {
                start()?;
                *stage = Stage::Warm;
                Ok(())
            }
            Stage::Warm => {
                // Another thread's product may move the device's scratch memory between the record and
                // its check.
                for _ in 0..ATTEMPTS {
                    let Some(record) = device.backend().record(&mut start)? else {
                        *stage = Stage::Called;
                        return start();
                    };
                    if record.holds(&mut start)? {
                        record.replay()?;
                        *stage = Stage::Recorded(record);
                        return Ok(());
                    }
                }
                let (device, call) = (device.info().id.clone(), "Plan::run");
                let reason = "the work that is started is another each time".into();
                Err(Error::Device { device, call, reason })
            }
            Stage::Recorded(_) | Stage::Called => start(),
        }
    }

    /// What it computes with, to be read between two runs.
    ///
    /// An array of it may be cloned, which costs a comparison of the work with the record. An array behind a
    /// lock or a cell is not replaced here: [`state_mut`](Self::state_mut) is for that.
    pub fn state(&self) -> &S {
        if self.touched.get() == Touched::Not {
            self.touched.set(Touched::Read);
        }
        &self.state
    }

    /// What it computes with, to be changed between two runs.
    ///
    /// To change what an array holds, [`assign`](crate::DeviceArray::assign) to it. An array that is
    /// replaced, or shared with a clone, costs a run by the function and a new record.
    pub fn state_mut(&mut self) -> &mut S {
        self.touched.set(Touched::Changed);
        &mut self.state
    }

    /// What it computed with.
    pub fn into_state(self) -> S {
        self.state
    }
}
