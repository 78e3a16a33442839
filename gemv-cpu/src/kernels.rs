//! The kernels as data: names, arguments with their ranges, and the parameters to try.

use gemv_core::order::SEGMENT;
use gemv_core::{
    Arg, Desc, Dtype, KernelInfo, Layout, Name, Params, Rival, Values, fingerprint, source_digest,
};

use crate::read::{self, READ};
use crate::simd::{FEW_ROWS, NARROW, PanelArgs};

/// A kernel: a Rust function for each instruction set and element type.
struct Kernel {
    name: &'static str,
    /// What it does, in one sentence.
    pub(crate) about: &'static str,
    /// The one layout that it is for, unless it takes any.
    layout: Option<Layout>,
    args: &'static [Arg],
    /// The digests of its source text, beside the text that all kernels share.
    text: &'static [&'static str],
}

/// Digests in place of the texts, which are long: a program that has this crate would carry them.
macro_rules! texts {
    ($($file:literal)*) => {
        &[$({
            const DIGEST: [u8; 16] = source_digest(include_bytes!(concat!("simd/", $file)));
            match core::str::from_utf8(&DIGEST) {
                Ok(text) => text,
                Err(_) => unreachable!(),
            }
        }),*]
    };
}

/// The source text that all kernels share.
const SHARED_TEXT: &[&str] = texts!("ops.rs" "window.rs" "x86.rs");

const fn arg(name: &'static str, low: u32, high: u32, default: u32, about: &'static str) -> Arg {
    Arg { name, about, values: Values::Range(low, high), default, define: None }
}

const PREFETCH: Arg =
    arg("prefetch", 0, 1 << 16, 0, "Distance of prefetches in bytes; 0 for no prefetches.");
const PREFETCH_NEXT: Arg = arg(
    "prefetch_next",
    0,
    1,
    0,
    "1 to prefetch the next rows (next segment in col-few-rows) in place of a distance ahead.",
);
const GRAIN_KIB: Arg = arg(
    "grain_kib",
    1,
    1 << 30,
    GRAIN,
    "Least KiB of the matrix for each thread, for callers inside of rayon's pool.",
);
const GRAIN_COLD: Arg = arg(
    "grain_cold",
    1,
    1 << 30,
    4 * GRAIN,
    "The same for callers outside of the pool, who wake its threads; four times grain_kib if left out.",
);
const INTERLEAVED: &str = "Rows that are interleaved segment by segment.";
const TILE_M: &str = "Rows of a tile of columns; 0 keeps the sums in registers.";

const BLOCK: &str = "Rows of a block, whose segments are computed one after the other.";
const COLUMNS: Arg = arg(
    "tile_rhs",
    1,
    16,
    8,
    "Columns of X at a time; for those that follow, a block is in the caches.",
);

