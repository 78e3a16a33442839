//! NumPy's files.
