//! Bainville's two stages. The text is `bainville.k`.

use gemv_core::Values;
use gemv_gpu::rules::compiled;
use gemv_gpu::{Kernel, List, Plan, Rule, source};

use crate::common::{self, VEC, launch};

pub(crate) const STAGES: Kernel = Kernel {
    name: "classic-stages",
    about: "Bainville: P threads a row, partial sums in an m x P array, and a kernel that adds them.",
    source: source![common::SOURCE, include_str!("bainville.k")],
    args: &[
        compiled(
            "block",
            "Threads of a block, each with rows of its own.",
            Values::Powers(16, 1024),
            128,
            "THREADS",
        ),
        compiled(
            "parts",
            "P: parts of a row's columns, each of another block.",
            Values::Range(1, 4096),
            4,
            "PARTS",
        ),
        compiled(
            "op",
            "The inner step: 0 multiplies and adds, 1 is fma, 2 is mad.",
            Values::OneOf(&[0, 1, 2]),
            1,
            "OP",
        ),
        VEC,
    ],
    ordered: false,
    rules: &[Rule::Local(|of| of.get("block") * of.acc_bytes())],
    candidates: &[
        List::Values("op", |_| vec![1, 0, 2]),
        List::Values("parts", |_| vec![4, 1, 2, 8, 16, 32, 64]),
        List::Values("block", |_| vec![128, 32, 64, 256]),
        List::Values("vec", |_| vec![1, 2, 4, 8]),
    ],
    plan: |of| {
        let ([block, parts, vec], m) = (of.all(["block", "parts", "vec"]), of.m());
        let launches = vec![
            launch("bainville", [m.div_ceil(block * vec), parts], block),
            launch("bainville_rows", [m.div_ceil(64), 1], 64),
        ];
        Plan { launches, workspace: m * parts, counters: 0 }
    },
    ..Kernel::GEMV
};
