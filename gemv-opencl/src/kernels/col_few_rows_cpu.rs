//! `col-few-rows-cpu`: few rows by columns, a work-item with a part of the segments. The text is
//! `col_few_rows_cpu.cl`.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, REDUCE_SOURCE, Rule, Split, source};

use super::wide::{self, CPU, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "col-few-rows-cpu",
    about: "Column-major matrices of few rows on CPUs: a work-item reads whole segments in the order of \
            memory, all rows at a time.",
    source: source![wide::SOURCE, include_str!("col_few_rows_cpu.cl"), REDUCE_SOURCE],
    args: &[
        compiled(
            "max_m",
            "Most rows, whose lanes a work-item has in private memory.",
            Values::Powers(4, 1024),
            16,
            "MAX_M",
        ),
        compiled("vec", "Rows of a vector.", Values::Powers(4, 16), 16, "W"),
        compiled(
            "streams",
            "Columns that are read together: 1 reads in the order of memory, 8 the columns of two lanes.",
            Values::OneOf(&[1, 8]),
            1,
            "STREAMS",
        ),
        compiled(
            "prefetch_next",
            "Whether each load asks for the same element of the next segment: 0 or 1.",
            Values::Range(0, 1),
            0,
            "PREFETCH_NEXT",
        ),
        SPLIT_K,
    ],
    rules: &[
        CPU,
        Rule::AtMost("rows", |of| of.m(), |of| of.get("max_m")),
        Rule::UpTo(&["vec"], |of| of.get("max_m")),
        // Two arrays of lanes, of one item.
        Rule::AtMost(
            "bytes of private memory",
            |of| 128 * of.get("max_m") * of.acc_bytes(),
            |_| wide::PRIVATE,
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Col),
        // The shorter vectors where they leave fewer rows of the last one empty.
        List::Value("vec", |of| match of.m().max(1) {
            ..=4 => 4,
            m if m.next_multiple_of(8) < m.next_multiple_of(16) => 8,
            _ => 16,
        }),
        List::Value("max_m", |of| of.m().next_power_of_two().max(of.get("vec"))),
        List::Shapes(
            &["streams", "prefetch_next", "split_k"],
            &[&[8, 1, 0], &[1, 0, 0], &[8, 1, 1]],
        ),
    ],
    plan,
    ..Kernel::GEMV
}];

/// Parts of a row for each compute unit: the last ones to end are short.
const PARTS: u32 = 64;

fn plan(of: &Case<'_>) -> Plan {
    let asked = match of.get("split_k") as u32 {
        0 => PARTS * of.caps.units,
        split => split,
    };
    let (m, split) = (of.m(), Split::of(of.desc.n, asked));
    let grid = [1, split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new("col_few_rows_cpu", 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}
