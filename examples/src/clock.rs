//! Times of work on a device or on the host.

use std::time::{Duration, Instant};

use gemv::{Device, Result};

/// A measurement lasts about this long, so that the clock's own cost does not show.
const LASTS: f64 = 2e-3;
/// And is made so often; the shortest counts.
const ROUNDS: usize = 3;
/// No further measurement begins after so many seconds.
const ENOUGH: f64 = 2.0;
/// Most calls of a measurement: no driver's queue is full.
const CALLS: f64 = 200.0;

/// Seconds of one call of `work`: of the device, or of the host where there is none.
///
/// # Errors
/// Those of `work`, and the driver's refusal.
pub fn seconds(device: Option<&Device>, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let timed = |work: &mut dyn FnMut() -> Result<()>| -> Result<Duration> {
        if let Some(device) = device {
            return device.backend().timed(work);
        }
        let start = Instant::now();
        work()?;
        Ok(start.elapsed())
    };
    work()?; // compiled, allocated
    let once = timed(work)?.as_secs_f64();
    let calls = (LASTS / once.max(1e-9)).clamp(1.0, CALLS) as usize;
    let (mut best, mut total) = (once, once);
    for _ in 0..ROUNDS {
        if total > ENOUGH {
            break;
        }
        let all = timed(&mut || (0..calls).try_for_each(|_| work()))?.as_secs_f64();
        best = best.min(all / calls as f64);
        total += all;
    }
    Ok(best)
}
