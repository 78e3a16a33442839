//! `libgemv.so`: the functions of `include/gemv.h`, which is their documentation.
//!
//! Nothing unwinds into the caller, any thread may call, and after an error the result's memory is as it was, but for what
//! the header says of failures of a device.

#![deny(unsafe_code)]

// Pointers of the caller, and functions for it.
#[allow(unsafe_code)]
mod array;
#[allow(unsafe_code)]
mod device;
#[allow(unsafe_code)]
mod error;
#[cfg(test)]
mod header;
#[allow(unsafe_code)]
mod matrix;
#[allow(unsafe_code)]
mod operand;
#[allow(unsafe_code)]
mod packed;
#[allow(unsafe_code)]
mod packed_product;
#[allow(unsafe_code)]
mod product;
#[allow(unsafe_code)]
mod resident;
#[allow(unsafe_code)]
mod version;
#[allow(unsafe_code)]
mod weights;
