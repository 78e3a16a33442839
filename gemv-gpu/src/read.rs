//! The pass that only reads: what a product is held against.

use crate::{Arg, Caps, Kernel, Launch, Plan, value};
use gemv_core::{Desc, Dtype, Layout, Params};

pub(crate) const KERNELS: &[Kernel] = &[Kernel {
    name: "read",
    about: "",
    source: include_str!("../kernels/read.k"),
    args: ARGS,
    defines: &[],
    ordered: false,
    // Nothing that multiplies: for Backend::read_params alone.
    candidates: |_, _| Vec::new(),
    legal,
    plan,
}];

/// Threads of a block, vectors that each has under way, whether a block reads one piece of the
/// matrix (1) or all blocks go through it together (0), blocks a compute unit.
const ARGS: &[Arg] = &[
    crate::compiled("threads", 256, "THREADS"),
    crate::compiled("unroll", 4, "UNROLL"),
    crate::compiled("pieces", 1, "PIECES"),
    crate::launched("groups", 8),
];

/// The passes that are worth trying on such a device; the fastest is the roof.
///
/// ```
/// use gemv_gpu::{Caps, Language, read_params};
/// let passes = read_params(&Caps::new(Language::OpenCl)); // at most 64 threads a block
/// assert!(passes.iter().all(|p| !p.keeps_order() && p.get_or("threads", 1) <= 64));
/// ```
pub fn read_params(caps: &Caps) -> Vec<Params> {
    let pass =
        |threads, groups| Params::new("read").with("threads", threads).with("groups", groups);
    let all = match caps.cpu {
        true => vec![pass(1, 1), pass(1, 4), pass(16, 4), pass(64, 8)],
        // What it takes to be the fastest differs from a megabyte to a gigabyte.
        false => {
            let mut all = Vec::new();
            for unroll in [4, 8] {
                for threads in [128, 256, 512] {
                    for groups in [1, 2, 4, 8] {
                        let pass = pass(threads, groups);
                        all.push(pass.with("unroll", unroll).with("pieces", 0));
                    }
                }
            }
            all
        }
    };
    all.into_iter().filter(|p| p.get_or("threads", 1) <= caps.max_group).collect()
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if (desc.dtype, desc.layout) != (Dtype::F32, Layout::Row) {
        return Err("bandwidth is read from a row-major f32 matrix".into());
    }
    if desc.align < 4 || !(desc.m * desc.n).is_multiple_of(4) {
        return Err("bandwidth is read in whole vectors of 16 bytes".into());
    }
    let (threads, groups) = (value(ARGS, params, "threads"), value(ARGS, params, "groups"));
    if !(1..=caps.max_group).contains(&threads) || groups == 0 {
        return Err(format!("{threads} threads, {groups} blocks a unit"));
    }
    let (unroll, pieces) = (value(ARGS, params, "unroll"), value(ARGS, params, "pieces"));
    if !(1..=16).contains(&unroll) || pieces > 1 {
        return Err(format!("unroll={unroll} is not from 1 to 16, or pieces={pieces} not 0 or 1"));
    }
    Ok(())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let (threads, groups) = (value(ARGS, params, "threads"), value(ARGS, params, "groups"));
    let most = (desc.m as u64 * desc.n as u64).div_ceil(4 * u64::from(threads)).max(1);
    let blocks = (u64::from(groups) * u64::from(caps.units.max(1))).min(most);
    let launch = Launch::new("read_bandwidth", blocks, threads);
    Plan { launches: vec![launch], workspace: 0, counters: 0 }
}
