//! `row-cpu` and `strided-cpu`: a work-item with a band of rows. The text is `row_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Plan, REDUCE_SOURCE, Signature, source};

use super::wide::{self, BLOCKS_PER_SM, PREFETCH, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[
    ROW,
    Kernel {
        name: "strided-cpu",
        about: "Any strides on CPUs: as row-cpu, by loads of one element.",
        candidates: |desc, caps| candidates("strided-cpu", Layout::Strided, desc, caps),
        ..ROW
    },
];

const ROW: Kernel = Kernel {
    name: "row-cpu",
    about: "Row-major matrices on CPUs: a work-item computes a few rows at a time by vectors of \
            16 lanes.",
    source: source![wide::SOURCE, include_str!("row_cpu.cl"), REDUCE_SOURCE],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates: |desc, caps| candidates("row-cpu", Layout::Row, desc, caps),
    legal: |_, _, caps| wide::legal(caps),
    plan,
};

const ARGS: &[Arg] = &[
    Arg {
        name: "rows",
        about: "Rows that a work-item computes at a time.",
        values: Values::Powers(1, 4),
        default: 4,
        define: Some("ROWS"),
    },
    PREFETCH,
    BLOCKS_PER_SM,
    SPLIT_K,
];

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    wide::plan((ARGS, "row_cpu", 1, 1), desc, params, caps)
}

fn candidates(kernel: &'static str, layout: Layout, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let shape = |(rows, prefetch, blocks)| {
        let params = Params::new(kernel).with("rows", rows).with("prefetch", prefetch);
        params.with("blocks_per_sm", blocks)
    };
    // Loads of one element ask for nothing.
    let all = [(4, 0, 4), (4, 0, 1), (1, 0, 4), (4, 1024, 4)];
    let shapes = if layout == Layout::Row { &all[..] } else { &all[..3] };
    let shapes: Vec<Params> = shapes.iter().copied().map(shape).collect();
    wide::candidates((layout, |_| 1), &shapes, desc, caps, |_, _, caps| wide::legal(caps))
}
