//! C. Nugteren's SGEMM tutorial, kernels 1 to 4, for several right-hand sides and batches. The text is
//! `nugteren.k`.

use gemv_core::{Arg, Desc, Params, Values};
use gemv_gpu::{Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, limits, source, value};

use crate::common;

pub(crate) const NAIVE: Kernel = Kernel {
    name: "classic-sgemm-1",
    about: "Nugteren's SGEMM tutorial, kernel 1: a thread an entry of Y, nothing is shared.",
    source: source![GEMM_PRELUDE, common::SOURCE, include_str!("nugteren.k")],
    args: &[TS],
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: false,
    candidates: |desc, caps| candidates(&NAIVE, &[], desc, caps),
    legal: |desc, params, caps| legal(&NAIVE, desc, params, caps),
    plan: |desc, params, _| plan("sgemm_naive", desc, params),
};
pub(crate) const TILED: Kernel = Kernel {
    name: "classic-sgemm-2",
    about: "Nugteren's SGEMM tutorial, kernel 2: tiles of A and X in shared memory.",
    candidates: |desc, caps| candidates(&TILED, &[], desc, caps),
    legal: |desc, params, caps| legal(&TILED, desc, params, caps),
    plan: |desc, params, _| plan("sgemm_tiled", desc, params),
    ..NAIVE
};
pub(crate) const WORK: Kernel = Kernel {
    name: "classic-sgemm-3",
    about: "Nugteren's SGEMM tutorial, kernel 3: kernel 2 with several entries of Y a thread.",
    args: &[TS, WPT],
    candidates: |desc, caps| candidates(&WORK, &[WPT], desc, caps),
    legal: |desc, params, caps| legal(&WORK, desc, params, caps),
    ..TILED
};
pub(crate) const WIDE: Kernel = Kernel {
    name: "classic-sgemm-4",
    about: "Nugteren's SGEMM tutorial, kernel 4: kernel 2 with wider data types.",
    args: &[TS, WIDTH],
    candidates: |desc, caps| candidates(&WIDE, &[WIDTH], desc, caps),
    legal: |desc, params, caps| legal(&WIDE, desc, params, caps),
    ..TILED
};

const TS: Arg = Arg {
    name: "ts",
    about: "Rows and columns of a tile.",
    values: Values::Powers(4, 32),
    default: 16,
    define: Some("TS"),
};
const WPT: Arg = Arg {
    name: "wpt",
    about: "Columns of a thread: its work, in entries of Y.",
    values: Values::Powers(1, 32),
    default: 1,
    define: Some("WPT"),
};
const WIDTH: Arg = Arg {
    name: "width",
    about: "Neighbouring rows of a thread, by loads of at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("WIDTH"),
};

fn threads(params: &Params) -> u32 {
    let get = |arg: Arg| value(&[arg], params, arg.name).max(1);
    let ts = get(TS);
    (ts / get(WIDTH)) * (ts / get(WPT))
}

fn legal(kernel: &Kernel, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let ts = value(&[TS], params, "ts");
    for arg in [WPT, WIDTH] {
        let value = value(&[arg], params, arg.name);
        if value > ts {
            return Err(format!("{}={value} is more than ts={ts}", arg.name));
        }
    }
    // Both entry points are in the text.
    let local = 2 * u64::from(ts * ts) * desc.vectors.acc_bytes() as u64;
    limits(&(kernel.plan)(desc, params, caps), caps, local)
}

fn plan(entry: &'static str, desc: &Desc, params: &Params) -> Plan {
    let tiles = |of: usize| (of as u64).div_ceil(value(&[TS], params, "ts").into());
    let blocks = tiles(desc.m).saturating_mul(tiles(desc.rhs)).saturating_mul(desc.batch as u64);
    Plan { launches: vec![Launch::new(entry, blocks, threads(params))], ..Plan::default() }
}

/// Every tile with every value of the other argument.
fn candidates(kernel: &Kernel, args: &[Arg], desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all: Vec<_> = [16, 32, 8, 4].map(|ts| Params::new(kernel.name).with("ts", ts)).into();
    for arg in args {
        let with = |params: &Params| [4, 2, 8, 1].map(|value| params.with(arg.name, value));
        all = all.iter().flat_map(with).collect();
    }
    all.retain(|params| kernel.fits(desc, params, caps).is_ok());
    all
}
