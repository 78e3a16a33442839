//! Which parameters are worth trying for a problem on a GPU of NVIDIA's.

use gemv_core::gpu::{self, Caps, worth_whole};
use gemv_core::order::LANES;
use gemv_core::{Desc, Layout, Params};

use crate::few;
use crate::kernels::{Line, OWN, pillar_legal, widest};

/// The parameters worth trying for a problem, best guess first, each launch once: of the shared
/// kernels those that keep their sums in registers here, and few where a kernel of our own is for
/// the same problem.
pub fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let own = OWN.iter().chain(&few::KERNELS);
    let mut all: Vec<Params> = own.flat_map(|k| (k.candidates)(desc, caps)).collect();
    for kernel in gpu::kernels().iter().filter(|k| k.ordered) {
        let shared = (kernel.candidates)(desc, caps);
        let team = |p: &Params| p.get_or("team", 32);
        match kernel.name {
            "row" => all.extend(shared.into_iter().filter(|p| team(p) >= 8)),
            "strided" => {
                let least = Params::new("strided").with("threads", 128).with("team", 4);
                let some: Vec<_> = shared.into_iter().filter(|p| team(p) >= 4).collect();
                let fits = desc.layout == Layout::Strided && some.is_empty();
                all.extend(some.into_iter().chain(fits.then_some(least)));
            }
            "col" | "strided-col" => {
                let spills =
                    |p: &Params| p.get_or("share", 8) < 8 || p.get_or("threads", 256) > 256;
                all.extend(shared.into_iter().filter(|p| !spills(p)));
            }
            _ => all.extend(shared),
        }
    }
    all
}

/// A way to split rows, for blocks of some number of threads: not at all, or so many threads a unit.
fn split(line: Line, threads_a_unit: u32) -> Line {
    match threads_a_unit {
        0 => Line { split: 1, ..line },
        t => Line { split: 0, busy: (t / line.threads).max(1), ..line },
    }
}

pub(crate) fn line_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row {
        return Vec::new();
    }
    let n = desc.n as u64;
    let widest = widest(desc.dtype);
    let mut all: Vec<Line> = Vec::new();
    // Short rows: one load a thread and row, several rows under way.
    let vecs = [widest, widest / 2, 1];
    for vec in vecs.into_iter().filter(|v| *v > 0) {
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
    let segments = n.div_ceil(256).max(1);
    // Rows that start anywhere: single elements too, so that neighbours read neighbouring elements.
    let single = Line { team: 32, vec: 1, rounds: 4, ..Line::long(desc, 128, 1, 1) };
    for (threads, along, rows, ways) in [
        (128, 1, 2, &[1024, 512, 0][..]),
        (128, 1, 1, &[1024, 512, 0]),
        (128, 2, 1, &[1024]),
        (128, 4, 1, &[1024]),
        (128, 8, 1, &[1024, 0]),
        (256, 16, 1, &[1024, 0]),
        (64, 4, 1, &[1024, 0]),
        (512, 32, 1, &[2048, 0]),
        (256, 1, 1, &[1024]),
    ] {
        for base in [Line::long(desc, threads, 1, 1), single] {
            let along = along.min(threads / base.team).min(segments.next_power_of_two() as u32);
            let line = Line { threads, along, rows, ..base };
            let whole = worth_whole(desc, caps, line.block_rows(), along.into());
            for &way in ways.iter().filter(|&&way| way > 0 || whole) {
                let line = split(line, way);
                // A short last segment may be most of the row.
                if rows == 1
                    && base.rounds == 4
                    && base.vec > 1
                    && !n.is_multiple_of(256)
                    && segments <= 16
                {
                    all.push(Line { rounds: 5, ..line });
                }
                all.push(line);
            }
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
            let work = line.work(desc, &params, caps);
            if !out.iter().any(|o| o.0 == work) {
                out.push((work, params));
            }
        }
    }
    out.into_iter().map(|o| o.1).collect()
}

pub(crate) fn pillar_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut out: Vec<(u64, Params)> = Vec::new();
    let aligned =
        (1u32 << desc.align.min(4)) / (desc.dtype.bytes() as u32).min(1 << desc.align.min(4));
    // Vectors where columns start anywhere, too: they are read in pieces, of many rows at once.
    let most = widest(desc.dtype).min(4);
    let vecs = [aligned.clamp(1, most), most, 2, 1];
    for vec in vecs.into_iter().filter(|v| *v <= most) {
        for threads in [128, 64] {
            let params = Params::new("pillar").with("threads", threads).with("vec", vec);
            let busy = |t: u32| params.with("busy", t / threads);
            // Every segment by itself, too: as many parts as any row can have.
            let all = [busy(512), busy(1024), params.with("split", 256), params.with("split", 1)];
            let whole = worth_whole(desc, caps, (threads * vec).into(), 1);
            for params in all.into_iter().take(if whole { 4 } else { 3 }) {
                if pillar_legal(desc, &params, caps).is_ok() {
                    let work = OWN[1].work(desc, &params, caps);
                    if !out.iter().any(|o| o.0 == work) {
                        out.push((work, params));
                    }
                }
            }
        }
    }
    out.into_iter().map(|o| o.1).collect()
}
