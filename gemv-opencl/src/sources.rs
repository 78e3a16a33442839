//! Texts that people bring, compiled: what the driver says of their entry points.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gemv_core::{Error, KernelLimits, KernelType, Parameter, Result};
use gemv_gpu::with_words;
use ocl::core::{
    self, KernelArgAddressQualifier as Space, KernelArgInfo as Ask, KernelArgInfoResult as Answer,
    KernelArgTypeQualifier, KernelInfo, KernelInfoResult, KernelWorkGroupInfo as AskGroup,
    KernelWorkGroupInfoResult as Group,
};

use crate::attempts::Attempts;
use crate::cl::{Compiler, Failure, OPTIONS};
use crate::discover::Found;

/// What was compiled, by text and entry point. Nothing is released before the device.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    programs: Attempts<core::Program>,
    entries: Attempts<Entry>,
    objects: Mutex<Vec<Object>>,
}

/// A kernel object, whose arguments one thread sets at a time.
type Object = Arc<Mutex<core::Kernel>>;

/// An entry point.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) parameters: Arc<[Parameter]>,
    pub(crate) limits: KernelLimits,
    /// Whether the last parameter is local memory, which is no argument.
    pub(crate) local: bool,
    /// The kernel object's index in [`Sources`].
    object: usize,
}

impl Sources {
    /// Compiles a text and describes an entry point, or finds what was compiled before. No lock is held meanwhile.
    pub(crate) fn entry(
        &self,
        found: &Found,
        compiler: &Compiler,
        text: &str,
        entry: &str,
    ) -> Result<Entry> {
        // No name of an entry point has a line's end.
        let key = format!("{entry}\n{text}");
        self.entries.get(&key, || self.new_entry(found, compiler, text, entry))
    }

    fn new_entry(
        &self,
        found: &Found,
        compiler: &Compiler,
        text: &str,
        entry: &str,
    ) -> Result<Entry> {
        let id = &found.info.id;
        let build = |log| Error::Build { kernel: entry.into(), device: id.clone(), log };
        let program = self.programs.get(text, || {
            let options = format!("{OPTIONS} -cl-kernel-arg-info");
            compiler.build(&with_words(text), &options).map_err(|e| match e {
                Ok(log) => build(as_given(&log, text)),
                Err(failure) => failure.on(id),
            })
        })?;
        let object = core::create_kernel(&program, entry).map_err(|e| {
            match Failure::new("clCreateKernel", e) {
                // CL_INVALID_KERNEL_NAME
                Failure { status: Some(-46), .. } => {
                    build(format!("the text has no kernel of the name {entry:?}"))
                }
                failure => failure.on(id),
            }
        })?;
        let refuse = |reason| Error::Kernel { kernel: entry.into(), device: id.clone(), reason };
        let mut parameters = parameters(&object).map_err(|e| e.on(id))?;
        let local = parameters.last() == Some(&Given::Local);
        parameters.truncate(parameters.len() - usize::from(local));
        let parameters = parameters.into_iter().map(|given| match given {
            Given::Parameter(parameter) => Ok(parameter),
            Given::Local => Err(refuse("local memory is a parameter, but not the last one".into())),
        });
        let parameters = parameters.collect::<Result<_>>()?;
        let limits = limits(found, compiler, &object, local).map_err(|e| e.on(id))?;
        let mut objects = self.objects();
        objects.push(Arc::new(Mutex::new(object)));
        Ok(Entry { parameters, limits, local, object: objects.len() - 1 })
    }

    fn objects(&self) -> MutexGuard<'_, Vec<Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, entry: &Entry) -> Object {
        self.objects()[entry.object].clone()
    }
}

/// The log with the lines of the text as it was given. NVIDIA's compiler ignores `#line`: the
/// number in `<kernel>:LINE:` counts what `#include "gemv.h"` stands for.
fn as_given(log: &str, text: &str) -> String {
    const WHERE: &str = "<kernel>:";
    let included = with_words(text).lines().count().saturating_sub(text.lines().count());
    let last_included = text
        .lines()
        .position(|line| with_words(line) != line)
        .map_or(usize::MAX, |before| before + 1 + included);
    let mut parts = log.split(WHERE);
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (line, rest) = part.split_at(digits);
        all += WHERE;
        all += &match line.parse::<usize>() {
            Ok(line) if line > last_included => (line - included).to_string(),
            _ => line.to_owned(),
        };
        all += rest;
    }
    all
}

