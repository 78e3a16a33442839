//! The kernels as data: names, arguments with their ranges, and the parameters to try.

use gemv_core::order::SEGMENT;
use gemv_core::{Desc, Layout, Name, Params};

use crate::roof::{self, ROOF};

/// An argument of a kernel.
#[derive(Debug)]
pub(crate) struct Arg {
    pub(crate) name: &'static str,
    /// Lowest and highest value.
    pub(crate) range: (u32, u32),
}

/// A kernel: a Rust function for each instruction set and element type.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) layout: Layout,
    pub(crate) args: &'static [Arg],
    /// Its source text, beside the text that all kernels share.
    pub(crate) text: &'static [&'static str],
}

macro_rules! texts {
    ($($file:literal)*) => { &[$(include_str!(concat!("simd/", $file))),*] };
}

/// The source text that all kernels share.
pub(crate) const SHARED_TEXT: &[&str] = texts!("ops.rs" "window.rs" "x86.rs");

const fn arg(name: &'static str, low: u32, high: u32) -> Arg {
    Arg { name, range: (low, high) }
}

/// Distance of prefetches in bytes, 0 for none.
const PREFETCH: Arg = arg("prefetch", 0, 1 << 16);
/// 1 to prefetch the next rows (`row`) or the next segment (`col-few-rows`) instead.
const PREFETCH_NEXT: Arg = arg("prefetch_next", 0, 1);
/// The least KiB of the matrix for each thread, for callers inside of rayon's pool.
const GRAIN_KIB: Arg = arg("grain_kib", 1, 1 << 30);
/// The same for callers outside of the pool, who have to wake its threads.
const GRAIN_COLD: Arg = arg("grain_cold", 1, 1 << 30);

/// All kernels.
pub(crate) const KERNELS: [Kernel; 6] = [
    // Products of one segment on the calling thread, without a plan or scratch. Factors, strides of the vectors and
    // large matrices go to `row`.
    Kernel {
        name: "row-small",
        layout: Layout::Row,
        args: &[],
        text: texts!("rows.rs" "small.rs"),
    },
    // The same by columns; the others go to `col`.
    Kernel {
        name: "col-small",
        layout: Layout::Col,
        args: &[],
        text: texts!("col_registers.rs" "small.rs"),
    },
    Kernel {
        name: "row",
        layout: Layout::Row,
        args: &[
            // Rows that are interleaved segment by segment.
            arg("rows", 1, 128),
            // Blocks of rows that are interleaved.
            arg("streams", 1, 16),
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("rows.rs" "product.rs"),
    },
    Kernel {
        name: "col",
        layout: Layout::Col,
        // Rows of a tile, 0 for sums in registers.
        args: &[arg("tile_m", 0, 1 << 16), PREFETCH, GRAIN_KIB, GRAIN_COLD],
        text: texts!("col_registers.rs" "col_memory.rs" "product.rs"),
    },
    // Columns are short and read in the order of memory.
    Kernel {
        name: "col-few-rows",
        layout: Layout::Col,
        args: &[arg("tile_m", 1, 1 << 12), PREFETCH, PREFETCH_NEXT, GRAIN_KIB, GRAIN_COLD],
        text: texts!("col_registers.rs" "col_memory.rs" "product.rs"),
    },
    // `row` or `col`, whichever stride is smaller; lines of other strides than one and two are copied together.
    Kernel {
        name: "strided",
        layout: Layout::Strided,
        args: &[arg("rows", 1, 64), arg("tile_m", 0, 1 << 16), PREFETCH, GRAIN_KIB, GRAIN_COLD],
        text: texts!("rows.rs" "col_registers.rs" "col_memory.rs" "stride_two.rs" "product.rs"),
    },
];

pub(crate) const COL_FEW_ROWS: Name = Name::new("col-few-rows");
const ROW_SMALL: Name = Name::new("row-small");
const COL_SMALL: Name = Name::new("col-small");

/// Whether it is one of the kernels for small products.
#[inline(always)]
pub(crate) fn is_small(kernel: Name) -> bool {
    kernel == ROW_SMALL || kernel == COL_SMALL
}

/// The least KiB for each thread, where the parameters do not say. Four times as many for callers outside of rayon's pool,
/// unless the parameters have `grain_cold`.
pub(crate) const GRAIN: u32 = 256;

/// The parameters to try.
pub(crate) fn candidates(desc: &Desc) -> Vec<Params> {
    // One grain for all. In the loop of a tuner the other threads are awake, and half a MiB on two threads takes 0.6 of
    // the time; a caller that comes once in a while pays twice the time.
    let grain = |p: Params| p.with("grain_kib", GRAIN);
    match desc.layout {
        Layout::Row => {
            let row =
                |rows, prefetch| Params::new("row").with("rows", rows).with("prefetch", prefetch);
            let mut all = vec![
                grain(row(16, 1024)),
                grain(row(4, 0)),
                grain(row(8, 1024)),
                grain(row(8, 2048)),
                grain(row(64, 0)),
                grain(row(128, 0)),
                grain(row(16, 0).with("prefetch_next", 1)),
                grain(row(8, 4096).with("streams", 4)),
                grain(row(7, 0)),
            ];
            all.extend((desc.n <= SEGMENT).then(|| Params::new("row-small")));
            all
        }
        Layout::Col => {
            let col = |tile_m, prefetch| {
                Params::new("col").with("tile_m", tile_m).with("prefetch", prefetch)
            };
            let mut all = vec![
                grain(col(1024, 512)),
                grain(col(0, 0)),
                grain(col(0, 512)),
                grain(col(8192, 1024)),
                grain(col(40, 0)),
            ];
            let few = Params::new("col-few-rows").with("tile_m", 128);
            all.extend((desc.m <= 1024).then(|| grain(few.with("prefetch", 1024))));
            all.extend((desc.m <= 1024).then(|| grain(few.with("prefetch_next", 1))));
            all.extend((desc.n <= SEGMENT).then(|| Params::new("col-small")));
            all
        }
        Layout::Strided => {
            let both =
                |rows, tile_m| Params::new("strided").with("rows", rows).with("tile_m", tile_m);
            vec![grain(both(8, 0)), grain(both(4, 1024)), grain(both(16, 512))]
        }
    }
}

/// Whether the parameters are legal for the problem.
///
/// # Errors
/// A sentence that says why not.
pub(crate) fn fits(desc: &Desc, params: &Params) -> Result<(), String> {
    let name = params.kernel();
    if name == ROOF.kernel() {
        return roof::fits(desc);
    }
    let Some(kernel) = KERNELS.iter().find(|k| k.name == name.as_str()) else {
        return Err(format!("there is no kernel {name}"));
    };
    if kernel.layout != desc.layout {
        return Err(format!("{name} is for {}", kernel.layout));
    }
    if is_small(name) && desc.n > SEGMENT {
        return Err(format!("{name} is for at most {SEGMENT} columns"));
    }
    for (key, value) in params.args() {
        let Some(Arg { range: (low, high), .. }) = kernel.args.iter().find(|a| a.name == key)
        else {
            return Err(format!("{name} has no {key}"));
        };
        if !(low..=high).contains(&&value) {
            return Err(format!("{key} is from {low} to {high}"));
        }
    }
    Ok(())
}
