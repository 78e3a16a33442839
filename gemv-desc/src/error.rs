//! What can go wrong, each in one sentence.

use std::fmt::{self, Display};

use crate::{Desc, Dtype};

/// The result of this library's fallible functions.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::GpuDot;
/// use ndarray::{Array1, Array2, array};
///
/// /// The mean of `A x`.
/// fn mean(a: &Array2<f32>, x: &Array1<f32>) -> gemv::Result<Option<f32>> {
///     Ok(a.try_gpu_dot(x)?.mean())
/// }
/// assert_eq!(mean(&array![[1.0, 2.0], [3.0, 4.0]], &array![1.0, 1.0])?, Some(5.0));
/// assert!(mean(&array![[1.0, 2.0], [3.0, 4.0]], &array![1.0]).is_err());
/// # Ok::<(), gemv::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Unless a variant says otherwise, `y` is as it was before the call.
///
/// Each variant's text is one sentence, fit to be shown to a person; its fields are for programs. `{:?}`
/// is the same sentence, because a `main` that returns a [`Result`] prints that.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{Engine, Error, GpuDot, ShapeMismatch};
/// use ndarray::array;
///
/// let mut y = array![7.0, 7.0];
/// let a = array![[1.0, 2.0], [3.0, 4.0]];
/// match a.try_gemv(1.0, &array![1.0, 2.0, 3.0], 0.0, &mut y) {
///     Err(Error::Shape(shapes)) => {
///         assert_eq!(shapes, ShapeMismatch::MatrixVector { matrix: (2, 2), x: 3, y: Some(2) })
///     }
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(y, array![7.0, 7.0]); // as it was
///
/// let e = Engine::new(None).device("abacus").unwrap_err();
/// assert!(matches!(&e, Error::NoDevice { asked, .. } if asked == "abacus"));
/// assert!(e.to_string().starts_with("no such device: \"abacus\"; there is "));
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operands' shapes do not fit.
    #[error("shapes do not fit: {0}")]
    Shape(ShapeMismatch),
    /// An operand of a backend's job does not lie in its memory, is missing, cannot be written, or is of a type that does not go
    /// with the others.
    #[error("{operand} {reason}")]
    Operand {
        /// Which one.
        operand: &'static str,
        /// What is wrong with it, as the end of a sentence.
        reason: String,
    },
    /// There is no device by this name.
    #[error("no such device: {asked:?}; there is {found}")]
    NoDevice {
        /// The name asked for.
        asked: String,
        /// What there is instead, with reasons for what is not.
        found: String,
    },
    /// Products of host arrays have no device: no linked backend found one.
    #[error(
        "no device for products of host arrays: {found}; depend on gemv with features = [\"cpu\"] \
         (and `use gemv as _;` where nothing else names it), or ask for the slow reference by \
         GEMV_BACKEND=reference"
    )]
    NoBackend {
        /// What was looked for, and why it is not there.
        found: String,
    },
    /// The backend is not part of this program.
    #[error("no {feature}: this program was built without the feature {feature:?} of gemv")]
    NotBuilt {
        /// The feature of gemv that links it.
        feature: &'static str,
    },
    /// An environment variable asks for what fails.
    #[error("{variable}={value}: {error}")]
    Environment {
        /// The variable, such as `GEMV_BACKEND`.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What failed; it is part of the sentence.
        error: Box<Error>,
    },
    /// Another device is the default already.
    #[error("{}: choose before the first of them", show_default(.device))]
    DefaultInUse {
        /// The default; `None` where a product of host arrays has found no device.
        device: Option<String>,
    },
    /// A backend was named after the first use of a device.
    #[error("{backend} is named after the first use of a device: call Engine::link before")]
    LinkedLate {
        /// The backend.
        backend: &'static str,
    },
    /// A driver or runtime library is not there, or does not answer.
    #[error("{backend} is not available: {reason}")]
    DriverMissing {
        /// The backend, such as `cuda`.
        backend: &'static str,
        /// What was looked for, and what came back.
        reason: String,
    },
    /// The device has not enough memory.
    #[error("{device} is out of memory: {}, {}", show_asked(.asked), show_free(.free))]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for; [`u64::MAX`] if they are more than can be addressed.
        asked: u64,
        /// Bytes free, where the device tells.
        free: Option<u64>,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel} does not build for {device}: {log}")]
    Build {
        /// The kernel and its parameters.
        kernel: String,
        /// The device.
        device: String,
        /// The compiler's log.
        log: String,
    },
    /// A kernel of the caller's own was given a wrong argument or shape, or cannot run here.
    #[error("kernel {kernel} on {device}: {reason}")]
    Kernel {
        /// The entry point.
        kernel: String,
        /// The device.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// The device cannot do this; nothing is cast silently.
    #[error("{device} cannot compute {dtype}: {reason}")]
    Unsupported {
        /// The device.
        device: String,
        /// The element type.
        dtype: Dtype,
        /// What is missing.
        reason: String,
    },
    /// These parameters are not legal for this problem on this device.
    #[error("{params} does not fit {desc} on {device}: {reason}")]
    Params {
        /// The device.
        device: String,
        /// What was asked.
        desc: Desc,
        /// What was chosen.
        params: String,
        /// The rule that was broken.
        reason: String,
    },
    /// Resident operands lie on another device than the one that is to compute.
    #[error(
        "an operand lives on {operand}, the product was asked of {device}: `to_device` makes a copy of an array on another \
         device"
    )]
    WrongDevice {
        /// Where the product was to be computed.
        device: String,
        /// Where the operand lives.
        operand: String,
    },
    /// A resident array would have to be copied before it is written, and no copy was allowed.
    #[error(
        "{device}: a clone or a view has the array's memory, and to write it would copy {bytes} bytes: drop them \
         before, or write by view_mut, which copies"
    )]
    Shared {
        /// Where the array lives.
        device: String,
        /// Bytes of the array.
        bytes: u64,
    },
    /// A table or a parameter text is not well formed.
    #[error("{origin}{}: {reason}", show_line(.line))]
    Table {
        /// The file, or the built-in table's name.
        origin: String,
        /// The line, from 1; 0 for the whole.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Weights do not fit a packed format.
    #[error(transparent)]
    Packed(gemv_packed::Error),
    /// The device breaks the order of additions, so nothing is computed on it.
    #[error("{device} is refused: {reason}")]
    Refused {
        /// The device.
        device: String,
        /// What it computes with other bits, and how to use it all the same.
        reason: String,
    },
    /// The device's driver was in use when this process was forked, and does not work in the child.
    #[error(
        "{device} was in use before this process was forked, and its driver does not work in the \
         child: fork before its first use, or start the process anew (Python's \"spawn\")"
    )]
    Forked {
        /// The device, or its backend.
        device: String,
    },
    /// The device or its driver refused a call. A host `y` is as it was; a resident `y` is
    /// undefined if the failure came after the launch.
    #[error("{device}: {call} failed: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

