//! Bugs of drivers that this backend works around, as data.
//!
//! The OpenCL tests have a trial `known-bugs` for each device. With the environment variable
//! [`LIFT`] it runs what a workaround avoids, and prints how many results are wrong.

/// Names of bugs, separated by commas, whose workaround is not applied.
pub(crate) const LIFT: &str = "GEMV_OPENCL_LIFT";

/// A bug of a driver, and what this backend does about it.
///
/// ```
/// for bug in gemv::opencl::known_bugs() {
///     println!("{} ({}): {} {}", bug.name, bug.driver, bug.about, bug.workaround);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bug {
    /// A short name.
    pub name: &'static str,
    /// How the name of the device's driver begins; empty where the workaround is for every driver.
    pub driver: &'static str,
    /// What the driver does.
    pub about: &'static str,
    /// What this backend does.
    pub workaround: &'static str,
    /// How to see that the bug is gone.
    pub check: &'static str,
}

pub(crate) const COMPLEX_VECTORS: Bug = Bug {
    name: "pocl-complex-vectors",
    driver: POCL,
    about: "On some CPUs the kernel `col` with complex elements and vec above 1 has wrong sums in \
            the process that compiles it; `gemm-col` has the same loads.",
    workaround: "These parameters are refused; no table has them.",
    check: "The trial `known-bugs` of the OpenCL tests (GEMV_TEST_FULL=1) counts the wrong products on this CPU.",
};
pub(crate) const MANY_LANES: Bug = Bug {
    name: "pocl-many-lanes",
    driver: POCL,
    about: "PoCL 3.1 computes wrong sums in `gemm-col` where a thread has 8 or more lanes and 128 \
            bytes of complex sums, or 256 bytes of real ones. Oclgrind finds no fault.",
    workaround: "These parameters are refused; no table has them.",
    check: "The test `gemm` of the package gemv-testkit passes with this name in GEMV_OPENCL_LIFT.",
};
pub(crate) const BINARIES: Bug = Bug {
    name: "pocl-binaries",
    driver: POCL,
    about: "Asked for a program's binary, PoCL compiles every kernel of the program once more, which takes \
            longer than all else that a first product does.",
    workaround: "Its programs are not kept by this backend: PoCL has a cache of its own.",
    check: "A first product with this name in GEMV_OPENCL_LIFT takes no longer than without.",
};
pub(crate) const LAZY: Bug = Bug {
    name: "pocl-lazy",
    driver: POCL,
    about: "PoCL compiles an entry point when it is first launched. What it does before, for each program, takes as long for one \
            entry point as for all of a kernel: half a second.",
    workaround: "Its programs have all entry points of a kernel; those of most drivers have one.",
    check: "A first product with split rows and with this name in GEMV_OPENCL_LIFT takes no longer than without.",
};
pub(crate) const NOT_A_CPU: Bug = Bug {
    name: "oclgrind-device-type",
    driver: "Oclgrind",
    about: "The simulator reports every type of device, and aborts on vectors of 16.",
    workaround: "It is a GPU: the kernels for CPUs are not offered.",
    check: "CL_DEVICE_TYPE of Oclgrind is CL_DEVICE_TYPE_GPU alone.",
};
pub(crate) const ONE_THREAD: Bug = Bug {
    name: "oclgrind-threads",
    driver: "Oclgrind",
    about: "The simulator crashes now and then where two threads of a program are in it.",
    workaround: "Its programs have all entry points of a kernel, so that a product compiles on its own thread.",
    check: "The step `oclgrind` of `cargo xtask test` passes with this name in GEMV_OPENCL_LIFT, twenty times.",
};
/// Workarounds that every driver gets: there is nothing to decide by the device.
pub(crate) const OF_ALL: &[Bug] = &[
    Bug {
        name: "pocl-threads",
        driver: "",
        about: "PoCL 3.1 aborts now and then if two threads launch in a context, or look for devices.",
        workaround: "Each device has a lock, which only compilations are without, and devices are looked for once, by one \
                     thread.",
        check: "The trial `threads` passes without the lock of `memory::State`, a hundred times.",
    },
    Bug {
        name: "pocl-inline",
        driver: "",
        about: "Where a function is not inlined, LLVM may put the kernel's local array in place of its argument, \
                and PoCL 3.1 then lets all blocks that run at once share the array. Nor does it take barriers in \
                such a function (pocl/pocl#668).",
        workaround: "INLINED before every function with a barrier or a pointer to local memory; `cargo xtask house` looks \
                     for others.",
        check: "With an empty INLINED in `prelude.h`, the trial `f64/for-gpus-repeated` of the test `opencl` passes.",
    },
    Bug {
        name: "null-buffers",
        driver: "",
        about: "Some drivers fail on a null buffer as the argument of a kernel.",
        workaround: "An operand that is not read is a small buffer.",
        check: "The OpenCL tests pass with null in place of `Buffers::dummy`.",
    },
    Bug {
        name: "pocl-private-arrays",
        driver: "",
        about: "PoCL 3.1 does not keep an array of eight numbers intact across barriers.",
        workaround: "`sorensen.k` computes the numbers again where it needs them.",
        check: "The baselines' tests pass on PoCL with the array in `sorensen.k`.",
    },
    Bug {
        name: "pocl-branches",
        driver: "",
        about: "PoCL 3.1 lets several work-items take one branch where they differ, in the rounding to 16 bits of `row-smem`.",
        workaround: "`narrow` in `prelude.h` selects.",
        check: "The trials `for-gpus-kinds` of gemv-opencl's tests pass on PoCL with branches in `narrow`.",
    },
    Bug {
        name: "nvidia-fill",
        driver: "",
        about: "NVIDIA's driver 580 does not return from clEnqueueFillBuffer with a pattern of one byte \
                for 2 GiB or more, and does nothing at an offset of more than 4 GiB.",
        workaround: "Buffers are cleared by a pattern of 16 bytes.",
        check: "With a pattern of one byte in `Queue::zero`, the trials `zeros/beyond-int` of the test \
                `equivalence` end on an NVIDIA GPU.",
    },
];

const POCL: &str = "Portable Computing Language";

impl Bug {
    /// Whether a device with this driver needs the workaround.
    pub(crate) fn is_in(&self, driver: &str) -> bool {
        let lifted = std::env::var(LIFT).unwrap_or_default();
        driver.starts_with(self.driver) && lifted.split(',').all(|name| name != self.name)
    }
}

/// The bugs of drivers that this backend works around.
pub fn known_bugs() -> impl Iterator<Item = &'static Bug> {
    [&COMPLEX_VECTORS, &MANY_LANES, &BINARIES, &LAZY, &NOT_A_CPU, &ONE_THREAD]
        .into_iter()
        .chain(OF_ALL)
}
