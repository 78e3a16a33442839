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
//! at the end; and that a row may be split at any segment boundary. The error is at most
//! `g(10 + levels) * sum |a x|` for up to 65,536 columns, with `g(k) = k u / (1 - k u)` and about
//! `20 u` in all, against `n u` for a plain loop.
//!
//! [`reference`](crate::reference) is this text as a program.

/// Columns of a segment.
pub const SEGMENT: usize = 256;
/// Lanes of a segment.
pub const LANES: usize = 64;
