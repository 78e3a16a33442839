//! Which device computes a product of host arrays, the transfers included.
//!
//! The cost model uses the [`Profile`] of each device: bandwidth and latency of its link, and
//! times of products. Without profiles of the host and of another device, products of host
//! arrays stay on the host.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::float_mode::in_default;
use crate::fork::forks;
use crate::profile::Profile;
use crate::{Desc, Device};

/// The estimated cost of a product of host arrays on a device, in seconds.
///
/// ```
/// use gemv_core::router::Estimate;
/// let e = Estimate { upload: 40e-6, product: 2e-6, download: 8e-6 };
/// assert_eq!((e.total() * 1e6).round(), 50.0);
/// let text = "about 50.0 us (40.0 us to upload, 2.0 us the product, 8.0 us to download)";
/// assert_eq!(e.to_string(), text);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Uploading A and X.
    pub upload: f64,
    /// The product itself.
    pub product: f64,
    /// Downloading Y; where the memory is the host's, waiting for it.
    pub download: f64,
}

impl Estimate {
    /// The cost by this profile; `None` where no product of this type and layout was
    /// measured. With `resident`, A is on the device already.
    ///
    /// The upload is two transfers, of A (unless it is resident) and of X; the download is
    /// one. Each costs its latency, and its bytes at the link's bandwidth.
    ///
    /// ```
    /// use gemv_core::{Desc, Dtype, profile::Profile, router::Estimate};
    ///
    /// let text = "
    /// launch 1e-6
    /// round_trip 2e-5
    /// link up_latency=1e-5 up=1e10 down_latency=1e-5 down=1e10
    /// product f32 row 4096x4096 2e-5
    /// ";
    /// let card = Profile::parse("card.device.txt", text)?;
    /// let desc = Desc::new(Dtype::F32, 4096, 4096, (4096, 1), 0);
    /// let once = Estimate::of(&card, &desc, false).unwrap();
    /// assert!((once.upload - 6.73e-3).abs() < 1e-5); // 64 MiB at 10 GB/s
    /// let resident = Estimate::of(&card, &desc, true).unwrap();
    /// assert!(resident.total() < once.total() / 50.0);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn of(profile: &Profile, desc: &Desc, resident: bool) -> Option<Estimate> {
        let product = profile.seconds(desc)?;
        let Some(link) = &profile.link else {
            // Profiles have the time of products in a queue. A host that waits for
            // each also pays the round trip.
            let download = (profile.round_trip - profile.launch).max(0.0);
            return Some(Estimate { upload: 0.0, product, download });
        };
        let (matrix, vectors) = (desc.dtype.bytes() as f64, desc.vectors.bytes() as f64);
        let (m, n) = (desc.m as f64, desc.n as f64);
        let (rhs, batch) = (desc.rhs as f64, desc.batch as f64);
        let up = |bytes: f64| link.up_latency + bytes / link.up;
        let upload =
            up(n * rhs * batch * vectors) + if resident { 0.0 } else { up(m * n * batch * matrix) };
        let download = link.down_latency + m * rhs * batch * vectors / link.down;
        Some(Estimate { upload, product, download })
    }

    /// The sum.
    pub fn total(&self) -> f64 {
        self.upload + self.product + self.download
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |s: f64| format!("{:.1} us", s * 1e6);
        write!(f, "about {}", us(self.total()))?;
        if self.upload + self.download >= 1e-7 {
            let (up, product, down) = (us(self.upload), us(self.product), us(self.download));
            write!(f, " ({up} to upload, {product} the product, {down} to download)")?;
        }
        Ok(())
    }
}

/// Chooses among devices that have a profile.
///
/// Of the devices that can compute a product, the one with the least [`Estimate`] wins. Without
/// estimates the first of them does, and so it does where another device with the host's own memory
/// would be less than three times as fast.
///
/// ```
/// use gemv_core::{Desc, Device, Dtype, profile::Profile, reference::Reference, router::Router};
///
/// let measured = |seconds: f64, link: &str| {
///     let product = format!("product f32 row 4096x4096 {seconds}");
///     let text = format!("launch 1e-6\nround_trip 1e-5\n{product}\n{link}");
///     let profile = Profile::parse("p", &text).unwrap();
///     (Device::new(Reference::open()), profile)
/// };
/// let link = "link up_latency=1e-5 up=5e10 down_latency=1e-5 down=5e10";
/// let (home, card) = (measured(7e-3, ""), measured(2e-5, link));
/// let router = Router::new(vec![home.clone(), card.clone()]).unwrap();
///
/// let square = |n: usize| Desc::new(Dtype::F32, n, n, (n as isize, 1), 0);
/// assert!(router.route(&square(64)).is(&home.0)); // the way is longer than the product
/// assert!(router.route(&square(16384)).is(&card.0)); // 1 GiB
/// ```
#[derive(Debug, Clone)]
pub struct Router {
    /// Apart from every other router's, of which threads remember choices.
    id: u64,
    /// [`forks`] when its devices were opened.
    forks: u32,
    /// The host's own first.
    devices: Vec<(Device, Profile)>,
}

