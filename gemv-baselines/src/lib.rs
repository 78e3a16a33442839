//! The published kernels, as baselines by name: they keep another order, are chosen on request
//! only, and are tested against an error bound.
//!
//! | name | what |
//! |---|---|
//! | `classic-thread` | Sørensen: one thread per row, x in shared memory |
//! | `classic-columns` | Sørensen: several threads per row in a 2-D grid, atomic addition between blocks |
//! | `classic-rows` | Sørensen: several rows per thread |
//! | `classic-spread` | Sørensen: the threads of a block spread along columns |
//! | `classic-general` | Sørensen's versatile kernel, which contains the others |
//! | `classic-stages` | Bainville: P threads per row, partial sums in an m × P array, reduced by a second kernel; `op` 0 `+=`, 1 `fma`, 2 `mad` |
//! | `classic-block` | SDS 406: one block per row |
//! | `classic-block-x` | SDS 406: the same with x in shared memory |
//! | `classic-tile` | SDS 406: A and x in shared memory, 2-D block |
//!
//! `vec` is Nugteren's width of data types, 1, 2, 4 or 8, wherever neighbouring elements are taken.
//! Every kernel takes any strides: a row-major matrix runs through the transposed indexing.

use gemv_core::{Desc, Dtype, Params};
use gemv_gpu::{Arg, Caps, Kernel, Language, Launch, MAX_GRID, Plan, value};

macro_rules! source {
    ($file:literal) => {
        concat!(include_str!("../kernels/common.k"), include_str!(concat!("../kernels/", $file)))
    };
}

macro_rules! sorensen {
    ($name:literal, $form:expr) => {
        Kernel {
            name: $name,
            about: "",
            source: source!("sorensen.k"),
            args: SORENSEN,
            defines: &[],
            ordered: false,
            candidates: |desc, caps| sorensen_candidates($name, $form, desc, caps),
            legal: |desc, params, caps| sorensen_legal($form, desc, params, caps),
            plan: |desc, params, _| sorensen_plan(desc, params),
        }
    };
}

macro_rules! course {
    ($name:literal, $form:expr) => {
        Kernel {
            name: $name,
            about: "",
            source: source!("sds406.k"),
            args: COURSE,
            defines: &[],
            ordered: false,
            candidates: |desc, caps| course_candidates($name, $form, desc, caps),
            legal: |desc, params, caps| course_legal($form, desc, params, caps),
            plan: |desc, params, _| course_plan($form, desc, params),
        }
    };
}

/// Enters the kernels where the backends look them up.
#[linkme::distributed_slice(gemv_gpu::BASELINES)]
static ENTRY: &[Kernel] = KERNELS;

/// The published kernels, `classic-*`: baselines with an order of their own, chosen only on
/// request. `candidates` of each is the space that its authors searched, where they say; Sørensen's
/// is 8 × 8 × 8 for each of the matrix's types and layouts.
///
/// | name | source |
/// |---|---|
/// | `classic-thread` | H. H. B. Sørensen, *High-Performance Matrix-Vector Multiplication on the GPU* (2011): one thread per row, x in shared memory |
/// | `classic-columns` | the same: several threads per row in a 2-D grid, atomic addition between blocks |
/// | `classic-rows` | the same: several rows per thread |
/// | `classic-spread` | the same: the threads of a block spread along columns |
/// | `classic-general` | the same: the versatile kernel, which contains the others |
/// | `classic-stages` | E. Bainville, *OpenCL GEMV* (2010): P threads per row, partial sums in an m × P array, reduced by a second kernel |
/// | `classic-block` | course SDS 406 of The Cyprus Institute: one block per row |
/// | `classic-block-x` | the same, with x in shared memory |
/// | `classic-tile` | the same, with A and x in shared memory and a 2-D block |
///
/// `vec`, the width of loads, is that of C. Nugteren's CLBlast. Each text under
/// `kernels/classic` begins with its order of additions and an error bound.
///
/// ```
/// use gemv_gpu::{Caps, Language};
/// use gemv_core::{Desc, Dtype};
///
/// let desc = Desc::new(Dtype::F32, 1001, 3003, (1, 1001), 0);
/// let mut caps = Caps::new(Language::Cuda);
/// (caps.units, caps.max_group, caps.local_bytes) = (132, 1024, 48 << 10);
/// let general = gemv_baselines::KERNELS.iter().find(|k| k.name == "classic-general").unwrap();
/// assert_eq!((general.candidates)(&desc, &caps).len(), 8 * 8 * 8);
/// assert!(gemv_baselines::KERNELS.iter().all(|k| !k.ordered));
/// ```
pub const KERNELS: &[Kernel] = &[
    sorensen!("classic-thread", Form::Thread),
    sorensen!("classic-columns", Form::Columns),
    sorensen!("classic-rows", Form::Rows),
    sorensen!("classic-spread", Form::Spread),
    sorensen!("classic-general", Form::General),
    Kernel {
        name: "classic-stages",
        about: "",
        source: source!("bainville.k"),
        args: BAINVILLE,
        defines: &[],
        ordered: false,
        candidates: bainville_candidates,
        legal: bainville_legal,
        plan: |desc, params, _| bainville_plan(desc, params),
    },
    course!("classic-block", Course::Row),
    course!("classic-block-x", Course::X),
    course!("classic-tile", Course::Tile),
];

