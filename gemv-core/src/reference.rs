//! The order of additions as a program: the oracle of every test, and the answer where no backend
//! is linked. Written to be read, not to be fast.

use std::any::Any;
use std::sync::Arc;

use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1};

use crate::backend::BuiltinTable;
use crate::element::scale;
use crate::order::{LANES, SEGMENT};
use crate::{
    Accumulator, AnyJob, AnySlice, AnySliceMut, Backend, Desc, DeviceInfo, Dtype, Element, Error,
    Job, MatrixRef, Memory, Params, Result, VectorMut, VectorRef, for_any,
};

/// The sum of `len` terms in the order: `lane = visit(j, lane)` adds term `j` to its lane.
pub fn ordered_sum<A: Accumulator>(len: usize, visit: &dyn Fn(usize, A) -> A) -> A {
    // Rules 1 and 2: segments of 256 terms; lane l of a segment takes terms l, l + 64, ...
    let segment = |s: usize| {
        let mut lane = [A::ZERO; LANES];
        for j in s * SEGMENT..len.min((s + 1) * SEGMENT) {
            lane[j % LANES] = visit(j, lane[j % LANES]);
        }
        // Rule 3: halving.
        for h in [32, 16, 8, 4, 2, 1] {
            for l in 0..h {
                lane[l] = lane[l].add(lane[l + h]);
            }
        }
        lane[0]
    };
    match len.div_ceil(SEGMENT) {
        0 => A::ZERO, // rule 5
        1 => segment(0),
        // Rule 4: the segments' sums are summed the same way.
        count => {
            let sums: Vec<A> = (0..count).map(segment).collect();
            ordered_sum(count, &|s, lane: A| lane.add(sums[s]))
        }
    }
}

/// The dot product of one row with `x`, before scaling.
pub fn dot<T: Element>(row: ArrayView1<'_, T>, x: ArrayView1<'_, T>, conj: bool) -> T::Acc {
    ordered_sum(row.len(), &|j, lane: T::Acc| {
        let a = if conj { row[j].conj() } else { row[j] };
        lane.fma(a.widen(), x[j].widen())
    })
}

/// `y = alpha * A x + beta * y` in the order, with every rule of it.
///
/// # Panics
/// If the shapes do not fit.
pub fn gemv<T: Element>(
    alpha: T::Acc,
    a: ArrayView2<'_, T>,
    conj: bool,
    x: ArrayView1<'_, T>,
    beta: T::Acc,
    mut y: ArrayViewMut1<'_, T>,
) {
    assert_eq!((y.len(), x.len()), a.dim(), "shapes do not fit");
    let zero = T::Acc::ZERO;
    for (i, y) in y.iter_mut().enumerate() {
        if alpha == zero {
            // A and x are not read, and y is only scaled.
            *y = match beta {
                b if b == zero => T::default(),
                b if b == T::Acc::ONE => *y,
                b => T::narrow(b.mul(y.widen())),
            };
        } else {
            let old = (beta != zero).then_some(*y);
            *y = scale(alpha, dot(a.row(i), x, conj), beta, old);
        }
    }
}

/// The reference as a device, `reference`: what answers when no backend is linked, and what the
/// others are tested against.
#[derive(Debug)]
pub struct Reference {
    info: DeviceInfo,
}

impl Reference {
    /// The device.
    pub fn open() -> Arc<dyn Backend> {
        let mut info = DeviceInfo::new("reference");
        info.name = "the order of additions, written to be read".into();
        info.arch = "any".into();
        info.driver = concat!("gemv-core ", env!("CARGO_PKG_VERSION")).into();
        info.units = 1;
        info.host = true;
        Arc::new(Reference { info })
    }
}

/// Its one kernel.
const PARAMS: Params = Params::new("reference");

#[derive(Debug)]
struct HostMemory<T>(Vec<T>);

impl<T: Element> Memory for HostMemory<T> {
    fn len(&self) -> usize {
        self.0.len()
    }
}

fn elements<T: Element>(memory: &dyn Memory) -> &[T] {
    let memory: &dyn Any = memory;
    &memory.downcast_ref::<HostMemory<T>>().expect("memory of the reference").0
}

fn run<T: Element>(job: Job<'_, T>) {
    let a = match job.a {
        MatrixRef::Host(a) => a,
        MatrixRef::Device(a) => a.view_in(elements(a.memory())),
    };
    let x = match job.x {
        VectorRef::Host(x) => x,
        VectorRef::Device(x) => x.view_in(elements(x.memory())),
    };
    let y = match job.y {
        VectorMut::Host(y) => y,
        VectorMut::Device(y) => {
            let (first, len) = (y.first(), y.len());
            let memory: &mut dyn Any = y.memory_mut().expect("made unique by the engine");
            let all = memory.downcast_mut::<HostMemory<T>>().expect("memory of the reference");
            ArrayViewMut1::from(&mut all.0[first..first + len])
        }
    };
    gemv(job.alpha, a, job.conj, x, job.beta, y);
}

impl Backend for Reference {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn accepts(&self, _: &Desc) -> Result<()> {
        Ok(())
    }

    fn candidates(&self, _: &Desc) -> Vec<Params> {
        vec![PARAMS]
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        if *params == PARAMS {
            return Ok(());
        }
        Err(Error::Params {
            device: self.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason: "the reference has one kernel, without arguments".into(),
        })
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        vec![BuiltinTable { name: "reference", text: "* * : reference" }]
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        Ok(for_any!(AnySlice, data, data => Box::new(HostMemory(data.to_vec()))))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        fn zeros<T: Element>(len: usize) -> Box<dyn Memory> {
            Box::new(HostMemory(vec![T::default(); len]))
        }
        Ok(match dtype {
            Dtype::F32 => zeros::<f32>(len),
            Dtype::F64 => zeros::<f64>(len),
            Dtype::F16 => zeros::<half::f16>(len),
            Dtype::Bf16 => zeros::<half::bf16>(len),
            Dtype::C32 => zeros::<num_complex::Complex<f32>>(len),
            Dtype::C64 => zeros::<num_complex::Complex<f64>>(len),
        })
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        for_any!(AnySliceMut, to, to => to.copy_from_slice(&elements(from)[first..][..to.len()]));
        Ok(())
    }

    fn gemv(&self, job: AnyJob<'_>, params: &Params) -> Result<()> {
        for_any!(AnyJob, job, job => {
            self.fits(&job.desc(), params)?;
            run(job);
        });
        Ok(())
    }
}
