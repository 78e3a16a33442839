//! The main promise: identical bits. One body for every device, element type, layout, shape and parameters, in trials
//! made at run time and compared exactly with the reference: one vector, several right-hand sides, batches, and vectors
//! of another type. Column c of entry b has the bits of the product of `A[b]` and `X[b][:, c]`.
//!
//! Trials of one vector are named `device/type/layout/shape/parameters`, with `chosen` for what the device's table
//! chooses (there through the public path, with host and resident operands); others `device/types/many-` and where A
//! lies.
#![deny(unsafe_code)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod checker;
mod many;
mod one;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use common::operand::Repeat;
use common::{acc, nan, random};
use gemv::ndarray::{Array3, ArrayView3};
use gemv::{Accumulator, Dtype, Element, Times};

/// alpha, beta, and what `y` holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scaling {
    alpha: (f64, f64),
    beta: (f64, f64),
    y: Old,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Old {
    /// NaN: whoever reads it shows it.
    Nan,
    Random,
    /// Minus the rounded product: what is left is its low bits, which an element type narrower
    /// than its accumulator would hide.
    Residual,
}

const SCALINGS: [Scaling; 6] = [
    Scaling { alpha: (1.0, 0.0), beta: (0.0, 0.0), y: Old::Nan },
    Scaling { alpha: (1.0, 0.0), beta: (1.0, 0.0), y: Old::Residual },
    Scaling { alpha: (-0.7, 0.3), beta: (0.3, -1.1), y: Old::Random },
    Scaling { alpha: (1.3, -0.2), beta: (0.0, 0.0), y: Old::Nan },
    Scaling { alpha: (1.9, 0.0), beta: (1.0, 0.0), y: Old::Residual },
    Scaling { alpha: (1.0, 0.0), beta: (-0.6, 0.0), y: Old::Random },
];

/// Batch, rows and columns of A, and right-hand sides.
type Dim = (usize, usize, usize, usize);

/// Which numbers are the same, so that operands may repeat them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Same {
    a: Repeat,
    /// All entries of a column of X.
    x: bool,
    /// A, or X, of all entries of a batch.
    batch: (bool, bool),
}

/// The numbers of one problem and the reference's answers, which are the same wherever the operands lie and whatever
/// computes them: made once and shared by all trials.
struct Case<T: Element, V: Element> {
    dim: Dim,
    a: Array3<T>,
    x: Array3<V>,
    /// Y before and after.
    answers: [OnceLock<(Array3<V>, Array3<V>)>; 2 * SCALINGS.len()],
}

impl<T: Element + Times<V>, V: Element> Case<T, V> {
    fn get(dim: Dim, same: Same) -> Arc<Case<T, V>> {
        type Key = ((Dtype, Dtype), Dim, Same);
        type Cases = Mutex<HashMap<Key, Arc<dyn Any + Send + Sync>>>;
        static CASES: OnceLock<Cases> = OnceLock::new();
        let key = ((T::DTYPE, V::DTYPE), dim, same);
        let mut cases = CASES.get_or_init(Cases::default).lock().expect("no panic while held");
        let case = cases.entry(key).or_insert_with(|| {
            let (b, m, n, k) = dim;
            let index = |i: usize, j: usize| match same.a {
                Repeat::None => (i, j),
                Repeat::Rows => (0, j),
                Repeat::Columns => (i, 0),
                Repeat::Both => (0, 0),
                Repeat::Hankel => (7, i + j),
            };
            let seed = (m * 1_000_003 + n) as u64;
            let entries = |shared| if shared { b.min(1) } else { b };
            let a = Array3::from_shape_fn((entries(same.batch.0), m, n), |(b, i, j)| {
                let (i, j) = index(i, j);
                random(seed + b as u64, i, j)
            });
            let x = Array3::from_shape_fn((entries(same.batch.1), n, k), |(b, j, c)| {
                random(!seed - b as u64, 3 + c, if same.x { 0 } else { j })
            });
            Arc::new(Case::<T, V> { dim, a, x, answers: Default::default() })
        });
        case.clone().downcast().unwrap_or_else(|_| unreachable!("the key has the types"))
    }

    /// Y before and after.
    fn answer(&self, scaling: usize, conj: bool) -> &(Array3<V>, Array3<V>) {
        self.answers[2 * scaling + usize::from(conj)].get_or_init(|| {
            let Scaling { alpha, beta, y } = SCALINGS[scaling];
            let (b, m, n, k) = self.dim;
            let a = self.a.broadcast((b, m, n)).expect("as many, or one");
            let x = self.x.broadcast((b, n, k)).expect("as many, or one");
            let product =
                |(re, im), beta, y: &Array3<V>| expected((acc::<V>(re, im), a, conj, x), (beta, y));
            let old = match y {
                Old::Nan => Array3::from_elem((b, m, k), nan()),
                Old::Random => {
                    Array3::from_shape_fn((b, m, k), |(b, i, c)| random(99 + b as u64, i, m + c))
                }
                Old::Residual => {
                    let zeros = Array3::from_elem((b, m, k), V::default());
                    product((-alpha.0, -alpha.1), V::Acc::ZERO, &zeros)
                }
            };
            let new = product(alpha, acc::<V>(beta.0, beta.1), &old);
            (old, new)
        })
    }
}

/// What a product of the order is, by its definition.
fn expected<T: Element + Times<V>, V: Element>(
    (alpha, a, conj, x): (V::Acc, ArrayView3<'_, T>, bool, ArrayView3<'_, V>),
    (beta, y): (V::Acc, &Array3<V>),
) -> Array3<V> {
    let mut want = y.clone();
    gemv_testkit::gemm(alpha, a, conj, x, beta, want.view_mut());
    want
}

/// What a device is, as far as it decides what is worth a trial.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It runs functions of this program.
    Host,
    /// It compiles each program when that is first used.
    Compiles,
    Reference,
}

fn main() {
    let size = common::size();
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    checker::trials(&mut trials);
    for target in &targets {
        if let Ok(device) = &target.device {
            let kind = match target.id == "reference" {
                true => Kind::Reference,
                false if target.compiles() => Kind::Compiles,
                false => Kind::Host,
            };
            one::trials(&target.id, device, kind, size, &mut trials);
            many::trials(&target.id, device, kind, size, &mut trials);
        }
    }
    common::main(trials);
}
