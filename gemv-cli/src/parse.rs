//! Arguments that several subcommands have.

use gemv::unstable::Layout;
use gemv::{Device, Dtype, Engine};

pub(crate) fn parse_dtype(text: &str) -> Result<Dtype, String> {
    let names = || Dtype::ALL.map(Dtype::name).join(", ");
    Dtype::parse(text).ok_or_else(|| format!("there are {}", names()))
}

pub(crate) fn parse_layout(text: &str) -> Result<Layout, String> {
    match Layout::parse(text) {
        Some(layout) if layout != Layout::Strided => Ok(layout),
        _ => Err("there are row and col".into()),
    }
}

pub(crate) fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.0..=1e6).contains(minutes));
    minutes.ok_or_else(|| "not a number of minutes from 0 to 1000000".into())
}

pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "not a number with k, M, G or nothing behind it")?;
    number.checked_mul(1 << shift).filter(|&b| b > 0).ok_or("out of range".into())
}

pub(crate) fn open_device(name: Option<&str>) -> anyhow::Result<Device> {
    let engine = Engine::global();
    Ok(match name {
        Some(name) => engine.device(name)?,
        None => engine.default_device()?,
    })
}
