//! A binary.
fn main() {}
