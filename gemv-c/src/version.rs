//! The versions of the library.

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
    gemv::unstable::order::VERSION
}
