//! Machines without CUDA get one sentence, at once, and never a panic.

use std::process::Command;
use std::time::{Duration, Instant};

use gemv_core::{Engine, Error};
// Links the backend.
use gemv_cuda as _;

/// Runs one of the tests below, marked as ignored, in a process of its own.
fn child(test: &str, configure: impl FnOnce(&mut Command)) -> (String, Duration) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    configure(&mut command);
    let start = Instant::now();
    let out = command.output().unwrap();
    let time = start.elapsed();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    (text, time)
}

#[test]
#[ignore = "run by the tests below"]
fn says_what_is_there() {
    let engine = Engine::new(Some("cuda".into()));
    for line in engine.devices().iter().filter(|l| l.id.starts_with("cuda")) {
        match &line.found {
            Ok(info) => println!("found {}", info.id),
            Err(why) => println!("absent: {why}"),
        }
    }
    match engine.default_device() {
        Ok(device) => println!("opened {}", device.info().id),
        Err(Error::DriverMissing { backend: "cuda", reason }) => println!("missing: {reason}"),
        Err(e) => println!("refused: {e}"),
    }
}

/// A machine without the driver, or one whose driver reports no GPU, is the subject here; with a
/// GPU, the same call opens it.
#[test]
fn without_a_gpu_it_is_one_sentence_in_a_tenth_of_a_second() {
    let (text, time) = child("says_what_is_there", |_| {});
    if text.contains("found cuda:0") {
        assert!(text.contains("opened cuda:0") || text.contains("NVRTC"), "{text}");
        return;
    }
    let why = text.lines().find_map(|l| l.strip_prefix("missing: ")).expect(&text);
    assert!(why.contains("driver"), "{why}");
    assert!(text.contains("absent: cuda is not available: "), "{text}");
    assert!(time < Duration::from_millis(100), "{time:?}");
}

/// What is looked for by name and is no driver: an empty file, a text, a foreign library.
#[test]
#[cfg(target_os = "linux")]
fn what_is_no_driver_is_one_sentence() {
    let libc = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"];
    let libc = libc.iter().find_map(|p| std::fs::read(p).ok());
    let contents = [Some(Vec::new()), Some(b"not a library\n".repeat(100)), libc];
    for content in contents.into_iter().flatten() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("libcuda.so.1"), &content).unwrap();
        std::fs::write(dir.path().join("libcuda.so"), &content).unwrap();
        let (text, _) = child("says_what_is_there", |c| {
            c.env("LD_LIBRARY_PATH", dir.path());
        });
        // A machine with a driver finds it behind the file that cannot be loaded.
        assert!(text.contains("missing: ") || text.contains("opened cuda:0"), "{text}");
    }
}

#[test]
fn the_compiler_named_by_the_user_and_no_other() {
    // In this process, since nothing else here reads it.
    let (text, _) = child("says_where_nvrtc_is", |c| {
        c.env(gemv_cuda::NVRTC_ENV, "/no/such/libnvrtc.so.13");
    });
    assert!(text.contains("NVRTC was not found where GEMV_NVRTC says"), "{text}");
    assert!(text.contains("/no/such/libnvrtc.so.13"), "{text}");
}

#[test]
#[ignore = "run by the test above"]
fn says_where_nvrtc_is() {
    match gemv_cuda::Nvrtc::find() {
        Ok(nvrtc) => println!("{:?} {}", nvrtc.version(), nvrtc.path()),
        Err(e) => println!("{e}"),
    }
}
