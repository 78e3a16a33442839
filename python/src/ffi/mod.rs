//! The C interfaces of NumPy, DLPack and CUDA, and tensors of the addresses that come from them.

pub mod cuda;
pub mod dlpack;
pub mod numpy;
pub mod place;
pub mod torch;
