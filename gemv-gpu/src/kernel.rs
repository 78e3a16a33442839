//! What describes a kernel: its arguments and rules, what it launches, and the program to compile.

use std::hash::{DefaultHasher, Hash, Hasher};

use gemv_core::{Arg, Desc, Dtype, KernelInfo, Params, fingerprint};

/// What the kernels ask of a device.
///
/// A backend fills it in from its driver. Legality, choice and launch depend on nothing else of a
/// device.
///
/// ```
/// use gemv_gpu::{Caps, Language};
///
/// let mut h200 = Caps::new(Language::Cuda);
/// (h200.units, h200.max_group, h200.local_bytes, h200.fp64) = (132, 1024, 48 << 10, true);
/// assert!(h200.atomics64 && !Caps::new(Language::OpenCl).atomics64);
/// ```
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
    /// Bytes of dynamic shared memory that a launch may ask for, of a kernel that declares none (CUDA only).
    pub dynamic_bytes: u32,
    /// Whether the device is a CPU: one work-item a group, long vectors.
    pub cpu: bool,
    /// Whether it has double precision.
    pub fp64: bool,
    /// Whether it has tensor cores for double precision (CUDA only, from compute capability 8.0).
    pub fp64_mma: bool,
    /// Whether it copies from global to shared memory while a kernel computes, and has barriers for some of a
    /// block's threads (CUDA only, from compute capability 8.0).
    pub async_copies: bool,
    /// Whether programs run that are compiled for the architecture `sm_90a` alone ([`SM_90A`]): copies of boxes of tensors,
    /// registers that move between warps.
    pub sm_90a: bool,
    /// Whether it has 64-bit atomics (`cl_khr_int64_base_atomics`); CUDA always has.
    pub atomics64: bool,
    /// Whether a block sees what another block of the launch wrote before a fence. OpenCL 1.2 does not promise
    /// it; CUDA always has it.
    pub fences: bool,
    /// Most blocks of a cluster, whose blocks run at once and reach each other's shared memory; 1
    /// where there are none.
    pub cluster: u32,
}

impl Caps {
    /// What every device has: one unit, 64 threads a block, 16 KiB of shared memory, no clusters.
    pub fn new(language: Language) -> Caps {
        Caps {
            language,
            units: 1,
            max_group: 64,
            local_bytes: 16 << 10,
            dynamic_bytes: 0,
            cpu: false,
            fp64: false,
            fp64_mma: false,
            async_copies: false,
            sm_90a: false,
            atomics64: language == Language::Cuda,
            fences: language == Language::Cuda,
            cluster: 1,
        }
    }
}

/// The language a kernel is compiled as.
///
/// ```
/// use gemv_gpu::{Language, PRELUDE};
/// // One text: what the compiler defines says which of the two it is.
/// assert!(PRELUDE.contains("__OPENCL_VERSION__") && PRELUDE.contains("__fmaf_rn"));
/// assert_ne!(Language::OpenCl, Language::Cuda);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ by NVRTC, without any header but `cuda_fp16.h` and `cuda_bf16.h`.
    Cuda,
}

/// What the entry points of a product's kernel take. Both are in the documentation of this crate.
///
/// ```
/// use gemv_gpu::{Signature, kernel};
/// assert_eq!(kernel("row").unwrap().signature, Signature::Gemv);
/// assert_eq!(kernel("gemm-row").unwrap().signature, Signature::Gemm);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signature {
    /// One column of one matrix: `y = alpha A x + beta y`. Several are computed one after another.
    Gemv,
    /// Several columns, of a batch of matrices: `Y = alpha A X + beta Y`.
    Gemm,
}

