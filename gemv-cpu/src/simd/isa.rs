//! Instruction sets: which ones the processor has.

use core::fmt;

use gemv_core::float_mode::is_default;

/// The environment variable that restricts detection: `avx512`, `avx2` or `plain`.
///
/// It selects the instruction set of the engine's device. [`open`](crate::open) takes a name and ignores it.
///
/// ```
/// assert_eq!(gemv::cpu::ISA_ENV, "GEMV_CPU_ISA"); // GEMV_CPU_ISA=avx2 ./program
/// assert!(gemv::cpu::open(Some("mmx")).is_err());
/// ```
pub const ISA_ENV: &str = "GEMV_CPU_ISA";

/// An instruction set that this processor has. Only detection makes one, so its instructions are safe to run
/// wherever a value exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Isa {
    /// The best instruction set, or the one with this name.
    ///
    /// # Errors
    /// The names of those that the processor has, if `name` is not one of them.
    pub(crate) fn detect(name: Option<&str>) -> Result<Isa, String> {
        let found = Isa::all();
        let Some(name) = name.map(str::trim).filter(|a| !a.is_empty()) else {
            return Ok(found[0]);
        };
        if let Some(isa) = found.iter().find(|i| i.name() == name) {
            return Ok(*isa);
        }
        let names: Vec<_> = found.iter().map(|i| i.name()).collect();
        Err(names.join(", "))
    }

    /// All that the processor has, best first.
    pub(crate) fn all() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            // Exactly what the entry points in x86.rs enable.
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                found.push(Isa(Kind::Avx512));
            }
            if avx2 {
                found.push(Isa(Kind::Avx2));
            }
        }
        found.push(Isa(Kind::Plain));
        found
    }

    /// Whether this thread is in the default floating-point mode, as [`is_default`](gemv_core::float_mode::is_default)
    /// says; for small products, in a fraction of a nanosecond. Some processors take several to store the register of the
    /// mode. So this one computes what other modes round or flush to other bits.
    ///
    /// Exceptions that trap are seen where the C library was asked for them: it sets them for both units. Where `_MM_SET_EXCEPTION_MASK`
    /// has set them for SSE alone a small product traps as the caller's own arithmetic does; of underflow and
    /// subnormal operands the question itself does.
    #[inline(always)]
    pub(crate) fn in_default_mode(self) -> bool {
        match self.0 {
            // There the C library leaves the x87 unit alone.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx2 if cfg!(windows) => is_default(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx2 => {
                // SAFETY: such an `Isa` exists only where the processor has AVX.
                unsafe { in_default_mode() }
            }
            Kind::Plain => is_default(),
        }
    }

    /// Whether it has vectors of 64 bytes and their masks.
    #[inline(always)]
    pub(super) fn is_avx512(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Plain => "plain",
        }
    }

    /// One of a kind that there is.
    ///
    /// # Safety
    /// A value of this kind exists.
    #[inline(always)]
    pub(super) const unsafe fn again(kind: Kind) -> Isa {
        Isa(kind)
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        self.0
    }
}

/// What [`in_default_mode`] computes with: a number whose double is subnormal as well; 1.5 and -1.5, which are rounded to
/// whole numbers; and the bits of the three results in the default mode.
#[cfg(target_arch = "x86_64")]
#[repr(align(16))]
struct Probe(#[expect(dead_code, reason = "used through its address")] [[u32; 4]; 3]);

#[cfg(target_arch = "x86_64")]
static PROBE: Probe = Probe([
    [0x0020_0000, 0, 0, 0],
    [0, 0x3fc0_0000, 0xbfc0_0000, 0],
    [0x0040_0000, 0x4000_0000, 0xc000_0000, 0],
]);

/// See [`Isa::in_default_mode`].
///
/// # Safety
/// The processor has AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn in_default_mode() -> bool {
    use core::arch::asm;
    let mut x87 = 0u16;
    let equal: u32;
    // SAFETY: it writes two bytes at an address that is good for them.
    unsafe { asm!("fnstcw [{}]", in(reg) &raw mut x87, options(nostack, preserves_flags)) };
    if x87 & 0x3f != 0x3f {
        return is_default();
    }
    // A subnormal number is flushed as an operand or as a result, or neither. 1.5 and -1.5 become 2 and -2 to nearest; in each
    // other mode one of them is 1 or -1. By 12 they are rounded in the thread's mode, and the result is not called inexact.
    // SAFETY: it reads the constants, aligned; the caller's.
    unsafe {
        asm!(
            "vmovss {a}, dword ptr [{probe}]",
            "vroundps {b}, xmmword ptr [{probe} + 16], 12",
            "vaddss {a}, {a}, {a}",
            "vorps {a}, {a}, {b}",
            "vpcmpeqd {a}, {a}, xmmword ptr [{probe} + 32]",
            "vmovmskps {equal:e}, {a}",
            probe = in(reg) &raw const PROBE,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            equal = out(reg) equal,
            options(nostack),
        );
    }
    equal == 0xf
}
