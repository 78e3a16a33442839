//! Floating-point modes that a caller of gemv may have set.

/// A mode of the thread: how it rounds, what it flushes to zero, what traps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(u64);

/// Modes other than the default one, by name; none where the processor has none that is known.
#[cfg(target_arch = "x86_64")]
pub const MODES: [(&str, Mode); 7] = [
    ("results are flushed to zero", Mode(X87 | 0x9f80)),
    ("subnormal operands are zeros", Mode(X87 | 0x1fc0)),
    ("both are flushed", Mode(X87 | 0x9fc0)),
    ("rounding down", Mode(X87 | 0x3f80)),
    ("rounding up", Mode(X87 | 0x5f80)),
    ("rounding to zero", Mode(X87 | 0x7f80)),
    ("every exception traps", Mode(X87 & !(0x3f << 32))),
];
/// The mode of the x87 unit, above that of SSE: exceptions do not trap. The C library sets those of both.
#[cfg(target_arch = "x86_64")]
const X87: u64 = 0x37f << 32;
/// As above.
#[cfg(target_arch = "aarch64")]
pub const MODES: [(&str, Mode); 5] = [
    ("both are flushed", Mode(1 << 24)),
    ("rounding up", Mode(1 << 22)),
    ("rounding down", Mode(2 << 22)),
    ("rounding to zero", Mode(3 << 22)),
    ("every exception traps", Mode(0x9f00)),
];
/// As above.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const MODES: [(&str, Mode); 0] = [];

impl Mode {
    /// The mode of this thread.
    #[inline(never)]
    pub fn of_this_thread() -> Mode {
        Mode(get())
    }

    /// Sets it on this thread, for good.
    #[inline(never)]
    pub fn set(self) {
        set(self.0, &mut ());
    }

    /// The same but for the x87 unit: as libraries do when they are loaded.
    #[inline(never)]
    pub fn set_by_library(self) {
        let x87 = u64::MAX << 32;
        set(self.0 & !x87 | get() & x87, &mut ());
    }
}

/// Calls `work` in a mode, and sets this thread's own one again. `work` itself must not compute in it: the compiler does
/// not know of the mode.
///
/// ```
/// use gemv_testkit::{MODES, Mode, with_mode};
///
/// let mine = Mode::of_this_thread();
/// for (name, mode) in MODES {
///     assert_ne!(with_mode(mode, Mode::of_this_thread), mine, "{name}");
/// }
/// assert_eq!(Mode::of_this_thread(), mine);
/// ```
///
/// # Panics
/// If `work` does, or leaves another mode than this one.
pub fn with_mode<R>(mode: Mode, work: impl FnOnce() -> R) -> R {
    let (mut work, mut result) = (Some(work), None);
    let (set, left) = call(mode, &mut || result = work.take().map(|work| work()));
    assert_eq!(left, set, "the thread's mode was {set:x?}, and is {left:x?} afterwards");
    result.expect("it was called")
}

/// The mode that was set, as far as the processor has it, and the one that was left.
#[inline(never)]
fn call(mode: Mode, work: &mut dyn FnMut()) -> (Mode, Mode) {
    struct Before(u64);
    impl Drop for Before {
        fn drop(&mut self) {
            set(self.0, &mut ());
        }
    }
    let _before = Before(get());
    let work = set(mode.0, work);
    let mode = Mode::of_this_thread();
    work();
    (mode, Mode::of_this_thread())
}

#[cfg(target_arch = "x86_64")]
fn get() -> u64 {
    let (mut mode, mut x87) = (0u32, 0u16);
    // SAFETY: it writes four and two bytes at addresses that are good for them.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{}]",
            "fnstcw [{}]",
            in(reg) &raw mut mode,
            in(reg) &raw mut x87,
            options(nostack, preserves_flags),
        );
    }
    // Without the exception flags.
    u64::from(x87) << 32 | u64::from(mode & !0x3f)
}

/// Returns `way` so that the compiler does not know it: what needs it comes afterwards.
#[cfg(target_arch = "x86_64")]
fn set<T: ?Sized>(mode: u64, mut way: &mut T) -> &mut T {
    let (mode, x87, mut place) = (mode as u32, (mode >> 32) as u16, &raw mut way);
    // SAFETY: it reads four and two bytes at addresses that are good for them, modes that the processor has. Rust code in
    // them does not compute.
    unsafe {
        std::arch::asm!(
            "ldmxcsr [{mode}]",
            "fldcw [{x87}]",
            "/* {place} */",
            mode = in(reg) &raw const mode,
            x87 = in(reg) &raw const x87,
            place = inout(reg) place,
            options(nostack),
        );
        &mut **place
    }
}

#[cfg(target_arch = "aarch64")]
fn get() -> u64 {
    let mode;
    // SAFETY: it reads a register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nostack)) };
    mode
}

/// Returns `way` so that the compiler does not know it: what needs it comes afterwards.
#[cfg(target_arch = "aarch64")]
fn set<T: ?Sized>(mode: u64, mut way: &mut T) -> &mut T {
    let mut place = &raw mut way;
    // SAFETY: it writes a register of modes. Rust code in another mode does not compute.
    unsafe {
        std::arch::asm!(
            "msr fpcr, {mode}",
            "/* {place} */",
            mode = in(reg) mode,
            place = inout(reg) place,
            options(nostack),
        );
        &mut **place
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn get() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set<T: ?Sized>(_: u64, way: &mut T) -> &mut T {
    way
}
