//! The kernels as data: names, arguments with their ranges, and the parameters to try.

use gemv_core::order::SEGMENT;
use gemv_core::{Arg, Desc, KernelInfo, Layout, Name, Params, Values, fingerprint};

use crate::read::{self, READ};

/// A kernel: a Rust function for each instruction set and element type.
struct Kernel {
    name: &'static str,
    /// What it does, in one sentence.
    pub(crate) about: &'static str,
    layout: Layout,
    args: &'static [Arg],
    /// Its source text, beside the text that all kernels share.
    text: &'static [&'static str],
}

macro_rules! texts {
    ($($file:literal)*) => { &[$(include_str!(concat!("simd/", $file))),*] };
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

/// All kernels.
const KERNELS: [Kernel; 6] = [
    Kernel {
        name: "row-small",
        about: "Up to 256 columns on the calling thread, without a plan or workspace; with factors or strided vectors as row.",
        layout: Layout::Row,
        args: &[],
        text: texts!("rows.rs" "small.rs"),
    },
    Kernel {
        name: "col-small",
        about: "Up to 256 columns on the calling thread, by columns; with factors or strided vectors as col.",
        layout: Layout::Col,
        args: &[],
        text: texts!("col_registers.rs" "small.rs"),
    },
    Kernel {
        name: "row",
        about: "Several rows at a time, each row's lanes in vector registers.",
        layout: Layout::Row,
        args: &[
            arg("rows", 1, 128, 16, INTERLEAVED),
            arg("streams", 1, 16, 1, "Blocks of rows that are interleaved."),
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("rows.rs" "product.rs"),
    },
    Kernel {
        name: "col",
        about: "Columns in the order of their lanes, over tiles of rows.",
        layout: Layout::Col,
        args: &[arg("tile_m", 0, 1 << 16, 0, TILE_M), PREFETCH, GRAIN_KIB, GRAIN_COLD],
        text: texts!("col_registers.rs" "col_memory.rs" "product.rs"),
    },
    Kernel {
        name: "col-few-rows",
        about: "Short columns in the order of memory, for matrices of few rows.",
        layout: Layout::Col,
        args: &[
            arg("tile_m", 1, 1 << 12, 128, "Rows of a tile of columns."),
            PREFETCH,
            PREFETCH_NEXT,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
        text: texts!("col_registers.rs" "col_memory.rs" "product.rs"),
    },
    Kernel {
        name: "strided",
        about: "As row or col, by the smaller stride; lines of strides over two are packed first.",
        layout: Layout::Strided,
        args: &[
            arg("rows", 1, 64, 16, INTERLEAVED),
            arg("tile_m", 0, 1 << 16, 0, TILE_M),
            PREFETCH,
            GRAIN_KIB,
            GRAIN_COLD,
        ],
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
    if name == READ.kernel() {
        return read::fits(desc);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_described_and_has_a_fingerprint_of_its_own() {
        let infos = infos();
        for (i, info) in infos.iter().enumerate() {
            assert!(info.about.ends_with('.'), "{}", info.name);
            for arg in info.args {
                assert!(arg.about.ends_with('.'), "{} {}", info.name, arg.name);
                assert_eq!(arg.check(arg.default), Ok(()), "{} {}", info.name, arg.name);
            }
            let others = &infos[i + 1..];
            assert!(others.iter().all(|o| o.fingerprint != info.fingerprint), "{}", info.name);
        }
    }
}
