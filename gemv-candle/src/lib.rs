//! Linear layers of [candle](candle_core) by [gemv]: a row's bits do not depend on how many rows there are.
//!
//! One token through a layer is one row, `y = x Wᵀ`. A prompt, a batch and a draft that is verified are several. A gemm may
//! add in another order for each number of rows, so that a token's logits depend on what else is computed. Here the order is
//! [one](gemv::unstable::order), for every number of rows, layout, number of threads and device.
//!
//! ```
//! use gemv_candle::candle_core::{Device, Module, Tensor};
//!
//! let device = Device::Cpu; // or Device::new_cuda(0)?, with the feature `cuda`
//! let w = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &device)?; // [out, in], as candle keeps it
//! let x = Tensor::new(&[[1f32, 0., -1.], [0., 1., 0.]], &device)?; // two rows
//! let layer = gemv_candle::Linear::new(w, None);
//! assert_eq!(layer.forward(&x)?.to_vec2::<f32>()?, [[-2., -2.], [2., 5.]]);
//! # Ok::<(), gemv_candle::candle_core::Error>(())
//! ```
//!
//! - **Types**: f32, f64, f16 and bf16; x and W of one type. Sums of f16 and bf16 are kept in f32 and rounded once.
//! - **Layouts**: any strides and offsets. W is never copied.
//! - **Devices**: the CPU, by gemv's, whatever `GEMV_BACKEND` says; CUDA with the feature `cuda`, on the stream of candle's
//!   device. x and W have one stream: tensors of two `CudaDevice`s of a GPU with streams of their own are refused. Metal is
//!   refused.
//! - **Threads**: on CUDA, candle's own device computes on the default stream of the calling thread. Each thread has its own
//!   scratch memory. A tensor that another thread computes is handed over as candle's own operations need it: after
//!   `Device::synchronize`.
//! - **Gradients**: of both operands, by products in the same order.
//! - **Many rows** whose bits do not matter, such as a long prompt: candle's `matmul` is faster. On an H200 cuBLAS's gemm
//!   overtakes from 32 rows in f32, and from 2 to 8 in bf16.
//!
//! The example `decode` times both, and counts the rows whose bits candle's own `matmul` changes with their number: in f32
//! all of them, on a CPU and on an H200.
//!
//! It is a crate and not a feature of gemv: candle brings some hundred crates, its version is a part of this interface, and its
//! feature `cuda` links the CUDA libraries and needs nvcc, where gemv finds the driver when it runs. A feature that is on
//! anywhere in a program is on everywhere in it.
#![deny(unsafe_code)]

#[cfg(feature = "cuda")]
#[allow(unsafe_code)] // memory that is not filled before a product fills it
mod cuda;
mod linear;
mod op;
mod rows;

pub use linear::{Linear, linear, matmul};

/// The README, whose program is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The candle whose tensors these are.
#[doc(no_inline)]
pub use candle_core;
