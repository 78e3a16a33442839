//! Kernels that OpenCL and CUDA share: one description and one text each.
//!
//! A [`Kernel`] says for which problems and parameters it is legal, what to launch, and gives its
//! source. The source is one text that a prelude spells as OpenCL C or as CUDA C, takes its types
//! and parameters as defines, and begins with its contract. What only one of the two can do is a
//! kernel of its own in that backend's crate, described with the same types.
//!
//! Every entry point has one signature, so that a backend sets arguments in one place:
//!
//! ```c
//! KERNEL(threads) name(
//!     U64 m, U64 n,
//!     GLOBAL const ELEM *a, U64 a0, I64 rs, I64 cs,   // A[i,j] = a[a0 + i*rs + j*cs]
//!     GLOBAL const ELEM *x, U64 x0, I64 incx,         // x[j] = x[x0 + j*incx]
//!     GLOBAL ELEM *y, U64 y0, I64 incy,               // y[i] = y[y0 + i*incy]
//!     ACC alpha, ACC beta,                            // beta = 0: y is not read
//!     U32 conj,                                       // 1: the conjugate of A
//!     GLOBAL ACC *work, GLOBAL U32 *counters)         // see Plan; null where not asked for
//! ```
//!
//! `alpha` and `beta` are `float`, `double`, `float2` or `double2`. Offsets and strides are in
//! elements. `a`, `x` and `y` are multiples of one element; any further alignment is found out by
//! the kernel from the pointers, never assumed.

mod choices;
mod classic;
mod ordered;
mod roof;
mod split;

pub use choices::worth_whole;
pub use roof::roof;
pub use split::{REDUCE_SOURCE, Split, busy_split};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use crate::{Desc, Dtype, Params};

/// What the kernels ask of a device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Which spelling the source is compiled as.
    pub language: Language,
    /// Compute units: streaming multiprocessors, cores.
    pub units: u32,
    /// Most threads of a block (work-items of a work-group).
    pub max_group: u32,
    /// Bytes of shared (local) memory a block may have.
    pub local_bytes: u32,
    /// Whether the device is a CPU: one work-item a group, long vectors.
    pub cpu: bool,
    /// Whether it has double precision.
    pub fp64: bool,
    /// Whether it has 64-bit atomics (`cl_khr_int64_base_atomics`); CUDA always has.
    pub atomics64: bool,
}

impl Caps {
    /// What every device has: one unit, 64 threads a block, 16 KiB of shared memory.
    pub fn new(language: Language) -> Caps {
        Caps {
            language,
            units: 1,
            max_group: 64,
            local_bytes: 16 << 10,
            cpu: false,
            fp64: false,
            atomics64: language == Language::Cuda,
        }
    }
}

/// The language a kernel is compiled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ by NVRTC, without any header but `cuda_fp16.h` and `cuda_bf16.h`.
    Cuda,
}

/// An argument that a kernel's [`Params`] may have.
#[derive(Debug, Clone, Copy)]
pub struct Arg {
    /// Its name in the text form.
    pub name: &'static str,
    /// What it is where the text leaves it out.
    pub default: u32,
    /// The define by which the source takes it; `None` where only the launch depends on it, so
    /// that one program serves every value.
    pub define: Option<&'static str>,
}

impl Arg {
    /// An argument that is compiled into the program.
    pub const fn compiled(name: &'static str, default: u32, define: &'static str) -> Arg {
        Arg { name, default, define: Some(define) }
    }

    /// An argument of the launch alone.
    pub const fn launched(name: &'static str, default: u32) -> Arg {
        Arg { name, default, define: None }
    }
}

/// One kernel: a family of programs that differ in their parameters.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Its name in [`Params`].
    pub name: &'static str,
    /// Its source, without the prelude.
    pub source: &'static str,
    /// The arguments of its [`Params`]. Others are refused.
    pub args: &'static [Arg],
    /// Further defines, the same for every program of this kernel.
    pub defines: &'static [(&'static str, &'static str)],
    /// Whether it keeps the [order](crate::order). The published kernels (`classic-*`) do not: they
    /// are chosen on request only and tested against an error bound.
    pub ordered: bool,
    /// The legal parameters worth trying for a problem, best guess first; empty where the kernel
    /// is not for it. Each [fits](Kernel::fits).
    pub candidates: fn(&Desc, &Caps) -> Vec<Params>,
    /// Whether parameters, whose arguments are all known to the kernel, are legal, or the rule
    /// that they break. Called through [`Kernel::fits`].
    pub legal: fn(&Desc, &Params, &Caps) -> Result<(), String>,
    /// What to launch; the parameters fit.
    pub plan: fn(&Desc, &Params, &Caps) -> Plan,
}

