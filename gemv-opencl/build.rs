//! Loads OpenCL at run time in place of at link time.
//!
//! `ocl` links libOpenCL: without the loader's package, programs neither link nor start. On Linux
//! (x86-64, aarch64) this script builds a static library of the same name instead. For every
//! function of the API it has a jump through a slot. The first call of any function, by whatever part of the
//! program, fills all slots from the system's library. Where there is none, each call returns
//! CL_PLATFORM_NOT_FOUND_KHR, or null. The folder of the static library comes first on the link path.
use std::fmt::Write;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(opencl_at_run_time)");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // A function jumps to where its slot points: at first to `first`, which says which slot it is, and goes on to `FIRST`.
    // That one keeps the arguments, all of which are integers and pointers, fills the slots, and calls the function again.
    let (jump, first, go_on) = match (target("OS").as_str(), target("ARCH").as_str()) {
        ("linux", "x86_64") => (
            "endbr64\\n jmp *SLOT(%rip)",
            "endbr64\\n lea SLOT(%rip), %r11\\n jmp FIRST",
            "push %rdi\\n push %rsi\\n push %rdx\\n push %rcx\\n push %r8\\n push %r9\\n push %r11\\n\
             call gemv_opencl_load\\n\
             pop %r11\\n pop %r9\\n pop %r8\\n pop %rcx\\n pop %rdx\\n pop %rsi\\n pop %rdi\\n jmp *(%r11)",
        ),
        ("linux", "aarch64") => (
            "hint #34\\n adrp x16, SLOT\\n ldr x16, [x16, :lo12:SLOT]\\n br x16",
            "hint #36\\n adrp x9, SLOT\\n add x9, x9, :lo12:SLOT\\n b FIRST",
            "stp x29, x30, [sp, #-96]!\\n stp x0, x1, [sp, #16]\\n stp x2, x3, [sp, #32]\\n\
             stp x4, x5, [sp, #48]\\n stp x6, x7, [sp, #64]\\n str x9, [sp, #80]\\n\
             bl gemv_opencl_load\\n\
             ldr x9, [sp, #80]\\n ldp x6, x7, [sp, #64]\\n ldp x4, x5, [sp, #48]\\n\
             ldp x2, x3, [sp, #32]\\n ldp x0, x1, [sp, #16]\\n ldp x29, x30, [sp], #96\\n\
             ldr x16, [x9]\\n br x16",
        ),
        // Elsewhere the system's library is linked as `ocl` has it.
        _ => return,
    };
    println!("cargo:rustc-cfg=opencl_at_run_time");

    let mut c = String::from(
        "#include <dlfcn.h>\n\
         #include <pthread.h>\n\
         static int absent(void) { return -1001; } /* CL_PLATFORM_NOT_FOUND_KHR */\n\
         static void *absent_pointer(void) { return 0; }\n\
         __attribute__((visibility(\"hidden\"))) int gemv_opencl_load(void);\n",
    );
    writeln!(c, "__asm__(\".text\\n.balign 16\\ngemv_opencl_first: {go_on}\\n\");").unwrap();
    for name in API {
        let of = |text: &str| {
            text.replace("SLOT", &format!("gemv_slot_{name}")).replace("FIRST", "gemv_opencl_first")
        };
        let (jump, first) = (of(jump), of(first));
        writeln!(
            c,
            "extern char gemv_first_{name}[] __attribute__((visibility(\"hidden\")));\n\
             __attribute__((visibility(\"hidden\"))) void *gemv_slot_{name} = gemv_first_{name};\n\
             __asm__(\".text\\n.balign 16\\n.globl {name}\\n.hidden {name}\\n\
             .type {name}, %function\\n{name}: {jump}\\n.size {name}, . - {name}\\n\
             .globl gemv_first_{name}\\n.hidden gemv_first_{name}\\n\
             gemv_first_{name}: {first}\\n\");"
        )
        .unwrap();
    }
    c += "static int found;\n\
          static void fill(void) {\n\
          void *f, *lib = dlopen(\"libOpenCL.so.1\", RTLD_NOW | RTLD_LOCAL);\n\
          if (!lib) lib = dlopen(\"libOpenCL.so\", RTLD_NOW | RTLD_LOCAL);\n\
          found = lib != 0;\n";
    for name in API {
        let pointers =
            ["clCreate", "clGetExtension", "clEnqueueMap", "clSVMAlloc", "clLink", "clClone"];
        let is_pointer = pointers.iter().any(|begin| name.starts_with(begin))
            && *name != "clCreateKernelsInProgram";
        let absent = if is_pointer { "absent_pointer" } else { "absent" };
        writeln!(
            c,
            "f = lib ? dlsym(lib, \"{name}\") : 0;\n\
             __atomic_store_n(&gemv_slot_{name}, f ? f : (void *){absent}, __ATOMIC_RELEASE);"
        )
        .unwrap();
    }
    c += "}\n\
          /* Fills the slots, once; 1 where a library was found. Any thread may call it. */\n\
          int gemv_opencl_load(void) {\n\
          static pthread_once_t once = PTHREAD_ONCE_INIT;\n\
          pthread_once(&once, fill);\n\
          return found;\n}\n";

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let source = out.join("opencl.c");
    std::fs::write(&source, c).expect("OUT_DIR can be written to");
    // It is a part of this crate, so that a static library has it too; and what `ocl` links by the name of OpenCL.
    cc::Build::new().file(&source).compile("OpenCL");
    // dlopen is in libc since glibc 2.34, and in libdl before.
    println!("cargo:rustc-link-lib=dl");
}