/// How the arguments of a published kernel are scanned for pictures.
///
/// ```
/// use gemv_baselines::{Scan, scan};
/// assert_eq!(scan("classic-block"), Scan::AtMost("block"));
/// assert_eq!(scan("classic-rows"), Scan::Each);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// Each argument over all its values, the others as in the kernel's first parameters.
    Each,
    /// The same, and these arguments over all their combinations.
    Grid(&'static [&'static str]),
    /// The same, and this argument also where the others have their greatest values.
    AtMost(&'static str),
    /// Not at all: other kernels show the same.
    None,
}

/// How the authors of a kernel showed its arguments: Bainville's threads of a row for each way to
/// multiply and add, the course's threads of a block for the least and the most of the other argument.
/// Sørensen's versatile kernel is each of his others.
pub fn scan(kernel: &str) -> Scan {
    match kernel {
        "classic-general" => Scan::None,
        "classic-stages" => Scan::Grid(&["parts", "op"]),
        "classic-block" | "classic-block-x" | "classic-tile" => Scan::AtMost("block"),
        _ => Scan::Each,
    }
}

/// Which of the five texts by Sørensen: what the arguments may be.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Thread,
    Columns,
    Rows,
    Spread,
    General,
}

#[derive(Clone, Copy, PartialEq)]
enum Course {
    Row,
    X,
    Tile,
}

/// BLOCKSIZE, WORKSIZE_m, WORKSIZE_n (0: a block goes through every column), threads along
/// columns, and the width of loads.
const SORENSEN: &[Arg] = &[
    gemv_gpu::compiled("block", 128, "THREADS"),
    gemv_gpu::compiled("m", 1, "WORK_M"),
    gemv_gpu::launched("n", 0),
    gemv_gpu::compiled("spread", 1, "SPREAD"),
    gemv_gpu::compiled("vec", 1, "WIDTH"),
];
const BAINVILLE: &[Arg] = &[
    gemv_gpu::compiled("block", 128, "THREADS"),
    gemv_gpu::compiled("parts", 4, "PARTS"),
    gemv_gpu::compiled("op", 1, "OP"),
    gemv_gpu::compiled("vec", 1, "WIDTH"),
];
const COURSE: &[Arg] = &[
    gemv_gpu::compiled("block", 128, "THREADS"),
    gemv_gpu::compiled("rows", 4, "ROWS"),
    gemv_gpu::compiled("ty", 4, "TY"),
    gemv_gpu::compiled("vec", 1, "WIDTH"),
];

fn of(entry: &'static str, grid: [u64; 2], threads: u32) -> Launch {
    Launch { grid: [grid[0], grid[1], 1], ..Launch::new(entry, 1, threads) }
}

fn limits(plan: &Plan, local: u64, caps: &Caps) -> Result<(), String> {
    for launch in &plan.launches {
        if launch.block[0] > caps.max_group {
            let (threads, most) = (launch.block[0], caps.max_group);
            return Err(format!(
                "a block of {threads} threads where the device has at most {most}"
            ));
        }
        if launch.grid[0] > MAX_GRID || launch.grid[1] > 65_535 {
            let [x, y, _] = launch.grid;
            return Err(format!("{x} x {y} blocks are more than {MAX_GRID} x 65535"));
        }
    }
    if local > u64::from(caps.local_bytes) {
        let has = caps.local_bytes;
        return Err(format!("a block needs {local} bytes of local memory, the device has {has}"));
    }
    Ok(())
}

fn width(args: &[Arg], params: &Params) -> Result<(), String> {
    match value(args, params, "vec") {
        1 | 2 | 4 | 8 => Ok(()),
        vec => Err(format!("vec={vec} is not 1, 2, 4 or 8")),
    }
}