fn show_default(device: &Option<String>) -> String {
    match device {
        Some(device) => format!("products of host arrays go to {device} already"),
        None => "products of host arrays have looked for a device already, and found none".into(),
    }
}

fn show_line(line: &usize) -> String {
    if *line == 0 { String::new() } else { format!(", line {line}") }
}

fn show_asked(asked: &u64) -> String {
    match *asked {
        // No block is larger.
        asked if asked > isize::MAX as u64 => "asked for more than can be addressed".into(),
        asked => format!("{asked} bytes asked"),
    }
}

fn show_free(free: &Option<u64>) -> String {
    free.map_or("how much is free is not known".into(), |f| format!("{f} bytes free"))
}

/// Shapes that do not fit, for [`Error::Shape`].
///
/// ```
/// use gemv::ShapeMismatch;
/// let shapes = ShapeMismatch::MatrixVector { matrix: (3, 4), x: 5, y: None };
/// assert_eq!(
///     shapes.to_string(),
///     "the matrix is 3 × 4, so x must have 4 entries, but it has 5"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeMismatch {
    /// `A x`.
    MatrixVector {
        /// Rows and columns of A.
        matrix: (usize, usize),
        /// Entries of `x`; must equal the columns.
        x: usize,
        /// Entries of `y`, where the caller gave one; must equal the rows.
        y: Option<usize>,
    },
    /// The row vector `x A`.
    VectorMatrix {
        /// Entries of `x`; must equal the rows.
        x: usize,
        /// Rows and columns of A.
        matrix: (usize, usize),
        /// Entries of `y`, where the caller gave one; must equal the columns.
        y: Option<usize>,
    },
    /// `A X`, of two matrices.
    MatrixMatrix {
        /// Rows and columns of A.
        matrix: (usize, usize),
        /// Rows and columns of X; the rows must equal the columns of A.
        x: (usize, usize),
        /// Rows and columns of Y, where the caller gave one; must equal the rows of A and the
        /// columns of X.
        y: Option<(usize, usize)>,
    },
    /// `A[i] x[i]` for a batch.
    BatchVectors {
        /// Matrices, and rows and columns of each.
        matrices: (usize, usize, usize),
        /// Vectors, and entries of each; must equal the matrices and their columns.
        x: (usize, usize),
        /// Results, and entries of each, where the caller gave them; must equal the matrices and
        /// their rows.
        y: Option<(usize, usize)>,
    },
    /// `A[i] X[i]` for a batch.
    BatchMatrices {
        /// Matrices, and rows and columns of each.
        matrices: (usize, usize, usize),
        /// Matrices X, and rows and columns of each; there must be as many, and their rows must equal
        /// the columns of A.
        x: (usize, usize, usize),
        /// Results, and rows and columns of each, where the caller gave them.
        y: Option<(usize, usize, usize)>,
    },
    /// Operands of a number of axes that is only known at run time.
    Axes {
        /// Axes of the left operand.
        left: usize,
        /// Axes of the right one.
        right: usize,
        /// Axes of y, where the caller gave one.
        y: Option<usize>,
    },
    /// A step of each entry, or a copy.
    Step {
        /// How many axes y has; more than 3 are none that a device takes.
        axes: usize,
        /// Entries of an operand along each; must equal those of y.
        x: [usize; 3],
        /// Entries of y along each.
        y: [usize; 3],
    },
    /// A dot product of two vectors.
    Dot {
        /// Entries of the first.
        left: usize,
        /// Entries of the second; must equal those of the first.
        right: usize,
    },
}

