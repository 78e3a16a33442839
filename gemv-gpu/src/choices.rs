//! Which parameters of the shared kernels are worth trying for a problem.
//!
//! A split is said as blocks a unit, not as a count, wherever it is more than 1: what is best for
//! one shape then means the same work for a unit at its neighbours, and on other devices.

use crate::ordered::{
    HELD, col_legal, col_plan, for_layout, row_legal, row_needs, row_plan, widest,
};
use crate::split::busy_split;
use crate::{Caps, Plan};
use gemv_core::order::LANES;
use gemv_core::{Desc, Layout, Params};

/// Keeps the legal ones that are not launched as one before them, at most `most`.
fn distinct(
    all: impl IntoIterator<Item = Params>,
    most: usize,
    legal: impl Fn(&Params) -> Result<(), String>,
    plan: impl Fn(&Params) -> Plan,
) -> Vec<Params> {
    let mut out: Vec<(Params, Params, Plan)> = Vec::new();
    for params in all {
        if out.len() == most {
            break;
        }
        if legal(&params).is_err() {
            continue;
        }
        let (shape, plan) = (params.without("split").without("busy"), plan(&params));
        if !out.iter().any(|o| o.1 == shape && o.2 == plan) {
            out.push((params, shape, plan));
        }
    }
    out.into_iter().map(|o| o.0).collect()
}

/// The widest load that every line allows; misaligned lines of 4-byte elements and wider ones
/// are worth rotated vectors all the same.
fn aligned_vec(desc: &Desc) -> u32 {
    let by_align = (1u32 << desc.align.min(4)) / desc.dtype.bytes() as u32;
    by_align.clamp(1, widest(desc.dtype))
}

/// Whether rows may well stay whole: else so few units have work that it takes many times as long.
///
/// `block_rows` is the number of rows that a block computes, `along` the least number of segments
/// that a block is to have of a split row.
fn worth_whole(desc: &Desc, caps: &Caps, block_rows: u64, along: u64) -> bool {
    busy_split(desc, caps, block_rows, along, 1) <= 8
}

/// A block shape made smaller until it is legal: wide types hold more.
fn within(
    desc: &Desc,
    caps: &Caps,
    mut threads: u32,
    mut team: u32,
    mut rows: u32,
    vec: u32,
) -> (u32, u32, u32) {
    loop {
        let (held, local) = row_needs(desc, caps, threads, team, rows, vec);
        if held <= HELD && local <= u64::from(caps.local_bytes) && threads <= caps.max_group {
            return (threads, team, rows);
        }
        if rows > 1 {
            rows /= 2;
        } else if held > HELD {
            team *= 2;
        } else if threads > 32 {
            threads /= 2;
        } else {
            return (threads, team, rows);
        }
    }
}

/// One shape of blocks with each way to split: not at all (0), or blocks a unit.
fn filled<'f>(
    params: Params,
    fills: &'f [u32],
    desc: &Desc,
    caps: &Caps,
    block_rows: u64,
) -> impl Iterator<Item = Params> + 'f {
    let whole = worth_whole(desc, caps, block_rows, 1);
    fills.iter().filter(move |&&busy| busy > 0 || whole).map(move |&busy| match busy {
        0 => params.with("split", 1),
        busy => params.with("busy", busy),
    })
}

fn row_shapes(desc: &Desc, caps: &Caps, kernel: &'static str, vec: u32) -> Vec<Params> {
    // Enough threads that every lane of a short row is loaded at once, and not many more.
    let full = LANES as u32 / vec;
    let need = (desc.n.div_ceil(vec as usize).max(1).next_power_of_two() as u32).min(full).min(32);
    let mut all = Vec::new();
    for (threads, team, rows, fills) in [
        (128, need, 1, &[8, 4, 0][..]),
        (128, need, if need >= 8 { 2 } else { 1 }, &[8, 4]),
        (64, need, 1, &[16]),
        (128, (need / 2).max(1), 1, &[8]),
        (256, need, 4, &[4]),
    ] {
        let (threads, team, rows) = within(desc, caps, threads, team, rows, vec);
        let params = Params::new(kernel).with("threads", threads).with("team", team);
        let block_rows = u64::from(threads / team * rows);
        let params = params.with("rows", rows).with("vec", vec);
        all.extend(filled(params, fills, desc, caps, block_rows));
    }
    all
}

pub(crate) fn row_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc);
    let mut all = row_shapes(desc, caps, "row", vec);
    // Rotated vectors where the rows are not aligned, narrower ones where they are.
    let other = if vec == widest(desc.dtype) { vec / 2 } else { vec * 2 };
    if other > 0 {
        all.extend(row_shapes(desc, caps, "row", other).into_iter().take(5));
    }
    let legal =
        |p: &Params| row_legal(desc, p, caps, false).and(for_layout(desc, Layout::Row, false));
    distinct(all, 13, legal, |p| row_plan(desc, p, caps))
}

pub(crate) fn strided_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = row_shapes(desc, caps, "strided", 1);
    distinct(all, 6, |p| row_legal(desc, p, caps, true), |p| row_plan(desc, p, caps))
}

fn col_shapes(desc: &Desc, caps: &Caps, kernel: &'static str, vec: u32) -> Vec<Params> {
    let mut all = Vec::new();
    for (threads, share, fills) in [
        (256, 32, &[8, 4, 2, 0][..]),
        (256, 16, &[4, 8, 2]),
        (128, 16, &[8, 0]),
        (256, 8, &[4]),
        (128, 4, &[8]),
        (512, 16, &[2]),
    ] {
        let (mut threads, mut share) = (threads.min(caps.max_group), share.max(vec));
        let acc = desc.dtype.acc_bytes() as u32;
        while u64::from(LANES as u32 / share * vec * acc) > HELD {
            share *= 2;
        }
        while threads > share.max(32)
            && (share + 7) * (threads / share * vec) * acc > caps.local_bytes
        {
            threads /= 2;
        }
        let params = Params::new(kernel).with("threads", threads).with("share", share);
        let block_rows = u64::from(threads / share * vec);
        all.extend(filled(params.with("vec", vec), fills, desc, caps, block_rows));
    }
    all
}

pub(crate) fn col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc).min(4);
    let mut all = col_shapes(desc, caps, "col", vec);
    // Single elements, too: few rows leave more threads to share them. And vectors read in pieces.
    let other = if vec > 1 { [vec / 2, 1] } else { [2, 4] };
    for vec in other.into_iter().filter(|v| (1..=widest(desc.dtype)).contains(v) && *v != vec) {
        all.extend(col_shapes(desc, caps, "col", vec).into_iter().take(9));
    }
    distinct(all, 28, |p| col_legal(desc, p, caps, false), |p| col_plan(desc, p, caps))
}

pub(crate) fn strided_col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = col_shapes(desc, caps, "strided-col", 1);
    distinct(all, 6, |p| col_legal(desc, p, caps, true), |p| col_plan(desc, p, caps))
}
