//! Products in parts, over several devices and from files: one program, since each would compile the same code for each
//! element type.
#![deny(unsafe_code)] // the macro `s!` allows it for its own

#[path = "../common/mod.rs"]
mod common;
mod files;
mod golden;
mod modes;
#[cfg(feature = "packed")]
mod packed;
mod partial;
#[cfg(target_os = "linux")]
mod processes;
mod resident;
mod sharded;
mod specials;
mod streamed;