/// What follows from a problem and parameters: derived, never stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Plan {
    /// Launches, in order; each waits for the one before.
    pub launches: Vec<Launch>,
    /// Accumulator values of scratch memory; not initialised.
    pub work: u64,
    /// 32-bit counters that are 0 before the first launch and that the kernel leaves at 0.
    pub counters: u64,
}

/// One launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Entry point.
    pub entry: &'static str,
    /// Blocks (work-groups) in each dimension; x below 2^31, y and z at most 65,535.
    pub grid: [u64; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory (CUDA only; OpenCL sources declare theirs).
    pub shared: u32,
}

/// A program to compile: what goes into a cache's key. Parameters that only the launch depends on
/// do not show in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Prelude and source.
    pub source: String,
    /// Names and values of the preprocessor's defines, in order.
    pub defines: Vec<(String, String)>,
}

/// What stands before every kernel: the two languages, the element types, the arithmetic.
pub const PRELUDE: &str = include_str!("../../kernels/prelude.h");

/// Most blocks that a kernel launches in x.
pub const MAX_GRID: u64 = (1 << 31) - 1;

/// The shared kernels: those that keep the order, and the roof.
pub fn kernels() -> &'static [Kernel] {
    static ALL: LazyLock<Vec<Kernel>> =
        LazyLock::new(|| [ordered::KERNELS, roof::KERNELS].concat());
    &ALL
}

/// The published kernels, `classic-*`: baselines with an order of their own, chosen only on
/// request. `candidates` of each is the space that its authors searched, where they say; Sørensen's
/// is 8 × 8 × 8 for each of the matrix's types and layouts.
pub fn classic_kernels() -> &'static [Kernel] {
    classic::KERNELS
}

/// The shared kernel of this name, ordered or published.
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().iter().chain(classic_kernels()).find(|k| k.name == name)
}

impl Kernel {
    /// Whether these parameters are legal for this problem on such a device.
    ///
    /// # Errors
    /// The rule that is broken, as the end of a sentence.
    pub fn fits(&self, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
        if params.kernel().as_str() != self.name {
            return Err(format!("these are parameters of the kernel {}", params.kernel()));
        }
        if let Some((name, _)) =
            params.args().find(|(name, _)| self.args.iter().all(|a| a.name != name))
        {
            return Err(format!("the kernel has no argument {name}"));
        }
        if desc.dtype.needs_f64() && !caps.fp64 {
            return Err("the device has no double precision".into());
        }
        (self.legal)(desc, params, caps)
    }

    /// The value of an argument, or its default.
    ///
    /// # Panics
    /// If the kernel has no such argument.
    pub fn arg(&self, params: &Params, name: &str) -> u32 {
        value(self.args, params, name)
    }

    /// A number for what is compiled and launched: parameters of which it is equal do the same for
    /// this problem. They fit.
    pub fn work(&self, desc: &Desc, params: &Params, caps: &Caps) -> u64 {
        let mut hash = DefaultHasher::new();
        self.name.hash(&mut hash);
        for arg in self.args.iter().filter(|a| a.define.is_some()) {
            params.get_or(arg.name, arg.default).hash(&mut hash);
        }
        (self.plan)(desc, params, caps).hash(&mut hash);
        hash.finish()
    }

    /// The program for an element type and parameters.
    pub fn program(&self, dtype: Dtype, params: &Params) -> Program {
        let number = match dtype {
            Dtype::F32 => 0,
            Dtype::F64 => 1,
            Dtype::F16 => 2,
            Dtype::Bf16 => 3,
            Dtype::C32 => 4,
            Dtype::C64 => 5,
        };
        let mut defines = vec![("DTYPE".to_string(), number.to_string())];
        defines.extend(self.defines.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        for arg in self.args {
            if let Some(define) = arg.define {
                let value = params.get_or(arg.name, arg.default);
                defines.push((define.to_string(), value.to_string()));
            }
        }
        Program { source: [PRELUDE, self.source].concat(), defines }
    }
}

fn value(args: &[Arg], params: &Params, name: &str) -> u32 {
    let arg = args.iter().find(|a| a.name == name);
    params.get_or(name, arg.expect("an argument of this kernel").default)
}
