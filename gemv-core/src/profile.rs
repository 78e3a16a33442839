//! What was measured of a device itself: read bandwidth, launch latency, the host link, and the
//! times of some products. The tuner writes it beside the table; the router reads it.
//!
//! It is text, one fact a line. Times are in seconds, bandwidths in bytes per second.
//!
//! ```text
//! # device: NVIDIA H200
//! # driver: CUDA driver 13.0
//! launch 1.4e-6
//! round_trip 1.4e-5
//! link up_latency=9.5e-6 up=2.9e10 down_latency=9.4e-6 down=3.9e9
//! read 4096 cold=1.2e-6 warm=9e-7
//! product f32 row 64x64 1.5e-6
//! ```

use std::fmt;

use crate::files::read_text;
use crate::table::{file_name_of, user_dirs};
use crate::{Desc, DeviceInfo, Dtype, Error, Layout, Result};

/// What was measured of a device. All times are in seconds, bandwidths in bytes per second.
///
/// Its `Display` is the text form, which [`parse`](Self::parse) reads.
///
/// ```
/// use gemv_core::profile::{Product, Profile};
/// use gemv_core::{Desc, Dtype, Layout};
///
/// let mut card = Profile::default();
/// (card.name, card.launch) = ("A card".into(), 1e-6);
/// let (dtype, layout) = (Dtype::F32, Layout::Row);
/// card.products = vec![Product { dtype, layout, m: 4096, n: 4096, seconds: 2e-5 }];
/// assert_eq!(Profile::parse("card.device.txt", &card.to_string())?, card);
///
/// let desc = Desc::new(Dtype::F32, 4096, 4096, (4096, 1), 0);
/// assert!((card.seconds(&desc).unwrap() - 2e-5).abs() < 1e-9);
/// assert_eq!(card.seconds(&desc.of_type(Dtype::C64)), None); // no such product
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// The device's name.
    pub name: String,
    /// Its driver, with the version.
    pub driver: String,
    /// The smallest product, one after another in a queue.
    pub launch: f64,
    /// The smallest product of resident operands, from the call to the result on the host.
    pub round_trip: f64,
    /// The link between host and device; none where the memory is the host's.
    pub link: Option<Link>,
    /// Read bandwidth by size.
    pub read_bandwidth: ReadBandwidth,
    /// Times of products with the best parameters, as `gemv tune` measures them: resident operands
    /// and cold caches. On a CPU, host arrays, and small ones with warm caches.
    pub products: Vec<Product>,
}

/// The link between host and device.
///
/// ```
/// use gemv_core::profile::Link;
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
/// use gemv_core::profile::{ReadBandwidth, ReadPoint};
/// let point = |bytes, seconds| ReadPoint { bytes, cold: seconds, warm: seconds / 2.0 };
/// let read = ReadBandwidth { points: vec![point(1 << 20, 1e-6), point(1 << 30, 1e-3)] };
/// assert_eq!(read.seconds(1, false), Some(1e-6)); // no less than the smallest
/// assert_eq!(read.seconds(1 << 31, false), Some(2e-3)); // at the bandwidth of the largest
/// assert_eq!(read.seconds(1 << 31, true), Some(1e-3));
/// let between = read.seconds(1 << 25, false).unwrap();
/// assert!((between / 1e-6_f64.powf(0.5) / 1e-3_f64.powf(0.5) - 1.0).abs() < 1e-9);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadBandwidth {
    /// By ascending size; empty where the backend has no kernel that only reads.
    pub points: Vec<ReadPoint>,
}

/// One size of a [`ReadBandwidth`].
///
/// ```
/// use gemv_core::profile::ReadPoint;
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

/// The time of one product.
///
/// ```
/// use gemv_core::profile::Profile;
/// let parse = |line: &str| Profile::parse("p", &format!("launch 0\nround_trip 0\n{line}"));
/// let p = parse("product f32 row 64x128 2e-6")?.products[0];
/// assert_eq!((p.m, p.n, p.seconds), (64, 128, 2e-6));
/// let e = parse("product f32 row 64 2e-6").unwrap_err().to_string();
/// assert_eq!(e, "p, line 3: \"f32 row 64\" is not like \"f32 row 64x128\"");
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Element type.
    pub dtype: Dtype,
    /// Layout.
    pub layout: Layout,
    /// Rows.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Seconds.
    pub seconds: f64,
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

/// A finite number that is above 0, or also 0.
fn number(text: &str, zero: bool) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let good = value.is_finite() && (value > 0.0 || zero && value == 0.0);
    let rule = if zero { "no time" } else { "not above 0" };
    good.then_some(value).ok_or_else(|| format!("{value} is {rule}"))
}

