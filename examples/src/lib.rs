//! What the programs share: clocks, random numbers, curves as SVG.
#![deny(unsafe_code)]

pub mod clock;
pub mod curves;
pub mod random;
