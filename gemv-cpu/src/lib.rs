//! The CPU backend of gemv: rayon and SIMD, with the bits of the [order](gemv_core::order).
//!
//! Linking this crate registers the device `cpu`. It computes on the calling thread, or on
//! rayon's current pool where a product is large enough for that to pay (the table says from
//! where); a caller's `ThreadPool::install` is respected, and a pool of one thread means serial.
//! The bits do not depend on it.
//!
//! # Instruction sets
//! The best of what the processor has is chosen when the device is opened: `avx512` (F, BW, VL,
//! DQ), `avx2` (with FMA and F16C) or `plain`. The environment variable [`GEMV_CPU_ISA`](ISA_ENV)
//! asks for one by name; if the processor does not have it, the device is missing, with a sentence
//! that says so: a run that meant to use a path and could not fails. On aarch64, `plain` is
//! compiled to NEON, whose fused multiply-add is part of the baseline. On x86-64 processors
//! without FMA, every multiply-add is a call of the C library's `fma`: right, and slow.
//!
//! # Memory
//! Resident operands are memory of the host, aligned to 64 bytes, and on huge pages (where the
//! system grants them) from 2 MiB on.
#![deny(unsafe_code)]

mod backend;
#[allow(unsafe_code)] // the vectors and the memory of the host
mod isa;
mod roof;
mod run;

pub use backend::{Cpu, isas, open};
pub use isa::ISA_ENV;