/// One kernel: a family of programs that differ in their parameters.
///
/// To write one, see `docs/adding-a-kernel.md`.
///
/// ```
/// use gemv_gpu::{Caps, Language, kernel};
/// use gemv_core::{Desc, Dtype};
///
/// let mut caps = Caps::new(Language::Cuda);
/// (caps.units, caps.max_group, caps.local_bytes) = (132, 1024, 48 << 10);
/// let (row, desc) = (kernel("row").unwrap(), Desc::new(Dtype::F32, 1000, 5000, (5000, 1), 0));
/// let best = (row.candidates)(&desc, &caps)[0];
/// assert!(row.ordered && row.fits(&desc, &best, &caps).is_ok());
/// let plan = (row.plan)(&desc, &best, &caps);
/// assert_eq!(plan.launches[0].block, [row.arg(&best, "threads"), 1, 1]);
/// assert!(row.program(desc.dtype, &best).source.contains("KERNEL(THREADS) row(ARGUMENTS)"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Its name in [`Params`].
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    /// Its source, without the prelude.
    pub source: &'static str,
    /// The arguments of its [`Params`]. Others are refused.
    pub args: &'static [Arg],
    /// Further defines, the same for every program of this kernel.
    pub defines: &'static [(&'static str, &'static str)],
    /// What its entry points take.
    pub signature: Signature,
    /// Whether x and y may have a wider type than A: its source reads A by the words for that, which the
    /// prelude names.
    pub mixed: bool,
    /// Whether it keeps the [order](gemv_core::order). The published kernels (`classic-*`) do not: they
    /// are chosen on request only and tested against an error bound.
    pub ordered: bool,
    /// The legal parameters worth trying for a problem, best guess first. Each [fits](Kernel::fits).
    /// Empty where the kernel is not for the problem.
    pub candidates: fn(&Desc, &Caps) -> Vec<Params>,
    /// Whether parameters are legal, or the rule that they break. Only [`Kernel::fits`] calls it,
    /// after each argument has been found among its values.
    pub legal: fn(&Desc, &Params, &Caps) -> Result<(), String>,
    /// What to launch; the parameters fit.
    pub plan: fn(&Desc, &Params, &Caps) -> Plan,
}

/// What a kernel launches for a problem and parameters.
///
/// ```
/// use gemv_gpu::{Caps, Language, kernel};
/// use gemv_core::{Desc, Dtype, Params};
///
/// let caps = Caps::new(Language::Cuda);
/// let row = kernel("row").unwrap();
/// let desc = Desc::new(Dtype::F32, 8, 1 << 16, (1 << 16, 1), 0);
/// let plan = |split| {
///     let params = Params::new("row").with("threads", 64).with("split_k", split);
///     (row.plan)(&desc, &params, &caps)
/// };
/// // Whole rows: one launch, no workspace. Rows in 4 parts: 256 sums a row and their total; a
/// // second launch adds them up.
/// assert_eq!((plan(1).launches.len(), plan(1).workspace), (1, 0));
/// assert_eq!((plan(4).launches.len(), plan(4).workspace), (2, 8 * 257));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Plan {
    /// Launches, in order; each waits for the one before.
    pub launches: Vec<Launch>,
    /// Workspace, in values of the accumulator's type; not initialised.
    pub workspace: u64,
    /// Counters of 32 bits, which are 0 before the first launch and after the last.
    pub counters: u64,
}

/// One launch.
///
/// In OpenCL's words the global size is `grid * block`, in each dimension.
///
/// ```
/// use gemv_gpu::Launch;
/// let launch = Launch::new("row", 250, 128);
/// let threads = launch.grid[0] * u64::from(launch.block[0]);
/// assert_eq!((threads, launch.pdl_wait), (32_000, false));
/// ```
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
    /// Whether the kernel itself waits for the launch before it, so that a device may begin it
    /// early (CUDA's programmatic dependent launch).
    pub pdl_wait: bool,
    /// Parts of a row: the last argument of the entry points that take it behind those of their
    /// signature (CUDA only).
    pub parts: u32,
    /// Rows of a box, where A goes as a tensor map of 16-bit numbers behind the arguments of the signature, in the place of the
    /// parts; else 0 (CUDA only). Boxes have 64 columns; where 64 divides the columns, the matrix is cut into blocks of 64 along
    /// a third dimension, and a box has four. Rows are at least as far apart as they are long.
    pub box_rows: u32,
}

