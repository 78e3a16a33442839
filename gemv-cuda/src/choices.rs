//! Which parameters are worth trying for a problem on a GPU of NVIDIA's.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{self as gpu, Caps};

use crate::few::{MANY_ROWS, SHORT_BYTES};
use crate::flat::{COLUMNS, FEW_ROWS};
use crate::kernels::{Line, OWN, own, widest};
use crate::span::WIDE_COLUMNS;

/// The parameters worth trying for a problem, best guess first, each launch once. Where `span` has the
/// rows and `tile` the columns, few of the shared kernels are left: those without which some shape
/// was slower on an H200 (`docs/results/h200`).
pub fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all: Vec<Params> = own().flat_map(|k| (k.candidates)(desc, caps)).collect();
    for kernel in gpu::kernels().iter().filter(|k| k.ordered) {
        let shared = (kernel.candidates)(desc, caps);
        let get = |p: &Params, name, default| p.get_or(name, default);
        match kernel.name {
            "row" => {
                let some = shared.into_iter().filter(|p| get(p, "subwarp", 32) >= 8);
                // Where there are few rows, `flat` was faster everywhere.
                let flat = desc.m <= FEW_ROWS && COLUMNS.contains(&desc.n);
                let longer = desc.n > spanned(caps) && !flat;
                all.extend(some.filter(|p| longer && p.get("split_k").is_none()));
            }
            "strided" => {
                let least = Params::new("strided").with("threads", 128).with("subwarp", 4);
                let some: Vec<_> =
                    shared.into_iter().filter(|p| get(p, "subwarp", 4) >= 4).collect();
                let fits = desc.layout == Layout::Strided && some.is_empty();
                all.extend(some.into_iter().chain(fits.then_some(least)));
            }
            // `tile` was faster on every shape there.
            "col" if desc.n <= 4096 => {}
            // Beyond two levels of sums there is no other kernel for columns.
            "col" if desc.n <= SEGMENT * SEGMENT * SEGMENT => {
                let good = [(128, 16, 8), (256, 32, 2)];
                let shape = |p: &Params| {
                    (get(p, "threads", 0), get(p, "threads_k", 0), get(p, "blocks_per_sm", 0))
                };
                all.extend(shared.into_iter().filter(|p| good.contains(&shape(p))));
            }
            "col" | "strided-col" => {
                let spills =
                    |p: &Params| get(p, "threads_k", 8) < 8 || get(p, "threads", 256) > 256;
                all.extend(shared.into_iter().filter(|p| !spills(p)));
            }
            _ => all.extend(shared),
        }
    }
    all
}

/// From how many columns on, and up to how many on a device with clusters, `short` and `span` have all
/// candidates for rows.
pub(crate) const SPANNED: std::ops::RangeInclusive<usize> = 65..=65_536;

/// Up to how many columns they have: few rows of more are one block's each without clusters.
pub(crate) fn spanned(caps: &Caps) -> usize {
    if caps.cluster > 1 { *SPANNED.end() } else { 8192 }
}

/// Rows split so that a unit has so many threads.
fn split(line: Line, threads_a_unit: u32) -> Line {
    Line { split: 0, busy: (threads_a_unit / line.threads).max(1), ..line }
}

pub(crate) fn line_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row {
        return Vec::new();
    }
    let n = desc.n as u64;
    let widest = widest(desc.dtype);
    let mut all: Vec<Line> = Vec::new();
    // Short rows: one load a thread and row, several rows under way. Of many and very short ones, `staged` was faster.
    let few = desc.m < 4 * MANY_ROWS || n == 0 || desc.n * desc.dtype.bytes() > SHORT_BYTES;
    let vecs = [widest, widest / 2, 1];
    for vec in vecs.into_iter().filter(|v| *v > 0 && few) {
        let lanes = (n + u64::from(vec) - 1).next_power_of_two().max(16);
        if lanes > LANES as u64 {
            continue;
        }
        let width = lanes as u32;
        for (threads, slots, rows) in [(128, 1, 2), (128, 2, 2), (128, 1, 4)] {
            let team = (width / vec / slots).min(32);
            let line = Line::long(desc, threads, 1, rows);
            all.push(Line { team, vec, rounds: 1, width, ..line });
        }
    }
    // Longer ones: teams along the rows until the device is busy, then blocks.
    // On a device with clusters `flat`, `wide` or `row` was faster wherever they can be, but for a few rows that begin anywhere.
    let longer = desc.n > if caps.cluster > 1 { *WIDE_COLUMNS.end() } else { spanned(caps) };
    let segments = n.div_ceil(256).max(1);
    // Rows that start anywhere: single elements too, so that neighbours read neighbouring elements.
    let single = Line { team: 32, vec: 1, rounds: 4, ..Line::long(desc, 128, 1, 1) };
    for (threads, along, way) in
        [(128, 1, 1024), (128, 8, 1024), (256, 16, 1024), (512, 32, 2048), (256, 1, 1024)]
            .into_iter()
            .filter(|_| longer)
    {
        for base in [Line::long(desc, threads, 1, 1), single] {
            let along = along.min(threads / base.team).min(segments.next_power_of_two() as u32);
            all.push(split(Line { threads, along, rows: 1, ..base }, way));
            if desc.align >= 4 || n <= LANES as u64 {
                break;
            }
        }
    }
    let line = &OWN[0];
    let mut out: Vec<(u64, Params)> = Vec::new();
    for one in all {
        let params = one.params();
        if one.check(desc, caps).is_ok() {
            let work = line.launch_id(desc, &params, caps);
            if !out.iter().any(|o| o.0 == work) {
                out.push((work, params));
            }
        }
    }
    out.into_iter().map(|o| o.1).collect()
}