/// The values of `name=value` words, which have to have these names in this order.
fn values<const K: usize>(words: &[&str], names: [&str; K]) -> Result<[f64; K], String> {
    if words.len() != K {
        return Err(format!("there have to be {}", names.map(|n| format!("{n}=")).join(" ")));
    }
    let mut all = [0.0; K];
    for ((value, name), word) in all.iter_mut().zip(names).zip(words) {
        let text = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let text = text.ok_or_else(|| format!("{word:?} is not {name}="))?;
        *value = number(text, name.ends_with("latency"))?;
    }
    Ok(all)
}

/// Reads a line behind its first word into `profile`.
fn read_line(profile: &mut Profile, key: &str, words: &[&str]) -> Result<(), String> {
    match (key, words) {
        ("launch", [seconds]) => profile.launch = number(seconds, true)?,
        ("round_trip", [seconds]) => profile.round_trip = number(seconds, true)?,
        ("link", words) => {
            let names = ["up_latency", "up", "down_latency", "down"];
            let [up_latency, up, down_latency, down] = values(words, names)?;
            profile.link = Some(Link { up_latency, up, down_latency, down });
        }
        ("read", [bytes, times @ ..]) => {
            let bytes = bytes.parse().map_err(|_| format!("{bytes:?} is no number of bytes"))?;
            let [cold, warm] = values(times, ["cold", "warm"])?;
            let points = &mut profile.read_bandwidth.points;
            if bytes <= points.last().map_or(0, |last| last.bytes) {
                return Err("the sizes of read do not ascend".into());
            }
            points.push(ReadPoint { bytes, cold, warm });
        }
        ("product", [of @ .., seconds]) => {
            let shape = |text: &str| {
                let (m, n) = text.split_once('x')?;
                let count = |text: &str| text.parse().ok().filter(|&count: &usize| count > 0);
                Some((count(m)?, count(n)?))
            };
            let parsed = match of {
                [d, l, s] => Dtype::parse(d).zip(Layout::parse(l)).zip(shape(s)),
                _ => None,
            };
            let ((dtype, layout), (m, n)) =
                parsed.ok_or(format!("{:?} is not like \"f32 row 64x128\"", of.join(" ")))?;
            let seconds = number(seconds, false)?;
            profile.products.push(Product { dtype, layout, m, n, seconds });
        }
        _ => return Err(format!("{key:?} is not a line of a profile, or has not its words")),
    }
    Ok(())
}

/// The text form, which [`Profile::parse`] reads.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# device: {}\n# driver: {}", self.name, self.driver)?;
        writeln!(f, "launch {:e}\nround_trip {:e}", self.launch, self.round_trip)?;
        if let Some(Link { up_latency, up, down_latency, down }) = self.link {
            writeln!(
                f,
                "link up_latency={up_latency:e} up={up:e} down_latency={down_latency:e} down={down:e}"
            )?;
        }
        for ReadPoint { bytes, cold, warm } in &self.read_bandwidth.points {
            writeln!(f, "read {bytes} cold={cold:e} warm={warm:e}")?;
        }
        for Product { dtype, layout, m, n, seconds } in &self.products {
            writeln!(f, "product {dtype} {layout} {m}x{n} {seconds:e}")?;
        }
        Ok(())
    }
}

/// Bytes of a profile's file, at most.
const MOST_OF_PROFILE: u64 = 1 << 20;

impl Profile {
    /// Reads a profile's text. Blank lines and other comments are left out.
    ///
    /// ```
    /// use gemv_core::profile::Profile;
    /// let e = Profile::parse("p.txt", "# device: A card\nlaunch soon\n").unwrap_err();
    /// assert_eq!(e.to_string(), "p.txt, line 2: \"soon\" is no number");
    /// ```
    ///
    /// # Errors
    /// [`Error::Table`] with the first line that is not well formed, is there twice, or, as the last
    /// one, is missing: `launch` and `round_trip` have to be there.
    pub fn parse(origin: &str, text: &str) -> Result<Profile> {
        let bad = |line, reason| Error::Table { origin: origin.into(), line, reason };
        let (mut profile, mut once, mut count) = (Profile::default(), Vec::new(), 0);
        for line in text.lines() {
            count += 1;
            match line.split_once(": ") {
                Some(("# device", name)) => profile.name = name.trim().into(),
                Some(("# driver", driver)) => profile.driver = driver.trim().into(),
                _ => {}
            }
            let code = line.split('#').next().unwrap_or_default();
            let mut words = code.split_whitespace();
            let Some(key) = words.next() else { continue };
            if once.contains(&key) {
                return Err(bad(count, format!("{key} is there twice")));
            }
            read_line(&mut profile, key, &words.collect::<Vec<_>>())
                .map_err(|reason| bad(count, reason))?;
            once.extend((!matches!(key, "read" | "product")).then_some(key));
        }
        for key in ["launch", "round_trip"] {
            if !once.contains(&key) {
                return Err(bad(count, format!("there is no {key}")));
            }
        }
        Ok(profile)
    }

