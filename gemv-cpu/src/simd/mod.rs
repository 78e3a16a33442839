//! Everything unsafe: the kernels, what leads to them without types, and memory.
//!
//! The algorithms ([`rows`], [`col_registers`], [`col_memory`]) are written once over [`ops::Ops`], which each
//! instruction set implements for each element type. [`entry`] erases the types. [`plan`] decides how a product is computed; [`product`] and
//! [`panel`] do it.

mod col_memory;
mod col_registers;
mod element;
mod entry;
mod gather;
mod gemm_col;
mod gemm_row;
mod isa;
mod memory;
mod narrow;
mod ops;
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
mod ordered;
#[cfg(feature = "packed")]
mod packed;
#[cfg(all(feature = "packed", target_arch = "x86_64"))]
mod packed512;
mod panel;
#[deny(unsafe_code)]
mod plan;
#[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
mod portable;
mod product;
mod rows;
mod scratch;
mod small;
#[cfg(target_arch = "x86_64")]
mod stride_two;
mod sums;
mod vector;
mod window;
// Vectors of the types whose feature is absent are not used, and not compiled to code.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(all(feature = "half", feature = "complex")), allow(dead_code))]
mod x86;

pub(crate) use element::{CpuElement, CpuTimes};
pub use isa::ISA_ENV;
pub(crate) use isa::Isa;
pub(crate) use memory::{Allocation, elements, elements_mut};
pub(crate) use narrow::NARROW;
#[cfg(feature = "packed")]
pub(crate) use packed::{Fused, ROWS, decode};
pub(crate) use panel::{Gemm, Panel};
pub(crate) use plan::{Along, Cut, PanelArgs, Tiles, VectorArgs};
pub(crate) use product::{Part, Product};
pub(crate) use small::FEW_ROWS;
pub(crate) use vector::{Line, Lines, Neighbours, on_host};
