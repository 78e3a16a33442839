//! Whether the f64 tensor cores keep the order: whether one of their instructions, which the PTX manual
//! describes as a sum of products, is a chain of fma from the accumulator, one product after the other.
//!
//! It is, on every device that was measured. One on which it is not does not get the kernels that use
//! them; all other kernels are as they were.

use std::sync::{Arc, Mutex};

use gemv_core::ndarray::{Array3, Axis};
use gemv_core::{Dtype, Job, Number, Params, Result};
use gemv_gpu::{Caps, SELF_TEST_ENV, Signature};

use crate::driver::Gpu;
use crate::kernels::mma::TILES;
use crate::programs::Programs;
use crate::run::{Choice, Launches, Scratch, run};

/// Rows and columns of A, and columns of X, of one instruction.
const M: usize = 8;
const K: usize = 4;
const N: usize = 16;
/// Tiles of each kind.
const TILES_OF_A_KIND: usize = 16;

/// What the tiles of a kind are made of.
type Draw = fn(&mut Random) -> f64;

/// Numbers of A and of X, in which every liberty shows: other orders, more bits between two products,
/// products that are rounded, subnormals flushed, infinities and zeros of the wrong sign.
const KINDS: [(&str, Draw, Draw); 9] = [
    ("ordinary numbers", |r| r.power(-3, 0), |r| r.power(-3, 0)),
    ("numbers of any size", |r| r.power(-250, 250), |r| r.power(-250, 250)),
    ("any bits", |r| f64::from_bits(r.next()), |r| f64::from_bits(r.next())),
    ("large numbers that cancel", |r| r.sign() * r.near_one(), |r| r.near_one()),
    ("subnormal products", |r| r.power(-545, -500), |r| r.power(-560, -500)),
    ("sums that overflow", |r| r.power(500, 512), |r| r.power(500, 512)),
    ("whole numbers near ties", |r| r.whole(), |r| r.whole()),
    ("products that are zero", |r| 0.0 * r.sign(), |r| r.power(-3, 0)),
    ("zeros, infinities and NaN", |r| r.special(), |r| r.special()),
];

/// What is wrong with the tensor cores of a GPU, as the end of a sentence; nothing where the test is
/// switched off. The caller holds the queue, which does not record.
///
/// # Errors
/// Where the test itself does not run, for want of memory for instance.
pub(crate) fn tensor_cores(
    gpu: &Arc<Gpu>,
    programs: &Programs,
    scratch: &Mutex<Scratch>,
    caps: &Caps,
) -> Result<std::result::Result<(), String>> {
    if !gemv_gpu::self_test_wanted() {
        return Ok(Ok(()));
    }
    let (a, x) = operands();
    let got = products(gpu, programs, scratch, caps, (&a, &x))?;
    let why = fault(&got, &a, &x);
    if let Some(fault) = &why {
        log::warn!("{}: the f64 tensor cores are not used: {fault}", gpu.id());
    }
    Ok(why.map_or(Ok(()), |fault| {
        Err(format!(
            "the tensor cores do not keep the order ({fault}); {SELF_TEST_ENV}=off uses them all the same"
        ))
    }))
}

fn operands() -> (Array3<f64>, Array3<f64>) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let tiles = KINDS.len() * TILES_OF_A_KIND;
    let mut a = Array3::zeros((tiles, M, K));
    let mut x = Array3::zeros((tiles, K, N));
    for (tile, (mut a, mut x)) in a.outer_iter_mut().zip(x.outer_iter_mut()).enumerate() {
        let (_, of_a, of_x) = KINDS[tile / TILES_OF_A_KIND];
        a.mapv_inplace(|_| of_a(&mut random));
        x.mapv_inplace(|_| of_x(&mut random));
    }
    (a, x)
}

/// What the device computes.
fn products(
    gpu: &Arc<Gpu>,
    programs: &Programs,
    scratch: &Mutex<Scratch>,
    caps: &Caps,
    (a, x): (&Array3<f64>, &Array3<f64>),
) -> Result<Array3<f64>> {
    let mut y = Array3::from_elem((a.len_of(Axis(0)), M, N), f64::NAN);
    let (alpha, beta) = (Number::new(1.0), Number::new(0.0));
    let job = Job {
        alpha,
        a: a.view().into(),
        conj: false,
        x: x.view().into(),
        beta,
        y: y.view_mut().into(),
    };
    let (desc, params) = (job.desc(), Params::new(TILES.name));
    let plan = TILES.plan(&desc, &params, caps);
    let types = (Dtype::F64, Dtype::F64);
    let functions = programs.functions(gpu, &TILES, types, &params, &plan)?;
    let launches = functions.into_iter().zip(&plan.launches);
    let launches = launches.map(|(function, launch)| gpu.launch_of(function, launch));
    let launches = launches.collect::<Result<_>>()?;
    let (signature, gpu_of_it) = (Signature::Gemm, gpu.clone());
    let of = Launches { gpu: gpu_of_it, desc, signature, launches, workspace: 0, counters: 0 };
    run(gpu, scratch, &mut job.check()?, &Choice::Kernels(of), None)?;
    Ok(y)
}