impl Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The lengths that x and y must have.
        let ((m, n), (want_x, x), (want_y, y)) = match *self {
            ShapeMismatch::MatrixVector { matrix, x, y } => (matrix, (matrix.1, x), (matrix.0, y)),
            ShapeMismatch::VectorMatrix { matrix, x, y } => (matrix, (matrix.0, x), (matrix.1, y)),
            ShapeMismatch::Dot { left, right } => {
                return write!(f, "the vectors have {left} and {right} entries");
            }
            ShapeMismatch::Step { axes: axes @ 4.., .. } => {
                return write!(f, "an array of {axes} axes, where 3 are the most");
            }
            ShapeMismatch::Step { axes, x, y } => {
                let entries = |of: [usize; 3]| of.into_iter().take(axes).map(|n| n.to_string());
                let show = |of| entries(of).collect::<Vec<_>>().join(" × ");
                return write!(f, "y has {} entries and an operand {}", show(y), show(x));
            }
            ShapeMismatch::MatrixMatrix { matrix: (m, n), x: (rows, k), y } => {
                write!(f, "the matrix is {m} × {n} and X is {rows} × {k}")?;
                return others(
                    f,
                    rows == n,
                    "X must have as many rows as A columns",
                    y,
                    (m, k),
                    |y| format!("{} × {}", y.0, y.1),
                );
            }
            ShapeMismatch::BatchVectors { matrices: (b, m, n), x, y } => {
                write!(f, "the matrices are {b} of {m} × {n} and the vectors {} of {}", x.0, x.1)?;
                return others(
                    f,
                    x == (b, n),
                    "there must be a vector for each matrix, with \
                    as many entries as it has columns",
                    y,
                    (b, m),
                    |y| format!("{} of {}", y.0, y.1),
                );
            }
            ShapeMismatch::BatchMatrices { matrices: (b, m, n), x, y } => {
                let show = |d: (usize, usize, usize)| format!("{} of {} × {}", d.0, d.1, d.2);
                write!(f, "the matrices are {} and X is {}", show((b, m, n)), show(x))?;
                return others(
                    f,
                    (x.0, x.1) == (b, n),
                    "there must be an X for each matrix, with \
                    as many rows as it has columns",
                    y,
                    (b, m, x.2),
                    show,
                );
            }
            ShapeMismatch::Axes { left, right, y } => {
                write!(f, "there is no product of arrays of {left} and {right} axes")?;
                if let Some(y) = y {
                    write!(f, " with a result of {y}")?;
                }
                return f.write_str(": a vector has 1 axis, a matrix 2, a batch of matrices 3");
            }
        };
        write!(f, "the matrix is {m} × {n}, so ")?;
        if x != want_x {
            write!(f, "x must have {want_x} entries, but it has {x}")?;
        }
        match y {
            Some(y) if y != want_y => {
                let and = if x == want_x { "" } else { "; and " };
                write!(f, "{and}y must have {want_y} entries, but it has {y}")
            }
            _ => Ok(()),
        }
    }
}

