//! The shipped tables are well formed and legal.

use gemv_core::{Desc, Dtype, Layout, Table};

#[test]
fn every_row_is_legal_and_every_problem_has_one() {
    for isa in gemv_cpu::isas() {
        let backend = gemv_cpu::open(Some(isa)).unwrap();
        let tables = backend.tables();
        for builtin in &tables {
            let table = Table::parse(builtin.name, builtin.text).unwrap();
            assert!(!table.rows.is_empty());
            for row in &table.rows {
                for desc in row.examples() {
                    backend.fits(&desc, &row.params).unwrap();
                }
            }
        }
        let last = tables.last().unwrap();
        let last = Table::parse(last.name, last.text).unwrap();
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                let desc = Desc::of(dtype, layout, (7, 1 << 20), 4);
                assert!(!last.nearest(&desc).is_empty(), "{isa} {desc}");
                let candidates = backend.candidates(&desc);
                assert!((1..=12).contains(&candidates.len()));
                for p in candidates {
                    backend.fits(&desc, &p).unwrap();
                }
            }
        }
    }
}

/// So that `gemv info --explain` says when a row's own kernel has changed.
#[test]
fn every_table_has_the_fingerprint_of_each_kernel_that_it_names() {
    let known: Vec<_> = gemv_cpu::open(None).unwrap().kernels();
    for isa in gemv_cpu::isas() {
        for builtin in gemv_cpu::open(Some(isa)).unwrap().tables() {
            let table = Table::parse(builtin.name, builtin.text).unwrap();
            for row in &table.rows {
                let kernel = row.params.kernel();
                let key = format!("kernel {kernel}");
                assert!(known.iter().any(|known| known.name == kernel.as_str()), "{kernel}");
                let line = table.header.iter().find(|(of, _)| *of == key);
                assert!(line.is_some(), "{}: {key}", builtin.name);
            }
        }
    }
}