fn sorensen_legal(form: Form, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(SORENSEN, params, name);
    let (block, m, n, spread) = (get("block"), get("m"), get("n"), get("spread"));
    if !block.is_multiple_of(32) || !(32..=256).contains(&block) {
        return Err(format!("block={block} is not a multiple of 32 from 32 to 256"));
    }
    if !(1..=8).contains(&m) || n > 8 {
        return Err(format!("m={m} n={n} are not from 1 to 8 (n from 0, for every column)"));
    }
    if spread == 0 || !block.is_multiple_of(spread) {
        return Err(format!("spread={spread} does not divide block={block}"));
    }
    let is = match form {
        Form::Thread => m == 1 && n == 0 && spread == 1,
        Form::Columns => m == 1 && n > 0 && spread == 1,
        Form::Rows => n == 0 && spread == 1,
        Form::Spread => m == 1 && n == 0 && spread > 1,
        Form::General => true,
    };
    if !is {
        let form = "thread m=1 n=0 spread=1, columns m=1 n>0 spread=1, rows n=0 spread=1, spread \
                    m=1 n=0 spread>1";
        return Err(format!("not of this kernel's form ({form}); classic-general takes all"));
    }
    width(SORENSEN, params)?;
    let plan = sorensen_plan(desc, params);
    if plan.launches.len() > 1 {
        atomics(desc, caps)?;
    }
    let acc = desc.dtype.acc_bytes() as u64;
    limits(&plan, (1 + u64::from(spread > 1)) * u64::from(block) * acc, caps)
}

/// Whether blocks can add to y at the same time.
fn atomics(desc: &Desc, caps: &Caps) -> Result<(), String> {
    match desc.dtype {
        Dtype::F16 | Dtype::Bf16 => Err("there are no atomics on 16-bit floats".into()),
        Dtype::F64 | Dtype::C64 if caps.language == Language::OpenCl && !caps.atomics64 => {
            Err("the device has no 64-bit atomics (cl_khr_int64_base_atomics)".into())
        }
        _ => Ok(()),
    }
}

fn sorensen_plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(SORENSEN, params, name));
    let (block, n, spread) = (get("block"), get("n"), get("spread"));
    let rows = block / spread.max(1) * get("m") * get("vec");
    let m = desc.m as u64;
    let tiles = (desc.n as u64).div_ceil(block);
    let parts = if n == 0 { 1 } else { tiles.div_ceil(n).max(1) };
    let mut launches = Vec::new();
    if parts > 1 {
        launches.push(of("classic_scale", [m.div_ceil(64), 1], 64));
    }
    launches.push(of("sorensen", [m.div_ceil(rows.max(1)), parts], block as u32));
    Plan { launches, ..Plan::default() }
}

fn sorensen_candidates(name: &'static str, form: Form, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let list = |on: bool, values: &[u32], off: u32| if on { values.to_vec() } else { vec![off] };
    let general = form == Form::General;
    let mut all = Vec::new();
    for block in (32..=256).step_by(32) {
        for m in list(general || form == Form::Rows, &[1, 2, 3, 4, 5, 6, 7, 8], 1) {
            for n in list(general || form == Form::Columns, &[1, 2, 3, 4, 5, 6, 7, 8], 0) {
                for spread in list(form == Form::Spread, &[2, 4, 8, 16, 32], 1) {
                    for vec in list(!general, &[1, 2, 4, 8], 1) {
                        let params = Params::new(name).with("block", block).with("m", m);
                        let params = params.with("n", n).with("spread", spread);
                        all.push(params.with("vec", vec));
                    }
                }
            }
        }
    }
    all.retain(|p| sorensen_legal(form, desc, p, caps).is_ok());
    all
}

fn bainville_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(BAINVILLE, params, name);
    let (block, parts, op) = (get("block"), get("parts"), get("op"));
    if !block.is_power_of_two() || !(16..=1024).contains(&block) {
        return Err(format!("block={block} is not a power of two from 16 to 1024"));
    }
    if !(1..=4096).contains(&parts) {
        return Err(format!("parts={parts} is not from 1 to 4096"));
    }
    if op > 2 {
        return Err(format!("op={op} is not 0 (+=), 1 (fma) or 2 (mad)"));
    }
    width(BAINVILLE, params)?;
    let local = u64::from(block) * desc.dtype.acc_bytes() as u64;
    limits(&bainville_plan(desc, params), local, caps)
}

fn bainville_plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(BAINVILLE, params, name));
    let (block, parts, m) = (get("block"), get("parts"), desc.m as u64);
    Plan {
        launches: vec![
            of("bainville", [m.div_ceil((block * get("vec")).max(1)), parts], block as u32),
            of("bainville_rows", [m.div_ceil(64), 1], 64),
        ],
        workspace: m * parts,
        counters: 0,
    }
}

