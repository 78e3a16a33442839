//! The kernels of the course SDS 406. The text is `sds406.k`.

use gemv_core::{Arg, Desc, Params, Values};
use gemv_gpu::{Caps, Kernel, Plan, Signature, limits, source, value};

use crate::common::{self, VEC, launch};

pub(crate) const BLOCK: Kernel = Kernel {
    name: "classic-block",
    about: "SDS 406: a block a row.",
    source: source![common::SOURCE, include_str!("sds406.k")],
    args: &[THREADS, VEC],
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: false,
    candidates: |desc, caps| candidates(&BLOCK, "vec", &[1, 2, 4, 8], desc, caps),
    legal: |desc, params, caps| legal(&BLOCK, desc, params, caps),
    plan: |desc, params, _| plan("block_row", 1, desc, params),
};
pub(crate) const BLOCK_X: Kernel = Kernel {
    name: "classic-block-x",
    about: "SDS 406: a block has several rows, and x goes through shared memory.",
    args: &[THREADS, ROWS],
    candidates: |desc, caps| candidates(&BLOCK_X, "rows", &[1, 4, 8], desc, caps),
    legal: |desc, params, caps| legal(&BLOCK_X, desc, params, caps),
    plan: |desc, params, _| plan("block_x", value(&[ROWS], params, "rows"), desc, params),
    ..BLOCK
};
pub(crate) const TILE: Kernel = Kernel {
    name: "classic-tile",
    about: "SDS 406: a 2-D block multiplies tiles of A and x in shared memory.",
    args: &[THREADS, TY],
    candidates: |desc, caps| candidates(&TILE, "ty", &[1, 4, 8, 16], desc, caps),
    legal: |desc, params, caps| {
        let (block, ty) = (value(TILE.args, params, "block"), value(TILE.args, params, "ty"));
        if ty > block {
            return Err(format!("ty={ty} is more than block={block}"));
        }
        legal(&TILE, desc, params, caps)
    },
    plan: |desc, params, _| plan("block_tile", value(&[TY], params, "ty"), desc, params),
    ..BLOCK
};

const THREADS: Arg = Arg {
    name: "block",
    about: "Threads of a block.",
    values: Values::Powers(16, 1024),
    default: 128,
    define: Some("THREADS"),
};
const ROWS: Arg = Arg {
    name: "rows",
    about: "Rows of a block.",
    values: Values::Range(1, 32),
    default: 4,
    define: Some("ROWS"),
};
const TY: Arg = Arg {
    name: "ty",
    about: "Rows of a block, and of a tile.",
    values: Values::Powers(1, 1024),
    default: 4,
    define: Some("TY"),
};

fn legal(kernel: &Kernel, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    // The text has three entry points; the one with most local memory counts.
    let block = u64::from(value(kernel.args, params, "block"));
    let local = 2 * block * desc.vectors.acc_bytes() as u64;
    limits(&(kernel.plan)(desc, params, caps), caps, local)
}

fn plan(entry: &'static str, rows: u32, desc: &Desc, params: &Params) -> Plan {
    let blocks = (desc.m as u64).div_ceil(rows.into());
    let threads = value(&[THREADS], params, "block");
    Plan { launches: vec![launch(entry, [blocks, 1], threads)], ..Plan::default() }
}

fn candidates(
    kernel: &Kernel,
    name: &'static str,
    values: &[u32],
    desc: &Desc,
    caps: &Caps,
) -> Vec<Params> {
    let mut all = Vec::new();
    for block in [128, 32, 64, 256, 512, 1024] {
        let params = Params::new(kernel.name).with("block", block);
        all.extend(values.iter().map(|&value| params.with(name, value)));
    }
    all.retain(|p| kernel.fits(desc, p, caps).is_ok());
    all
}
