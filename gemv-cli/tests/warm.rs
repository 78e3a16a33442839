//! `gemv warm`: on the reference, which has nothing to compile, and on OpenCL where there is a device.

use std::process::{Command, Output};

fn warm(cache: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    for name in ["GEMV_BACKEND", "GEMV_TABLES", "GEMV_CACHE", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.env("GEMV_CACHE_DIR", cache).env("RUST_LOG", "gemv_opencl=debug");
    command.arg("warm").args(args).output().unwrap()
}

/// Standard output, and the log.
fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn where_nothing_is_compiled_nothing_is_left_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (out, log) = said(&warm(dir.path(), &["--device", "cpu", "--dtype", "f64,complex64"]));
    assert!(out.contains(" kernels are ready on cpu after "), "{out}{log}");
    let failed = warm(dir.path(), &["--device", "cpu", "--dtype", "int8"]);
    assert_eq!(failed.status.code(), Some(2));
    let failed = warm(dir.path(), &["--device", "abacus:0"]);
    assert_eq!(failed.status.code(), Some(1));
}

#[test]
fn what_would_not_be_kept_is_not_compiled() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemv"));
    let output =
        command.env("GEMV_CACHE", "off").args(["warm", "--device", "cpu"]).output().unwrap();
    let (out, log) = said(&output);
    assert!(output.status.code() == Some(1) && out.is_empty(), "{out}{log}");
    assert_eq!(log.trim_end(), "gemv: GEMV_CACHE=off: nothing of what is compiled would be kept");
}

/// A type with few kernels: all take minutes.
#[test]
#[cfg(feature = "opencl")]
fn what_was_warmed_is_not_tested_again() {
    if gemv::device("opencl:0").is_err() {
        let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
        assert!(!required.contains("opencl"), "no OpenCL device");
        return eprintln!("not tested: no OpenCL device");
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["--device", "opencl:0", "--dtype", "f16", "--threads", "2"];
    let count = |log: &str, what: &str| log.lines().filter(|line| line.contains(what)).count();
    let (out, log) = said(&warm(dir.path(), &args));
    assert!(out.contains(" kernels are ready on opencl:0 after "), "{out}{log}");
    let (compiled, tested) = (count(&log, "opencl: compiled "), count(&log, "opencl: tested "));
    assert!(compiled > 0 && tested > 0, "{log}");
    let (out, log) = said(&warm(dir.path(), &args));
    assert!(out.contains(" kernels are ready "), "{out}{log}");
    // But for entry points that no small product launches, which every process looks for.
    assert!(count(&log, "opencl: tested ") < tested, "{log}");
}
