//! Kernels that people bring: compiled, described by what the driver says of them, launched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use gemv_core::{
    CompiledKernel, Error, KernelArgument, KernelLaunch, KernelLimits, KernelType, Parameter,
    Result,
};
use gemv_gpu::{Launch, with_words};
use ocl::core::{
    self, KernelArgAddressQualifier as Space, KernelArgInfo as Ask, KernelArgInfoResult as Answer,
    KernelArgTypeQualifier, KernelInfo, KernelInfoResult, KernelWorkGroupInfo as AskGroup,
    KernelWorkGroupInfoResult as Group,
};

use crate::cl::{Args, Failure, OPTIONS, Queue};
use crate::discover::Found;
use crate::memory::{Block, State, lock};

/// What was compiled, by text and entry point. Nothing is released before the device.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    programs: HashMap<String, core::Program>,
    compiled: HashMap<(String, String), CompiledKernel>,
    objects: Vec<core::Kernel>,
}

/// The state of a [`CompiledKernel`] of this backend.
#[derive(Debug)]
struct Entry {
    device: Weak<Mutex<State>>,
    /// The kernel object's index in [`Sources`].
    object: usize,
    /// Whether the last parameter is local memory, which is no argument.
    local: bool,
}

/// Compiles a text and describes an entry point, or finds what was compiled before.
pub(crate) fn compile(
    found: &Found,
    device: &Arc<Mutex<State>>,
    text: &str,
    entry: &str,
) -> Result<CompiledKernel> {
    let mut state = lock(device);
    let State { queue, sources, .. } = &mut *state;
    let key = (text.to_owned(), entry.to_owned());
    if let Some(compiled) = sources.compiled.get(&key) {
        return Ok(compiled.clone());
    }
    let id = &found.info.id;
    let build = |log| Error::Build { kernel: entry.into(), device: id.clone(), log };
    if !sources.programs.contains_key(text) {
        let options = format!("{OPTIONS} -cl-kernel-arg-info");
        let built = queue.build(&with_words(text), &options).map_err(|e| match e {
            Ok(log) => build(log),
            Err(failure) => failure.on(id),
        })?;
        sources.programs.insert(text.into(), built);
    }
    let object = core::create_kernel(&sources.programs[text], entry).map_err(|e| {
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
    let limits = limits(found, queue, &object, local).map_err(|e| e.on(id))?;
    sources.objects.push(object);
    let object = sources.objects.len() - 1;
    let entry = Entry { device: Arc::downgrade(device), object, local };
    let compiled = CompiledKernel { parameters, limits, state: Arc::new(entry) };
    sources.compiled.insert(key, compiled.clone());
    Ok(compiled)
}

/// Sets the arguments and enqueues.
///
/// # Panics
/// If another device has compiled it.
pub(crate) fn launch(
    found: &Found,
    device: &Arc<Mutex<State>>,
    launch: KernelLaunch<'_>,
) -> Result<()> {
    let compiled = launch.compiled();
    let entry = compiled.state.downcast_ref::<Entry>().expect("compiled by this backend");
    assert!(entry.device.as_ptr() == Arc::as_ptr(device), "compiled for another device");
    let state = lock(device);
    let State { queue, sources, .. } = &*state;
    let failed = |e| found.failed(e, 0);
    // A kernel object does not keep its buffers (clSetKernelArg, OpenCL 1.2): they outlive the launch here.
    let mut parts = Vec::new();
    let mut args = Args::of(&sources.objects[entry.object]);
    for argument in launch.arguments() {
        args = match argument {
            KernelArgument::Scalar(value) => args.bytes(value.bytes()),
            KernelArgument::Write { memory, dtype, len } => {
                let block = Block::of(&**memory, *dtype);
                block.assert_holds(0, &[(*len, 1)]);
                args.mem(block.mem())
            }
            KernelArgument::Read { memory, dtype, first, len } => {
                let block = Block::of(*memory, *dtype);
                block.assert_holds(*first, &[(*len, 1)]);
                if *first == 0 {
                    args.mem(block.mem())
                } else {
                    let (at, bytes) = (first * dtype.bytes(), len * dtype.bytes());
                    // So that too much is refused with a number.
                    let part = match queue.part(block.mem(), at, bytes) {
                        Err(e) if e.is_memory() => return Err(found.failed(e, bytes)),
                        part => part.map_err(failed)?,
                    };
                    let args = args.mem(&part);
                    parts.push(part);
                    args
                }
            }
        };
    }
    let shape = launch.shape();
    if entry.local {
        args = args.local(shape.shared as usize);
    }
    args.done().map_err(failed)?;
    let launch = Launch { grid: shape.grid, block: shape.block, ..Launch::new("", 1, 1) };
    queue.launch(&sources.objects[entry.object], &launch).map_err(failed)?;
    queue.flush().map_err(failed)
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
            let constant = space == Space::Constant || qualifier.contains(KernelArgTypeQualifier::CONST);
            kernel_type(entry)
                .map_or_else(other, |of| Parameter::Array { of, writes: !constant })
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
    queue: &Queue,
    object: &core::Kernel,
    local: bool,
) -> Result<KernelLimits, Failure> {
    let failed = |e| Failure::new("clGetKernelWorkGroupInfo", e);
    let ask = |what| core::get_kernel_work_group_info(object, queue.device, what).map_err(failed);
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
        core::get_device_info(queue.device, core::DeviceInfo::MaxWorkItemSizes)
    {
        for (most, size) in limits.block.iter_mut().zip(sizes) {
            *most = narrow(size);
        }
    }
    Ok(limits)
}
