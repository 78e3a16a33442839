//! The cuda backend of gemv.
