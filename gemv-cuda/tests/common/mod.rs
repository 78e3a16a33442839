//! What tests of rendered programs share: the programs that the shipped tables name.

use std::path::Path;

use gemv_core::{Dtype, Params, Table};
use gemv_cuda::kernels;
use gemv_gpu::{Kernel, Program};

/// A program, by what leads to it.
pub type Named = (&'static Kernel, Dtype, Params, Program);

/// The programs that the rows of a table name, in its order; a row for all types names six. A row that ends in `..`
/// names none: what it stands for travels with the crate.
pub fn programs_of(table: &str) -> Vec<Named> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tables").join(table);
    let text = std::fs::read_to_string(path).expect("a shipped table");
    let rows = Table::parse(table, &text).expect("a table").rows;
    let mut all = Vec::new();
    for row in rows.into_iter().filter(|row| !row.partial) {
        let name = row.params.kernel();
        let kernel = kernels().find(|k| k.name == name.as_str()).expect("a row's kernel");
        for dtype in row.dtype.map_or(Dtype::ALL.to_vec(), |d| vec![d]) {
            all.push((kernel, dtype, row.params, kernel.program(dtype, &row.params)));
        }
    }
    all
}
