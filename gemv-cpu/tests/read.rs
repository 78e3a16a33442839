//! The pass that only reads, which is private: it is compiled once more here, with its tests.
#![expect(dead_code, reason = "the device calls the rest")]

#[path = "../src/read.rs"]
mod read;
