//! Backends with one planted bug each: the suites must refuse every one of them.

use gemv::ndarray::{ArrayView, ArrayViewMut1, Ix1, Ix2};
use gemv::unstable::reference::ordered_sum;
use gemv::unstable::{Checked, Job, for_types, scale};
use gemv::{Accumulator, Device, Element};
use gemv_testkit::{Host, elements, elements_mut};

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Nothing: the suites must accept this one.
    None,
    /// The last term is left out from 16 columns on.
    DropsLastTerm,
    /// `beta = 0` multiplies y by 0.
    BetaReadsY,
    /// `alpha = 0` multiplies A and x by 0.
    AlphaMultiplies,
    /// The product is off by 8 units in the last place of the accumulator.
    Noise,
    /// The columns are added one after another.
    PlainLoop,
    /// Neighbouring lanes are added first, in place of lanes that are half of the rest apart.
    NeighbouringLanes,
    /// The sums of segments are added one after another.
    PlainSegments,
    /// A product is rounded before it is added.
    TwoRoundings,
    /// alpha multiplies x, not the sum.
    AlphaFirst,
    /// The sum is rounded to the element type before it is scaled.
    NarrowsEarly,
    /// An element of A that is 0 is skipped.
    SkipsZeros,
    /// Subnormal products and elements count as 0.
    Flushes,
    /// The conjugate is not taken.
    ForgetsConjugate,
    /// A reversed row is read forward.
    ForgetsSign,
    /// The last row is left out from 64 rows on.
    DropsLastRow,
    /// A sum that cancels is -0.
    MinusZero,
}

impl Bug {
    pub const ALL: [Bug; 16] = [
        Bug::DropsLastTerm,
        Bug::BetaReadsY,
        Bug::AlphaMultiplies,
        Bug::Noise,
        Bug::PlainLoop,
        Bug::NeighbouringLanes,
        Bug::PlainSegments,
        Bug::TwoRoundings,
        Bug::AlphaFirst,
        Bug::NarrowsEarly,
        Bug::SkipsZeros,
        Bug::Flushes,
        Bug::ForgetsConjugate,
        Bug::ForgetsSign,
        Bug::DropsLastRow,
        Bug::MinusZero,
    ];
}

/// The reference with a bug in it.
#[derive(Debug, Clone, Copy)]
pub struct Broken {
    bug: Bug,
}

impl Broken {
    pub fn device(bug: Bug) -> Device {
        let broken = Broken { bug };
        let host = Host {
            compute: Box::new(move |job, _| {
                broken.compute(job);
                Ok(())
            }),
            ..Host::new("broken")
        };
        host.device()
    }

    fn compute(&self, job: &mut Checked<Job<'_>>) {
        let plant = |job: &mut Checked<Job<'_>>| {
            let both = job.a.dtype();
            assert_eq!(both, job.x.dtype(), "the faults are planted for one type");
            for_types!((both, both), T, _V => {
                let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
                let a = job.a.matrix_with::<T>(elements);
                let x = job.x.vector_with::<T>(elements);
                let mut y = job.y();
                let y = y.vector_mut_with::<T>(elements_mut);
                self.run((alpha, a), conj, x, beta, y);
            });
            Ok::<(), ()>(())
        };
        job.columns(plant).expect("no product fails");
    }

    fn dot<T: Element>(&self, row: &[T], x: &[T], conj: bool) -> T::Acc {
        let conj = conj && self.bug != Bug::ForgetsConjugate;
        let len = row.len();
        let a = |j: usize| if conj { row[j].conj() } else { row[j] };
        let tiny = |v: T::Acc| {
            let least =
                if T::DTYPE.needs_f64() { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
            let flush = |p: f64| if p.abs() < least { 0.0 } else { p };
            let (re, im) = v.parts();
            T::Acc::from_parts(flush(re), flush(im))
        };
        let term = |j: usize, lane: T::Acc| match self.bug {
            Bug::DropsLastTerm if len >= 16 && j == len - 1 => lane,
            Bug::SkipsZeros if a(j).widen() == T::Acc::ZERO => lane,
            Bug::TwoRoundings => lane.add(T::Acc::ZERO.fma(a(j).widen(), x[j].widen())),
            Bug::Flushes => tiny(lane.fma(tiny(a(j).widen()), tiny(x[j].widen()))),
            _ => lane.fma(a(j).widen(), x[j].widen()),
        };
        let plain = |from: usize, to: usize| (from..to).fold(T::Acc::ZERO, |s, j| term(j, s));
        match self.bug {
            Bug::PlainLoop => plain(0, len),
            Bug::NeighbouringLanes => {
                let mut lane = [T::Acc::ZERO; 64];
                for j in 0..len {
                    lane[j % 64] = term(j, lane[j % 64]);
                }
                for h in [32, 16, 8, 4, 2, 1] {
                    for l in 0..h {
                        lane[l] = lane[2 * l].add(lane[2 * l + 1]);
                    }
                }
                lane[0]
            }
            Bug::PlainSegments => (0..len.div_ceil(256)).fold(T::Acc::ZERO, |sum, s| {
                let part = (len - 256 * s).min(256);
                sum.add(ordered_sum(part, &|j, lane| term(256 * s + j, lane)))
            }),
            _ => ordered_sum(len, &term),
        }
    }

    fn run<T: Element>(
        &self,
        (alpha, a): (T::Acc, ArrayView<'_, T, Ix2>),
        conj: bool,
        x: ArrayView<'_, T, Ix1>,
        beta: T::Acc,
        mut y: ArrayViewMut1<'_, T>,
    ) {
        let zero = T::Acc::ZERO;
        let m = y.len();
        let x = x.to_vec();
        for i in 0..m {
            let reversed = a.strides()[1] < 0 && self.bug == Bug::ForgetsSign;
            let mut row = a.row(i).to_vec();
            if reversed {
                row.reverse();
            }
            if self.bug == Bug::DropsLastRow && m >= 64 && i == m - 1 {
                continue;
            }
            if alpha == zero && self.bug != Bug::AlphaMultiplies {
                y[i] = if beta == zero { T::default() } else { T::narrow(beta.mul(y[i].widen())) };
                continue;
            }
            let mut sum = match self.bug {
                Bug::AlphaFirst => {
                    let lane = |j: usize, l: T::Acc| l.fma(row[j].widen(), alpha.mul(x[j].widen()));
                    ordered_sum(x.len(), &lane)
                }
                _ => self.dot(&row, &x, conj),
            };
            match self.bug {
                Bug::Noise => {
                    let ulp = if T::DTYPE.needs_f64() { f64::EPSILON } else { f32::EPSILON.into() };
                    let (re, im) = sum.parts();
                    sum = T::Acc::from_parts(re * (1.0 + 8.0 * ulp), im);
                }
                Bug::NarrowsEarly => sum = T::narrow(sum).widen(),
                Bug::MinusZero => {
                    let (re, im) = sum.parts();
                    sum = T::Acc::from_parts(if re == 0.0 { -0.0 } else { re }, im);
                }
                _ => {}
            }
            let old = (beta != zero || self.bug == Bug::BetaReadsY).then_some(y[i]);
            let alpha = if self.bug == Bug::AlphaFirst { T::Acc::ONE } else { alpha };
            y[i] = scale(alpha, sum, beta, old);
        }
    }
}