/// A product of fewer bytes stays on the host: any transfer costs more.
const SMALL: u64 = 256 << 10;

/// Whether a device can compute the product at all.
#[inline]
fn able(device: &Device, desc: &Desc) -> bool {
    device.backend().accepts(desc).is_ok()
}

/// A device that shares the host's memory has to be this many times faster. Both are bound by
/// the same memory, so a smaller difference is mostly that of two days of measurement.
const SHARED: f64 = 3.0;

impl Router {
    /// A router among these devices, the default first. `None` if there are fewer than two.
    ///
    /// ```
    /// use gemv_core::{Device, profile::Profile, reference::Reference, router::Router};
    /// let device = || (Device::new(Reference::open()), Profile::default());
    /// assert!(Router::new(vec![device()]).is_none());
    /// assert!(Router::new(vec![device(), device()]).is_some());
    /// ```
    pub fn new(devices: Vec<(Device, Profile)>) -> Option<Router> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (devices.len() > 1).then_some(Router { id, forks: forks(), devices })
    }

    /// [`forks`] when it was made: drivers of its devices work in that process.
    pub(crate) fn forks(&self) -> u32 {
        self.forks
    }

    /// The device for a product of host arrays.
    ///
    /// The host keeps what it can compute of less than 256 KiB without a look at the profiles, and
    /// each thread remembers its last choice. See [`Router`] for an example.
    #[inline]
    pub fn route(&self, desc: &Desc) -> &Device {
        let home = &self.devices[0].0;
        if home.info().host && desc.bytes() < SMALL && able(home, desc) {
            return home;
        }
        // A repeated problem is not estimated again.
        thread_local! {
            static LAST: Cell<Option<(u64, Desc, usize)>> = const { Cell::new(None) };
        }
        let index = match LAST.get() {
            Some((who, known, index)) if who == self.id && known == *desc => index,
            _ => {
                let index = in_default(|| self.weigh(desc));
                LAST.set(Some((self.id, *desc, index)));
                index
            }
        };
        &self.devices[index].0
    }

    #[cold]
    fn weigh(&self, desc: &Desc) -> usize {
        let costs = self.explain(desc).into_iter().enumerate();
        let near = |k: usize| self.devices[k].1.link.is_none();
        let known = costs.filter_map(|(k, (_, estimate))| {
            let shared = k > 0 && near(0) && near(k);
            Some((k, estimate?.total() * if shared { SHARED } else { 1.0 }))
        });
        let best = known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|best| best.0);
        // Where none can, the first says what is missing.
        let first = || self.devices.iter().position(|(device, _)| able(device, desc));
        best.or_else(first).unwrap_or(0)
    }

    /// The estimate for each device; `None` where none is possible, or the device cannot
    /// compute the product.
    ///
    /// ```
    /// use gemv_core::{Desc, Device, Dtype, profile::Profile, reference::Reference, router::Router};
    /// let device = || (Device::new(Reference::open()), Profile::default()); // nothing measured
    /// let router = Router::new(vec![device(), device()]).unwrap();
    /// let desc = Desc::new(Dtype::F64, 9999, 9999, (9999, 1), 0);
    /// assert!(router.explain(&desc).iter().all(|(_, estimate)| estimate.is_none()));
    /// ```
    pub fn explain(&self, desc: &Desc) -> Vec<(&Device, Option<Estimate>)> {
        let of = |profile: &Profile| Estimate::of(profile, desc, false);
        let one = |device: &Device, profile| of(profile).filter(|_| able(device, desc));
        self.devices.iter().map(|(device, profile)| (device, one(device, profile))).collect()
    }
}
