//! The floating-point mode in which the host computes: the default one, whatever the caller's is.
//!
//! Each thread has a mode of its own: how results are rounded, whether subnormal numbers are flushed to zero, and which
//! exceptions trap. A new thread has that of the thread that made it. The [order](crate::order) rounds to nearest and
//! keeps subnormals, which is the default mode. So whatever computes on the host enters that mode, on each thread for
//! itself, and leaves the thread with its own. Where the mode is the default one already, nothing is written.
//!
//! Exception flags that a product raises stay raised, as after any other arithmetic; none traps.
//!
//! These functions are for backends, and for what computes with their results. The mode is known on x86-64 (MXCSR) and on
//! AArch64 (FPCR). WebAssembly has no other than the default one. On further processors this thread is taken to be in the
//! default mode, as it is by Rust.
//!
//! ```
//! use gemv::unstable::float_mode::{in_default, is_default};
//!
//! let third = in_default(|| 1.0f32 / 3.0);
//! assert_eq!(third, 0.333_333_34); // in any mode of this thread
//! assert!(in_default(is_default));
//! ```

use std::cell::Cell;
use std::marker::PhantomData;

use self::control::{DEFAULT, Mode};

thread_local! {
    /// Within [`in_default`], the thread's mode outside of it.
    static OUTER: Cell<Option<Mode>> = const { Cell::new(None) };
}

/// Whether this thread is in the default mode: it rounds to nearest, keeps subnormals, and no exception traps.
///
/// A function for small problems asks this first, and calls itself by [`in_default`] if it has to: that takes less time
/// than to enter at each call.
///
/// ```
/// use gemv::unstable::float_mode::{in_default, is_default};
///
/// fn sum(terms: &[f32]) -> f32 {
///     if !is_default() {
///         return in_default(|| sum(terms));
///     }
///     terms.iter().sum()
/// }
/// assert_eq!(sum(&[0.5, 0.25]), 0.75);
/// ```
#[inline(always)]
pub fn is_default() -> bool {
    // What a compiler moves from one side of the question to the other stays in the same mode where the answer is yes,
    // and is not used where it is no.
    control::is_default(control::get())
}

/// Calls `work` in the default mode, and leaves the thread in its own. On other threads `work` enters it anew.
///
/// ```
/// assert_eq!(gemv::unstable::float_mode::in_default(|| 0.1f64 + 0.2), 0.300_000_000_000_000_04);
/// ```
///
/// # Panics
/// If `work` does; the mode is then the thread's own as well.
pub fn in_default<R>(work: impl FnOnce() -> R) -> R {
    called(work, enter)
}

/// Calls `work` in the mode that this thread has outside of [`in_default`]: for what may run a caller's own code, such as
/// waiting for other threads of a pool, which takes up other tasks meanwhile. If it leaves another mode, that is the
/// thread's.
///
/// ```
/// use gemv::unstable::float_mode::{in_default, is_default, outside};
///
/// let mine = is_default();
/// in_default(|| {
///     assert_eq!(outside(is_default), mine);
///     assert!(is_default());
/// });
/// ```
///
/// # Panics
/// If `work` does; the mode is then the default one again.
pub fn outside<R>(work: impl FnOnce() -> R) -> R {
    called(work, leave)
}

/// This thread in the default mode, until it is dropped: see [`for_calls`].
#[must_use]
#[derive(Debug)]
pub struct ForCalls {
    outer: Mode,
    /// A mode is one thread's.
    _here: PhantomData<*const ()>,
}

/// Sets the default mode for calls of a driver, or of another library whose functions the compiler does not see. They
/// compute, too: times, sizes, and what a CPU runs as a device. What they set themselves is not kept. Arithmetic of this program needs [`in_default`], since a
/// compiler may move it to where this is not yet, or no more.
///
/// ```
/// use gemv::unstable::float_mode::{for_calls, is_default};
///
/// let _mode = for_calls();
/// assert!(is_default());
/// ```
#[inline]
pub fn for_calls() -> ForCalls {
    let outer = control::get();
    if !control::is_default(outer) {
        control::set(DEFAULT, std::ptr::null_mut());
    }
    ForCalls { outer, _here: PhantomData }
}

impl Drop for ForCalls {
    #[inline]
    fn drop(&mut self) {
        control::set(self.outer, std::ptr::null_mut());
    }
}

/// The same bits. Of those of a number the compiler knows what they are, and would compare the number with 0 where its
/// bits are compared: in the thread's mode, in which a subnormal number may be one.
#[inline(always)]
pub(crate) fn opaque(bits: u64) -> u64 {
    control::opaque(bits)
}

/// What is called through an address that only assembly knows: a function, and what it works on. Not a closure by
/// reference, whose table of functions would hold a second copy of its code.
type Work = (unsafe fn(*mut ()), *mut ());

/// Calls `work` by `by`. All kinds of work share the code of that.
fn called<R, F: FnOnce() -> R>(work: F, by: unsafe fn(Work)) -> R {
    /// # Safety
    /// At this address are the work and a place for its result, which nobody else uses.
    unsafe fn call<R, F: FnOnce() -> R>(both: *mut ()) {
        // SAFETY: the caller's.
        let (work, result) = unsafe { &mut *both.cast::<(Option<F>, Option<R>)>() };
        *result = work.take().map(|work| work());
    }
    let mut both = (Some(work), None);
    // SAFETY: the address is that of these two, of these types, and nobody else uses them before it returns.
    unsafe { by((call::<R, F>, (&raw mut both).cast())) };
    both.1.expect("it was called")
}

