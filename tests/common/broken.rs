//! Backends with one planted bug each: the suites must refuse every one of them.

use std::sync::Arc;

use gemv::unstable::reference::{Reference, ordered_sum};
use gemv::unstable::{
    AnyJob, AnySlice, AnySliceMut, Backend, BuiltinTable, Desc, Job, Memory, Params, Prepared,
    for_any, scale,
};
use gemv::{
    Accumulator, Device, DeviceInfo, Dtype, Element, MatrixRef, Result, VectorMut, VectorRef,
};

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
#[derive(Debug)]
pub struct Broken {
    good: Arc<dyn Backend>,
    bug: Bug,
}

impl Broken {
    pub fn device(bug: Bug) -> Device {
        Device::new(Arc::new(Broken { good: Reference::open(), bug }))
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

    fn run<T: Element>(&self, job: Job<'_, T>) {
        let (MatrixRef::Host(a), VectorRef::Host(x), VectorMut::Host(mut y)) =
            (job.a, job.x, job.y)
        else {
            unreachable!("host operands only");
        };
        let (alpha, beta, zero) = (job.alpha, job.beta, T::Acc::ZERO);
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
                _ => self.dot(&row, &x, job.conj),
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

impl Backend for Broken {
    fn device(&self) -> &DeviceInfo {
        self.good.device()
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        self.good.accepts(desc)
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        self.good.candidates(desc)
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        self.good.fits(desc, params)
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        self.good.tables()
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        self.good.upload(data)
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        self.good.alloc(dtype, len)
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        self.good.download(from, first, to)
    }

    fn prepare(&self, desc: &Desc, params: &Params) -> Result<Prepared> {
        self.good.prepare(desc, params)
    }

    fn gemv(&self, job: AnyJob<'_>, prepared: &Prepared) -> Result<()> {
        for_any!(AnyJob, job, job => {
            if matches!(job.y, VectorMut::Device(_)) {
                return self.good.gemv(Element::any_job(job), prepared);
            }
            let (a_copy, x_copy);
            let a = match job.a {
                MatrixRef::Host(a) => a,
                MatrixRef::Device(a) => {
                    a_copy = a.download()?;
                    a_copy.view()
                }
            };
            let x = match job.x {
                VectorRef::Host(x) => x,
                VectorRef::Device(x) => {
                    x_copy = x.download()?;
                    x_copy.view()
                }
            };
            let VectorMut::Host(y) = job.y else { unreachable!("handed on above") };
            self.run(Job {
                alpha: job.alpha,
                a: MatrixRef::Host(a.reborrow()),
                conj: job.conj,
                x: VectorRef::Host(x.reborrow()),
                beta: job.beta,
                y: VectorMut::Host(y.reborrow()),
            });
        });
        Ok(())
    }
}
