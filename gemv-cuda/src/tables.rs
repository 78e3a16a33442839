//! The tables that travel with the crate, and which of them a device has.

use gemv_core::{BuiltinTable, DeviceInfo};

macro_rules! table {
    ($name:literal) => {
        BuiltinTable {
            name: concat!("cuda/", $name),
            text: include_str!(concat!("../tables/", $name)),
        }
    };
}

/// All of them, the most specific first, and the compute capability that each is for; `None` for every one.
pub(crate) const ALL: [(Option<u32>, BuiltinTable); 3] = [
    // An H100 is the same chip beside slower memory: blocks are counted by its own units.
    (Some(90), table!("h200.txt")),
    (None, table!("nvidia.txt")),
    (None, table!("default.txt")),
];

/// Those for a device, the most specific first.
pub(crate) fn of(info: &DeviceInfo) -> Vec<BuiltinTable> {
    let is_for = |capability| info.arch == format!("sm_{capability}");
    let mine = ALL.into_iter().filter(|(capability, _)| capability.is_none_or(is_for));
    mine.map(|(_, table)| table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::{Desc, Dtype, Layout, Table};

    use crate::backend::infos;
    use crate::kernels::kernel;

    #[test]
    fn every_table_is_well_formed_and_every_row_is_legal_somewhere_in_its_range() {
        let mut info = DeviceInfo::new("cuda:0");
        (info.name, info.arch) = ("NVIDIA H200".into(), "sm_90".into());
        let caps = crate::testing::caps();
        let all = of(&info);
        assert_eq!(all.len(), 3);
        for table in &all {
            for row in Table::parse(table.name, table.text).unwrap().rows {
                let kernel = kernel(row.params.kernel().as_str()).expect(table.name);
                let fits: Vec<_> =
                    row.examples().map(|desc| kernel.fits(&desc, &row.params, &caps)).collect();
                // A row for every type or layout does not claim to fit each of them.
                let all = row.dtype.is_some() && row.layout.is_some();
                let legal = fits.iter().filter(|fit| fit.is_ok()).count();
                let enough = if all { legal == fits.len() } else { legal > 0 };
                assert!(enough, "{}: {row}: {fits:?}", table.name);
            }
        }
        let last = Table::parse("default", all[2].text).unwrap();
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                let desc = Desc::of(dtype, layout, (1, 1), 0);
                assert!(!last.nearest(&desc).is_empty());
            }
        }
    }

    /// With it, `gemv info --explain` says whether the kernel of a row has changed since it was tuned.
    #[test]
    fn the_header_of_the_tuned_table_has_a_fingerprint_of_each_kernel() {
        let table = Table::parse("h200.txt", include_str!("../tables/h200.txt")).unwrap();
        for row in &table.rows {
            let kernel = row.params.kernel();
            let info =
                infos().find(|info| info.name == kernel.as_str()).expect("an ordered kernel");
            let tuned = table.header(&format!("kernel {kernel}")).unwrap_or_else(|| {
                panic!("no line for {kernel}, whose fingerprint is {}", info.fingerprint)
            });
            assert_eq!(tuned.len(), info.fingerprint.len(), "{kernel}");
        }
    }
}
