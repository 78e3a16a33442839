//! Compiles the programs that write y at several places, without a GPU: each kernel that has one, once for f32, and those
//! of the tables' rows for one type after another. Where there is no NVRTC the trials are ignored and counted;
//! `GEMV_REQUIRE=nvrtc` makes that a failure.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::OnceLock;

use gemv_core::{Dtype, Params};
use gemv_cuda::{Nvrtc, kernels, options, shipped};
use gemv_gpu::{Kernel, Places};
use libtest_mimic::{Arguments, Failed, Trial};

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// Kernels for one vector whose threads write entries of y by themselves.
const WRITE_AT_PLACES: [&str; 7] = [
    "col-few-rows",
    "row-block",
    "row-block-long",
    "row-smem",
    "row-splitk",
    "row-streamk",
    "row-warp",
];

fn nvrtc() -> Result<&'static Nvrtc, Failed> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    NVRTC.get_or_init(|| Nvrtc::find().map_err(|e| e.to_string())).as_ref().map_err(Failed::from)
}

fn has(kernel: &Kernel) -> bool {
    let types = (Dtype::F32, Dtype::F32);
    kernel.places_program(types, &Params::new(kernel.name)).is_some()
}

fn kernels_that_write_at_places() -> Result<(), Failed> {
    let mut names: Vec<_> = kernels().filter(|kernel| has(kernel)).map(|k| k.name).collect();
    names.sort_unstable();
    match names == WRITE_AT_PLACES {
        true => Ok(()),
        false => Err(format!("{names:?}").into()),
    }
}

/// The first program of each kernel for each of some types that travels with the crate.
fn programs() -> BTreeMap<(&'static str, Types), (&'static Kernel, Params)> {
    let mut all = BTreeMap::new();
    let listed = |of: &Kernel| WRITE_AT_PLACES.contains(&of.name);
    for of in shipped().into_iter().filter(|of| of.target == 90 && listed(of.kernel)) {
        all.entry((of.kernel.name, of.types)).or_insert((of.kernel, of.params));
    }
    let first = WRITE_AT_PLACES[1];
    all.retain(|(name, types), _| *types == (Dtype::F32, Dtype::F32) || *name == first);
    all
}

fn compiles(nvrtc: &Nvrtc, kernel: &Kernel, types: Types, params: &Params) -> Result<(), Failed> {
    let program = kernel.places_program(types, params).ok_or("no program")?;
    let text = |program| nvrtc.compile(program, &options("compute_90"));
    let (image, _) = text(&program)?;
    let ptx = String::from_utf8_lossy(image.bytes()).into_owned();
    let (plain, _) = text(&kernel.mixed_program(types, params))?;
    let plain = String::from_utf8_lossy(plain.bytes()).into_owned();
    // Every entry point takes the places behind what it took before.
    let parameters = |ptx: &str| ptx.matches(".param ").count();
    let entries = ptx.matches(".visible .entry ").count();
    if entries != plain.matches(".visible .entry ").count() {
        return Err("other entry points".into());
    }
    let size = format!("[{}]", size_of::<Places>());
    let places = |line: &&str| line.contains(".param .align 8 .b8 ") && line.contains(&size);
    let declared = ptx.lines().filter(places).count();
    if declared != entries || parameters(&ptx) <= parameters(&plain) {
        return Err(format!("{declared} of {entries} entry points take places").into());
    }
    // It writes more than the plain one.
    let writes = |ptx: &str| ptx.matches("\tst.").count();
    if writes(&ptx) <= writes(&plain) {
        return Err("nothing is written at the places".into());
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|r| r.trim() == "nvrtc");
    let ignored = !required && nvrtc().is_err();
    let mut trials = vec![Trial::test("which kernels", kernels_that_write_at_places)];
    for ((name, types), (kernel, params)) in programs() {
        let trial = format!("{name} {}*{}", types.0, types.1);
        let trial = Trial::test(trial, move || compiles(nvrtc()?, kernel, types, &params));
        trials.push(trial.with_ignored_flag(ignored));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
