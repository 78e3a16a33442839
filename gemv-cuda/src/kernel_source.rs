//! Kernels that people bring: compiled, described by what the compiler says of them, launched.
//!
//! The driver tells the size of a parameter, not its type. So each program is compiled with one more
//! entry point, a template of the kernel's type: its name in the image spells the parameters, as the
//! Itanium C++ ABI has it ("External Names").

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gemv_core::{CompiledKernel, Error, KernelLaunch, KernelType, Parameter, Result};
use gemv_gpu::{Program, with_words};

use crate::driver::{Function, Gpu, Image};
use crate::lock::lock;
use crate::programs::Programs;

/// What was compiled for a GPU, by text and entry point.
#[derive(Debug, Default)]
pub(crate) struct Sources(Mutex<HashMap<(String, String), CompiledKernel>>);

/// The state of a [`CompiledKernel`] of this backend.
#[derive(Debug)]
struct Entry {
    gpu: Arc<Gpu>,
    function: Function,
}

impl Sources {
    /// Compiles a text and describes an entry point, or finds what was compiled before.
    pub(crate) fn compile(
        &self,
        gpu: &Arc<Gpu>,
        programs: &Programs,
        text: &str,
        entry: &str,
    ) -> Result<CompiledKernel> {
        let key = (text.to_owned(), entry.to_owned());
        let mut compiled = lock(&self.0);
        if let Some(compiled) = compiled.get(&key) {
            return Ok(compiled.clone());
        }
        let build =
            |log: String| Error::Build { kernel: entry.into(), device: gpu.id().into(), log };
        let image = programs.image(gpu.id(), &program_of(text, entry), || entry.into())?;
        let parameters = parameters(&image)
            .ok_or_else(|| build("the compiled program does not name its parameters".into()))?;
        let loaded = gpu.load(&image, [entry].into_iter()).map_err(|e| match e {
            Error::Device { call: "cuModuleGetFunction", .. } => build(format!(
                "the text has no entry point of the name {entry:?}, declared extern \"C\" __global__"
            )),
            e => e,
        })?;
        let function = loaded.into_iter().next().expect("one was asked for");
        let limits = gpu.limits(&function)?;
        let state = Arc::new(Entry { gpu: gpu.clone(), function });
        let new = CompiledKernel { parameters: parameters.into(), limits, state };
        compiled.insert(key, new.clone());
        Ok(new)
    }
}

/// Queues a launch.
///
/// # Panics
/// If another GPU has compiled it.
pub(crate) fn launch(gpu: &Arc<Gpu>, launch: &KernelLaunch<'_>) -> Result<()> {
    let state = &launch.compiled().state;
    let entry = state.downcast_ref::<Entry>().expect("compiled by this backend");
    assert!(Arc::ptr_eq(&entry.gpu, gpu), "compiled for another GPU");
    let _guard = gpu.enter()?;
    gpu.launch_source(&entry.function, launch)
}

/// The template whose name in the image spells a kernel's parameters.
const SIGNATURE: &str = "gemv_signature_";

/// The program of a person's kernel: its text with the words that it asks for, and what makes the compiler
/// tell the [`parameters`] of this entry point.
pub fn program_of(text: &str, entry: &str) -> Program {
    let source = format!(
        "{}\n#line 1 \"{entry}\"\ntemplate <class T> __global__ void {SIGNATURE}() {{}}\n\
         template __global__ void {SIGNATURE}<decltype(&{entry})>();\n",
        with_words(text)
    );
    Program { source, defines: Vec::new() }
}

/// The parameters of the entry point that a program of [`program_of`] was made for; `None` where the
/// image says nothing of them.
///
/// ```
/// use gemv::kernel::{KernelType, Parameter};
/// use gemv::cuda::{Nvrtc, options, parameters, program_of};
///
/// if let Ok(nvrtc) = Nvrtc::find() {
///     let text = "extern \"C\" __global__ void fill(float *y, const float value) { y[0] = value; }";
///     let program = program_of(text, "fill");
///     let (image, _log) = nvrtc.compile(&program, &options(&nvrtc.target(90))).unwrap();
///     let (y, value) = (KernelType::F32, KernelType::F32);
///     let want = [Parameter::Array { of: y, writes: true }, Parameter::Scalar(value)];
///     assert_eq!(parameters(&image).unwrap(), want);
/// }
/// ```
pub fn parameters(image: &Image) -> Option<Vec<Parameter>> {
    // A pointer to a function without a result.
    let front = format!("{SIGNATURE}IPFv");
    let bytes = image.bytes();
    let at = bytes.windows(front.len()).position(|w| w == front.as_bytes())? + front.len();
    let name = bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_');
    let name: String = name.map(|b| char::from(*b)).collect();
    Some(spelled(&name))
}

