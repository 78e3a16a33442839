//! `col-thread`: column-major matrices of up to 64 columns; a thread has whole rows.

use gemv_gpu::rules::*;
use gemv_gpu::{Kernel, Launch, List};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-thread",
    about: "A thread computes whole rows by itself: column-major, up to 64 columns.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_thread.cu")),
    args: COLUMNS_OF_THREADS,
    rules: COLUMNS_HELD,
    candidates: &[
        List::Value("threads", |_| 128),
        List::Value("max_n", |of| of.n().next_power_of_two()),
        List::Values("vec", |of| vec![of.aligned(), 1]),
        List::Values("rows", |of| if of.get("vec") > 1 { vec![1, 2] } else { vec![1, 2, 4] }),
        // More than 32 bytes of a column a thread leaves too few threads.
        List::Only(|of| of.get("rows") * of.get("vec") * of.bytes() <= 32),
        List::Once,
    ],
    plan: |of| {
        let [threads, rows, vec] = of.all(["threads", "rows", "vec"]);
        let blocks = of.m().div_ceil(threads * rows * vec);
        Launch::new("col_thread", blocks, threads).waiting().into()
    },
    ..Kernel::GEMV
};

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Col, (1000, few), align);
                    let all = KERNEL.candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(0..=64).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (9, 100), 4);
        for (desc, text, part) in [
            (col, "col-thread", "0 to 64 columns, not 100"),
            (Desc { n: 60, ..col }, "col-thread rows=4 vec=4", "more than 64"),
            (col, "col-thread max_n=128", "max_n=128 is not a power of two from 1 to 64"),
            (Desc { layout: Layout::Row, ..col }, "col-thread", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
