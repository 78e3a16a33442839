//! What `span`, `wide` and `flat` share, whose teams hold a segment of their rows in registers: counts as in segment.cu.

use gemv_core::order::LANES;
use gemv_core::{Dtype, Params};
use gemv_gpu::Arg;

/// Threads of a block.
pub(crate) const THREADS: Arg = gemv_gpu::compiled("threads", 128, "THREADS");
/// Threads of a team.
pub(crate) const TEAM: Arg = gemv_gpu::compiled("team", 16, "TEAM");
/// Rows of a team.
pub(crate) const ROWS: Arg = gemv_gpu::compiled("rows", 1, "ROWS");
/// Elements of a load.
pub(crate) const VEC: Arg = gemv_gpu::compiled("vec", 1, "VEC");

/// 32-bit registers of a thread for A and x, for sums, for the loads, and `own` for what the kernel keeps besides.
pub(crate) fn held(dtype: Dtype, params: &Params, own: u32) -> u32 {
    let get = |arg: &Arg| params.get_or(arg.name, arg.default);
    let (team, rows, vec) = (get(&TEAM), get(&ROWS), get(&VEC));
    let slots = LANES as u32 / (team * vec);
    let load = (vec * dtype.bytes() as u32).div_ceil(4);
    let sum = dtype.acc_bytes() as u32 / 4;
    4 * slots * load * (rows + 1) + slots * vec * rows * sum + 8 * slots + own
}

/// Whether a thread has so many registers, with some left for all else: one of a block of 512 has 128, of smaller ones 255.
pub(crate) fn fits(held: u32, threads: u32) -> Result<(), String> {
    let most = if threads > 256 { 88 } else { 176 };
    if held > most { Err(format!("{held} registers are more than {most}")) } else { Ok(()) }
}

/// Blocks for which a unit is to find room: as many as have the threads that the kernel is compiled for.
pub(crate) fn resident_blocks(held: u32, threads: u32) -> u32 {
    let room = match held {
        0..=48 => 1024,
        49..=88 => 512,
        _ => 256,
    };
    (room / threads).max(1)
}
