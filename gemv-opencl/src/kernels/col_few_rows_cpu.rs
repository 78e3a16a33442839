//! `col-few-rows-cpu`: few rows by columns, a work-item with a part of the segments. The text is
//! `col_few_rows_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, REDUCE_SOURCE, Signature, Split, source, value};

use super::wide::{self, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "col-few-rows-cpu",
    about: "Column-major matrices of few rows on CPUs: a work-item reads whole segments in the order of \
            memory, all rows at a time.",
    source: source![wide::SOURCE, include_str!("col_few_rows_cpu.cl"), REDUCE_SOURCE],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
}];

const ARGS: &[Arg] = &[
    Arg {
        name: "max_m",
        about: "Most rows, whose lanes a work-item has in private memory.",
        values: Values::Powers(4, MOST),
        default: 16,
        define: Some("MAX_M"),
    },
    Arg {
        name: "vec",
        about: "Rows of a vector.",
        values: Values::Powers(4, 16),
        default: 16,
        define: Some("W"),
    },
    Arg {
        name: "streams",
        about: "Columns that are read together: 1 reads in the order of memory, 8 the columns of two lanes.",
        values: Values::OneOf(&[1, 8]),
        default: 1,
        define: Some("STREAMS"),
    },
    Arg {
        name: "prefetch_next",
        about: "Whether each load asks for the same element of the next segment: 0 or 1.",
        values: Values::Range(0, 1),
        default: 0,
        define: Some("PREFETCH_NEXT"),
    },
    SPLIT_K,
];

/// Rows of the tallest matrix.
const MOST: u32 = 1024;
/// Parts of a row for each compute unit: the last ones to end are short.
const PARTS: u32 = 64;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    let [max_m, vec] = ["max_m", "vec"].map(|name| value(ARGS, params, name));
    if desc.m > max_m as usize {
        return Err(format!("{} rows are more than max_m={max_m}", desc.m));
    }
    if max_m < vec {
        return Err(format!("max_m={max_m} is less than vec={vec}"));
    }
    // Two arrays of lanes, in the private memory of one item.
    let bytes = 128 * max_m as usize * desc.vectors.acc_bytes();
    if bytes > wide::PRIVATE {
        return Err(format!("max_m={max_m} takes {bytes} bytes of private memory"));
    }
    Ok(())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let split = match value(ARGS, params, "split_k") {
        0 => PARTS * caps.units,
        split => split,
    };
    let split = Split::of(desc.n, split);
    let m = desc.m as u64;
    let grid = [1, split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new("col_few_rows_cpu", 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Col || desc.m > MOST as usize {
        return Vec::new();
    }
    // The shorter vectors where they leave fewer rows of the last one empty.
    let m = desc.m.max(1);
    let vec = match m {
        ..=4 => 4,
        _ if m.next_multiple_of(8) < m.next_multiple_of(16) => 8,
        _ => 16,
    };
    let max_m = (m.next_power_of_two() as u32).max(vec);
    let shape = |(streams, next, split)| {
        let params = Params::new("col-few-rows-cpu").with("max_m", max_m).with("vec", vec);
        params.with("streams", streams).with("prefetch_next", next).with("split_k", split)
    };
    let mut all: Vec<Params> = [(8, 1, 0), (1, 0, 0), (8, 1, 1)].into_iter().map(shape).collect();
    all.retain(|p| legal(desc, p, caps).is_ok());
    all
}