impl Launch {
    /// Blocks in one dimension, without dynamic shared memory, which do not wait by themselves.
    pub const fn new(entry: &'static str, blocks: u64, threads: u32) -> Launch {
        let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
        Launch { entry, grid, block, shared: 0, pdl_wait: false, parts: 1, box_rows: 0 }
    }

    /// The same of a kernel that waits by itself ([`pdl_wait`](Self::pdl_wait)).
    #[must_use]
    pub const fn waiting(self) -> Launch {
        Launch { pdl_wait: true, ..self }
    }
}

/// A [define](Kernel::defines) that says: programs of this kernel are compiled for `sm_90a`, whose instructions no other
/// architecture has.
///
/// ```
/// use gemv_core::{Dtype, Params};
/// let row = gemv_gpu::kernel("row").unwrap().program(Dtype::F32, &Params::new("row"));
/// assert!(!row.is_for_sm_90a());
/// ```
pub const SM_90A: (&str, &str) = ("SM_90A", "1");

impl Program {
    /// Whether it has the define [`SM_90A`].
    pub fn is_for_sm_90a(&self) -> bool {
        self.defines.iter().any(|(name, _)| name == SM_90A.0)
    }
}

/// A program to compile, and the key of a cache of programs. Arguments without a define are not in
/// it.
///
/// ```
/// use gemv_gpu::kernel;
/// use gemv_core::{Dtype, Params};
///
/// let row = kernel("row").unwrap();
/// let program = |split| row.program(Dtype::F64, &Params::new("row").with("split_k", split));
/// assert_eq!(program(1), program(8)); // only the launch depends on it
/// assert!(program(1).defines.contains(&("DTYPE".into(), "1".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Prelude and source.
    pub source: String,
    /// Names and values of the preprocessor's defines, in order.
    pub defines: Vec<(String, String)>,
}

/// What stands before every kernel: the two languages, the element types, the arithmetic. A program has it
/// with the words of its types; see [`Kernel::program`].
///
/// The one place where fma, addition and multiplication are spelled. Each rounds once, none is
/// contracted; see [the order](gemv_core::order).
///
/// ```
/// use gemv_gpu::PRELUDE;
/// assert!(PRELUDE.contains("#define FMA_(a, b, c) fma(a, b, c)")); // OpenCL C
/// assert!(PRELUDE.contains("#define FMA_(a, b, c) __fmaf_rn(a, b, c)")); // CUDA C++
/// ```
pub const PRELUDE: &str = include_str!("kernels/prelude.h");

/// Most blocks that a kernel launches in x.
///
/// ```
/// assert_eq!(gemv_gpu::MAX_GRID, 2_147_483_647); // 2^31 - 1, as CUDA has it
/// ```
pub const MAX_GRID: u64 = (1 << 31) - 1;

