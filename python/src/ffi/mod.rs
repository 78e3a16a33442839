//! The C interfaces of NumPy and DLPack, and tensors of the addresses that come from them.

pub mod dlpack;
pub mod exchange;
pub mod numpy;
pub mod place;
