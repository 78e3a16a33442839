//! What was measured of a device itself: read bandwidth, launch latency, the host link, and the
//! times of some products. The tuner writes it beside the table; the router reads
//! it.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::table::{file_name_of, user_dirs};
use crate::{Desc, DeviceInfo, Dtype, Error, Layout, Result};

/// What was measured of a device. All times are in seconds, bandwidths in bytes per second.
///
/// ```
/// use gemv_core::profile::{Product, Profile};
/// use gemv_core::{Desc, Dtype, Layout};
///
/// let mut card = Profile::default();
/// (card.name, card.launch) = ("A card".into(), 1e-6);
/// let (dtype, layout) = (Dtype::F32, Layout::Row);
/// card.products = vec![Product { dtype, layout, m: 4096, n: 4096, seconds: 2e-5 }];
/// assert_eq!(Profile::parse("card.device.toml", &card.to_text())?, card);
///
/// let desc = Desc::new(Dtype::F32, 4096, 4096, (4096, 1), 0);
/// assert!((card.seconds(&desc).unwrap() - 2e-5).abs() < 1e-9);
/// assert_eq!(card.seconds(&Desc { dtype: Dtype::C64, ..desc }), None); // nothing of the kind
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The device's name.
    pub name: String,
    /// Its driver, with the version.
    pub driver: String,
    /// The backend's [fingerprint](crate::Backend::fingerprint) when this was measured.
    #[serde(default)]
    pub fingerprint: String,
    /// The smallest product, one after another in a queue.
    #[serde(deserialize_with = "time")]
    pub launch: f64,
    /// The smallest product of resident operands, from the call to the result on the host.
    #[serde(deserialize_with = "time")]
    pub round_trip: f64,
    /// The way between host and device; none where the memory is the host's.
    #[serde(default)]
    pub link: Option<Link>,
    /// Read bandwidth by size.
    #[serde(flatten)]
    pub roof: Roof,
    /// Times of products, with the best parameters, as `gemv tune` measures them: operands resident and caches cold; on a CPU, arrays, and
    /// small ones warm.
    #[serde(default, rename = "product")]
    pub products: Vec<Product>,
}

/// The way between host and device.
///
/// ```
/// use gemv_core::profile::Link;
/// let link = Link { up_latency: 1e-5, up: 2e10, down_latency: 1e-5, down: 1e10 };
/// let seconds = link.up_latency + (64 << 20) as f64 / link.up;
/// assert_eq!((seconds * 1e6).round(), 3365.0); // 64 MiB there
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds that an upload of a few bytes takes.
    #[serde(deserialize_with = "time")]
    pub up_latency: f64,
    /// Bytes per second of a large upload of pageable memory.
    #[serde(deserialize_with = "positive")]
    pub up: f64,
    /// Seconds that a download of a few bytes takes.
    #[serde(deserialize_with = "time")]
    pub down_latency: f64,
    /// Bytes per second of a large download.
    #[serde(deserialize_with = "positive")]
    pub down: f64,
}

/// Seconds that reading takes, by size.
///
/// What a product is held against, after the roofline model of Williams, Waterman and Patterson
/// (2009): a kernel that reads each entry of A once and multiplies it once is bound by memory, and
/// cannot take less time than reading alone.
///
/// ```
/// use gemv_core::profile::{Roof, RoofPoint};
/// let point = |bytes, seconds| RoofPoint { bytes, cold: seconds, warm: seconds / 2.0 };
/// let roof = Roof { points: vec![point(1 << 20, 1e-6), point(1 << 30, 1e-3)] };
/// assert_eq!(roof.seconds(1, false), Some(1e-6)); // no less than the smallest
/// assert_eq!(roof.seconds(1 << 31, false), Some(2e-3)); // at the bandwidth of the largest
/// assert_eq!(roof.seconds(1 << 31, true), Some(1e-3));
/// let between = roof.seconds(1 << 25, false).unwrap();
/// assert!((between / 1e-6_f64.powf(0.5) / 1e-3_f64.powf(0.5) - 1.0).abs() < 1e-9);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// By ascending size; empty where the backend has no pass that only reads.
    #[serde(default, rename = "roof", deserialize_with = "ascending")]
    pub points: Vec<RoofPoint>,
}

/// One size of a [`Roof`].
///
/// ```
/// use gemv_core::profile::RoofPoint;
/// let point = RoofPoint { bytes: 1 << 30, cold: 2.5e-4, warm: 2e-4 };
/// assert_eq!((point.bytes as f64 / point.cold / 1e9).round(), 4295.0); // GB/s
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoofPoint {
    /// Bytes that are read.
    pub bytes: u64,
    /// Seconds, of memory that no cache holds.
    #[serde(deserialize_with = "positive")]
    pub cold: f64,
    /// Seconds, of memory that was read just before.
    #[serde(deserialize_with = "positive")]
    pub warm: f64,
}

