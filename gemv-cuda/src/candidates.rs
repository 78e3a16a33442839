//! Which candidates of all kernels are worth trying for a problem: each kernel proposes its own, and
//! those of the shared kernels are thinned where a kernel of this crate is faster.

use gemv_core::{Desc, Layout, Params};
use gemv_gpu::rules::TWO_LEVELS;
use gemv_gpu::{self as gpu, Caps, Kernel, Signature};

use crate::kernels::{OWN, STREAMK_COLUMNS, STREAMK_ROWS, row_columns};

/// The parameters worth trying for a problem, best guess first, each launch once.
///
/// Few of the shared kernels' are left where this crate has its own: those without which some shape
/// was slower on an H200 (`CANDIDATES_ALL=1` and the example `candidates` time all of them).
pub fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let kernels = OWN.iter().chain(gpu::kernels());
    let mut all: Vec<(bool, Params)> = kernels
        .flat_map(|k| of(k, desc, caps).into_iter().map(|p| (k.signature == Signature::Gemm, p)))
        .collect();
    // Those that read A once for several columns come first.
    all.sort_by_key(|(many, _)| !many);
    all.into_iter().map(|(_, params)| params).collect()
}

/// Those of one kernel.
pub(crate) fn of(kernel: &Kernel, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let own = || kernel.candidates(desc, caps);
    if desc.is_mixed() {
        if !kernel.mixed {
            return Vec::new();
        }
        // One thread or two for all lanes of a row have no registers for two types.
        let wider = own().into_iter().map(|p| match p.get("subwarp") {
            Some(1 | 2) => p.with("subwarp", 4),
            _ => p,
        });
        // Of the kernels that take two types, all: those that are faster for one may not.
        return wider.filter(|p| kernel.fits(desc, p, caps).is_ok()).collect();
    }
    if OWN.iter().any(|own| own.name == kernel.name) {
        return own();
    }
    if !kernel.ordered {
        return Vec::new();
    }
    let shared = own();
    let get = |p: &Params, name, default| p.get_or(name, default);
    let by_columns = kernel.args.iter().any(|arg| arg.name == "threads_k");
    match kernel.name {
        // Of several right-hand sides or matrices: there are none for one column.
        _ if kernel.signature == Signature::Gemm => shared.into_iter().take(6).collect(),
        "row" => {
            let some = shared.into_iter().filter(|p| get(p, "subwarp", 32) >= 8);
            // Where there are few rows, `row-streamk` was faster everywhere.
            let (m, n) = (desc.m as u64, desc.n as u64);
            let streamk = m <= STREAMK_ROWS && STREAMK_COLUMNS.contains(&n);
            let longer = n > row_columns(caps) && !streamk;
            some.filter(|p| longer && p.get("split_k").is_none()).collect()
        }
        // `col-tile` was faster on every shape there.
        "col" if desc.n <= 4096 => Vec::new(),
        // Beyond two levels of sums there is no other kernel for columns.
        "col" if desc.n as u64 <= TWO_LEVELS => {
            let good = [(128, 16, 8), (256, 32, 2)];
            let shape = |p: &Params| {
                (get(p, "threads", 0), get(p, "threads_k", 0), get(p, "blocks_per_sm", 0))
            };
            shared.into_iter().filter(|p| good.contains(&shape(p))).collect()
        }
        _ if by_columns => {
            let spills = |p: &Params| get(p, "threads_k", 8) < 8 || get(p, "threads", 256) > 256;
            shared.into_iter().filter(|p| !spills(p)).collect()
        }
        // Any strides, by rows.
        _ => {
            let least = Params::new(kernel.name).with("threads", 128).with("subwarp", 4);
            let some: Vec<_> = shared.into_iter().filter(|p| get(p, "subwarp", 4) >= 4).collect();
            let fits = desc.layout == Layout::Strided && some.is_empty();
            some.into_iter().chain(fits.then_some(least)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::kernels::kernel;
    use crate::testing::caps;

    #[test]
    fn candidates_fit_and_rows_of_any_length_have_some() {
        for dtype in Dtype::ALL {
            for n in (0..300).chain([1000, 65_536, 65_537, 1 << 22, 1 << 31]) {
                for m in [0, 1, 7, 1000, 1 << 22] {
                    for align in [1, 4] {
                        let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                        let own = OWN.iter().map(|k| (k, k.candidates(&desc, &caps())));
                        let own: Vec<_> = own.filter(|(_, all)| !all.is_empty()).collect();
                        assert!(!own.is_empty(), "{desc}");
                        for (kernel, all) in own {
                            for params in all {
                                kernel.fits(&desc, &params, &caps()).unwrap();
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_problem_of_two_types_has_candidates_that_fit() {
        for (dtype, vectors) in Dtype::MIXED {
            for layout in Layout::ALL {
                for (m, n) in
                    [(1, 1), (1 << 22, 8), (7, 300), (1000, 64), (4096, 4096), (3, 1 << 25)]
                {
                    for (rhs, batch) in [(1, 1), (3, 1), (64, 1), (1, 1000)] {
                        let one = Desc::of(dtype, layout, (m, n), 4);
                        let desc = Desc { vectors, rhs, batch, ..one };
                        let all = candidates(&desc, &caps());
                        assert!(!all.is_empty(), "{desc}");
                        for params in all {
                            let kernel = kernel(params.kernel().as_str()).unwrap();
                            kernel.fits(&desc, &params, &caps()).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn few_long_rows_are_split_where_there_are_no_clusters() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (1, 65_536), 4);
        let mut alone = caps();
        alone.cluster = 1;
        let blocks = |caps: &Caps| -> Vec<u64> {
            let fits = |p: &Params| kernel(p.kernel().as_str()).map(|k| k.plan(&desc, p, caps));
            let plans = candidates(&desc, caps).iter().filter_map(fits).collect::<Vec<_>>();
            plans.iter().map(|plan| plan.launches[0].grid[0]).collect()
        };
        for caps in [caps(), alone] {
            assert!(blocks(&caps).into_iter().max() >= Some(8), "{caps:?}");
        }
    }
}
