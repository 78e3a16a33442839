//! What describes a kernel: its arguments, the rules that relate them, the candidates, and what it launches.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use gemv_core::{Arg, Desc, Layout, MAX_ARGS, Params};

use crate::caps::Caps;
use crate::launch::Plan;

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
/// let best = row.candidates(&desc, &caps)[0];
/// assert!(row.ordered && row.fits(&desc, &best, &caps).is_ok());
/// let plan = row.plan(&desc, &best, &caps);
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
    /// What legal parameters keep, beyond the values of each argument and what the device can launch. A rule may rely on those
    /// before it.
    pub rules: &'static [Rule],
    /// The parameters worth trying, best guess first: each list continues what those before it have made. Without any there
    /// are none.
    pub candidates: &'static [List],
    /// What to launch; the parameters fit.
    pub plan: fn(&Case<'_>) -> Plan,
}

/// Parameters of a kernel for a problem on a device: what rules look at, and what a plan follows from.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout, Params};
/// use gemv_gpu::{Caps, Case, Language, kernel};
///
/// let desc = Desc::of(Dtype::Bf16, Layout::Row, (1000, 500), 3);
/// let (params, caps) = (Params::new("row").with("rows", 4), Caps::new(Language::Cuda));
/// let of = Case::new(kernel("row").unwrap(), &desc, &params, &caps);
/// assert_eq!(of.all(["rows", "threads"]), [4, 128]); // the second has its default
/// assert_eq!((of.m(), of.segments(), of.words()), (1000, 2, 1));
/// assert_eq!((of.widest(), of.aligned()), (8, 4)); // elements of loads
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The problem.
    pub desc: &'a Desc,
    /// The parameters. In a [list](List), those arguments that have a value so far.
    pub params: &'a Params,
    /// The device.
    pub caps: &'a Caps,
    /// The values of the kernel's arguments, or their defaults: rules ask for them again and again.
    values: [u32; MAX_ARGS],
    /// What [lists](List) say that is no argument.
    others: &'a Params,
}

impl<'a> Case<'a> {
    /// The parameters of a kernel.
    ///
    /// # Panics
    /// If the kernel has more arguments than [`Params`] can hold.
    pub fn new(kernel: &'a Kernel, desc: &'a Desc, params: &'a Params, caps: &'a Caps) -> Case<'a> {
        let mut values = [0; MAX_ARGS];
        for (value, arg) in values[..kernel.args.len()].iter_mut().zip(kernel.args) {
            *value = params.get_or(arg.name, arg.default);
        }
        Case { kernel, desc, params, caps, values, others: &NONE }
    }

    /// The same with other parameters.
    pub fn at<'p>(&self, params: &'p Params) -> Case<'p>
    where
        'a: 'p,
    {
        Case { others: self.others, ..Case::new(self.kernel, self.desc, params, self.caps) }
    }

    /// The value of an argument, or its default.
    ///
    /// # Panics
    /// If there is no such argument.
    pub fn get(&self, name: &str) -> u64 {
        let arg = self.kernel.args.iter().position(|arg| arg.name == name);
        let value = arg.map(|at| self.values[at]);
        let value = value.or_else(|| self.others.get(name));
        value.expect("an argument of this kernel").into()
    }

    /// The values of several.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    pub fn all<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.get(name))
    }

    /// The parameters with further arguments, in this order.
    ///
    /// # Panics
    /// If a value has more than 32 bits, or an argument is one too many.
    pub fn with<const N: usize>(&self, values: [(&str, u64); N]) -> Params {
        values.into_iter().fold(*self.params, |params, (name, value)| {
            params.with(name, u32::try_from(value).expect("a value of 32 bits"))
        })
    }

    /// Whether the parameters are legal.
    pub fn fits(&self) -> bool {
        self.kernel.fits(self.desc, self.params, self.caps).is_ok()
    }
}

