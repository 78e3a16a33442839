//! The binary `gemv`: see the library of this crate.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gemv_cli::main()
}
