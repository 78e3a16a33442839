//! Instruction sets: which ones the processor has.

use core::fmt;

/// The environment variable that restricts detection: `avx512`, `avx2` or `plain`.
///
/// It selects the instruction set of the engine's device. [`open`](crate::open) takes a name and ignores it.
///
/// ```
/// assert_eq!(gemv_cpu::ISA_ENV, "GEMV_CPU_ISA"); // GEMV_CPU_ISA=avx2 ./program
/// assert!(gemv_cpu::open(Some("mmx")).is_err());
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

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Plain => "plain",
        }
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        self.0
    }
}