/// A rule of parameters: it relates arguments with each other, or with the problem and the device.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout, Params};
/// use gemv_gpu::{Caps, Kernel, Language, Rule, kernel};
///
/// // What the text needs beside what `row` does.
/// let rules = &[
///     Rule::For(|desc, _| desc.m > 1, "the kernel is for several rows"),
///     Rule::UpTo(&["subwarp", "rows"], |of| of.m()),
/// ];
/// let (mine, caps) = (Kernel { rules, ..*kernel("row").unwrap() }, Caps::new(Language::Cuda));
/// let fits = |m, text: &str| {
///     let desc = Desc::of(Dtype::F32, Layout::Row, (m, 1000), 4);
///     mine.fits(&desc, &text.parse().unwrap(), &caps)
/// };
/// assert_eq!(fits(64, "row threads=64 rows=2"), Ok(()));
/// assert_eq!(fits(1, "row").unwrap_err(), "the kernel is for several rows");
/// assert_eq!(fits(31, "row rows=2").unwrap_err(), "subwarp=16 times rows=2 is more than 31 here");
/// ```
#[derive(Debug, Clone)]
pub enum Rule {
    /// The matrix has this layout.
    Layout(Layout),
    /// It has so many columns.
    Columns(RangeInclusive<u64>),
    /// This holds of the problem and the device, or else this is the end of a sentence.
    For(fn(&Desc, &Caps) -> bool, &'static str),
    /// This holds of the parameters as well, or else this is the end of a sentence.
    Holds(fn(&Case<'_>) -> bool, &'static str),
    /// The product of these arguments is at most so much.
    UpTo(&'static [&'static str], fn(&Case<'_>) -> u64),
    /// Of this there is so much, and at most so much.
    AtMost(&'static str, fn(&Case<'_>) -> u64, fn(&Case<'_>) -> u64),
    /// A block has the local (shared) memory that its program declares, in bytes.
    Local(fn(&Case<'_>) -> u64),
    /// All of these.
    All(&'static [Rule]),
}

impl Rule {
    /// Whether the rule leaves a problem to the kernel on such a device, with some parameters.
    fn takes(&self, desc: &Desc, caps: &Caps) -> Result<(), String> {
        match self {
            Rule::Layout(layout) if desc.layout != *layout => {
                Err(format!("the kernel is for the layout {layout}"))
            }
            Rule::Columns(some) if !some.contains(&(desc.n as u64)) => {
                let (low, high) = (some.start(), some.end());
                Err(format!("the kernel is for {low} to {high} columns, not {}", desc.n))
            }
            Rule::For(holds, why) if !holds(desc, caps) => Err((*why).into()),
            Rule::All(rules) => rules.iter().try_for_each(|rule| rule.takes(desc, caps)),
            _ => Ok(()),
        }
    }

    /// Whether parameters keep it; the kernel takes the problem.
    fn check(&self, of: &Case<'_>) -> Result<(), String> {
        match self {
            Rule::Holds(holds, why) if !holds(of) => Err((*why).into()),
            Rule::All(rules) => rules.iter().try_for_each(|rule| rule.check(of)),
            Rule::UpTo(names, most) => {
                let (value, most) =
                    (names.iter().map(|name| of.get(name)).product::<u64>(), most(of));
                if value <= most {
                    return Ok(());
                }
                let names = names.iter().map(|name| format!("{name}={}", of.get(name)));
                let names = names.collect::<Vec<_>>().join(" times ");
                Err(format!("{names} is more than {most} here"))
            }
            Rule::AtMost(what, value, most) => match (value(of), most(of)) {
                (value, most) if value > most => {
                    Err(format!("{value} {what} are more than {most}"))
                }
                _ => Ok(()),
            },
            Rule::Local(bytes) => {
                let (bytes, has) = (bytes(of), u64::from(of.caps.local_bytes));
                match bytes > has {
                    true => Err(format!(
                        "a block needs {bytes} bytes of local memory, the device has {has}"
                    )),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// How [candidates](Kernel::candidates) are made: a list continues each of the parameters that those before it have made. A
/// name that is no argument of the kernel is for the lists behind it alone.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout};
/// use gemv_gpu::{Caps, Kernel, Language, List, kernel};
///
/// let candidates = &[
///     List::Shapes(&["threads", "loads"], &[&[64, 1], &[64, 2], &[2048, 1]]),
///     List::Value("subwarp", |of| 32 / of.get("loads")),
///     List::Values("rows", |of| if of.m() > 1 { vec![1, 2] } else { vec![1] }),
/// ];
/// let mine = Kernel { candidates, ..*kernel("row").unwrap() };
/// let of_row = Desc::of(Dtype::F32, Layout::Row, (1, 200), 4);
/// let texts = mine.candidates(&of_row, &Caps::new(Language::Cuda));
/// let texts: Vec<_> = texts.iter().map(|params| params.to_string()).collect();
/// // No block has 2048 threads.
/// assert_eq!(texts, ["row threads=64 subwarp=32 rows=1", "row threads=64 subwarp=16 rows=1"]);
/// ```
#[derive(Debug, Clone, Copy)]
pub enum List {
    /// Nothing where this does not hold.
    Only(fn(&Case<'_>) -> bool),
    /// These arguments have the values of each of these shapes.
    Shapes(&'static [&'static str], &'static [&'static [u32]]),
    /// An argument has each of these values.
    Values(&'static str, fn(&Case<'_>) -> Vec<u64>),
    /// An argument has this value.
    Value(&'static str, fn(&Case<'_>) -> u64),
    /// Whatever follows from the parameters so far.
    Made(fn(&Case<'_>) -> Vec<Params>),
    /// Of those that fit, each once.
    Once,
    /// Of those that fit, each [launch](Kernel::launch_id) once.
    Launches,
    /// Of those that fit, the first so many.
    First(usize),
}

/// What a case outside of lists has of them.
const NONE: Params = Params::new("none");

/// A candidate as lists have made it so far: what it says of the kernel's arguments, and what else.
type Draft = (Params, Params);

impl List {
    /// The drafts that continue the one of this case.
    fn continued(&self, of: &Case<'_>) -> Vec<Draft> {
        let draft = (*of.params, *of.others);
        let with = |(params, others): Draft, name: &str, value: u64| -> Option<Draft> {
            let value = u32::try_from(value).ok()?;
            Some(match of.kernel.args.iter().any(|arg| arg.name == name) {
                true => (of.kernel.set(&params, name, value), others),
                false => (params, others.with(name, value)),
            })
        };
        match self {
            List::Only(holds) => holds(of).then_some(draft).into_iter().collect(),
            List::Shapes(names, shapes) => {
                let shape = |shape: &&[u32]| {
                    let mut values = names.iter().zip(*shape);
                    values
                        .try_fold(draft, |draft, (name, value)| with(draft, name, (*value).into()))
                };
                shapes.iter().filter_map(shape).collect()
            }
            List::Values(name, values) => {
                values(of).into_iter().filter_map(|value| with(draft, name, value)).collect()
            }
            List::Value(name, value) => with(draft, name, value(of)).into_iter().collect(),
            List::Made(made) => made(of).into_iter().map(|params| (params, *of.others)).collect(),
            List::Once | List::Launches | List::First(_) => vec![draft],
        }
    }
}

/// Leaves the first ones of those that have the same key.
fn each_once<K: PartialEq>(all: &mut Vec<Draft>, key: impl Fn(&Params) -> K) {
    let mut keys = Vec::new();
    all.retain(|(params, _)| {
        let key = key(params);
        let first = !keys.contains(&key);
        if first {
            keys.push(key);
        }
        first
    });
}

impl Kernel {
    /// What descriptions of kernels for one column have in common: `..Kernel::GEMV` stands for what they do not say.
    ///
    /// ```
    /// use gemv_gpu::{Kernel, Signature};
    /// assert!(Kernel::GEMV.ordered && !Kernel::GEMV.mixed);
    /// assert_eq!(Kernel::GEMM.signature, Signature::Gemm);
    /// ```
    pub const GEMV: Kernel = Kernel {
        about: "",
        name: "",
        source: "",
        args: &[],
        defines: &[],
        signature: Signature::Gemv,
        mixed: false,
        ordered: true,
        rules: &[],
        candidates: &[],
        plan: |_| Plan { launches: Vec::new(), workspace: 0, counters: 0 },
    };

    /// The same of those for several columns and for batches.
    pub const GEMM: Kernel = Kernel { signature: Signature::Gemm, ..Kernel::GEMV };

    /// Whether these parameters are legal for this problem on such a device.
    ///
    /// ```
    /// # use gemv_gpu::{Caps, Language, kernel};
    /// # use gemv_core::{Desc, Dtype};
    /// let (row, caps) = (kernel("row").unwrap(), Caps::new(Language::OpenCl));
    /// let desc = |dtype| Desc::new(dtype, 100, 100, (100, 1), 0);
    /// let fits = |dtype, text: &str| row.fits(&desc(dtype), &text.parse().unwrap(), &caps);
    /// assert_eq!(fits(Dtype::F32, "row threads=64"), Ok(()));
    /// let why = fits(Dtype::F32, "row threads=1024 subwarp=32").unwrap_err();
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
        let of = Case::new(self, desc, params, caps);
        self.args.iter().zip(of.values).try_for_each(|(arg, value)| arg.check(value))?;
        self.takes(desc, caps)?;
        self.rules.iter().try_for_each(|rule| rule.check(&of))?;
        (self.plan)(&of).runs_on(caps)
    }

    /// Whether it is for such a problem on such a device, with some parameters.
    fn takes(&self, desc: &Desc, caps: &Caps) -> Result<(), String> {
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
        self.rules.iter().try_for_each(|rule| rule.takes(desc, caps))
    }

    /// The parameters worth trying for a problem, best guess first. Each [fits](Kernel::fits). Empty where the kernel is not for
    /// the problem.
    pub fn candidates(&self, desc: &Desc, caps: &Caps) -> Vec<Params> {
        if self.candidates.is_empty() || self.takes(desc, caps).is_err() {
            return Vec::new();
        }
        let fitting = |all: &mut Vec<Draft>| {
            all.retain(|(params, _)| self.fits(desc, params, caps).is_ok());
        };
        let none = Params::new(self.name);
        let (mut all, mut fit) = (vec![(none, none)], false);
        for list in self.candidates {
            let judges = matches!(list, List::Once | List::Launches | List::First(_));
            if judges && !fit {
                fitting(&mut all);
            }
            fit = judges;
            match list {
                List::Once => each_once(&mut all, |params| *params),
                List::Launches => each_once(&mut all, |params| self.launch_id(desc, params, caps)),
                List::First(most) => all.truncate(*most),
                _ => {
                    let continued = |(params, others): &Draft| {
                        let of = Case::new(self, desc, params, caps);
                        list.continued(&Case { others, ..of })
                    };
                    all = all.iter().flat_map(continued).collect();
                }
            }
        }
        if !fit {
            fitting(&mut all);
        }
        all.into_iter().map(|(params, _)| params).collect()
    }

    /// What to launch for parameters that fit.
    pub fn plan(&self, desc: &Desc, params: &Params, caps: &Caps) -> Plan {
        (self.plan)(&Case::new(self, desc, params, caps))
    }

    /// The parameters with one more argument, in the order of the kernel's.
    fn set(&self, params: &Params, name: &str, value: u32) -> Params {
        if params.get(name).is_some() {
            return params.with(name, value);
        }
        let value_of =
            |arg: &Arg| if arg.name == name { Some(value) } else { params.get(arg.name) };
        let values =
            self.args.iter().filter_map(|arg| value_of(arg).map(|value| (arg.name, value)));
        values.fold(Params::new(self.name), |params, (name, value)| params.with(name, value))
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

    /// Whether the description is whole: a sentence for the kernel and for each argument, defaults
    /// among the values, no name or define twice, and shapes of one length. For the tests of every crate with kernels.
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
        for list in self.candidates {
            if let List::Shapes(names, shapes) = list
                && shapes.iter().any(|shape| shape.len() != names.len())
            {
                return Err(format!(
                    "{}: a shape has not a value for each of {names:?}",
                    self.name
                ));
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
        self.plan(desc, params, caps).hash(&mut hash);
        hash.finish()
    }
}

/// The argument of a kernel for packed matrices.
const FORMAT: &str = "format";

/// The value of an argument in parameters, or its default.
///
/// # Panics
/// If `args` has no argument of this name.
pub fn value(args: &[Arg], params: &Params, name: &str) -> u32 {
    let arg = args.iter().find(|a| a.name == name);
    params.get_or(name, arg.expect("an argument of this kernel").default)
}
