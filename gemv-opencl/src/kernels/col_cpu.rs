//! `col-cpu` and `strided-col-cpu`: a work-item with a band of rows, column by column. The text is
//! `col_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Plan, REDUCE_SOURCE, Signature, source, value};

use super::wide::{self, BLOCKS_PER_SM, SPLIT_K};

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
    about: "Column-major matrices on CPUs: a work-item computes a tile of rows, four columns a \
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
    BLOCKS_PER_SM,
    SPLIT_K,
];

/// Rows of a vector.
const ROWS: usize = 16;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let tile_m = value(ARGS, params, "tile_m");
    // Two stacks of seven and two vectors, in the private memory of one item.
    let bytes = 16 * tile_m as usize * desc.vectors.acc_bytes();
    if bytes > 512 << 10 {
        return Err(format!("tile_m={tile_m} takes {bytes} bytes of private memory"));
    }
    wide::legal(caps)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    wide::plan((ARGS, "col_cpu", ROWS), desc, params, caps)
}

fn candidates(kernel: &'static str, layout: Layout, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let shapes = [(1024, 1), (256, 4), (1024, 4)].map(|(tile_m, blocks)| {
        Params::new(kernel).with("tile_m", tile_m).with("blocks_per_sm", blocks)
    });
    wide::candidates((layout, ROWS), shapes, desc, caps, legal)
}
