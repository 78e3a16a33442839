//! How every kernel is compiled.

use gemv_gpu::Program;

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

/// The options with which this program is compiled for a target: one that is for `sm_90a` alone, for that in the place of
/// `sm_90`.
///
/// ```
/// use gemv::unstable::Params;
/// let kernel = gemv::cuda::kernels().find(|k| k.name == "gemm-row-lanes").unwrap();
/// let program = kernel.program(gemv::Dtype::Bf16, &Params::new("gemm-row-lanes"));
/// assert_eq!(gemv::cuda::options_of(&program, "compute_90")[0], "--gpu-architecture=compute_90a");
/// ```
pub fn options_of(program: &Program, target: &str) -> Vec<String> {
    match program.is_for_sm_90a() && target.ends_with("_90") {
        true => options(&format!("{target}a")),
        false => options(target),
    }
}
