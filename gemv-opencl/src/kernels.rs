//! The kernels that only OpenCL has: work-groups of one item for CPUs.

use gemv_core::order::SEGMENT;
use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{self as gpu, Arg, Caps, Kernel, Launch, Plan, REDUCE_SOURCE, Split};

/// `concat!` takes literals only, so the texts are joined where a program is made.
const ROW: &str =
    concat!(include_str!("../kernels/wide.cl"), include_str!("../kernels/row_cpu.cl"),);
const COL: &str =
    concat!(include_str!("../kernels/wide.cl"), include_str!("../kernels/col_cpu.cl"),);

/// Rows at a time, work-groups a compute unit, work-groups a row (0: more than one where there are
/// too few rows for every compute unit).
const ROW_ARGS: &[Arg] = &[
    gemv_gpu::compiled("rows", 4, "ROWS"),
    gemv_gpu::launched("groups", 4),
    gemv_gpu::launched("split", 0),
];
/// Rows of a block, work-groups a compute unit, work-groups a row (0: as above).
const COL_ARGS: &[Arg] = &[
    gemv_gpu::compiled("block", 512, "BLOCK"),
    gemv_gpu::launched("groups", 4),
    gemv_gpu::launched("split", 0),
];

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "row-cpu",
        about: "",
        source: ROW,
        args: ROW_ARGS,
        defines: &[],
        ordered: true,
        candidates: |desc, caps| {
            of_layout(desc, Layout::Row, row_candidates("row-cpu", desc, caps))
        },
        legal: |desc, params, caps| row_legal(desc, params, caps),
        plan: |desc, params, caps| plan(ROW_ARGS, "row_cpu", desc, params, caps),
    },
    Kernel {
        name: "col-cpu",
        about: "",
        source: COL,
        args: COL_ARGS,
        defines: &[],
        ordered: true,
        candidates: |desc, caps| {
            of_layout(desc, Layout::Col, col_candidates("col-cpu", desc, caps))
        },
        legal: |desc, params, caps| col_legal(desc, params, caps),
        plan: |desc, params, caps| plan(COL_ARGS, "col_cpu", desc, params, caps),
    },
    Kernel {
        name: "strided-cpu",
        about: "",
        source: ROW,
        args: ROW_ARGS,
        defines: &[],
        ordered: true,
        candidates: |desc, caps| {
            of_layout(desc, Layout::Strided, row_candidates("strided-cpu", desc, caps))
        },
        legal: |desc, params, caps| row_legal(desc, params, caps),
        plan: |desc, params, caps| plan(ROW_ARGS, "row_cpu", desc, params, caps),
    },
    Kernel {
        name: "strided-col-cpu",
        about: "",
        source: COL,
        args: COL_ARGS,
        defines: &[],
        ordered: true,
        candidates: |desc, caps| {
            of_layout(desc, Layout::Strided, col_candidates("strided-col-cpu", desc, caps))
        },
        legal: |desc, params, caps| col_legal(desc, params, caps),
        plan: |desc, params, caps| plan(COL_ARGS, "col_cpu", desc, params, caps),
    },
];

/// The kernel of this name: one of this backend's own, a shared or a published one.
pub(crate) fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|k| k.name == name).or_else(|| gpu::kernel(name))
}

/// Every kernel to choose from: this backend's own, then the shared ones that keep the order.
pub(crate) fn all() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().chain(gpu::kernels())
}

fn of_layout(desc: &Desc, layout: Layout, candidates: Vec<Params>) -> Vec<Params> {
    if desc.layout == layout { candidates } else { Vec::new() }
}

fn arg(args: &[Arg], params: &Params, name: &str) -> u32 {
    let arg = args.iter().find(|a| a.name == name).expect("an argument of this kernel");
    params.get_or(name, arg.default)
}

fn for_cpus(args: &[Arg], params: &Params, caps: &Caps) -> Result<(), String> {
    if !caps.cpu {
        return Err("the kernel is for CPUs".into());
    }
    let (groups, split) = (arg(args, params, "groups"), arg(args, params, "split"));
    if !(1..=64).contains(&groups) {
        return Err(format!("groups={groups} is not from 1 to 64"));
    }
    // The work-groups of a row are the grid's y.
    if split > 65_535 {
        return Err(format!("split={split} is more than 65535"));
    }
    if caps.max_group < 128 {
        return Err(format!("the second launch takes 128 items, the device {}", caps.max_group));
    }
    Ok(())
}

fn row_legal(_: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    match arg(ROW_ARGS, params, "rows") {
        1 | 2 | 4 => for_cpus(ROW_ARGS, params, caps),
        rows => Err(format!("rows={rows} is not 1, 2 or 4")),
    }
}

fn col_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let block = arg(COL_ARGS, params, "block");
    if !block.is_multiple_of(16) || !(16..=4096).contains(&block) {
        return Err(format!("block={block} is not a multiple of 16 from 16 to 4096"));
    }
    // Two stacks of seven and two vectors, in the private memory of one item.
    let bytes = 16 * block as usize * desc.dtype.acc_bytes();
    if bytes > 512 << 10 {
        return Err(format!("block={block} takes {bytes} bytes of private memory"));
    }
    for_cpus(COL_ARGS, params, caps)
}

fn plan(args: &[Arg], entry: &'static str, desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let split = match arg(args, params, "split") {
        0 => splits(desc, caps)[0],
        split => split,
    };
    let split = Split::of(desc.n, split);
    let groups = u64::from(arg(args, params, "groups")) * u64::from(caps.units);
    let m = desc.m as u64;
    let grid = [m.min(groups).max(1), split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new(entry, 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// Work-groups a row, best first: 1 unless there are too few rows for every compute unit.
fn splits(desc: &Desc, caps: &Caps) -> Vec<u32> {
    let segments = desc.n.div_ceil(SEGMENT);
    let units = caps.units as usize;
    // Four parts a unit even out what else the machine does.
    let want = if desc.m >= units { 1 } else { (4 * units).div_ceil(desc.m.max(1)) };
    let want = want.min(segments).clamp(1, 1 << 12);
    if want == 1 { vec![1] } else { vec![want as u32, 1] }
}

/// The same as arguments: 0 where rows are shared, so that a table's row says no count.
fn ways(desc: &Desc, caps: &Caps) -> impl Iterator<Item = u32> {
    splits(desc, caps).into_iter().map(|split| if split == 1 { 1 } else { 0 })
}

fn row_candidates(kernel: &'static str, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    for split in ways(desc, caps) {
        for (rows, groups) in [(4, 4), (4, 1), (1, 4)] {
            let params = Params::new(kernel);
            all.push(params.with("rows", rows).with("groups", groups).with("split", split));
        }
    }
    all.retain(|p| row_legal(desc, p, caps).is_ok());
    all
}

fn col_candidates(kernel: &'static str, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    for split in ways(desc, caps) {
        for (block, groups) in [(1024, 1), (256, 4), (1024, 4)] {
            let params = Params::new(kernel);
            all.push(params.with("block", block).with("groups", groups).with("split", split));
        }
    }
    all.retain(|p| col_legal(desc, p, caps).is_ok());
    all
}

/// The text of a kernel, complete.
pub(crate) fn source(kernel: &Kernel, program: &gpu::Program) -> String {
    if KERNELS.iter().any(|k| k.name == kernel.name) {
        return [&program.source, REDUCE_SOURCE].concat();
    }
    program.source.clone()
}
