//! Products of other libraries for arrays of the host, for comparison.

use ndarray::{ArrayView3, ArrayViewMut3};

use crate::{Desc, Dtype, Name};

/// `Y = alpha A X + beta Y` for each entry of a batch: alpha, A (batch × m × n), X (batch × n × k), beta and
/// Y (batch × m × k). No axis is empty, and alpha is not 0.
pub type HostGemm<T> = fn(T, ArrayView3<'_, T>, ArrayView3<'_, T>, T, ArrayViewMut3<'_, T>);

/// Whether a rival computes a problem of f32 or f64; the error text follows its name, as in "is for one product".
pub type Fits = fn(&Desc) -> Result<(), String>;

/// Another library's product for f32 and f64: with several right-hand sides, or also with one. It keeps an order of its own, so
/// nothing but an explicit request runs it.
///
/// ```
/// use gemv::{Dtype, unstable::{Desc, Layout, Rival}};
///
/// fn few(desc: &Desc) -> Result<(), String> {
///     if desc.m < 10 { Ok(()) } else { Err("is for fewer than ten rows".into()) }
/// }
/// static NONE: Rival = Rival::new("vendor-none", few, |_, _, _, _, _| (), |_, _, _, _, _| ());
/// let nine = Desc::of(Dtype::F32, Layout::Row, (9, 9), 6);
/// assert!(NONE.fits(&nine).is_ok());
/// assert_eq!(NONE.fits(&Desc { m: 10, ..nine }).unwrap_err(), "vendor-none is for fewer than ten rows");
/// assert_eq!(NONE.fits(&nine.of_type(Dtype::C32)).unwrap_err(), "vendor-none is for f32 and f64");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rival {
    name: Name,
    fits: Fits,
    /// For f32.
    pub f32: HostGemm<f32>,
    /// For f64.
    pub f64: HostGemm<f64>,
}

impl Rival {
    /// A product with a name as a kernel. By the name's beginning, `vendor-`, everything knows that it does not keep the
    /// order, and no kernel of a backend has it.
    ///
    /// ```compile_fail,E0080
    /// use gemv::unstable::Rival;
    /// static NONE: Rival = Rival::new("none", |_| Ok(()), |_, _, _, _, _| (), |_, _, _, _, _| ());
    /// ```
    ///
    /// # Panics
    /// If the name is not legal as [`Name::new`] says, or does not begin with `vendor-`; at compile time, as [`RIVALS`] are
    /// statics.
    pub const fn new(name: &str, fits: Fits, f32: HostGemm<f32>, f64: HostGemm<f64>) -> Rival {
        let prefixed = matches!(name.as_bytes(), [b'v', b'e', b'n', b'd', b'o', b'r', b'-', _, ..]);
        assert!(prefixed, "the name of a rival begins with vendor-");
        Rival { name: Name::new(name), fits, f32, f64 }
    }

    /// Its name as a kernel.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether it computes such a problem.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn fits(&self, desc: &Desc) -> Result<(), String> {
        let named = RIVALS.iter().filter(|rival| rival.name == self.name);
        let fits = match desc.dtype {
            // Which of them would answer depends on the linker.
            _ if named.count() > 1 => Err("is linked more than once".into()),
            _ if desc.is_mixed() => Err("is for a matrix and vectors of one type".into()),
            Dtype::F32 | Dtype::F64 => (self.fits)(desc),
            _ => Err("is for f32 and f64".into()),
        };
        fits.map_err(|why: String| format!("{} {why}", self.name))
    }

    /// The one of this name, if it is linked.
    pub fn named(name: Name) -> Option<&'static Rival> {
        RIVALS.iter().find(|rival| rival.name == name)
    }

    /// The first one by name that computes such a problem, whatever the order in which they are linked.
    pub fn of(desc: &Desc) -> Option<&'static Rival> {
        RIVALS.iter().filter(|rival| rival.fits(desc).is_ok()).min_by_key(|rival| rival.name)
    }
}

/// The rivals that are linked into this program: `use gemv_baselines as _;` links matrixmultiply and a BLAS of the user.
#[cfg(not(target_family = "wasm"))]
#[linkme::distributed_slice]
pub static RIVALS: [Rival];
/// None is linked into a WebAssembly program.
#[cfg(target_family = "wasm")]
pub static RIVALS: &[Rival] = &[];
