//! Bainville's two stages. The text is `bainville.k`.

use gemv_core::{Arg, Desc, Params, Values};
use gemv_gpu::{Caps, Kernel, Plan, Signature, limits, source, value};

use crate::common::{self, VEC, launch};

pub(crate) const STAGES: Kernel = Kernel {
    name: "classic-stages",
    about: "Bainville: P threads a row, partial sums in an m x P array, and a kernel that adds them.",
    source: source![common::SOURCE, include_str!("bainville.k")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: false,
    candidates,
    legal,
    plan: |desc, params, _| plan(desc, params),
};

const ARGS: &[Arg] = &[
    Arg {
        name: "block",
        about: "Threads of a block, each with rows of its own.",
        values: Values::Powers(16, 1024),
        default: 128,
        define: Some("THREADS"),
    },
    Arg {
        name: "parts",
        about: "P: parts of a row's columns, each of another block.",
        values: Values::Range(1, 4096),
        default: 4,
        define: Some("PARTS"),
    },
    Arg {
        name: "op",
        about: "The inner step: 0 multiplies and adds, 1 is fma, 2 is mad.",
        values: Values::OneOf(&[0, 1, 2]),
        default: 1,
        define: Some("OP"),
    },
    VEC,
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let local = u64::from(value(ARGS, params, "block")) * desc.vectors.acc_bytes() as u64;
    limits(&plan(desc, params), caps, local)
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let (block, parts, m) = (get("block"), get("parts"), desc.m as u64);
    Plan {
        launches: vec![
            launch("bainville", [m.div_ceil(block * get("vec")), parts], block as u32),
            launch("bainville_rows", [m.div_ceil(64), 1], 64),
        ],
        workspace: m * parts,
        counters: 0,
    }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    for op in [1, 0, 2] {
        for parts in [4, 1, 2, 8, 16, 32, 64] {
            for block in [128, 32, 64, 256] {
                for vec in [1, 2, 4, 8] {
                    let params = Params::new(STAGES.name).with("block", block);
                    all.push(params.with("parts", parts).with("op", op).with("vec", vec));
                }
            }
        }
    }
    all.retain(|p| STAGES.fits(desc, p, caps).is_ok());
    all
}