/// A parameter as OpenCL has it.
#[derive(Debug, PartialEq)]
enum Given {
    Parameter(Parameter),
    Local,
}

fn parameters(object: &core::Kernel) -> Result<Vec<Given>, Failure> {
    let failed = |e| Failure::new("clGetKernelArgInfo", e);
    let count = match core::get_kernel_info(object, KernelInfo::NumArgs) {
        Ok(KernelInfoResult::NumArgs(count)) => count,
        Ok(_) => 0,
        Err(e) => return Err(Failure::new("clGetKernelInfo", e)),
    };
    let ask = |index, what| core::get_kernel_arg_info(object, index, what, None).map_err(failed);
    let mut all = Vec::new();
    for index in 0..count {
        let Answer::AddressQualifier(space) = ask(index, Ask::AddressQualifier)? else { continue };
        let Answer::TypeQualifier(qualifier) = ask(index, Ask::TypeQualifier)? else { continue };
        let Answer::TypeName(name) = ask(index, Ask::TypeName)? else { continue };
        all.push(described(space, qualifier, name.trim_end_matches('\0')));
    }
    Ok(all)
}

fn described(space: Space, qualifier: KernelArgTypeQualifier, name: &str) -> Given {
    let other = || Parameter::Other(name.into());
    Given::Parameter(match (space, name.strip_suffix('*')) {
        (Space::Local, _) => return Given::Local,
        (Space::Private, None) => kernel_type(name).map_or_else(other, Parameter::Scalar),
        (Space::Global | Space::Constant, Some(entry)) => {
            let constant =
                space == Space::Constant || qualifier.contains(KernelArgTypeQualifier::CONST);
            kernel_type(entry).map_or_else(other, |of| Parameter::Array { of, writes: !constant })
        }
        _ => other(),
    })
}

/// Of a name of OpenCL C.
fn kernel_type(name: &str) -> Option<KernelType> {
    let name = name.trim();
    Some(match name.strip_prefix("const ").unwrap_or(name) {
        "float" => KernelType::F32,
        "double" => KernelType::F64,
        "ushort" | "unsigned short" | "half" => KernelType::Bits16,
        "float2" => KernelType::C32,
        "double2" => KernelType::C64,
        "int" => KernelType::I32,
        "uint" | "unsigned int" => KernelType::U32,
        "long" => KernelType::I64,
        "ulong" | "unsigned long" => KernelType::U64,
        _ => return None,
    })
}

fn limits(
    found: &Found,
    compiler: &Compiler,
    object: &core::Kernel,
    local: bool,
) -> Result<KernelLimits, Failure> {
    let failed = |e| Failure::new("clGetKernelWorkGroupInfo", e);
    let ask =
        |what| core::get_kernel_work_group_info(object, compiler.device, what).map_err(failed);
    let narrow = |v: usize| u32::try_from(v).unwrap_or(u32::MAX);
    let mut limits = KernelLimits { takes_shared: Some(local), ..KernelLimits::NONE };
    if let Group::WorkGroupSize(most) = ask(AskGroup::WorkGroupSize)? {
        limits.threads = narrow(most);
    }
    if let Group::CompileWorkGroupSize(block) = ask(AskGroup::CompileWorkGroupSize)?
        && block != [0; 3]
    {
        limits.required = Some(block.map(narrow));
    }
    if let Group::LocalMemSize(used) = ask(AskGroup::LocalMemSize)? {
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        limits.shared = found.caps.local_bytes.saturating_sub(used);
    }
    if let Ok(core::DeviceInfoResult::MaxWorkItemSizes(sizes)) =
        core::get_device_info(compiler.device, core::DeviceInfo::MaxWorkItemSizes)
    {
        for (most, size) in limits.block.iter_mut().zip(sizes) {
            *most = narrow(size);
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_the_lines_that_were_given() {
        let text = "float f();\n#include \"gemv.h\"\nENTRY g() {\n quark;\n}\n";
        let whole = with_words(text);
        let at = 1 + whole.lines().position(|line| line == " quark;").unwrap();
        let log =
            format!("<kernel>:1:7: note: here\n<kernel>:{at}:2: error: quark\nkernel.cl:3: x");
        let given = "<kernel>:1:7: note: here\n<kernel>:4:2: error: quark\nkernel.cl:3: x";
        assert_eq!(as_given(&log, text), given);
        assert_eq!(as_given("<kernel>:9:1: e\n<kernel>:", "a\nb\n"), "<kernel>:9:1: e\n<kernel>:");
    }
}
