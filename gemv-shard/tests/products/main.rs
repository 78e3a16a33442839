//! Products in parts, over several devices and from files: one program, since each would compile the same code for each
//! element type.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod golden;
mod modes;
mod partial;
mod resident;
mod sharded;
mod specials;
mod streamed;