impl Kernel {
    /// Whether these parameters are legal for this problem on such a device.
    ///
    /// ```
    /// # use gemv_gpu::{Caps, Language, kernel};
    /// # use gemv_core::{Desc, Dtype};
    /// let (row, caps) = (kernel("row").unwrap(), Caps::new(Language::OpenCl));
    /// let desc = |dtype| Desc::new(dtype, 100, 100, (100, 1), 0);
    /// let fits = |dtype, text: &str| row.fits(&desc(dtype), &text.parse().unwrap(), &caps);
    /// assert_eq!(fits(Dtype::F32, "row threads=64"), Ok(()));
    /// let why = fits(Dtype::F32, "row threads=1024").unwrap_err();
    /// assert_eq!(why, "a block of 1024 threads where the device has at most 64");
    /// let why = fits(Dtype::F64, "row threads=64").unwrap_err();
    /// assert_eq!(why, "the device has no double precision");
    /// ```
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
        self.args.iter().try_for_each(|arg| arg.check(params.get_or(arg.name, arg.default)))?;
        if desc.is_mixed() && !self.mixed {
            return Err("the kernel is for a matrix and vectors of one type".into());
        }
        if desc.vectors.needs_f64() && !caps.fp64 {
            return Err("the device has no double precision".into());
        }
        if desc.packing.is_some() && self.args.iter().all(|arg| arg.name != FORMAT) {
            return Err("the kernel is for matrices that are not packed".into());
        }
        if self.signature == Signature::Gemm
            && desc.rhs == 1
            && desc.batch == 1
            && desc.packing.is_none()
        {
            return Err("the kernel is for several right-hand sides or matrices".into());
        }
        (self.legal)(desc, params, caps)
    }

    /// The value of an argument, or its default.
    ///
    /// ```
    /// # use gemv_core::Params;
    /// # use gemv_gpu::kernel;
    /// let row = kernel("row").unwrap();
    /// let params = Params::new("row").with("rows", 4);
    /// assert_eq!((row.arg(&params, "rows"), row.arg(&params, "threads")), (4, 128));
    /// ```
    ///
    /// # Panics
    /// If the kernel has no such argument.
    pub fn arg(&self, params: &Params, name: &str) -> u32 {
        value(self.args, params, name)
    }

    /// The kernel as [`Backend::kernels`](gemv_core::Backend::kernels) gives it.
    pub fn info(&self) -> KernelInfo {
        let defines: String = self.defines.iter().map(|(k, v)| format!("{k}={v};")).collect();
        let texts = [PRELUDE, self.source].map(of_one_type);
        let fingerprint = fingerprint(&[&texts[0], &texts[1], &defines], self.args);
        KernelInfo { name: self.name, about: self.about, args: self.args, fingerprint }
    }

    /// Whether the description is whole: a sentence for the kernel and for each argument, defaults
    /// among the values, and no name or define twice. For the tests of every crate with kernels.
    ///
    /// ```
    /// use gemv_gpu::{Kernel, kernel};
    /// let row = kernel("row").unwrap();
    /// assert_eq!(row.described(), Ok(()));
    /// let bare = Kernel { about: "", ..*row };
    /// assert_eq!(bare.described().unwrap_err(), "row: no sentence");
    /// ```
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn described(&self) -> Result<(), String> {
        let sentence = |what: &str, text: &str| match text {
            text if !text.ends_with('.') => Err(format!("{what}: no sentence")),
            text if text.split_whitespace().count() > 35 => Err(format!("{what}: over 35 words")),
            _ => Ok(()),
        };
        sentence(self.name, self.about)?;
        for (i, arg) in self.args.iter().enumerate() {
            let what = format!("{} {}", self.name, arg.name);
            sentence(&what, arg.about)?;
            arg.check(arg.default)?;
            if self.args[..i].iter().any(|a| a.name == arg.name) {
                return Err(format!("{what}: twice"));
            }
            if arg.define.is_some() && self.args[..i].iter().any(|a| a.define == arg.define) {
                return Err(format!("{what}: its define is another argument's"));
            }
        }
        Ok(())
    }

    /// A number for the program and the plan: parameters with the same number do the same for this
    /// problem. They fit.
    ///
    /// ```
    /// # use gemv_gpu::{Caps, Language, kernel};
    /// # use gemv_core::{Desc, Dtype};
    /// let (row, caps) = (kernel("row").unwrap(), Caps::new(Language::Cuda));
    /// let desc = Desc::new(Dtype::F32, 100, 1000, (1000, 1), 0); // 4 segments
    /// let id = |text: &str| row.launch_id(&desc, &text.parse().unwrap(), &caps);
    /// assert_eq!(id("row threads=64 split_k=4"), id("row threads=64 split_k=100"));
    /// assert_ne!(id("row threads=64 split_k=4"), id("row threads=32 split_k=4"));
    /// ```
    pub fn launch_id(&self, desc: &Desc, params: &Params, caps: &Caps) -> u64 {
        let mut hash = DefaultHasher::new();
        self.name.hash(&mut hash);
        for arg in self.args.iter().filter(|a| a.define.is_some()) {
            params.get_or(arg.name, arg.default).hash(&mut hash);
        }
        (self.plan)(desc, params, caps).hash(&mut hash);
        hash.finish()
    }

    /// The program for an element type and parameters: [`mixed_program`](Self::mixed_program) with one type.
    ///
    /// ```
    /// # use gemv_core::{Dtype, Params};
    /// # use gemv_gpu::kernel;
    /// let params = Params::new("col").with("threads_k", 16);
    /// let program = kernel("col").unwrap().program(Dtype::C32, &params);
    /// let define = |name: &str| program.defines.iter().find(|d| d.0 == name).map(|d| &*d.1);
    /// assert_eq!((define("DTYPE"), define("THREADS_K")), (Some("4"), Some("16")));
    /// assert_eq!(define("THREADS"), Some("256")); // its default
    /// ```
    pub fn program(&self, dtype: Dtype, params: &Params) -> Program {
        self.mixed_program((dtype, dtype), params)
    }

    /// The program for a matrix of the first type with vectors of the second, and parameters. Of two types
    /// only where the kernel is [`mixed`](Self::mixed).
    ///
    /// ```
    /// # use gemv_core::{Dtype, Params};
    /// # use gemv_gpu::kernel;
    /// let row = kernel("row").unwrap();
    /// let program = row.mixed_program((Dtype::Bf16, Dtype::F32), &Params::new("row"));
    /// assert!(program.defines.contains(&("A_DTYPE".into(), "3".into())));
    /// assert!(program.source.contains("A_LOAD_VECTOR"));
    /// assert!(!row.program(Dtype::F32, &Params::new("row")).source.contains("A_LOAD_VECTOR"));
    /// ```
    pub fn mixed_program(&self, (matrix, vectors): (Dtype, Dtype), params: &Params) -> Program {
        let mut defines = vec![("DTYPE".to_string(), number(vectors).to_string())];
        let mixed = matrix != vectors;
        if mixed {
            defines.push(("A_DTYPE".into(), number(matrix).to_string()));
            defines.push(("A_ELEM_BYTES".into(), matrix.bytes().to_string()));
        }
        defines.extend(self.defines.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        for arg in self.args {
            if let Some(define) = arg.define {
                let value = params.get_or(arg.name, arg.default);
                defines.push((define.to_string(), value.to_string()));
            }
        }
        Program { source: text(mixed, "", self.source), defines }
    }

    /// The program of [`mixed_program`](Self::mixed_program) that writes each entry of y at several places at once: in y,
    /// and in arrays of as many entries in the memory of this GPU and of others. For CUDA alone. Its entry points take
    /// [`Places`] behind the arguments of their signature. `None` for a kernel whose threads write several entries of y
    /// together or in a function of their own, and for several right-hand sides.
    ///
    /// ```
    /// # use gemv_core::{Dtype, Params};
    /// # use gemv_gpu::{Kernel, kernel};
    /// let source = "KERNEL(1) one(ARGUMENTS) { finish(y + (y0 + 0), alpha, acc_zero(), beta); }";
    /// let one = Kernel { source, ..*kernel("row").unwrap() };
    /// let (types, params) = ((Dtype::F32, Dtype::F32), Params::new("row"));
    /// let program = one.places_program(types, &params).unwrap();
    /// assert!(program.source.contains("one(ARGUMENTS, const __grid_constant__ OTHER_PLACES places)"));
    /// assert_eq!(program.defines, one.mixed_program(types, &params).defines);
    /// assert_eq!(kernel("row").unwrap().places_program(types, &params), None); // reduce.k has a function
    /// ```
    pub fn places_program(&self, types: (Dtype, Dtype), params: &Params) -> Option<Program> {
        // Each writes y's own entry, in an entry point.
        let count = |text: &str| self.source.matches(text).count();
        let writes = count("finish(");
        if self.signature != Signature::Gemv
            || !self.ordered
            || writes == 0
            || count("finish(y + (y0 + ") != writes
            || count("(ARGUMENTS") != count("(ARGUMENTS)")
            || self.source.contains("void reduce(")
        {
            return None;
        }
        let source = self.source.replace("(ARGUMENTS)", ARGUMENTS_AND_PLACES);
        let Program { defines, .. } = self.mixed_program(types, params);
        Some(Program { source: text(types.0 != types.1, PLACES, &source), defines })
    }
}

