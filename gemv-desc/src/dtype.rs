//! Element types by name.

use std::fmt::{self, Display};

/// An element type by name, as it stands in tables, logs and test names.
///
/// ```
/// use gemv::Dtype;
///
/// let parsed = Dtype::parse("bf16");
/// assert_eq!(parsed, Some(Dtype::Bf16));
/// assert_eq!((Dtype::Bf16.bytes(), Dtype::Bf16.acc_bytes()), (2, 4)); // summed in f32
/// assert!(Dtype::C64.needs_f64() && Dtype::C64.is_complex());
/// assert!(Dtype::ALL.iter().all(|d| Dtype::parse(d.name()) == Some(*d)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// [`f32`], summed in f32.
    F32,
    /// [`f64`], summed in f64.
    F64,
    /// `half::f16`, summed in f32.
    F16,
    /// `half::bf16`, summed in f32.
    Bf16,
    /// `Complex<f32>`, summed as a pair of f32.
    C32,
    /// `Complex<f64>`, summed as a pair of f64.
    C64,
}

impl Dtype {
    /// Every element type, in the order of the tables. It grows at its end: a type's place in it is its number in kernels
    /// and in C.
    pub const ALL: [Dtype; 6] =
        [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::C32, Dtype::C64];

    /// The pairs of a matrix' and the vectors' type that differ, and still have a product: the vectors
    /// have the type in which the product is summed.
    ///
    /// ```
    /// use gemv::Dtype;
    /// for (matrix, vectors) in Dtype::MIXED {
    ///     assert!(matrix.multiplies(vectors) && matrix.bytes() < vectors.bytes());
    /// }
    /// ```
    pub const MIXED: [(Dtype, Dtype); 3] =
        [(Dtype::F16, Dtype::F32), (Dtype::Bf16, Dtype::F32), (Dtype::F32, Dtype::F64)];

    /// Whether a matrix of this type has products with vectors of that type: the same, or one of
    /// [`MIXED`](Self::MIXED).
    pub fn multiplies(self, vectors: Dtype) -> bool {
        self == vectors || Dtype::MIXED.contains(&(self, vectors))
    }

    /// The name used in tables and on the command line: `f32`, `f64`, `f16`, `bf16`, `c32`, `c64`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::C32 => "c32",
            Dtype::C64 => "c64",
        }
    }

    /// The name in NumPy, and in `ml_dtypes`: `float32`, `float64`, `float16`, `bfloat16`, `complex64`, `complex128`.
    ///
    /// ```
    /// assert_eq!(gemv::Dtype::C32.numpy_name(), "complex64");
    /// ```
    pub const fn numpy_name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::C32 => "complex64",
            Dtype::C64 => "complex128",
        }
    }

    /// NumPy's code, without a byte order: `f4`, `f8`, `f2`, `c8`, `c16`, and `V2` for bf16, which NumPy itself does not have.
    ///
    /// ```
    /// assert_eq!(gemv::Dtype::C32.numpy_code(), "c8");
    /// ```
    pub const fn numpy_code(self) -> &'static str {
        match self {
            Dtype::F32 => "f4",
            Dtype::F64 => "f8",
            Dtype::F16 => "f2",
            Dtype::Bf16 => "V2",
            Dtype::C32 => "c8",
            Dtype::C64 => "c16",
        }
    }

    /// The type with this [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bytes of one element in memory.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 | Dtype::C32 => 8,
            Dtype::C64 => 16,
        }
    }

    /// Bytes of one element of the accumulator type.
    pub const fn acc_bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => 4,
            Dtype::F64 | Dtype::C32 => 8,
            Dtype::C64 => 16,
        }
    }

    /// Whether a device needs double precision to sum this type.
    pub const fn needs_f64(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::C64)
    }

    /// Whether elements are pairs (real, imaginary).
    pub const fn is_complex(self) -> bool {
        matches!(self, Dtype::C32 | Dtype::C64)
    }
}

impl Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
