//! `libgemv.so`: the functions of `include/gemv.h`, which is their documentation.
//!
//! Nothing unwinds into the caller, any thread may call, and after an error the result's memory is as it was, but for what
//! the header says of failures of a device.

mod array;
mod device;
mod error;
#[cfg(test)]
mod header;
mod matrix;
mod product;

/// The order of additions that results follow; docs/ORDER.md.
const ORDER: u32 = 1;

/// `major << 16 | minor << 8 | patch`.
#[unsafe(no_mangle)]
extern "C" fn gemv_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// Results of libraries with the same number have the same bits.
#[unsafe(no_mangle)]
extern "C" fn gemv_order_version() -> u32 {
    ORDER
}
