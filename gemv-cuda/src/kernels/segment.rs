//! What `row-block` and `row-streamk` share: a sub-warp holds a segment of its rows in registers,
//! counted as in `segment.cuh`.

use gemv_core::order::LANES;
use gemv_core::{Desc, Dtype, Params};
use gemv_gpu::Arg;

use super::rules::{rows, subwarp, threads, vec};

pub(crate) const THREADS: Arg = threads(128, 512);
pub(crate) const SUBWARP: Arg = subwarp(8);
pub(crate) const ROWS: Arg = rows("Rows that a sub-warp computes at a time.", 4);
pub(crate) const VEC: Arg = vec(1);

/// 32-bit registers of a thread: for A and x, for sums, for the loads, and `extra` of the kernel's own.
pub(crate) fn held(desc: &Desc, params: &Params, extra: u32) -> u32 {
    let get = |arg: &Arg| params.get_or(arg.name, arg.default);
    let (subwarp, rows, vec) = (get(&SUBWARP), get(&ROWS), get(&VEC));
    let slots = LANES as u32 / (subwarp * vec);
    let load = |dtype: Dtype| (vec * dtype.bytes() as u32).div_ceil(4);
    let sum = desc.vectors.acc_bytes() as u32 / 4;
    4 * slots * (load(desc.dtype) * rows + load(desc.vectors))
        + slots * vec * rows * sum
        + 8 * slots
        + extra
}

/// Whether a thread has so many registers, with some left for all else.
///
/// A thread of a block of 512 has 128, of smaller ones 255.
pub(crate) fn fits(held: u32, threads: u32) -> Result<(), String> {
    let most = if threads > 256 { 88 } else { 176 };
    if held > most { Err(format!("{held} registers are more than {most}")) } else { Ok(()) }
}

/// Blocks that are to be resident on a multiprocessor, by the threads that the kernel is compiled for.
pub(crate) fn resident_blocks(held: u32, threads: u32) -> u32 {
    let resident = match held {
        0..=48 => 1024,
        49..=88 => 512,
        _ => 256,
    };
    (resident / threads).max(1)
}
