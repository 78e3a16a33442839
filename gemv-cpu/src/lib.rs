//! The CPU backend of gemv: rayon and SIMD, with the bits of the [order](gemv_core::order).
//!
//! Linking this crate registers the device `cpu`.
//!
//! # Threads
//! It computes on the calling thread, or on rayon's current pool if the product is large enough; the table says from where.
//! A caller's `ThreadPool::install` is respected, and a pool of one thread means serial. The bits do not depend on it.
//!
//! A child that `fork` makes (as Python's multiprocessing does) has none of its parent's threads. Products there are
//! computed by a pool of its own, with as many threads. A worker of a pool that forks computes alone in the child. Work of
//! the child's own, such as `install` on a pool that its parent made, still waits for ever: that is rayon's.
//!
//! Where no thread can be made, for a limit of the system or little memory, the caller computes; where some can, these do.
//! It is tried again after a second. Rayon's global pool is made at the first product that several threads share. Rayon
//! makes it once: if fewer threads can be made than it is to have, other users of it find none in that process.
//!
//! # Floating-point mode
//! Neither the caller's mode nor that of a pool's threads changes a bit: flushing of subnormals, other rounding, exceptions that
//! trap. Each thread computes in the [default mode](gemv_core::float_mode), and has its own again afterwards. A thread that waits in
//! a product may take up other work of its pool, which runs in the thread's own mode. Exception flags stay as products raise
//! them. On x86-64 outside of Windows, a program that unmasks exceptions
//! of SSE alone (`_MM_SET_EXCEPTION_MASK`, and not `feenableexcept`) may be trapped in a product, as in its own arithmetic.
//!
//! # Instruction sets
//! Opening the device chooses the best that the processor has: `avx512` (F, BW, VL, DQ), `avx2` (with FMA and F16C)
//! or `plain`. The environment variable [`GEMV_CPU_ISA`](ISA_ENV) names one. If the processor does not have it, the
//! device is missing, and the error says so. On aarch64 `plain` is compiled to NEON, whose fused multiply-add is part
//! of the baseline. On x86-64 `plain` is a short loop in which every multiply-add calls the C library's `fma`: right,
//! and slow.
//!
//! # Features
//! f32 and f64 always have kernels, f16 and bf16 with the feature `half`, `Complex<f32>` and `Complex<f64>` with
//! `complex`, packed matrices with `packed`. Without it the device refuses the type, and its `driver` names what is missing.
//!
//! # Memory
//! Resident operands lie in host memory, aligned to 64 bytes. From 2 MiB on they lie on huge pages, if the system
//! grants them.
//!
//! A product packs some operands and keeps sums of segments, in scratch that each thread keeps for its next product. Where
//! there is no memory for it, rows are computed one after the other on the stack: slower, with the same bits. An operand
//! of repeated elements (stride 0) takes at most 256 MiB of scratch, however long it is.

#![deny(unsafe_code)]

mod backend;
mod kernels;
#[cfg(feature = "packed")]
mod packed;
mod read;
mod run;
#[allow(unsafe_code)]
mod simd;
mod vector;

pub use backend::{Cpu, ENTRY, isas, open};
pub use simd::ISA_ENV;
pub use vector::HostStep;
