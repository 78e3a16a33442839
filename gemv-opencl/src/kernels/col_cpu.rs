//! `col-cpu` and `strided-col-cpu`: a work-item with a band of rows, column by column. The text is
//! `col_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Plan, REDUCE_SOURCE, Signature, source, value};

use super::wide::{self, BLOCKS_PER_SM, PREFETCH, ROWS, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[
    COL,
    Kernel {
        name: "strided-col-cpu",
        about: "Any strides on CPUs: as col-cpu, by loads of one element.",
        candidates: |desc, caps| candidates("strided-col-cpu", Layout::Strided, desc, caps),
        ..COL
    },
];

const COL: Kernel = Kernel {
    name: "col-cpu",
    about: "Column-major matrices on CPUs: a work-item computes a tile of rows, up to 16 columns a \
            pass.",
    source: source![wide::SOURCE, wide::TREE, include_str!("col_cpu.cl"), REDUCE_SOURCE],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates: |desc, caps| candidates("col-cpu", Layout::Col, desc, caps),
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    Arg {
        name: "tile_m",
        about: "Rows of a tile, whose partial sums a work-item has in private memory.",
        values: Values::Multiples(16, 16, 4096),
        default: 512,
        define: Some("TILE_M"),
    },
    PREFETCH,
    BLOCKS_PER_SM,
    SPLIT_K,
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let tile_m = value(ARGS, params, "tile_m");
    // Two stacks of seven and one vector, in the private memory of one item.
    let bytes = 15 * (tile_m as usize + 2 * ROWS) * desc.vectors.acc_bytes();
    if bytes > wide::PRIVATE {
        return Err(format!("tile_m={tile_m} takes {bytes} bytes of private memory"));
    }
    wide::legal(caps)
}

fn tile(params: &Params) -> usize {
    value(ARGS, params, "tile_m") as usize
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    wide::plan((ARGS, "col_cpu", ROWS, tile(params)), desc, params, caps)
}

fn candidates(kernel: &'static str, layout: Layout, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let shape = |(tile_m, prefetch, blocks)| {
        let params = Params::new(kernel).with("tile_m", tile_m).with("prefetch", prefetch);
        params.with("blocks_per_sm", blocks)
    };
    // Loads of one element ask for nothing.
    let all = [(1024, 0, 1), (1024, 0, 4), (1024, 512, 4), (4096, 512, 1), (4096, 512, 4)];
    let shapes = if layout == Layout::Col { &all[..] } else { &all[..2] };
    let shapes: Vec<Params> = shapes.iter().copied().map(shape).collect();
    wide::candidates((layout, tile), &shapes, desc, caps, legal)
}
