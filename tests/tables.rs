//! The tables that are shipped: each can be read, is of a size that a person reads, and says nothing
//! that the device it is for would refuse.

use std::path::Path;

use gemv::unstable::table::Row;
use gemv::unstable::{Desc, Layout, Table};
use gemv::{Dtype, Engine, Error};

#[test]
fn every_table_file_is_well_formed() {
    let mut seen = 0;
    for krate in ["gemv-cpu", "gemv-opencl", "gemv-cuda"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(krate).join("tables");
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let table = Table::parse(&path.display().to_string(), &text).unwrap();
            let header = text.lines().take_while(|line| line.starts_with('#'));
            let lines = header.filter(|line| !line.starts_with("# kernel ")).count();
            assert!(lines <= 6, "{}: a header of {lines} lines", path.display());
            for dtype in Dtype::ALL {
                for layout in Layout::ALL {
                    // Those for one vector, for several right-hand sides, and for batches.
                    for kind in 0..3 {
                        let of = |r: &&Row| {
                            let is = match r.batch {
                                Some((least, _)) if least > 1 => 2,
                                _ => usize::from(r.rhs.is_some()),
                            };
                            (r.dtype, r.layout, is) == (Some(dtype), Some(layout), kind)
                        };
                        let rows: Vec<_> = table.rows.iter().filter(of).collect();
                        // As `refit` fits them, where some end in `..`.
                        let parts = kind == 0 && rows.iter().any(|row| row.partial);
                        let (count, path) = (rows.len(), path.display());
                        assert!(
                            count <= if parts { 40 } else { 200 },
                            "{path}: {count} rows for {dtype} {layout}"
                        );
                    }
                }
            }
            for (i, row) in table.rows.iter().enumerate() {
                // A row that ends in `..` leaves to those behind it what it has no candidate for.
                let whole = table.rows[..i].iter().filter(|earlier| !earlier.partial);
                let hidden = whole.into_iter().find(|earlier| holds(earlier, row));
                assert!(hidden.is_none(), "{}: {row}: never chosen", path.display());
            }
            let again = Table::parse(&table.origin, &table.to_string()).unwrap();
            assert_eq!(again.rows, table.rows, "{} changes when it is written", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 3, "a table for each backend, but there are {seen}");
}

/// Whether a row before another one takes all of its problems.
fn holds(earlier: &Row, row: &Row) -> bool {
    let sizes = |a: (f32, f32), b: (f32, f32)| a.0 <= b.0 && b.1 <= a.1;
    let counts = |a: Option<(usize, usize)>, b: Option<(usize, usize)>| match (a, b) {
        (Some(a), Some(b)) => a.0 <= b.0 && b.1 <= a.1,
        _ => a == b,
    };
    (earlier.dtype, earlier.layout) == (row.dtype, row.layout)
        && (earlier.align.low <= row.align.low && row.align.high <= earlier.align.high)
        && sizes(earlier.m, row.m)
        && sizes(earlier.n, row.n)
        && counts(earlier.rhs, row.rhs)
        && counts(earlier.batch, row.batch)
}

/// Beyond what memory lets the tuner measure, a matrix of few columns has the kernel of the largest that it does.
#[test]
fn the_largest_matrices_have_the_kernel_of_large_ones() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gemv-cuda/tables/h200.txt");
    let table = Table::parse("h200", &std::fs::read_to_string(path).unwrap()).unwrap();
    for dtype in [Dtype::F32, Dtype::F64] {
        for n in [84, 96, 112, 128, 160] {
            let of = |bytes: usize| {
                let m = bytes / (n * dtype.bytes());
                table.nearest(&Desc::of(dtype, Layout::Row, (m, n), 4))[0].params
            };
            assert_eq!(of(900 << 20), of(4 << 30), "{dtype}, {n} columns");
        }
    }
}

/// Every row of the tables of every device that is here, on the sizes that it names.
#[test]
fn every_row_fits_the_device_that_it_is_for() {
    let engine = Engine::new(None);
    let mut refused = Vec::new();
    for listing in engine.devices() {
        let Ok(info) = listing.found else { continue };
        let device = engine.device(&info.id).unwrap();
        let backend = device.backend();
        let tables = backend.tables();
        let last = tables.len() - 1;
        for (index, builtin) in tables.iter().enumerate() {
            let table = Table::parse(builtin.name, builtin.text).unwrap();
            for row in &table.rows {
                let any = row.dtype.is_none() || row.layout.is_none();
                let (mut fits, mut asked) = (0, 0);
                for desc in row.examples().filter(|desc| backend.accepts(desc).is_ok()) {
                    asked += 1;
                    let chosen = row.choice(&backend.candidates(&desc));
                    match chosen.map_or(Ok(()), |params| backend.fits(&desc, &params)) {
                        Ok(()) => fits += usize::from(chosen.is_some()),
                        Err(Error::Params { .. }) if any => {}
                        Err(why) => {
                            let (id, name) = (&info.id, builtin.name);
                            refused.push(format!("{id}, {name}, {row}: {desc}: {why}"));
                        }
                    }
                }
                if asked > 0 && fits == 0 {
                    refused.push(format!("{}, {}, {row}: fits nothing", info.id, builtin.name));
                }
            }
            // The look-up is total: the last table has a legal row for whatever is asked.
            for dtype in Dtype::ALL.into_iter().filter(|_| index == last) {
                for layout in Layout::ALL {
                    for (m, n, align) in [
                        (1, 1, 0),
                        (1, 1 << 22, 1),
                        (1 << 22, 1, 1),
                        (7, 1 << 20, 1),
                        (1 << 20, 7, 6),
                        (300, 300, 2),
                        (1000, 1000, 1),
                    ] {
                        let desc =
                            Desc::of(dtype, layout, (m, n), align.max(dtype.bytes().ilog2() as u8));
                        let all = backend.candidates(&desc);
                        let legal = |row: &Row| {
                            row.choice(&all).is_some_and(|p| backend.fits(&desc, &p).is_ok())
                        };
                        if backend.accepts(&desc).is_ok()
                            && !table.nearest(&desc).into_iter().any(legal)
                        {
                            refused
                                .push(format!("{}, {}: nothing for {desc}", info.id, builtin.name));
                        }
                    }
                }
            }
        }
    }
    assert!(refused.is_empty(), "{} refusals:\n{}", refused.len(), refused.join("\n"));
}
