//! What the suites share: the devices under test, inputs, operands of every layout, and the
//! checker.
//!
//! The environment selects how much is run:
//! - `GEMV_REQUIRE=cpu,opencl:nvidia`: a device that is missing fails the run. An item is a
//!   backend's name, or a backend and a part of a device's ordinal, vendor, name or driver.
//! - `GEMV_TEST_DEVICES=opencl,cuda:1`: only devices whose id begins with one of these.
//! - `GEMV_TEST_FULL=1`: everything on every device, for machines with time and memory.
//! - `GEMV_TEST_LARGE=1`: operands of 4 GiB, one device after the other.
//! - `GEMV_TEST_TINY=1`: a few small shapes, for simulators and sanitizers.
#![allow(dead_code, unused_macros)] // each suite uses a part

pub mod broken;
pub mod operand;
pub mod place;

use gemv::ndarray::{Array, Dimension};
use gemv::{Accumulator, Device, DeviceArray, Dtype, Element, Engine};
pub use gemv_testkit::{hash, value};
use libtest_mimic::{Failed, Trial};

/// What a check returns: the failure as text.
pub type Check = Result<(), String>;

/// An error, as a check says it.
pub fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    Tiny,
    Normal,
    Full,
}

pub fn size() -> Size {
    let set = |name| std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0");
    match (set("GEMV_TEST_TINY"), set("GEMV_TEST_FULL")) {
        (true, _) => Size::Tiny,
        (_, true) => Size::Full,
        _ => Size::Normal,
    }
}

/// A device under test, or why there is none.
pub struct Target {
    pub id: String,
    pub device: Result<Device, String>,
}

impl Target {
    /// Whether its programs are compiled when they are first used, so that each costs a second.
    pub fn compiles(&self) -> bool {
        self.id.starts_with("opencl") || self.id.starts_with("cuda")
    }
}

/// Every device of every linked backend and the reference (through the same seam); a backend that
/// is not linked, or finds nothing, stands there with the reason.
pub fn targets() -> Vec<Target> {
    let only = std::env::var("GEMV_TEST_DEVICES").unwrap_or_default();
    let only: Vec<&str> = list(&only).collect();
    let wanted = |id: &str| only.is_empty() || only.iter().any(|o| id.starts_with(o));
    let engine = Engine::new(None);
    let mut targets = Vec::new();
    for line in engine.devices().into_iter().filter(|l| wanted(&l.id)) {
        let device = match line.found {
            Ok(_) => engine.device(&line.id).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        targets.push(Target { id: line.id, device });
    }
    if wanted("reference") {
        let device = engine.device("reference").map_err(|e| e.to_string());
        targets.push(Target { id: "reference".into(), device });
    }
    targets
}

/// One ignored (and counted) trial for each absent device, one failing trial for each that is
/// required and absent.
pub fn absences(targets: &[Target]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for target in targets {
        if let Err(why) = &target.device {
            let name = format!("{}/absent: {}", target.id, why.replace('\n', " "));
            let why = why.clone();
            trials.push(Trial::test(name, move || Err(why.into())).with_ignored_flag(true));
        }
    }
    let require = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    for item in list(&require) {
        let met = targets.iter().any(|t| meets(t, item));
        let reasons: Vec<String> = targets
            .iter()
            .filter_map(|t| Some(format!("{}: {}", t.id, t.device.as_ref().err()?)))
            .collect();
        let text = format!("GEMV_REQUIRE has {item}, which is not there; {}", reasons.join("; "));
        trials.push(Trial::test(format!("require/{item}"), move || {
            if met { Ok(()) } else { Err(text.into()) }
        }));
    }
    trials
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|s| !s.is_empty())
}

fn meets(target: &Target, item: &str) -> bool {
    let Ok(device) = &target.device else { return false };
    let (backend, part) = item.split_once(':').unwrap_or((item, ""));
    let info = device.info();
    let mut id = target.id.split(':');
    let (kind, ordinal) = (id.next().unwrap_or_default(), id.next().unwrap_or("0"));
    let part = part.to_lowercase();
    kind == backend
        && (ordinal == part
            || [&info.vendor, &info.name, &info.driver, &info.arch]
                .iter()
                .any(|t| t.to_lowercase().contains(&part)))
}

