//! The order of additions: one answer on every device.
//!
//! Every product follows one order, so two runs of it give the same bits: on the CPU, through
//! OpenCL, through CUDA, on one thread or many, for any memory layout, any tuned kernel, any split
//! of the work. A is m × n, x has n entries; `fma(a, b, c)` and `+` round once, to nearest even;
//! `Acc` is f32 for f16, bf16 and f32, f64 for f64, and a pair of those for complex numbers.
//!
//! 1. *Segments.* The columns are cut into segments of [`SEGMENT`] = 256.
//! 2. *Lanes.* A segment has [`LANES`] = 64 lanes. Lane l starts at +0 and takes columns l, l + 64,
//!    l + 128 and l + 192 of the segment in turn, by `acc[l] = fma(a[i][j], x[j], acc[l])`, in
//!    `Acc`. Columns beyond n are not visited.
//! 3. *Halving.* For h = 32, 16, 8, 4, 2, 1: `acc[l] = acc[l] + acc[l + h]` for l < h. `acc[0]` is
//!    the segment's sum.
//! 4. *Recursion.* More than one segment: their sums are summed by 1 to 3, with `acc[l] + v` in
//!    place of the fma, until one value is left.
//! 5. *Empty product.* n = 0: the sum is +0.
//! 6. *Scaling.* `alpha = 0`: A and x are not read, `y = beta * y` (+0 where `beta = 0`).
//!    `beta = 0`: y is not read, `y = alpha * s`. Else `y = fma(alpha, s, beta * y)`. A factor of
//!    exactly 1 is not multiplied. The result is rounded once from `Acc` to the type of y.
//! 7. *Complex.* `re = fma(-a.im, x.im, fma(a.re, x.re, re))`,
//!    `im = fma(a.im, x.re, fma(a.re, x.im, im))`; a conjugated matrix negates a.im on load. In
//!    rule 6 a product of two pairs starts from plain products:
//!    `re = fma(-a.im, b.im, a.re * b.re)`, `im = fma(a.im, b.re, a.re * b.im)`.
//! 8. Subnormals are kept, infinities follow IEEE 754, a NaN's payload and sign are not defined.
//!
//! It follows that a row's sum depends on that row and x alone; that the halving is invariant
//! under rotation of the lanes, so that a kernel may load aligned vectors from a misaligned row;
//! that levels of the halving whose upper lanes are all absent may be skipped, if +0 is added once
//! at the end; and that a row may be split at any segment boundary.
//!
//! # Accuracy
//! Each level, of which there are one up to 256 columns, two up to 65,536 and three up to 16.7
//! million, rounds a term at most 10 times, 4 in its lane and 6 in the halving. With unit roundoff
//! u and `g(k) = k u / (1 - k u)`, as in Higham's analysis of summation by trees (*Accuracy and
//! Stability of Numerical Algorithms*, 2nd edition, chapters 3 and 4),
//! `|s - exact| <= g(10 levels) * sum |a x|`: about 20 u up to 65,536 columns, against n u for a
//! plain loop.
//!
//! ```
//! # gemv::Engine::global().set_default("reference").unwrap();
//! use gemv::GpuDot;
//! use ndarray::{Array1, Array2};
//!
//! // A million times 0.1, in f32: a plain loop is off by almost one percent.
//! let n = 1_000_000;
//! let tenths = Array1::from_elem(n, 0.1f32);
//! let ones = Array2::from_elem((1, n), 1.0);
//! let exact = n as f64 * f64::from(0.1f32);
//! let error = |sum: f32| (f64::from(sum) / exact - 1.0).abs();
//! assert!(error(ones.gpu_dot(&tenths)[0]) < 30.0 * f64::from(f32::EPSILON / 2.0));
//! assert!(error(tenths.iter().fold(0.0, |s, v| s + v)) > 0.009);
//! ```
//!
//! [`reference`](crate::reference) is this text as a program; `docs/ORDER.md` has it with its
//! reasons, and with what a compiler must not do.

/// Columns of a segment.
///
/// ```
/// use gemv::unstable::order::SEGMENT;
/// let n = 1000_usize;
/// assert_eq!(n.div_ceil(SEGMENT), 4); // whose sums are one more segment's terms
/// assert_eq!(n % SEGMENT, 232); // columns of the last
/// ```
pub const SEGMENT: usize = 256;
/// Lanes of a segment.
///
/// ```
/// use gemv::unstable::order::{LANES, SEGMENT};
/// let lane = |column: usize| column % SEGMENT % LANES;
/// assert_eq!([5, 69, 133, 197, 261].map(lane), [5; 5]);
/// assert_eq!(SEGMENT / LANES, 4); // columns that a lane takes in each segment
/// ```
pub const LANES: usize = 64;

/// The version of the order: results of libraries with the same number have the same bits.
pub const VERSION: u32 = 1;
