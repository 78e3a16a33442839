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

/// A table, and for which GPUs.
#[derive(Clone, Copy)]
pub(crate) struct TableFor {
    /// Of this compute capability; `None` for every one.
    pub(crate) capability: Option<u32>,
    /// With this in the device's name.
    name: &'static str,
    pub(crate) table: BuiltinTable,
}

/// All of them, the most specific first.
pub(crate) const ALL: [TableFor; 4] = [
    TableFor { capability: Some(90), name: "H100", table: table!("h100.txt") },
    TableFor { capability: Some(90), name: "", table: table!("h200.txt") },
    TableFor { capability: None, name: "", table: table!("nvidia.txt") },
    TableFor { capability: None, name: "", table: table!("default.txt") },
];

/// Those for a device, the most specific first.
pub(crate) fn of(info: &DeviceInfo) -> Vec<BuiltinTable> {
    let is_for = |capability| info.arch == format!("sm_{capability}");
    let mine = ALL.into_iter().filter(|shipped| {
        shipped.capability.is_none_or(is_for) && info.name.contains(shipped.name)
    });
    mine.map(|shipped| shipped.table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::{Desc, Dtype, Layout, Table};

    use crate::backend::infos;
    use crate::candidates::candidates;
    use crate::kernels::kernel;

    #[test]
    fn every_table_is_well_formed_and_every_row_is_legal_somewhere_in_its_range() {
        let mut info = DeviceInfo::new("cuda:0");
        info.arch = "sm_90".into();
        let mut tables = |name: &str| {
            info.name = name.into();
            of(&info)
        };
        let caps = crate::testing::caps();
        assert_eq!(tables("NVIDIA H200").len(), 3);
        let all = tables("NVIDIA H100 80GB HBM3");
        assert_eq!(all.len(), 4);
        for table in &all {
            for row in Table::parse(table.name, table.text).unwrap().rows {
                let kernel = kernel(row.params.kernel().as_str()).expect(table.name);
                let fit = |desc: Desc| match row.choice(&candidates(&desc, &caps)) {
                    Some(params) => kernel.fits(&desc, &params, &caps),
                    None => Err("no candidate has these arguments".into()),
                };
                let fits: Vec<_> = row.examples().map(fit).collect();
                // A row for every type or layout does not claim to fit each of them.
                let all = row.dtype.is_some() && row.layout.is_some() && !row.partial;
                let legal = fits.iter().filter(|fit| fit.is_ok()).count();
                let enough = if all { legal == fits.len() } else { legal > 0 };
                assert!(enough, "{}: {row}: {fits:?}", table.name);
            }
        }
        let last = Table::parse("default", all[3].text).unwrap();
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                let desc = Desc::of(dtype, layout, (1, 1), 0);
                assert!(!last.nearest(&desc).is_empty());
            }
        }
    }

    /// With it, `gemv info --explain` says whether the kernel of a row has changed since it was tuned.
    #[test]
    fn the_headers_of_tuned_tables_have_a_fingerprint_of_each_kernel() {
        let tuned = ALL.into_iter().filter(|shipped| shipped.capability.is_some());
        let tables = tuned.map(|of| Table::parse(of.table.name, of.table.text).unwrap());
        let tables: Vec<_> = tables.collect();
        let infos: Vec<_> = infos().collect();
        for (table, row) in
            tables.iter().flat_map(|table| table.rows.iter().map(move |r| (table, r)))
        {
            let kernel = row.params.kernel();
            let mut infos = infos.iter();
            let info = infos.find(|info| info.name == kernel.as_str()).expect("an ordered kernel");
            let tuned = table.header(&format!("kernel {kernel}")).unwrap_or_else(|| {
                panic!("no line for {kernel}, whose fingerprint is {}", info.fingerprint)
            });
            assert_eq!(tuned.len(), info.fingerprint.len(), "{kernel}");
        }
    }
}