/// The functions of OpenCL 1.0 to 2.1 that the bindings declare.
const API: &[&str] = &[
    "clBuildProgram",
    "clCloneKernel",
    "clCompileProgram",
    "clCreateBuffer",
    "clCreateCommandQueue",
    "clCreateCommandQueueWithProperties",
    "clCreateContext",
    "clCreateContextFromType",
    "clCreateFromGLBuffer",
    "clCreateFromGLRenderbuffer",
    "clCreateFromGLTexture",
    "clCreateFromGLTexture2D",
    "clCreateFromGLTexture3D",
    "clCreateImage",
    "clCreateImage2D",
    "clCreateImage3D",
    "clCreateKernel",
    "clCreateKernelsInProgram",
    "clCreatePipe",
    "clCreateProgramWithBinary",
    "clCreateProgramWithBuiltInKernels",
    "clCreateProgramWithIL",
    "clCreateProgramWithSource",
    "clCreateSampler",
    "clCreateSamplerWithProperties",
    "clCreateSubBuffer",
    "clCreateSubDevices",
    "clCreateUserEvent",
    "clEnqueueAcquireGLObjects",
    "clEnqueueBarrier",
    "clEnqueueBarrierWithWaitList",
    "clEnqueueCopyBuffer",
    "clEnqueueCopyBufferRect",
    "clEnqueueCopyBufferToImage",
    "clEnqueueCopyImage",
    "clEnqueueCopyImageToBuffer",
    "clEnqueueFillBuffer",
    "clEnqueueFillImage",
    "clEnqueueMapBuffer",
    "clEnqueueMapImage",
    "clEnqueueMarker",
    "clEnqueueMarkerWithWaitList",
    "clEnqueueMigrateMemObjects",
    "clEnqueueNDRangeKernel",
    "clEnqueueNativeKernel",
    "clEnqueueReadBuffer",
    "clEnqueueReadBufferRect",
    "clEnqueueReadImage",
    "clEnqueueReleaseGLObjects",
    "clEnqueueSVMFree",
    "clEnqueueSVMMap",
    "clEnqueueSVMMemFill",
    "clEnqueueSVMMemcpy",
    "clEnqueueSVMMigrateMem",
    "clEnqueueSVMUnmap",
    "clEnqueueTask",
    "clEnqueueUnmapMemObject",
    "clEnqueueWaitForEvents",
    "clEnqueueWriteBuffer",
    "clEnqueueWriteBufferRect",
    "clEnqueueWriteImage",
    "clFinish",
    "clFlush",
    "clGetCommandQueueInfo",
    "clGetContextInfo",
    "clGetDeviceAndHostTimer",
    "clGetDeviceIDs",
    "clGetDeviceInfo",
    "clGetEventInfo",
    "clGetEventProfilingInfo",
    "clGetExtensionFunctionAddress",
    "clGetExtensionFunctionAddressForPlatform",
    "clGetGLContextInfoKHR",
    "clGetGLObjectInfo",
    "clGetGLTextureInfo",
    "clGetHostTimer",
    "clGetImageInfo",
    "clGetKernelArgInfo",
    "clGetKernelInfo",
    "clGetKernelSubGroupInfo",
    "clGetKernelWorkGroupInfo",
    "clGetMemObjectInfo",
    "clGetPipeInfo",
    "clGetPlatformIDs",
    "clGetPlatformInfo",
    "clGetProgramBuildInfo",
    "clGetProgramInfo",
    "clGetSamplerInfo",
    "clGetSupportedImageFormats",
    "clLinkProgram",
    "clReleaseCommandQueue",
    "clReleaseContext",
    "clReleaseDevice",
    "clReleaseEvent",
    "clReleaseKernel",
    "clReleaseMemObject",
    "clReleaseProgram",
    "clReleaseSampler",
    "clRetainCommandQueue",
    "clRetainContext",
    "clRetainDevice",
    "clRetainEvent",
    "clRetainKernel",
    "clRetainMemObject",
    "clRetainProgram",
    "clRetainSampler",
    "clSVMAlloc",
    "clSVMFree",
    "clSetDefaultDeviceCommandQueue",
    "clSetEventCallback",
    "clSetKernelArg",
    "clSetKernelArgSVMPointer",
    "clSetKernelExecInfo",
    "clSetMemObjectDestructorCallback",
    "clSetUserEventStatus",
    "clUnloadCompiler",
    "clUnloadPlatformCompiler",
    "clWaitForEvents",
];
