//! The programs of a kernel: texts and defines.

use gemv_core::{Dtype, KernelInfo, Params, fingerprint};

use crate::kernel::{Kernel, Signature};

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

impl Kernel {
    /// The kernel as [`Backend::kernels`](gemv_core::Backend::kernels) gives it.
    pub fn info(&self) -> KernelInfo {
        let defines: String = self.defines.iter().map(|(k, v)| format!("{k}={v};")).collect();
        let texts = [PRELUDE, self.source].map(of_one_type);
        let fingerprint = fingerprint(&[&texts[0], &texts[1], &defines], self.args);
        KernelInfo { name: self.name, about: self.about, args: self.args, fingerprint }
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
