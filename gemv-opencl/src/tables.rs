//! The built-in tables.

use gemv_core::BuiltinTable;

use crate::discover::Found;

pub(crate) const DEFAULT: BuiltinTable =
    BuiltinTable { name: "opencl/default.txt", text: include_str!("../tables/default.txt") };
pub(crate) const POCL: BuiltinTable =
    BuiltinTable { name: "opencl/pocl.txt", text: include_str!("../tables/pocl.txt") };
pub(crate) const NVIDIA: BuiltinTable =
    BuiltinTable { name: "opencl/nvidia.txt", text: include_str!("../tables/nvidia.txt") };

/// Those for a device, the most specific first.
pub(crate) fn tables(found: &Found) -> Vec<BuiltinTable> {
    match (found.caps.cpu, found.info.vendor.as_str()) {
        // The kernels for CPUs suit every CPU runtime.
        (true, _) => vec![POCL, DEFAULT],
        (_, "nvidia") => vec![NVIDIA, DEFAULT],
        _ => vec![DEFAULT],
    }
}