/// Runs trials: libtest's arguments, and its exit status.
pub fn main(trials: Vec<Trial>) {
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}

/// A trial from a check.
pub fn trial(name: String, body: impl FnOnce() -> Check + Send + 'static) -> Trial {
    Trial::test(name, move || body().map_err(Failed::from))
}

/// Runs one expression with `$T` standing for an element type.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {{
        let dtype = $dtype;
        let both = (dtype, dtype);
        gemv::unstable::for_types!(both, $T => $body, mixed _T, _V => unreachable!("one type"))
    }};
}

/// Whether the device has the type at all; a trial is ignored with this reason if not.
pub fn supported(device: &Device, dtype: Dtype) -> Result<(), String> {
    supported_mixed(device, (dtype, dtype))
}

/// As [`supported`], for a matrix and vectors of these types.
pub fn supported_mixed(device: &Device, (matrix, vectors): (Dtype, Dtype)) -> Result<(), String> {
    use gemv::unstable::Desc;
    let desc = Desc { vectors, ..Desc::new(matrix, 3, 5, (5, 1), 0) };
    device.backend().accepts(&desc).map_err(|e| e.to_string())
}

/// An element from real and imaginary part, each rounded to the accumulator and then the element.
pub fn elem<T: Element>(re: f64, im: f64) -> T {
    T::narrow(acc::<T>(re, im))
}

/// An accumulator value.
pub fn acc<T: Element>(re: f64, im: f64) -> T::Acc {
    T::Acc::from_parts(re, im)
}

/// NaN in every component.
pub fn nan<T: Element>() -> T {
    elem(f64::NAN, f64::NAN)
}

/// A pseudo-random element.
pub fn random<T: Element>(seed: u64, i: usize, j: usize) -> T {
    let h = hash(seed, i as u64, j as u64);
    // Sums of a few products of 8-bit mantissas would be exact, in any order, if the magnitudes
    // were not far apart.
    let range = if T::DTYPE == Dtype::Bf16 { 8 } else { 3 };
    elem(value(h, range), value(hash(h, 1, 1), range))
}

/// Compares a buffer, bit for bit, with what should be in it: `y` where `place` says so, and
/// canaries everywhere else.
///
/// One failure names the first difference and how many there are.
pub fn verify<T: Element>(
    buffer: &[T],
    place: impl Fn(usize) -> Option<usize>,
    want: &[T],
    canary: impl Fn(usize) -> T,
) -> Check {
    let (mut wrong, mut hurt, mut seen) = (0, 0, 0);
    let mut first = String::new();
    for (at, &got) in buffer.iter().enumerate() {
        let index = place(at);
        let expected = match index {
            Some(i) => {
                seen += 1;
                want[i]
            }
            None => canary(at),
        };
        if got.bits() != expected.bits() {
            match index {
                Some(_) => wrong += 1,
                None => hurt += 1,
            }
            if first.is_empty() {
                let what = index.map_or(format!("the canary at {at}"), |i| format!("y[{i}]"));
                first = format!(
                    "{what} is {got:?} ({:x}), not {expected:?} ({:x})",
                    got.bits(),
                    expected.bits()
                );
            }
        }
    }
    if seen != want.len() {
        return Err(format!("{seen} of {} results were looked at", want.len()));
    }
    match (wrong, hurt) {
        (0, 0) => Ok(()),
        (_, 0) => Err(format!("{first}; {wrong} of {} differ", want.len())),
        _ => Err(format!("{first}; {wrong} of {} differ, {hurt} canaries touched", want.len())),
    }
}

/// A repeatable stream of bits (splitmix64).
pub fn bits(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

/// Compares a resident array with an array of the host.
pub fn equal<T: Element, D: Dimension + Copy>(
    what: &str,
    got: &DeviceArray<T, D>,
    want: &Array<T, D>,
) -> Check {
    let got: Vec<T> = got.download().map_err(text)?.iter().copied().collect();
    let want: Vec<T> = want.iter().copied().collect();
    same(&got, &want).map_err(|e| format!("{what}: {e}"))
}

/// [`verify`] for a plain array.
pub fn same<T: Element>(got: &[T], want: &[T]) -> Check {
    if got.len() != want.len() {
        return Err(format!("{} results, not {}", got.len(), want.len()));
    }
    verify(got, Some, want, |_| T::default())
}