/// All kernels.
const KERNELS: [Kernel; 10] = [
    Kernel {
        name: "row-small",
        about: "Up to 256 columns, or 16 rows of up to 2048, on the calling thread, without a plan or workspace; with factors or strided vectors as row.",
        layout: Some(Layout::Row),
        args: &[],
        text: texts!("rows.rs" "small.rs"),
    },
    Kernel {
        name: "col-small",
        about: "Up to 256 columns on the calling thread, by columns; with factors or strided vectors as col.",
        layout: Some(Layout::Col),
        args: &[],
        text: texts!("col_registers.rs" "small.rs"),
    },
    Kernel {
        name: "row",
        about: "Several rows at a time, each row's lanes in vector registers.",
        layout: Some(Layout::Row),
        args: &[
            arg("rows", 1, 128, 16, INTERLEAVED),
            arg("streams", 1, 16, 1, "Blocks of rows that are interleaved."),
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("rows.rs" "plan.rs" "product.rs"),
    },
    Kernel {
        name: "col",
        about: "Columns in the order of their lanes, over tiles of rows.",
        layout: Some(Layout::Col),
        args: &[arg("tile_m", 0, 1 << 16, 0, TILE_M), PREFETCH, GRAIN_KIB, GRAIN_COLD],
        text: texts!("col_registers.rs" "col_memory.rs" "plan.rs" "product.rs"),
    },
    Kernel {
        name: "col-few-rows",
        about: "Short columns in the order of memory, for matrices of few rows.",
        layout: Some(Layout::Col),
        args: &[
            arg("tile_m", 1, 1 << 12, 128, "Rows of a tile of columns."),
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("col_registers.rs" "col_memory.rs" "plan.rs" "product.rs"),
    },
    Kernel {
        name: "gemm-row",
        about: "Several columns of X or many products by rows, each load of the matrix for a tile of columns.",
        layout: Some(Layout::Row),
        args: &[
            arg("rows", 1, 1 << 12, 48, BLOCK),
            COLUMNS,
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("gemm_row.rs" "rows.rs" "plan.rs" "panel.rs"),
    },
    Kernel {
        name: "gemm-col",
        about: "Several columns of X or many products by columns, each load of the matrix for all columns of X.",
        layout: Some(Layout::Col),
        args: &[arg("rows", 1, 1 << 16, 2048, BLOCK), COLUMNS, PREFETCH, GRAIN_KIB, GRAIN_COLD],
        text: texts!("gemm_col.rs" "col_registers.rs" "plan.rs" "panel.rs"),
    },
    Kernel {
        name: "gemm-strided",
        about: "As gemm-row or gemm-col, by the smaller stride; lines of strides over one are copied together first.",
        layout: Some(Layout::Strided),
        args: &[arg("rows", 1, 1 << 12, 64, BLOCK), COLUMNS, GRAIN_KIB, GRAIN_COLD],
        text: texts!("gemm_row.rs" "gemm_col.rs" "rows.rs" "col_registers.rs" "plan.rs" "panel.rs"),
    },
    Kernel {
        name: "gemm-narrow",
        about: "Several columns of X for f32 or f64 of at most 8 columns and any strides: blocks of rows are transposed, and a vector holds neighbouring rows.",
        layout: None,
        args: &[GRAIN_KIB, GRAIN_COLD],
        text: texts!("narrow.rs" "plan.rs" "panel.rs"),
    },
    Kernel {
        name: "strided",
        about: "As row or col, by the smaller stride; lines of strides over two are packed first.",
        layout: Some(Layout::Strided),
        args: &[
            arg("rows", 1, 64, 16, INTERLEAVED),
            arg("tile_m", 0, 1 << 16, 0, TILE_M),
            PREFETCH,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("rows.rs" "col_registers.rs" "col_memory.rs" "stride_two.rs" "plan.rs" "product.rs"),
    },
];

pub(crate) const COL_FEW_ROWS: Name = Name::new("col-few-rows");
pub(crate) const GEMM_ROW: Name = Name::new("gemm-row");
/// The kernel for packed matrices.
pub(crate) const PACKED: &str = "packed-blocks";
const GEMM_COL: Name = Name::new("gemm-col");
const GEMM_STRIDED: Name = Name::new("gemm-strided");
const GEMM_NARROW: Name = Name::new("gemm-narrow");
const ROW_SMALL: Name = Name::new("row-small");
const COL_SMALL: Name = Name::new("col-small");

/// Whether it is one of the kernels for small products.
#[inline(always)]
pub(crate) fn is_small(kernel: Name) -> bool {
    kernel == ROW_SMALL || kernel == COL_SMALL
}

/// Whether a kernel, if it is one for small products, computes this one.
fn fits_small(kernel: Name, desc: &Desc) -> Result<(), String> {
    let (rows, columns) = FEW_ROWS;
    let (m, n) = (desc.m, desc.n);
    if !is_small(kernel) || n <= SEGMENT || kernel == ROW_SMALL && m <= rows && n <= columns {
        return Ok(());
    }
    Err(match kernel == ROW_SMALL {
        true => format!(
            "{kernel} is for at most {SEGMENT} columns, or {rows} rows of at most {columns}"
        ),
        false => format!("{kernel} is for at most {SEGMENT} columns"),
    })
}

/// The least KiB for each thread, where the parameters do not say. Four times as many for callers outside of rayon's pool,
/// unless the parameters have `grain_cold`.
pub(crate) const GRAIN: u32 = 256;

/// Whether it is one of the kernels for several right-hand sides and batches.
pub(crate) fn is_gemm(kernel: Name) -> bool {
    [GEMM_ROW, GEMM_COL, GEMM_STRIDED, GEMM_NARROW].contains(&kernel)
}

/// The arguments of a kernel for which [`is_gemm`] holds.
pub(crate) fn panel_args(params: &Params) -> PanelArgs {
    let kernel = KERNELS.iter().find(|k| k.name == params.kernel().as_str());
    if params.kernel() == GEMM_NARROW {
        // As the others for an instruction set without the kernel.
        return PanelArgs {
            rows: 64,
            columns: 16,
            prefetch: 0,
            prefetch_next: false,
            narrow: true,
        };
    }
    let get = |name| {
        let arg = kernel.and_then(|k| k.args.iter().find(|a| a.name == name));
        params.get_or(name, arg.map_or(0, |a| a.default)) as usize
    };
    // Within what the kernels are written for, as for one vector.
    let (rows, prefetch) = (get("rows").clamp(1, 1 << 16), get("prefetch").min(1 << 16));
    let columns = get("tile_rhs");
    PanelArgs { rows, columns, prefetch, prefetch_next: get("prefetch_next") != 0, narrow: false }
}

/// The parameters to try for several right-hand sides, or a batch.
fn gemm_candidates(desc: &Desc) -> Vec<Params> {
    let of = |kernel: Name, rows, columns| {
        let p = Params::new(kernel.as_str()).with("rows", rows).with("tile_rhs", columns);
        p.with("grain_kib", GRAIN)
    };
    let narrow = Params::new(GEMM_NARROW.as_str()).with("grain_kib", GRAIN);
    let mut all = Vec::from_iter(fits(desc, &narrow).is_ok().then_some(narrow));
    all.extend(match desc.layout {
        Layout::Row => {
            let row =
                |rows, columns, prefetch| of(GEMM_ROW, rows, columns).with("prefetch", prefetch);
            vec![
                row(48, 16, 0).with("prefetch_next", 1),
                row(192, 16, 0).with("prefetch_next", 1),
                row(48, 16, 1024),
                row(12, 16, 512),
                row(48, 16, 0),
            ]
        }
        Layout::Col => {
            let col =
                |rows, columns, prefetch| of(GEMM_COL, rows, columns).with("prefetch", prefetch);
            vec![
                col(2048, 16, 512),
                col(4096, 8, 512),
                col(4096, 8, 1024),
                col(1024, 16, 512),
                col(256, 16, 0),
            ]
        }
        Layout::Strided => vec![of(GEMM_STRIDED, 64, 16), of(GEMM_STRIDED, 16, 8)],
    });
    all
}

/// The parameters to try.
pub(crate) fn candidates(desc: &Desc) -> Vec<Params> {
    if desc.rhs > 1 || desc.batch > 1 || desc.is_mixed() {
        return gemm_candidates(desc);
    }
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
            all.extend(fits_small(ROW_SMALL, desc).is_ok().then(|| Params::new("row-small")));
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
    if desc.packing.is_some() != (name.as_str() == PACKED) {
        return Err(format!("{PACKED} is for packed matrices, and they have no other kernel"));
    }
    if desc.packing.is_some() {
        return params.args().try_for_each(|(key, _)| match &*key {
            "grain_kib" => Ok(()),
            _ => Err(format!("{PACKED} has no {key}")),
        });
    }
    if name == READ.kernel() {
        return read::fits(desc);
    }
    if let Some(rival) = Rival::named(name) {
        return rival.fits(desc).and_then(|()| match params.args().next() {
            Some((key, _)) => Err(format!("{name} has no {key}")),
            None => Ok(()),
        });
    }
    let Some(kernel) = KERNELS.iter().find(|k| k.name == name.as_str()) else {
        let hint = match name.as_str() {
            "vendor-matrixmul" => "; `use gemv_baselines as _;` in a program links it",
            _ => "",
        };
        return Err(format!("there is no kernel {name}{hint}"));
    };
    if let Some(layout) = kernel.layout.filter(|layout| *layout != desc.layout) {
        return Err(format!("{name} is for {layout}"));
    }
    if name == GEMM_NARROW {
        if desc.is_mixed() || ![Dtype::F32, Dtype::F64].contains(&desc.dtype) {
            return Err(format!("{name} is for f32 and f64"));
        }
        if desc.n > NARROW {
            return Err(format!("{name} is for at most {NARROW} columns"));
        }
    }
    fits_small(name, desc)?;
    if desc.is_mixed() && !is_gemm(name) {
        return Err(format!("{name} is for a matrix and vectors of one type"));
    }
    if is_gemm(name) && desc.rhs <= 1 && desc.batch <= 1 && !desc.is_mixed() {
        return Err(format!("{name} is for several right-hand sides or products"));
    }
    for (key, value) in params.args() {
        let Some(arg) = kernel.args.iter().find(|a| a.name == key) else {
            return Err(format!("{name} has no {key}"));
        };
        arg.check(value)?;
    }
    Ok(())
}

/// The kernels as [`Backend::kernels`](gemv_core::Backend::kernels) gives them.
pub(crate) fn infos() -> Vec<KernelInfo> {
    let info = |kernel: &Kernel| KernelInfo {
        name: kernel.name,
        about: kernel.about,
        args: kernel.args,
        fingerprint: fingerprint(&[SHARED_TEXT, kernel.text].concat(), kernel.args),
    };
    KERNELS.iter().map(info).collect()
}
