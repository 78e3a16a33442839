//! Products in parts, over several devices and from files: one program, since each would compile the same code for each
//! element type.
#![deny(unsafe_code)] // the macro `s!` allows it for its own

#[path = "../common/mod.rs"]
mod common;

/// A test for each type and pair of types, with a seed of its own from this one on.
macro_rules! every_pair {
    ($check:ident, $seed:expr) => {
        every_pair! { @ $check, $seed,
            single: f32, f32, 0;
            double: f64, f64, 1;
            half: half::f16, half::f16, 2;
            brain: half::bf16, half::bf16, 3;
            pair: num_complex::Complex<f32>, num_complex::Complex<f32>, 4;
            double_pair: num_complex::Complex<f64>, num_complex::Complex<f64>, 5;
            brain_single: half::bf16, f32, 6;
            single_double: f32, f64, 7;
        }
    };
    (@ $check:ident, $seed:expr, $($name:ident: $t:ty, $v:ty, $more:literal;)*) => { $(
        #[test]
        fn $name() {
            $check::<$t, $v, _>($seed + $more);
        }
    )* };
}

mod files;
mod golden;
mod modes;
#[cfg(feature = "packed")]
mod packed;
mod partial;
#[cfg(target_os = "linux")]
mod processes;
mod resident;
mod sharded;
mod specials;
mod streamed;