/// The rest of a sentence about X and Y: which of them is of the wrong shape.
fn others<S: PartialEq + Copy>(
    f: &mut fmt::Formatter<'_>,
    x_fits: bool,
    x_rule: &str,
    y: Option<S>,
    y_fits: S,
    show: impl Fn(S) -> String,
) -> fmt::Result {
    if !x_fits {
        write!(f, ": {x_rule}")?;
    }
    match y {
        Some(y) if y != y_fits => {
            let so = if x_fits { ", so" } else { "; and" };
            write!(f, "{so} Y must be {}, but it is {}", show(y_fits), show(y))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_named() {
        let matrix = (3, 4);
        let text = |x, y| Error::Shape(ShapeMismatch::MatrixVector { matrix, x, y }).to_string();
        assert_eq!(
            text(5, None),
            "shapes do not fit: the matrix is 3 × 4, so x must have 4 entries, but it has 5"
        );
        assert_eq!(text(5, Some(3)), text(5, None));
        assert_eq!(
            text(4, Some(9)),
            "shapes do not fit: the matrix is 3 × 4, so y must have 3 entries, but it has 9"
        );
        assert_eq!(
            text(5, Some(9)),
            "shapes do not fit: the matrix is 3 × 4, so x must have 4 entries, but it has 5; \
             and y must have 3 entries, but it has 9"
        );
        let row = ShapeMismatch::VectorMatrix { x: 5, matrix: (4, 3), y: Some(9) };
        assert_eq!(
            row.to_string(),
            "the matrix is 4 × 3, so x must have 4 entries, but it has 5; \
             and y must have 3 entries, but it has 9"
        );
        let many = ShapeMismatch::MatrixMatrix { matrix, x: (5, 2), y: Some((7, 2)) };
        assert_eq!(
            many.to_string(),
            "the matrix is 3 × 4 and X is 5 × 2: X must have as many rows as A columns; \
             and Y must be 3 × 2, but it is 7 × 2"
        );
        let batch = ShapeMismatch::BatchVectors { matrices: (6, 3, 4), x: (6, 4), y: Some((6, 4)) };
        assert_eq!(
            batch.to_string(),
            "the matrices are 6 of 3 × 4 and the vectors 6 of 4, so Y must be 6 of 3, but it is 6 of 4"
        );
        let dot = ShapeMismatch::Dot { left: 3, right: 2 };
        assert_eq!(dot.to_string(), "the vectors have 3 and 2 entries");
    }

    #[test]
    fn main_prints_the_sentence() {
        let e = Error::DefaultInUse { device: Some("cpu".into()) };
        assert_eq!(format!("{e:?}"), e.to_string());
    }

    #[test]
    fn what_is_known_is_said() {
        let memory =
            |free| Error::OutOfMemory { device: "cuda:0".into(), asked: 80, free }.to_string();
        assert_eq!(memory(Some(7)), "cuda:0 is out of memory: 80 bytes asked, 7 bytes free");
        assert!(memory(None).ends_with("how much is free is not known"));
        let e = Error::OutOfMemory { device: "cpu".into(), asked: u64::MAX, free: Some(7) };
        let want = "cpu is out of memory: asked for more than can be addressed, 7 bytes free";
        assert_eq!(e.to_string(), want);
        let table = Error::Table { origin: "t.txt".into(), line: 3, reason: "no colon".into() };
        assert_eq!(table.to_string(), "t.txt, line 3: no colon");
        let device =
            Error::WrongDevice { device: "cpu".into(), operand: "cuda:1".into() }.to_string();
        assert!(
            device.starts_with(
                "an operand lives on cuda:1, the product was asked of cpu: `to_device`"
            )
        );
    }

    #[test]
    fn errors_travel() {
        fn travels<E: std::error::Error + Send + Sync + Clone + 'static>() {}
        travels::<Error>();
    }
}