impl Roof {
    /// Seconds that reading this much takes: between the measured sizes by interpolation of both
    /// logarithms, beyond the largest at its bandwidth, below the smallest as long as that.
    ///
    /// `None` where nothing was measured.
    pub fn seconds(&self, bytes: u64, warm: bool) -> Option<f64> {
        let time = |p: &RoofPoint| if warm { p.warm } else { p.cold };
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

/// The time of one product.
///
/// In a profile's text it is `{ of = "f32 row 64x128", seconds = 2e-6 }`.
///
/// ```
/// use gemv_core::profile::Profile;
/// let text = "name = ''\ndriver = ''\nlaunch = 1e-6\nround_trip = 1e-5\n[[product]]\n";
/// let line = |line: &str| Profile::parse("p", &format!("{text}{line}"));
/// let p = line("of = 'f32 row 64x128'\nseconds = 2e-6")?.products[0];
/// assert_eq!((p.m, p.n, p.seconds), (64, 128, 2e-6));
/// let e = line("of = 'f32 row 64'\nseconds = 2e-6").unwrap_err().to_string();
/// assert!(e.contains("is not like \"f32 row 64x128\""));
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ProductText", into = "ProductText")]
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

#[derive(Serialize, Deserialize)]
struct ProductText {
    of: String,
    seconds: f64,
}

impl From<Product> for ProductText {
    fn from(p: Product) -> ProductText {
        let of = format!("{} {} {}x{}", p.dtype, p.layout, p.m, p.n);
        ProductText { of, seconds: p.seconds }
    }
}

impl TryFrom<ProductText> for Product {
    type Error = String;

    fn try_from(text: ProductText) -> Result<Product, String> {
        let parse = || {
            let mut words = text.of.split_whitespace();
            let dtype = Dtype::parse(words.next()?)?;
            let layout = Layout::parse(words.next()?)?;
            let (m, n) = words.next()?.split_once('x')?;
            let (m, n) = (m.parse().ok()?, n.parse().ok()?);
            words.next().is_none().then_some((dtype, layout, m, n))
        };
        let (dtype, layout, m, n) =
            parse().ok_or(format!("{:?} is not like \"f32 row 64x128\"", text.of))?;
        if !(text.seconds.is_finite() && text.seconds > 0.0) {
            return Err(format!("{} takes no {} s", text.of, text.seconds));
        }
        Ok(Product { dtype, layout, m, n, seconds: text.seconds })
    }
}

/// What is divided by, or of which a logarithm is taken.
fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    let good = value.is_finite() && value > 0.0;
    good.then_some(value).ok_or_else(|| de::Error::custom(format!("{value} is not above 0")))
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    let good = value.is_finite() && value >= 0.0;
    good.then_some(value).ok_or_else(|| de::Error::custom(format!("{value} is no time")))
}

fn ascending<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RoofPoint>, D::Error> {
    let points = Vec::<RoofPoint>::deserialize(from)?;
    let bytes = || points.iter().map(|p| p.bytes);
    let good = bytes().all(|b| b > 0) && bytes().is_sorted_by(|a, b| a < b);
    good.then_some(points).ok_or_else(|| de::Error::custom("the sizes of the roof do not ascend"))
}

impl Profile {
    /// Reads a profile's text (TOML).
    ///
    /// ```
    /// use gemv_core::{Error, profile::Profile};
    /// let e = Profile::parse("p.toml", "name = 'A card'\ndriver = 7\n").unwrap_err();
    /// assert!(matches!(e, Error::Table { line: 2, .. }));
    /// ```
    ///
    /// # Errors
    /// [`Error::Table`] with what is wrong with it.
    pub fn parse(origin: &str, text: &str) -> Result<Profile> {
        toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |s| text[..s.start].lines().count().max(1));
            Error::Table { origin: origin.into(), line: at, reason: e.message().into() }
        })
    }

    /// The profile as text (TOML).
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("a profile is a table of numbers and strings")
    }

    /// The file of a device's profile in a directory of tables, such as
    /// `cuda-nvidia-h200.device.toml`.
    ///
    /// ```
    /// use gemv_core::{DeviceInfo, profile::Profile};
    /// let mut info = DeviceInfo::new("cuda:0");
    /// info.name = "NVIDIA H200".into();
    /// assert_eq!(Profile::file_name(&info), "cuda-nvidia-h200.device.toml");
    /// ```
    pub fn file_name(info: &DeviceInfo) -> String {
        file_name_of(info).replace(".txt", ".device.toml")
    }

    /// Whether the user has installed any profile.
    ///
    /// Only names of files are read: what decides, cheaply, whether there is anything to weigh.
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
            e.file_name().to_str().is_some_and(|name| name.ends_with(".device.toml"))
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
    /// info.name = "of which nobody has a profile".into();
    /// assert!(Profile::load(&info).is_none());
    /// ```
    pub fn load(info: &DeviceInfo) -> Option<Profile> {
        let name = Profile::file_name(info);
        user_dirs().into_iter().find_map(|dir| {
            let path = dir.join(&name);
            let text = std::fs::read_to_string(&path).ok()?;
            match Profile::parse(&path.display().to_string(), &text) {
                Ok(profile) => Some(profile),
                Err(why) => {
                    log::warn!("profile left out: {why}");
                    None
                }
            }
        })
    }

    /// Seconds that a product of resident operands takes, estimated: the roof at its size, with the
    /// share of it that the nearest measured products of its type and layout reach. `None` where
    /// nothing of that kind was measured.
    ///
    /// ```
    /// use gemv_core::profile::Profile;
    /// use gemv_core::{Desc, Dtype};
    /// let card = Profile::parse(
    ///     "card",
    ///     "name = ''\ndriver = ''\nlaunch = 1e-6\nround_trip = 1e-5
    ///      product = [{ of = 'f32 row 4096x4096', seconds = 2e-5 }]",
    /// )?;
    /// let desc = |n: usize| Desc::new(Dtype::F32, n, n, (n as isize, 1), 0);
    /// let seconds = |n| card.seconds(&desc(n)).unwrap();
    /// assert!(seconds(8192) > 3.0 * seconds(4096));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn seconds(&self, desc: &Desc) -> Option<f64> {
        let log = |v: usize| (v.max(1) as f64).log2();
        let base = |bytes: u64| {
            // Without a roof, launches and bytes: only ratios of it are used.
            self.roof.seconds(bytes, false).unwrap_or(self.launch + bytes as f64 / 1e10)
        };
        // A strided matrix is no better than the worse of the two others.
        let alike = |p: &&Product| {
            p.dtype == desc.dtype && (p.layout == desc.layout || desc.layout == Layout::Strided)
        };
        let (mut sum, mut weight) = (0.0, 0.0);
        for p in self.products.iter().filter(alike) {
            let (dm, dn) = (log(p.m) - log(desc.m), log(p.n) - log(desc.n));
            let Product { dtype, layout, m, n, .. } = *p;
            let bytes = Desc::of(dtype, layout, (m, n), 0).bytes();
            let w = 1.0 / (0.05 + (dm * dm + dn * dn).powi(2));
            sum += w * (p.seconds / base(bytes)).ln();
            weight += w;
        }
        (weight > 0.0).then(|| base(desc.bytes()) * (sum / weight).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let point = |bytes, cold, warm| RoofPoint { bytes, cold, warm };
        let product =
            |m, n, seconds| Product { dtype: Dtype::F32, layout: Layout::Row, m, n, seconds };
        Profile {
            name: "NVIDIA \"H200\"".into(),
            launch: 1e-6,
            round_trip: 2e-5,
            link: Some(Link { up: 1e10, down: 1e10, up_latency: 1e-5, down_latency: 1e-5 }),
            roof: Roof { points: vec![point(1 << 12, 1e-6, 1e-6), point(1 << 30, 2.5e-4, 2.5e-4)] },
            products: vec![product(4096, 4096, 2e-5), product(16, 16, 2e-6)],
            ..Profile::default()
        }
    }

    #[test]
    fn text_round_trips_and_names_the_bad_line() {
        let text = profile().to_text();
        assert_eq!(Profile::parse("p", &text).unwrap(), profile(), "{text}");
        let bad = text.replace("f32 row 16x16", "f32 row 16");
        let e = Profile::parse("p", &bad).unwrap_err().to_string();
        assert!(e.starts_with("p, line ") && e.contains("f32 row 16"), "{e}");
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let text = profile().to_text();
        for (good, bad, part) in [
            ("up = 10000000000.0", "up = 0", "0 is not above 0"),
            ("down = 10000000000.0", "down = inf", "is not above 0"),
            ("up_latency = 0.00001", "up_latency = -1.0", "-1 is no time"),
            ("round_trip = 0.00002", "round_trip = nan", "is no time"),
            ("cold = 0.00025", "cold = 0.0", "is not above 0"),
            ("bytes = 4096", "bytes = 0", "do not ascend"),
            ("bytes = 4096", "bytes = 1073741824", "do not ascend"),
        ] {
            assert!(text.contains(good), "{good}: {text}");
            let e = Profile::parse("p", &text.replacen(good, bad, 1)).unwrap_err().to_string();
            assert!(e.starts_with("p") && e.contains(part), "{bad}: {e}");
        }
    }

    #[test]
    fn roof_is_interpolated_between_sizes_and_extended_beyond() {
        let roof = profile().roof;
        assert_eq!(roof.seconds(1, false), Some(1e-6));
        assert_eq!(roof.seconds(1 << 12, false), Some(1e-6));
        let mid = roof.seconds(1 << 21, false).unwrap();
        assert!((mid - (1e-6f64 * 2.5e-4).sqrt()).abs() < 1e-9, "{mid}");
        assert_eq!(roof.seconds(1 << 31, true), Some(5e-4));
        assert_eq!(Roof::default().seconds(1, false), None);
    }

    #[test]
    fn times_follow_the_nearest_products_and_grow_with_size() {
        let p = profile();
        let desc = |m, n| Desc::of(Dtype::F32, Layout::Row, (m, n), 6);
        let known = p.seconds(&desc(4096, 4096)).unwrap();
        assert!((known / 2e-5 - 1.0).abs() < 0.05, "{known}");
        assert!(p.seconds(&desc(8192, 8192)).unwrap() > 1.5 * known);
        assert_eq!(p.seconds(&Desc { dtype: Dtype::F64, ..desc(16, 16) }), None);
    }
}
