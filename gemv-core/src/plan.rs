//! A sequence of products and steps that is run many times.

use std::cell::Cell;
use std::fmt;

use crate::backend::Record;
use crate::device::Device;
use crate::memory::SharedMemory;
use crate::{Error, Result, planned};

/// A sequence of products and vector steps, run again and again on the same arrays of one device, or of
/// [several](Device::plan_with).
///
/// It owns what it computes with, its state, and a function that starts the work. Where the device can
/// record (CUDA, as a graph), the first run starts the work as usual, the second one records it, and
/// from then on the record is replayed: nothing is allocated, and the host does nothing else. Other
/// devices call the function each time. The bits are the same.
///
/// The function starts the same work each time, on arrays that it neither swaps nor replaces. What cannot be recorded is
/// an error on every device, so that a plan that runs on the CPU runs on a GPU: downloads, operands and results on the host,
/// kernels of your own; and from the second run on new arrays, such as that of
/// [`try_gpu_dot`](crate::GpuDot::try_gpu_dot), or of a write to an array that shares its memory. Nor may it start work of
/// a device that is not the plan's, which a replay would not repeat. What changes from run to run is what the arrays hold. The function may be
/// called more often than the plan is run, while it is recorded and when the state was touched, so it changes nothing but
/// these arrays.
///
/// ```
/// use gemv::{DeviceVector, GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = device.matrix(&array![[0.5, 0.25], [0.25, 0.5]])?;
/// struct State {
///     x: DeviceVector<f64>,
///     y: DeviceVector<f64>,
/// }
/// let state = State { x: device.vector(&array![1.0, 0.0])?, y: device.zeros(2)? };
/// let mut twice = device.plan(state, move |s: &mut State| {
///     a.try_gpu_dot_into(&s.x, &mut s.y)?;
///     a.try_gpu_dot_into(&s.y, &mut s.x)
/// });
/// twice.run()?;
/// assert_eq!(twice.state().x.download()?, array![0.3125, 0.25]);
/// twice.state_mut().x.assign(&[0.0, 1.0])?; // x is changed in place
/// twice.run()?;
/// assert_eq!(twice.into_state().x.download()?, array![0.25, 0.3125]);
///
/// let mut from_host = device.plan(device.zeros::<f64, _>(2)?, |y| y.axpy(1.0, &[1.0, 2.0]));
/// let e = from_host.run().unwrap_err().to_string();
/// assert!(e.contains("on the host"), "{e}"); // also on the CPU
/// # Ok::<(), gemv::Error>(())
/// ```
pub struct Plan<S, F> {
    device: Device,
    /// Those that work beside it.
    others: Vec<Device>,
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
    /// The device has no records, or the work has what no record repeats.
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
        self.plan_with(&[], state, start)
    }

    /// A plan of work on this device and on others; what they exchange is a part of it. Where all of them are GPUs
    /// of CUDA that reach each other's memory, the record is one graph over all. Else the function is called each
    /// time. `Sharded::plan` of `gemv-shard` makes one over the devices of a matrix.
    ///
    /// ```
    /// use gemv::{GpuDot, open_devices};
    /// use ndarray::array;
    ///
    /// let devices = open_devices("reference, reference")?; // or "cuda:*"
    /// let one = |device: &gemv::Device| {
    ///     let a = device.matrix(&array![[0.5, 0.25], [0.25, 0.5]])?;
    ///     Ok((a, device.vector(&array![1.0, 0.0])?, device.zeros(2)?))
    /// };
    /// let state = devices.iter().map(one).collect::<gemv::Result<Vec<_>>>()?;
    /// let mut plan = devices[0].plan_with(&devices[1..], state, |state| {
    ///     state.iter_mut().try_for_each(|(a, x, y)| a.try_gpu_dot_into(&*x, &mut *y))
    /// });
    /// plan.run()?; // on both
    /// assert_eq!(plan.state()[1].2.download()?, array![0.5, 0.25]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn plan_with<S, F: FnMut(&mut S) -> Result<()>>(
        &self,
        others: &[Device],
        state: S,
        start: F,
    ) -> Plan<S, F> {
        let (device, stage) = (self.clone(), Stage::New);
        let (touched, shares) = (Cell::new(Touched::Not), SharedMemory::shares());
        // Each once.
        let another = |(k, of): &(usize, &Device)| !of.is(self) && !others[..*k].contains(of);
        let others = others.iter().enumerate().filter(another).map(|(_, of)| of.clone()).collect();
        Plan { device, others, state, start, stage, touched, shares }
    }
}

impl<S, F: FnMut(&mut S) -> Result<()>> Plan<S, F> {
    /// Runs it once. The work may still be in flight on return.
    ///
    /// # Errors
    /// Those of the work that is started; [`Error::Device`] if it cannot be recorded, or if the device can record and
    /// it is another each time.
    pub fn run(&mut self) -> Result<()> {
        let ran = self.start();
        // What the work itself shared, such as views of its arrays, is over.
        self.shares = SharedMemory::shares();
        ran
    }

    fn start(&mut self) -> Result<()> {
        let Plan { device, others, state, start, stage, touched, shares } = self;
        let unrecorded = Cell::new(None);
        let mut run = |first| {
            let (started, why) = planned::within(first, || start(state));
            unrecorded.set(why);
            started
        };
        let same = match touched.replace(Touched::Not) {
            Touched::Not => true,
            Touched::Read => *shares == SharedMemory::shares(),
            Touched::Changed => false,
        };
        if let Stage::Recorded(record) = stage {
            // An error is an array that has to move first, or that of the work itself: either is the
            // call's.
            if same || record.holds(&mut || run(false)).unwrap_or(false) {
                return record.replay();
            }
            *stage = Stage::New;
        }
        match stage {
            Stage::New => {
                run(true)?;
                *stage = Stage::Warm;
                if let Some(why) = unrecorded.get() {
                    log::debug!("{}: a plan is not recorded: {why}", device.info().id);
                    *stage = Stage::Called;
                }
                Ok(())
            }
            Stage::Warm => {
                // Another thread's product may move the device's scratch memory between the record and
                // its check.
                for _ in 0..ATTEMPTS {
                    let others: Vec<_> = others.iter().map(Device::backend).collect();
                    let record = match device.backend().record(&others, &mut || run(false)) {
                        Ok(Some(record)) => record,
                        Ok(None) => {
                            *stage = Stage::Called;
                            return run(!same);
                        }
                        // Nothing ran. An array that was replaced or shared since moves now.
                        Err(_) if !same => return run(true),
                        Err(e) => return Err(e),
                    };
                    if record.holds(&mut || run(false))? {
                        record.replay()?;
                        *stage = Stage::Recorded(record);
                        return Ok(());
                    }
                }
                let (device, call) = (device.info().id.clone(), "Plan::run");
                let reason = "the work that is started is another each time".into();
                Err(Error::Device { device, call, reason })
            }
            // An array that was replaced or shared since may move.
            Stage::Recorded(_) | Stage::Called => run(!same),
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