/// The parameters at the front of such a name, up to the end of the function's type. What is no
/// argument's type ends the list, as [`Parameter::Other`].
fn spelled(name: &str) -> Vec<Parameter> {
    // The template itself is the first that a later part may stand for.
    let mut name = Name { rest: name, seen: vec![Type::other(SIGNATURE)] };
    let mut all = Vec::new();
    if name.rest.starts_with("vE") {
        return all;
    }
    while !name.rest.is_empty() && !name.rest.starts_with('E') {
        let before = name.rest;
        let parameter = match name.parse() {
            Some(Type::Value(of)) => Parameter::Scalar(of),
            Some(Type::Pointer { of, writes }) => Parameter::Array { of, writes },
            Some(Type::Other(text)) => Parameter::Other(text),
            Some(Type::Const(_)) | None => {
                all.push(Parameter::Other(before.into()));
                return all;
            }
        };
        all.push(parameter);
    }
    all
}

#[derive(Debug, Clone)]
enum Type {
    Value(KernelType),
    /// Of a value.
    Const(KernelType),
    /// To a value.
    Pointer {
        of: KernelType,
        writes: bool,
    },
    Other(String),
}

impl Type {
    fn other(text: &str) -> Type {
        Type::Other(text.into())
    }
}

/// What is left of a name, and the types in it that a later part may stand for.
struct Name<'a> {
    rest: &'a str,
    seen: Vec<Type>,
}

impl Name<'_> {
    /// The next type; `None` where its end cannot be told.
    fn parse(&mut self) -> Option<Type> {
        let first = self.rest.chars().next()?;
        if first.is_ascii_digit() {
            let digits = self.rest.find(|c: char| !c.is_ascii_digit())?;
            let len: usize = self.rest[..digits].parse().ok()?;
            let text = self.rest.get(digits..digits.checked_add(len)?)?;
            self.rest = &self.rest[digits + len..];
            let of = match text {
                "float2" => Type::Value(KernelType::C32),
                "double2" => Type::Value(KernelType::C64),
                text => Type::other(text),
            };
            self.seen.push(of.clone());
            return Some(of);
        }
        self.rest = &self.rest[1..];
        // A `long` has the size that the host's compiler gives it.
        let long = |narrow, wide| Some(Type::Value(if cfg!(windows) { narrow } else { wide }));
        let of = match first {
            'f' => return Some(Type::Value(KernelType::F32)),
            'd' => return Some(Type::Value(KernelType::F64)),
            't' => return Some(Type::Value(KernelType::Bits16)),
            'i' => return Some(Type::Value(KernelType::I32)),
            'j' => return Some(Type::Value(KernelType::U32)),
            'x' => return Some(Type::Value(KernelType::I64)),
            'y' => return Some(Type::Value(KernelType::U64)),
            'l' => return long(KernelType::I32, KernelType::I64),
            'm' => return long(KernelType::U32, KernelType::U64),
            'b' => return Some(Type::other("bool")),
            'c' => return Some(Type::other("char")),
            'a' => return Some(Type::other("signed char")),
            'h' => return Some(Type::other("unsigned char")),
            's' => return Some(Type::other("short")),
            'v' => return Some(Type::other("void")),
            'S' => {
                let end = self.rest.find('_')?;
                let index = match &self.rest[..end] {
                    "" => 0,
                    digits => usize::from_str_radix(digits, 36).ok()? + 1,
                };
                self.rest = &self.rest[end + 1..];
                return self.seen.get(index).cloned();
            }
            'K' => match self.parse()? {
                Type::Value(of) => Type::Const(of),
                Type::Other(text) => Type::Other(format!("const {text}")),
                Type::Pointer { .. } | Type::Const(_) => Type::other("const pointer"),
            },
            // volatile, restrict
            'V' | 'r' => self.parse()?,
            'P' => match self.parse()? {
                Type::Value(of) => Type::Pointer { of, writes: true },
                Type::Const(of) => Type::Pointer { of, writes: false },
                Type::Other(text) => Type::Other(format!("{text} *")),
                Type::Pointer { .. } => Type::other("pointer to pointer"),
            },
            _ => return None,
        };
        self.seen.push(of.clone());
        Some(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_spell_parameters() {
        use KernelType::*;
        let read = |of| Parameter::Array { of, writes: false };
        let write = |of| Parameter::Array { of, writes: true };
        // void(const float *, float *, const float *, float *, unsigned long long)
        let want = [read(F32), write(F32), read(F32), write(F32), Parameter::Scalar(U64)];
        assert_eq!(spelled("PKfPfS1_S2_yEEvv"), want);
        // void(float2, float2 *, const float2 *, unsigned short)
        let want = [Parameter::Scalar(C32), write(C32), read(C32), Parameter::Scalar(Bits16)];
        assert_eq!(spelled("6float2PS0_PKS0_tEEvv"), want);
        assert_eq!(spelled("vEEvv"), []);
        let other = |text: &str| Parameter::Other(text.into());
        assert_eq!(spelled("hP1SEEvv"), [other("unsigned char"), other("S *")]);
        assert_eq!(spelled("PFivEiEEvv"), [other("PFivEiEEvv")]); // a pointer to a function
        assert_eq!(spelled("PPfEEvv"), [other("pointer to pointer")]);
    }
}
