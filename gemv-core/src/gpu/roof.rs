//! The pass that only reads: what a product is held against.

use super::{Arg, Caps, Kernel, Launch, Plan, value};
use crate::{Desc, Dtype, Layout, Params};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "roof",
    source: include_str!("../../kernels/roof.k"),
    args: ARGS,
    defines: &[],
    ordered: false,
    // Nothing that multiplies: for Backend::roof alone.
    candidates: |_, _| Vec::new(),
    legal,
    plan,
}];

/// Threads of a block, blocks a compute unit.
const ARGS: &[Arg] = &[Arg::compiled("threads", 256, "THREADS"), Arg::launched("groups", 8)];

/// The passes that are worth trying on such a device; the fastest is the roof.
pub fn roof(caps: &Caps) -> Vec<Params> {
    let pass =
        |threads, groups| Params::new("roof").with("threads", threads).with("groups", groups);
    let all = match caps.cpu {
        true => vec![pass(1, 1), pass(1, 4), pass(16, 4), pass(64, 8)],
        false => vec![pass(128, 8), pass(256, 4), pass(256, 8), pass(512, 4), pass(1024, 2)],
    };
    all.into_iter().filter(|p| p.get_or("threads", 1) <= caps.max_group).collect()
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if (desc.dtype, desc.layout) != (Dtype::F32, Layout::Row) {
        return Err("the roof is read from a row-major f32 matrix".into());
    }
    if desc.align < 4 || !(desc.m * desc.n).is_multiple_of(4) {
        return Err("the roof is read in whole vectors of 16 bytes".into());
    }
    let (threads, groups) = (value(ARGS, params, "threads"), value(ARGS, params, "groups"));
    if !(1..=caps.max_group).contains(&threads) || groups == 0 {
        return Err(format!("{threads} threads, {groups} blocks a unit"));
    }
    Ok(())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let (threads, groups) = (value(ARGS, params, "threads"), value(ARGS, params, "groups"));
    let most = (desc.m as u64 * desc.n as u64).div_ceil(4 * u64::from(threads)).max(1);
    let blocks = (u64::from(groups) * u64::from(caps.units.max(1))).min(most);
    let launch = Launch { entry: "roof", grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 };
    Plan { launches: vec![launch], work: 0, counters: 0 }
}