    /// The file of a device's profile in a directory of tables, such as
    /// `cuda-nvidia-h200.device.txt`.
    ///
    /// ```
    /// use gemv_core::{DeviceInfo, profile::Profile};
    /// let mut info = DeviceInfo::new("cuda:0");
    /// info.name = "NVIDIA H200".into();
    /// assert_eq!(Profile::file_name(&info), "cuda-nvidia-h200.device.txt");
    /// ```
    pub fn file_name(info: &DeviceInfo) -> String {
        file_name_of(info).replace(".txt", ".device.txt")
    }

    /// Whether the user has installed any profile.
    ///
    /// Only names of files are read: a cheap way to see that there is nothing to weigh.
    ///
    /// ```
    /// use gemv_core::{Engine, profile::Profile};
    /// if !Profile::any() {
    ///     assert!(Engine::global().router().is_none());
    /// }
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn any() -> bool {
        let is_profile = |e: std::fs::DirEntry| {
            e.file_name().to_str().is_some_and(|name| name.ends_with(".device.txt"))
        };
        let dirs = user_dirs().into_iter().filter_map(|dir| std::fs::read_dir(dir).ok());
        dirs.flatten().flatten().any(is_profile)
    }

    /// The profile that the user has installed for this device, if any. One that is not well formed
    /// is left out with a warning in the log.
    ///
    /// ```
    /// use gemv_core::{DeviceInfo, profile::Profile};
    /// let mut info = DeviceInfo::new("npu:0");
    /// info.name = "a device without a profile".into();
    /// assert!(Profile::load(&info).is_none());
    /// ```
    pub fn load(info: &DeviceInfo) -> Option<Profile> {
        let name = Profile::file_name(info);
        user_dirs().into_iter().find_map(|dir| {
            let path = dir.join(&name);
            let origin = path.display().to_string();
            let read = match read_text(&path, MOST_OF_PROFILE) {
                Ok(text) => Profile::parse(&origin, &text),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
                Err(e) => Err(Error::Table { origin, line: 0, reason: e.to_string() }),
            };
            read.inspect_err(|why| log::warn!("profile left out: {why}")).ok()
        })
    }

    /// Estimates the seconds that a product of resident operands takes. `None` where no product of
    /// its type and layout was measured.
    ///
    /// It is the time of reading as much, divided by the share of the read bandwidth that the nearest
    /// measured products of its type and layout reach. Those have one right-hand side; of a batch, the
    /// rows of all matrices count.
    ///
    /// ```
    /// use gemv_core::profile::Profile;
    /// use gemv_core::{Desc, Dtype};
    /// let text = "launch 1e-6\nround_trip 1e-5\nproduct f32 row 4096x4096 2e-5";
    /// let card = Profile::parse("card", text)?;
    /// let desc = |n: usize| Desc::new(Dtype::F32, n, n, (n as isize, 1), 0);
    /// let seconds = |n| card.seconds(&desc(n)).unwrap();
    /// assert!(seconds(8192) > 3.0 * seconds(4096));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn seconds(&self, desc: &Desc) -> Option<f64> {
        let log = |v: usize| (v.max(1) as f64).log2();
        let base = |bytes: u64| {
            // Without it, a launch and an assumed bandwidth: only ratios are used.
            self.read_bandwidth.seconds(bytes, false).unwrap_or(self.launch + bytes as f64 / 1e10)
        };
        // Products of strided matrices are not measured: both layouts stand for them.
        let same_kind = |p: &&Product| {
            p.dtype == desc.dtype && (p.layout == desc.layout || desc.layout == Layout::Strided)
        };
        let (mut sum, mut weight) = (0.0, 0.0);
        for p in self.products.iter().filter(same_kind) {
            let rows = desc.m.saturating_mul(desc.batch);
            let (dm, dn) = (log(p.m) - log(rows), log(p.n) - log(desc.n));
            let Product { dtype, layout, m, n, .. } = *p;
            let bytes = Desc::of(dtype, layout, (m, n), 0).bytes();
            let w = 1.0 / (0.05 + (dm * dm + dn * dn).powi(2));
            sum += w * (p.seconds / base(bytes)).ln();
            weight += w;
        }
        (weight > 0.0).then(|| base(desc.bytes()) * (sum / weight).exp())
    }
}
