//! libFuzzer on the target that `GEMV_FUZZ` names; `cargo xtask fuzz` builds and runs it.
#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("GEMV_FUZZ").expect("GEMV_FUZZ names a target");
        gemv_fuzz::target(&name).expect("a target of this name")
    });
    target(data);
});
