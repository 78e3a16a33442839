//! Loads OpenCL at run time in place of at link time.
//!
//! `ocl` links libOpenCL: without the loader's package, programs neither link nor start. On Linux
//! (x86-64, aarch64) this script builds a static library of the same name instead. For every
//! function of the API it has a jump through a slot. `gemv_opencl_load` fills the slots from the
//! system's library; before that, each call returns CL_PLATFORM_NOT_FOUND_KHR. The folder of the
//! static library comes first on the link path.
use std::fmt::Write;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(opencl_at_run_time)");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // What a function does: jump to where its slot points.
    let jump = match (target("OS").as_str(), target("ARCH").as_str()) {
        ("linux", "x86_64") => "endbr64\\n jmp *SLOT(%rip)",
        ("linux", "aarch64") => {
            "hint #34\\n adrp x16, SLOT\\n ldr x16, [x16, :lo12:SLOT]\\n br x16"
        }
        // Elsewhere the system's library is linked as `ocl` has it.
        _ => return,
    };
    println!("cargo:rustc-cfg=opencl_at_run_time");

    let mut c = String::from(
        "#include <dlfcn.h>\n\
         #include <stddef.h>\n\
         static int absent(void) { return -1001; } /* CL_PLATFORM_NOT_FOUND_KHR */\n",
    );
    for name in API {
        let jump = jump.replace("SLOT", &format!("gemv_slot_{name}"));
        writeln!(
            c,
            "__attribute__((visibility(\"hidden\"))) void *gemv_slot_{name} = (void *)absent;\n\
             __asm__(\".text\\n.balign 16\\n.globl {name}\\n.hidden {name}\\n\
             .type {name}, %function\\n{name}: {jump}\\n.size {name}, . - {name}\\n\");"
        )
        .unwrap();
    }
    c += "/* Fills the slots; 1 where a library was found. Not safe to call from two threads. */\n\
          __attribute__((visibility(\"hidden\"))) int gemv_opencl_load(void) {\n\
          void *f, *lib = dlopen(\"libOpenCL.so.1\", RTLD_NOW | RTLD_LOCAL);\n\
          if (!lib) lib = dlopen(\"libOpenCL.so\", RTLD_NOW | RTLD_LOCAL);\n\
          if (!lib) return 0;\n";
    for name in API {
        writeln!(c, "if ((f = dlsym(lib, \"{name}\"))) gemv_slot_{name} = f;").unwrap();
    }
    c += "return 1;\n}\n";

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let source = out.join("opencl.c");
    std::fs::write(&source, c).expect("OUT_DIR can be written to");
    // cargo_metadata(false): `ocl` links the library; this script only builds it.
    cc::Build::new().file(&source).cargo_metadata(false).compile("OpenCL");
    println!("cargo:rustc-link-search=native={}", out.display());
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
