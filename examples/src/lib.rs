//! What the programs share: a solver, clocks, curves, random numbers, a data set, the hash of a result.
#![deny(unsafe_code)]

pub mod clock;
pub mod curves;
pub mod digits;
pub mod random;
mod solver;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use gemv::{Accumulator, Device, Element, Engine};

pub use solver::Iteration;

/// FNV-1a of the bits of all entries: equal where every bit of a result is.
///
/// ```
/// assert_eq!(gemv_examples::hash(&[0.5, 1.0]), gemv_examples::hash(&[0.5, 1.0]));
/// assert_ne!(gemv_examples::hash(&[0.0]), gemv_examples::hash(&[-0.0]));
/// ```
pub fn hash<'a, T: Element>(entries: impl IntoIterator<Item = &'a T>) -> u64 {
    let bytes = entries.into_iter().flat_map(|entry| entry.bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The element nearest to a number.
pub fn element<T: Element>(number: f64) -> T {
    T::narrow(T::Acc::from_parts(number, 0.0))
}

/// The number that a real element is.
pub fn number<T: Element>(element: T) -> f64 {
    element.widen().parts().0
}

/// The device of this name, or the default one: the CPU, or what `GEMV_BACKEND` names.
///
/// # Errors
/// If it is not there.
pub fn device(name: Option<&str>) -> gemv::Result<Device> {
    match name {
        Some(name) => Engine::global().device(name),
        None => Ok(Engine::global().default_device()?.clone()),
    }
}

/// A number of bytes, such as 64M.
///
/// # Errors
/// If it is none, or more than can be addressed.
pub fn bytes(text: &str) -> Result<usize, String> {
    let shift = match text.bytes().last() {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        _ => 0,
    };
    let number = text.trim_end_matches(['K', 'M', 'G']).parse::<usize>();
    number.map_err(|e| e.to_string())?.checked_mul(1 << shift).ok_or("too many bytes".into())
}

/// A number from 1 on.
///
/// # Errors
/// If it is none.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or("it is no number from 1 on".into())
}

/// What `main` returns. Why a program failed is one sentence behind its name.
pub fn exit(program: &str, done: Result<(), Box<dyn Error>>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{program}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// A file of this name in the workspace's folder for what is built, which is made if it is not there.
///
/// # Errors
/// If it cannot be made.
pub fn output(name: &str) -> std::io::Result<PathBuf> {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    std::fs::create_dir_all(&target)?;
    Ok(target.join(name))
}
