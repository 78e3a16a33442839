//! Products of other libraries for arrays of the host, for comparison.

use ndarray::{ArrayView3, ArrayViewMut3};

use crate::{Desc, Dtype, Name};

/// `Y = alpha A X + beta Y` for each entry of a batch: alpha, A (batch × m × n), X (batch × n × k), beta and
/// Y (batch × m × k). No axis is empty, and alpha is not 0.
pub type HostGemm<T> = fn(T, ArrayView3<'_, T>, ArrayView3<'_, T>, T, ArrayViewMut3<'_, T>);

/// Another library's product with several right-hand sides, for f32 and f64. It keeps an order of its own, so nothing
/// but an explicit request runs it.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout, Rival};
///
/// const NONE: Rival = Rival { name: "vendor-none", f32: |_, _, _, _, _| (), f64: |_, _, _, _, _| () };
/// let one = Desc::of(Dtype::F32, Layout::Row, (100, 100), 6);
/// assert!(NONE.fits(&Desc { rhs: 2, ..one }).is_ok());
/// assert_eq!(NONE.fits(&one).unwrap_err(), "vendor-none is for several right-hand sides or products");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rival {
    /// Its name as a kernel, which begins with `vendor-`.
    pub name: &'static str,
    /// For f32.
    pub f32: HostGemm<f32>,
    /// For f64.
    pub f64: HostGemm<f64>,
}

impl Rival {
    /// Whether it computes such a problem.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn fits(&self, desc: &Desc) -> Result<(), String> {
        let is_for = |what: &str| Err(format!("{} is for {what}", self.name));
        match desc.dtype {
            _ if desc.rhs <= 1 && desc.batch <= 1 => is_for("several right-hand sides or products"),
            _ if desc.is_mixed() => is_for("a matrix and vectors of one type"),
            Dtype::F32 | Dtype::F64 => Ok(()),
            _ => is_for("f32 and f64"),
        }
    }

    /// The one of this name, if it is linked.
    pub fn named(name: Name) -> Option<&'static Rival> {
        RIVALS.iter().find(|rival| rival.name == name.as_str())
    }
}

/// The rivals that are linked into this program: `use gemv_baselines as _;` links matrixmultiply.
#[cfg(not(target_family = "wasm"))]
#[linkme::distributed_slice]
pub static RIVALS: [Rival];
/// None is linked into a WebAssembly program.
#[cfg(target_family = "wasm")]
pub static RIVALS: &[Rival] = &[];