/// Where results are not those of the chain, as the end of a sentence.
fn fault(got: &Array3<f64>, a: &Array3<f64>, x: &Array3<f64>) -> Option<String> {
    got.indexed_iter().find_map(|((tile, i, c), &got)| {
        let chain = (0..K).fold(0.0, |sum, k| a[[tile, i, k]].mul_add(x[[tile, k, c]], sum));
        let same = got.to_bits() == chain.to_bits() || (got.is_nan() && chain.is_nan());
        let what = KINDS[tile / TILES_OF_A_KIND].0;
        (!same).then(|| format!("a sum of {what} is {got:e} and not {chain:e}"))
    })
}

/// Marsaglia's xorshift: every process tests the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of(&mut self, count: u64) -> u64 {
        (self.next() >> 33) % count
    }

    fn sign(&mut self) -> f64 {
        if self.of(2) == 0 { 1.0 } else { -1.0 }
    }

    /// Of all bits, of either sign, with an exponent between these.
    fn power(&mut self, low: i32, high: i32) -> f64 {
        let exponent = low + self.of((high - low + 1) as u64) as i32;
        let one = f64::from_bits(1.0f64.to_bits() | self.next() >> 12);
        self.sign() * one * 2f64.powi(exponent)
    }

    /// Products of these differ in their last bits.
    fn near_one(&mut self) -> f64 {
        f64::from_bits(1.0f64.to_bits() + self.of(8))
    }

    /// Products of two have more than 53 bits.
    fn whole(&mut self) -> f64 {
        self.sign() * (self.of(1 << 27) | 1) as f64
    }

    fn special(&mut self) -> f64 {
        let of = [0.0, f64::INFINITY, f64::from_bits(1), f64::MAX, f64::MIN_POSITIVE, f64::NAN];
        match self.of(20) as usize {
            // Few, since they hide what they are added to.
            1 | 5 if self.of(4) > 0 => 1.0,
            k if k < of.len() => self.sign() * of[k],
            _ => self.power(-4, 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Nvrtc;
    use crate::options::options;

    type Sum = fn([f64; K], [f64; K]) -> f64;

    /// What is found where the instruction sums like this.
    fn found(sum: Sum) -> Option<String> {
        let (a, x) = operands();
        let got = Array3::from_shape_fn((a.len_of(Axis(0)), M, N), |(tile, i, c)| {
            let (a, x) = (|k| a[[tile, i, k]], |k| x[[tile, k, c]]);
            sum(std::array::from_fn(a), std::array::from_fn(x))
        });
        fault(&got, &a, &x)
    }

    /// Without subnormal numbers.
    fn flushed(v: f64) -> f64 {
        if v.is_subnormal() { 0.0 * v } else { v }
    }

    #[test]
    fn the_chain_passes_and_every_liberty_is_found() {
        let chain: Sum = |a, x| (0..K).fold(0.0, |sum, k| a[k].mul_add(x[k], sum));
        assert_eq!(found(chain), None);
        let wrong: [(&str, Sum); 7] = [
            ("backwards", |a, x| (0..K).rev().fold(0.0, |sum, k| a[k].mul_add(x[k], sum))),
            ("two roundings", |a, x| (0..K).fold(0.0, |sum, k| sum + a[k] * x[k])),
            ("in pairs", |a, x| {
                let pair = |k: usize| a[k + 1].mul_add(x[k + 1], a[k] * x[k]);
                pair(0) + pair(2)
            }),
            ("every other one first", |a, x| {
                [0, 2, 1, 3].into_iter().fold(0.0, |sum, k: usize| a[k].mul_add(x[k], sum))
            }),
            ("from the first product", |a, x| {
                (1..K).fold(a[0] * x[0], |sum, k| a[k].mul_add(x[k], sum))
            }),
            ("subnormal results are zero", |a, x| {
                (0..K).fold(0.0, |sum, k| flushed(a[k].mul_add(x[k], sum)))
            }),
            ("the largest number for infinity", |a, x| {
                (0..K).fold(0.0, |sum: f64, k| a[k].mul_add(x[k], sum).clamp(-f64::MAX, f64::MAX))
            }),
        ];
        for (what, sum) in wrong {
            assert!(found(sum).is_some(), "{what} is not found");
        }
    }

    #[test]
    fn the_tiles_compile() {
        let Ok(nvrtc) = Nvrtc::find() else { return };
        let program = TILES.program(Dtype::F64, &Params::new(TILES.name));
        for capability in [80, 90] {
            let options = options(&nvrtc.target(capability));
            nvrtc.compile(&program, &options).unwrap();
        }
    }

    #[test]
    fn a_fault_is_named() {
        let why = found(|_, _| 0.5).unwrap();
        assert!(why.starts_with("a sum of ordinary numbers is 5e-1 and not "), "{why}");
    }
}
