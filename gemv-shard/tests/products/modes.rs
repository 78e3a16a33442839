//! The caller's floating-point mode changes no bit of a product in parts.

use bytemuck::Pod;
use gemv::half::bf16;
use gemv::ndarray::{Array1, Array2, Axis, Slice};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Device, Element, Times};
use gemv_shard::{Partial, Result, Sharded, Split, Streamed, SumElement};
use gemv_testkit::{Host, MODES, with_mode};

use crate::common::{Random, devices};

/// Products of one matrix. Nothing is computed here while another mode is set.
struct Given<T, V, S> {
    a: Array2<T>,
    x: Array1<V>,
    y: Array1<V>,
    factors: [(S, S); 5],
}

impl<T, V, S> Given<T, V, S>
where
    T: Element + Pod + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    fn new(m: usize, n: usize) -> Self {
        let mut random = Random(7);
        let tiny = if T::DTYPE.needs_f64() { 1e-307 } else { 1e-37 };
        let mut a = random.matrix::<T>(m, n);
        for mut row in a.rows_mut().into_iter().step_by(2) {
            row.map_inplace(|v| *v = T::narrow(T::Acc::from_parts(tiny, 0.0).mul(v.widen())));
        }
        let mut vector = |len: usize| Array1::from_shape_simple_fn(len, || random.element::<V>());
        let (x, y) = (vector(n), vector(m));
        let least = if S::DTYPE.needs_f64() { 1e-320 } else { 1e-43 };
        let of = S::from_parts;
        let (odd, least) = (of(1.0 / 3.0, 0.7), of(least, 0.0));
        let factors =
            [(S::ONE, S::ZERO), (odd, odd), (least, S::ZERO), (S::ZERO, least), (odd, least)];
        Given { a, x, y, factors }
    }

    /// Of whole segments, of lanes, from memory, and over devices.
    fn all(&self, device: &Device) -> Result<Vec<Array1<V>>> {
        let Given { a, x, y, factors } = self;
        let n = x.len();
        let segments = || {
            let cut = |part: std::ops::Range<usize>| {
                let part = Slice::from(part);
                (a.slice_axis(Axis(1), part), x.slice_axis(Axis(0), part))
            };
            let ((left, x0), (right, x1)) = (cut(0..512), cut(512..n));
            Partial::merge([
                Partial::new(device, left, x0, 0, n)?,
                Partial::new(device, right, x1, 512, n)?,
            ])
        };
        let whole = Partial::new(device, a, x, 0, n)?;
        let lanes = [whole.clone().reduce(1)?, whole.reduce(2)?];
        let streamed = Streamed::of(a).window(1 << 16);
        let pair = [device.clone(), device.clone()];
        let sharded = |split| Sharded::weighted(a, &pair, split, &[1.0, 1.0]);
        let splits = [Split::Rows, Split::Columns, Split::CyclicColumns];
        let sharded = splits.map(sharded);
        let mut results = Vec::new();
        for &(alpha, beta) in factors {
            let mut result = |compute: &dyn Fn(&mut Array1<V>) -> Result<()>| -> Result<()> {
                let mut to = y.clone();
                compute(&mut to)?;
                results.push(to);
                Ok(())
            };
            result(&|to| segments()?.finish(device, alpha, beta, to))?;
            result(&|to| {
                let mut there = device.vector(&*to)?;
                segments()?.finish(device, alpha, beta, &mut there)?;
                to.assign(&there.download()?);
                Ok(())
            })?;
            for lanes in &lanes {
                result(&|to| lanes.finish(device, alpha, beta, to))?;
            }
            result(&|to| streamed.gemv::<T, V, S>(device, alpha, x, beta, to, |_, _| ()))?;
            for sharded in &sharded {
                let sharded = sharded.as_ref().map_err(Clone::clone)?;
                result(&|to| sharded.gemv_mixed(alpha, x, beta, to))?;
            }
        }
        Ok(results)
    }

    fn check(m: usize, n: usize) {
        let bits = |of: &Array1<V>| of.iter().map(|v| v.bits()).collect::<Vec<_>>();
        let given = Self::new(m, n);
        let by_columns = Given {
            a: given.a.t().as_standard_layout().to_owned().reversed_axes(),
            ..Self::new(m, n)
        };
        let mut peers = Host::new("fake:0");
        (peers.info.peers, peers.cyclic) = (true, true);
        // OpenCL's threads are the driver's own: what it computes itself is shown by the library's `semantics`.
        let here = devices::<T, V>().into_iter().filter(|d| !d.info().id.starts_with("opencl"));
        for device in here.chain([peers.device()]) {
            for given in [&given, &by_columns] {
                let want = given.all(&device).unwrap();
                for (name, mode) in MODES {
                    let got = with_mode(mode, || given.all(&device)).unwrap();
                    for (k, (got, want)) in got.iter().zip(&want).enumerate() {
                        assert!(bits(got) == bits(want), "{device}, {name}: result {k}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_mode_of_the_caller_changes_a_bit() {
    Given::<f32, f32, f32>::check(9, 1100);
    Given::<f32, f64, f64>::check(9, 1100);
    Given::<bf16, bf16, f32>::check(9, 1100);
    Given::<Complex<f32>, Complex<f32>, Complex<f32>>::check(9, 1100);
}

/// Weights that one mode takes for zeros.
#[test]
fn no_mode_of_the_caller_changes_the_shares() {
    let device = Host::new("fake:0").device();
    let (a, devices) = (Array2::<f32>::zeros((90, 3)), [device.clone(), device.clone(), device]);
    let weights = [1.0, 2.0, 4.0].map(|of| of * 1e-320);
    let parts = || {
        let all = Sharded::weighted(&a, &devices, Split::Rows, &weights)?;
        Ok(all.parts().map(|(_, rows, _)| rows).collect::<Vec<_>>())
    };
    let want = parts().unwrap();
    assert_eq!(want.len(), 3);
    for (name, mode) in MODES {
        assert_eq!(
            with_mode(mode, parts).map_err(|e: gemv_shard::Error| e),
            Ok(want.clone()),
            "{name}"
        );
    }
}
