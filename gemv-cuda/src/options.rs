//! How every kernel is compiled.

/// The options of every compilation but the architecture. No fast mathematics: the order of
/// additions is exact, and nothing may be contracted or flushed.
pub(crate) const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--device-as-default-execution-space",
];

/// The options with which kernels are compiled for a target such as `sm_90`
/// ([`Nvrtc::target`](crate::Nvrtc::target)).
///
/// ```
/// let options = gemv::cuda::options("sm_90");
/// assert_eq!(options[0], "--gpu-architecture=sm_90");
/// assert!(options.contains(&"--fmad=false".to_string()));
/// ```
pub fn options(target: &str) -> Vec<String> {
    let arch = format!("--gpu-architecture={target}");
    std::iter::once(arch).chain(OPTIONS.map(String::from)).collect()
}