/// The last argument of the entry points of [`Kernel::places_program`]: how many places there are beside y, and from an
/// entry of y to that of each, in bytes.
///
/// ```
/// use gemv_gpu::Places;
///
/// let places = Places::new(&[4096, -64]).unwrap();
/// assert_eq!((places.count, &places.bytes[..3]), (2, &[4096, -64, 0][..]));
/// assert_eq!(Places::new(&[0; 16]), None); // too many
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Places {
    /// How many.
    pub count: u64,
    /// How far away.
    pub bytes: [i64; 15],
}

impl Places {
    /// These distances; `None` if they are too many.
    pub fn new(bytes: &[i64]) -> Option<Places> {
        let mut all = [0; 15];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Places { count: bytes.len() as u64, bytes: all })
    }
}

/// What every entry point of [`Kernel::places_program`] takes.
const ARGUMENTS_AND_PLACES: &str = "(ARGUMENTS, const __grid_constant__ OTHER_PLACES places)";

/// The words by which they write y; they stand behind the prelude.
const PLACES: &str = include_str!("kernels/places.h");

/// The text of a program: the prelude, further words, and the kernel's own.
fn text(mixed: bool, words: &str, source: &str) -> String {
    match mixed {
        true => [PRELUDE, MIXED, words, source].concat(),
        false => of_one_type(&[PRELUDE, words, source].concat()),
    }
}