fn bainville_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    for op in [1, 0, 2] {
        for parts in [4, 1, 2, 8, 16, 32, 64] {
            for block in [128, 32, 64, 256] {
                for vec in [1, 2, 4, 8] {
                    let params = Params::new("classic-stages").with("block", block);
                    all.push(params.with("parts", parts).with("op", op).with("vec", vec));
                }
            }
        }
    }
    all.retain(|p| bainville_legal(desc, p, caps).is_ok());
    all
}

fn course_legal(form: Course, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(COURSE, params, name);
    let (block, rows, ty) = (get("block"), get("rows"), get("ty"));
    if !block.is_power_of_two() || !(16..=1024).contains(&block) {
        return Err(format!("block={block} is not a power of two from 16 to 1024"));
    }
    if form == Course::X && !(1..=32).contains(&rows) {
        return Err(format!("rows={rows} is not from 1 to 32"));
    }
    if form == Course::Tile && (!ty.is_power_of_two() || ty > block) {
        return Err(format!("ty={ty} is not a power of two up to block={block}"));
    }
    if form != Course::Row && get("vec") != 1 {
        return Err("one element a thread goes to local memory: vec=1".into());
    }
    width(COURSE, params)?;
    // The text has three entry points, each with its arrays; the largest counts.
    let local = 2 * u64::from(block) * desc.dtype.acc_bytes() as u64;
    limits(&course_plan(form, desc, params), local, caps)
}

fn course_plan(form: Course, desc: &Desc, params: &Params) -> Plan {
    let get = |name| value(COURSE, params, name);
    let (entry, rows) = match form {
        Course::Row => ("block_row", 1),
        Course::X => ("block_x", get("rows")),
        Course::Tile => ("block_tile", get("ty")),
    };
    let blocks = (desc.m as u64).div_ceil(u64::from(rows.max(1)));
    Plan { launches: vec![of(entry, [blocks, 1], get("block"))], ..Plan::default() }
}

fn course_candidates(name: &'static str, form: Course, desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    for block in [128, 32, 64, 256, 512, 1024] {
        let params = Params::new(name).with("block", block);
        match form {
            Course::Row => all.extend([1, 2, 4, 8].map(|vec| params.with("vec", vec))),
            Course::X => all.extend([1, 4, 8].map(|rows| params.with("rows", rows))),
            Course::Tile => all.extend([1, 4, 8, 16].map(|ty| params.with("ty", ty))),
        }
    }
    all.retain(|p| course_legal(form, desc, p, caps).is_ok());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::Layout;
    use gemv_gpu::kernels;

    fn caps(language: Language) -> Caps {
        let mut caps = Caps::new(language);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps
    }

    #[test]
    fn named_apart_and_never_among_the_ordered() {
        for kernel in KERNELS {
            assert!(kernel.name.starts_with("classic-") && !kernel.ordered, "{}", kernel.name);
            assert!(kernels().iter().all(|k| k.name != kernel.name));
            Params::new(kernel.name); // a legal name
        }
    }

    #[test]
    fn every_candidate_fits_and_the_published_space_is_whole() {
        let caps = caps(Language::Cuda);
        let desc = Desc::of(Dtype::F32, Layout::Col, (1001, 3003), 2);
        for kernel in KERNELS {
            let all = (kernel.candidates)(&desc, &caps);
            assert!(!all.is_empty(), "{}", kernel.name);
            for params in &all {
                kernel.fits(&desc, params, &caps).unwrap();
                let parsed: Params = params.to_string().parse().unwrap();
                assert_eq!(parsed, *params);
            }
            if kernel.name == "classic-general" {
                assert_eq!(all.len(), 8 * 8 * 8, "the published parameters");
            }
        }
    }

    #[test]
    fn what_needs_atomics_says_so() {
        let opencl = caps(Language::OpenCl);
        let params: Params = "classic-columns n=1".parse().unwrap();
        let columns = gemv_gpu::kernel("classic-columns").unwrap();
        for (dtype, part) in [(Dtype::F64, "int64_base_atomics"), (Dtype::Bf16, "16-bit")] {
            let desc = Desc::of(dtype, Layout::Col, (10, 1000), 2);
            let why = columns.fits(&desc, &params, &opencl).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        // One block a row adds nothing to anybody else's sum.
        let desc = Desc::of(Dtype::Bf16, Layout::Col, (10, 100), 2);
        columns.fits(&desc, &params, &opencl).unwrap();
    }
}
