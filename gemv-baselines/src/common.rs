//! What the published kernels share. The text is `common.k`.

use gemv_core::{Arg, Values};
use gemv_gpu::Launch;

pub(crate) const SOURCE: &str = include_str!("common.k");

/// Nugteren's width of data types.
pub(crate) const VEC: Arg = Arg {
    name: "vec",
    about: "Neighbouring elements that a thread takes at a time, by loads of at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("WIDTH"),
};

pub(crate) const fn launch(entry: &'static str, grid: [u64; 2], threads: u64) -> Launch {
    Launch { grid: [grid[0], grid[1], 1], ..Launch::new(entry, 1, threads) }
}
