//! The built-in tables.

use gemv_core::BuiltinTable;

use crate::discover::Found;

pub(crate) const DEFAULT: BuiltinTable =
    BuiltinTable { name: "opencl/default.txt", text: include_str!("../tables/default.txt") };
pub(crate) const POCL: BuiltinTable =
    BuiltinTable { name: "opencl/pocl.txt", text: include_str!("../tables/pocl.txt") };
pub(crate) const H200: BuiltinTable =
    BuiltinTable { name: "opencl/h200.txt", text: include_str!("../tables/h200.txt") };
pub(crate) const H100: BuiltinTable =
    BuiltinTable { name: "opencl/h100.txt", text: include_str!("../tables/h100.txt") };
pub(crate) const NVIDIA: BuiltinTable =
    BuiltinTable { name: "opencl/nvidia.txt", text: include_str!("../tables/nvidia.txt") };

/// Those for a device, the most specific first.
pub(crate) fn tables(found: &Found) -> Vec<BuiltinTable> {
    match (found.caps.cpu, found.info.vendor.as_str()) {
        // The kernels for CPUs suit every CPU runtime.
        (true, _) => vec![POCL, DEFAULT],
        // The first two have no rows in common: f32 and f64 by rows are in the first, all else is in the second.
        (_, "nvidia") => vec![H200, H100, NVIDIA, DEFAULT],
        _ => vec![DEFAULT],
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::table::Row;
    use gemv_core::{Desc, Dtype, Error, Layout, Table};
    use gemv_gpu::{Caps, Language};

    use super::*;
    use crate::kernels;

    /// NVIDIA's devices are not among those that the tests run on.
    #[test]
    fn nvidias_rows_fit_what_they_name() -> Result<(), Error> {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps.fences = true;
        for table in [H200, H100, NVIDIA] {
            for row in &Table::parse(table.name, table.text)?.rows {
                let kernel = kernels::find(row.params.kernel().as_str()).expect("a kernel's name");
                for desc in row.examples() {
                    assert_eq!(kernel.fits(&desc, &row.params, &caps), Ok(()), "{row}: {desc}");
                }
            }
        }
        Ok(())
    }

    /// The rows of a table are hidden by the tables before it where those have any row for the problem; those that name a number of
    /// right-hand sides or of matrices, by others that do.
    #[test]
    fn every_row_of_the_last_table_is_chosen_for_some_problem() -> Result<(), Error> {
        let parse = |table: &BuiltinTable| Table::parse(table.name, table.text);
        let before = [H200, H100].iter().map(parse).collect::<Result<Vec<_>, Error>>()?;
        for row in &parse(&NVIDIA)?.rows {
            let many = |row: &Row| row.rhs.is_some() || row.batch.is_some();
            let hides = |other: &&Row| many(other) == many(row);
            let free = |desc: &Desc| before.iter().all(|t| !t.nearest(desc).iter().any(hides));
            assert!(row.examples().any(|desc| free(&desc)), "{row}");
        }
        Ok(())
    }

    #[test]
    fn a_gpu_has_candidates_that_fit() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps.fences = true;
        let few = [0, 1, 2, 3, 16, 17, 64, 65, 256, 257, 1000, 5000, 70_000, 1 << 24];
        let mut seen = Vec::new();
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for (m, n) in few.into_iter().flat_map(|m| few.map(|n| (m, n))) {
                    for align in [1, 3, 4, 6] {
                        let desc = Desc::of(dtype, layout, (m, n), align);
                        for kernel in kernels::own() {
                            let all = kernel.candidates(&desc, &caps);
                            assert!(all.len() <= 16, "{desc}: {} of {}", all.len(), kernel.name);
                            for params in all {
                                assert_eq!(kernel.fits(&desc, &params, &caps), Ok(()), "{desc}");
                                seen.push(kernel.name);
                            }
                        }
                    }
                }
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, ["col-thread", "col-tile", "row-block", "row-block-long", "row-smem"]);
    }
}
