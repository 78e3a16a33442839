//! The opencl backend of gemv.
