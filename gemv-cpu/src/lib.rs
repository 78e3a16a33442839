//! The cpu backend of gemv.
