//! What was measured of a device itself: read bandwidth, launch latency and the host link.

/// Times of a device itself, in seconds, and bandwidths in bytes per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceSpeed {
    /// The smallest product, one after another in a queue.
    pub launch: f64,
    /// The smallest product of resident operands, from the call to the result on the host.
    pub round_trip: f64,
    /// The link between host and device; none where the memory is the host's.
    pub link: Option<Link>,
    /// Read bandwidth by size.
    pub read_bandwidth: ReadBandwidth,
}

/// The link between host and device.
///
/// ```
/// use gemv_lab::tuner::Link;
/// let link = Link { up_latency: 1e-5, up: 2e10, down_latency: 1e-5, down: 1e10 };
/// let seconds = link.up_latency + (64 << 20) as f64 / link.up;
/// assert_eq!((seconds * 1e6).round(), 3365.0); // uploading 64 MiB
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    /// Seconds that an upload of a few bytes takes.
    pub up_latency: f64,
    /// Bytes per second of a large upload of pageable memory.
    pub up: f64,
    /// Seconds that a download of a few bytes takes.
    pub down_latency: f64,
    /// Bytes per second of a large download.
    pub down: f64,
}

/// Seconds that reading takes, by size: the ceiling of a product.
///
/// This is the roofline model of Williams, Waterman and Patterson (2009). A product reads each entry
/// of A once and multiplies it once, so memory bounds it: it cannot take less time than reading alone.
///
/// ```
/// use gemv_lab::tuner::{ReadBandwidth, ReadPoint};
/// let point = |bytes, seconds| ReadPoint { bytes, cold: seconds, warm: seconds / 2.0 };
/// let read = ReadBandwidth { points: vec![point(1 << 20, 1e-6), point(1 << 30, 1e-3)] };
/// assert_eq!(read.seconds(1, false), Some(1e-6)); // no less than the smallest
/// assert_eq!(read.seconds(1 << 31, false), Some(2e-3)); // at the bandwidth of the largest
/// assert_eq!(read.seconds(1 << 31, true), Some(1e-3));
/// let between = read.seconds(1 << 25, false).unwrap();
/// assert!((between / 1e-6_f64.powf(0.5) / 1e-3_f64.powf(0.5) - 1.0).abs() < 1e-9);
/// assert_eq!(ReadBandwidth::default().seconds(1, false), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadBandwidth {
    /// By ascending size; empty where the backend has no kernel that only reads.
    pub points: Vec<ReadPoint>,
}

/// One size of a [`ReadBandwidth`].
///
/// ```
/// use gemv_lab::tuner::ReadPoint;
/// let point = ReadPoint { bytes: 1 << 30, cold: 2.5e-4, warm: 2e-4 };
/// assert_eq!((point.bytes as f64 / point.cold / 1e9).round(), 4295.0); // GB/s
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReadPoint {
    /// Bytes that are read.
    pub bytes: u64,
    /// Seconds, with nothing of it in a cache.
    pub cold: f64,
    /// Seconds, of memory that was read just before.
    pub warm: f64,
}

impl ReadBandwidth {
    /// Seconds that reading this much takes: between the measured sizes by interpolation of both
    /// logarithms, beyond the largest at its bandwidth, below the smallest as long as that.
    ///
    /// `None` where nothing was measured.
    pub fn seconds(&self, bytes: u64, warm: bool) -> Option<f64> {
        let time = |p: &ReadPoint| if warm { p.warm } else { p.cold };
        let above = self.points.iter().position(|p| p.bytes >= bytes);
        match above {
            Some(0) => Some(time(&self.points[0])),
            Some(k) => {
                let (a, b) = (&self.points[k - 1], &self.points[k]);
                let log = |v: u64| (v as f64).ln();
                let share = (log(bytes) - log(a.bytes)) / (log(b.bytes) - log(a.bytes));
                Some((time(a).ln() * (1.0 - share) + time(b).ln() * share).exp())
            }
            None => self.points.last().map(|p| time(p) * bytes as f64 / p.bytes as f64),
        }
    }
}