/// The argument of a kernel for packed matrices.
const FORMAT: &str = "format";

/// The number of an element type in the defines: its place among all.
fn number(dtype: Dtype) -> u32 {
    dtype as u32
}

/// The words by which a kernel reads A where x and y have a wider type; they stand behind the prelude.
const MIXED: &str = include_str!("kernels/mixed.h");

/// A text without what is for two types: the lines from `#ifdef A_DTYPE` to `#endif // A_DTYPE`, and the
/// words for A, in whose places are those for x and y. So a program of one type is the same text whether
/// or not its kernel takes two.
pub(crate) fn of_one_type(text: &str) -> String {
    const WORDS: [(&str, &str); 11] = [
        ("A_ELEM", "ELEM"),
        ("A_DTYPE", "DTYPE"),
        ("A_VECTOR", "VECTOR"),
        ("A_LOAD_VECTOR", "LOAD_VECTOR"),
        ("A_BEYOND", "BEYOND"),
        ("a_widen", "widen"),
        (" AND_VECTOR", ","),
        // In CUDA's own kernels.
        (" AND_X_PACK", ","),
        ("X_PACK", "PACK"),
        ("X_WORDS", "WORDS"),
        ("X_LOAD_IF", "LOAD_IF"),
    ];
    let mut one = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, block)) = rest.split_once("#ifdef A_DTYPE\n") {
        one += before;
        rest = block.split_once("#endif // A_DTYPE\n").expect("the end of the block").1;
    }
    one += rest;
    WORDS.into_iter().fold(one, |text, (word, same)| text.replace(word, same))
}

/// The value of an argument in parameters, or its default.
///
/// # Panics
/// If `args` has no argument of this name.
pub fn value(args: &[Arg], params: &Params, name: &str) -> u32 {
    let arg = args.iter().find(|a| a.name == name);
    params.get_or(name, arg.expect("an argument of this kernel").default)
}