/// # Safety
/// The work may be called once, at its address.
#[inline(never)]
unsafe fn enter((call, at): Work) {
    let (mode, outer) = (control::get(), OUTER.get());
    let enter = |at| if control::is_default(mode) { at } else { control::set(DEFAULT, at) };
    if outer.is_some() {
        /// A library that is loaded by the work, or was before it, may have set another mode.
        struct Within;
        impl Drop for Within {
            fn drop(&mut self) {
                control::set(DEFAULT, std::ptr::null_mut());
            }
        }
        let _within = Within;
        // SAFETY: the caller's; the address is the same.
        return unsafe { call(enter(at)) };
    }
    /// Restores the thread's mode, which is by then what [`leave`] found last.
    struct Entered(Option<Mode>);
    impl Drop for Entered {
        fn drop(&mut self) {
            if let Some(mode) = OUTER.replace(self.0) {
                control::set(mode, std::ptr::null_mut());
            }
        }
    }
    OUTER.set(Some(mode));
    let _entered = Entered(outer);
    // SAFETY: the caller's; the address is the same.
    unsafe { call(enter(at)) }
}

/// # Safety
/// As [`enter`].
#[inline(never)]
unsafe fn leave((call, at): Work) {
    let Some(mode) = OUTER.take() else {
        // SAFETY: the caller's.
        return unsafe { call(at) };
    };
    struct Left;
    impl Drop for Left {
        fn drop(&mut self) {
            OUTER.set(Some(control::get()));
            control::set(DEFAULT, std::ptr::null_mut());
        }
    }
    let _left = Left;
    let at = control::set(mode, at);
    // SAFETY: the caller's; the address is the same.
    unsafe { call(at) }
}

/// The register that holds the mode.
///
/// A compiler takes arithmetic to depend on its operands alone, so it could move it from one side of a change of the mode
/// to the other. It cannot do so with work whose address goes through [`set`](control::set): that goes into the assembly and
/// comes out of it, so it may be another one. Operands are loaded from there after the change, and arithmetic needs its
/// operands. The assembly may also read and write all memory whose address it ever got: results are stored before the
/// next change. The x87 unit, with a mode of its own, is not used.
#[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
mod control {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Mode = u32;

    /// All exceptions masked, to nearest, no flush.
    pub(super) const DEFAULT: Mode = 0x1f80;

    /// Flush to zero, rounding, masks of exceptions, denormals are zero; not the exception flags, which are no mode.
    const CONTROL: Mode = 0xffc0;

    #[inline(always)]
    pub(super) fn is_default(mode: Mode) -> bool {
        mode & CONTROL == DEFAULT
    }

    #[inline(always)]
    pub(super) fn opaque(mut bits: u64) -> u64 {
        // SAFETY: it does nothing.
        unsafe {
            asm!("/* {} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags));
        }
        bits
    }

    #[inline(always)]
    pub(super) fn get() -> Mode {
        let mut mode = 0;
        // SAFETY: it writes the four bytes at an address that is good for them.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags));
        }
        mode
    }

    /// Returns the address `at` through the assembly.
    pub(super) fn set(mode: Mode, mut at: *mut ()) -> *mut () {
        let now = get();
        if (now ^ mode) & CONTROL == 0 {
            return at;
        }
        // With the flags as they are. None traps when its mask is taken away, but when it is raised again.
        let mode = now & !CONTROL | mode & CONTROL;
        // SAFETY: it reads four bytes at an address that is good for them, of which no reserved bit is set that was not
        // before. Rust code needs the default mode: while gemv computes this thread has it, and code in another mode is
        // its caller's, who has chosen that mode.
        unsafe {
            asm!(
                "ldmxcsr [{mode}]",
                "/* {at} */",
                mode = in(reg) &raw const mode,
                at = inout(reg) at,
                options(nostack, preserves_flags),
            );
        }
        at
    }
}

/// As above.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    /// FPCR, which holds no flags: these are in FPSR.
    pub(super) type Mode = u64;

    /// No exception traps, to nearest, no flush, and none of the newer alternatives.
    pub(super) const DEFAULT: Mode = 0;

    #[inline(always)]
    pub(super) fn is_default(mode: Mode) -> bool {
        mode == DEFAULT
    }

    #[inline(always)]
    pub(super) fn opaque(mut bits: u64) -> u64 {
        // SAFETY: it does nothing.
        unsafe {
            asm!("/* {} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags));
        }
        bits
    }

    #[inline(always)]
    pub(super) fn get() -> Mode {
        let mode;
        // SAFETY: it reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, preserves_flags)) };
        mode
    }

    /// Returns the address `at` through the assembly.
    pub(super) fn set(mode: Mode, mut at: *mut ()) -> *mut () {
        if get() == mode {
            return at;
        }
        // SAFETY: the mode is the default one, or was read from the register. Rust code needs the default mode: while gemv
        // computes this thread has it, and code in another mode is its caller's, who has chosen that mode.
        unsafe {
            asm!(
                "msr fpcr, {mode}",
                "/* {at} */",
                mode = in(reg) mode,
                at = inout(reg) at,
                options(nostack, preserves_flags),
            );
        }
        at
    }
}

/// No mode that is known.
#[cfg(not(any(all(target_arch = "x86_64", target_feature = "sse"), target_arch = "aarch64")))]
mod control {
    pub(super) type Mode = ();

    pub(super) const DEFAULT: Mode = ();

    #[inline(always)]
    pub(super) fn is_default(_: Mode) -> bool {
        true
    }

    #[inline(always)]
    pub(super) fn opaque(bits: u64) -> u64 {
        bits
    }

    #[inline(always)]
    pub(super) fn get() -> Mode {}

    pub(super) fn set(_: Mode, at: *mut ()) -> *mut () {
        at
    }
}
