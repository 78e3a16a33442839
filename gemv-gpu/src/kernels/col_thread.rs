//! `col-thread`: column-major matrices of up to 64 columns on GPUs; a thread has whole rows. The text is `col_thread.k`.

use super::WHOLE_ROWS;
use crate::rules::*;
use crate::{Kernel, Language, Launch, List, source};

/// The kernel `col-thread`, but for the words for vectors that its text needs: a backend puts its own before it.
///
/// ```
/// assert!(gemv_gpu::COL_THREAD.source.contains("KERNEL(THREADS) col_thread(ARGUMENTS)"));
/// ```
pub const COL_THREAD: Kernel = Kernel {
    name: "col-thread",
    about: "A thread computes whole rows by itself, on GPUs: column-major, up to 64 columns.",
    source: source![WHOLE_ROWS, include_str!("col_thread.k")],
    args: COLUMNS_OF_THREADS,
    rules: COLUMNS_HELD,
    candidates: &[
        ON_GPUS,
        List::Value("threads", |_| 128),
        List::Value("max_n", |of| of.n().next_power_of_two()),
        List::Values("vec", |of| vec![of.aligned(), 1]),
        // No table of CUDA has four vectors.
        List::Values("rows", |of| match (of.caps.language, of.get("vec")) {
            (Language::Cuda, 2..) => vec![1, 2],
            _ => vec![1, 2, 4],
        }),
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
    use crate::Caps;

    fn caps() -> Caps {
        let mut caps = Caps::new(Language::Cuda);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps
    }

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Col, (1000, few), align);
                    let all = COL_THREAD.candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(0..=64).contains(&few), "{desc}");
                    for params in all {
                        COL_THREAD.fits(&desc, &params, &caps()).unwrap();
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
            let why = COL_THREAD.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
