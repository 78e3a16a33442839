//! Points on the host: the cloud, the rotation by hand on rayon's pool, and the exact result.

use gemv_examples::random::Random;
use ndarray::{Array2, ArrayView2, array};
use rayon::prelude::*;

/// Words of one task: whole points.
const PART: usize = 3 << 14;

/// A rotation about the axis (1, 2, 3), by this angle (Rodrigues' formula).
pub(crate) fn rotation(angle: f64) -> Array2<f32> {
    let norm = 14f64.sqrt();
    let (x, y, z) = (1.0 / norm, 2.0 / norm, 3.0 / norm);
    let (s, c) = angle.sin_cos();
    let d = 1.0 - c;
    array![
        [c + x * x * d, x * y * d - z * s, x * z * d + y * s],
        [y * x * d + z * s, c + y * y * d, y * z * d - x * s],
        [z * x * d - y * s, z * y * d + x * s, c + z * z * d],
    ]
    .mapv(|v| v as f32)
}

/// Words that depend on their part alone, so that threads do not matter.
fn filled(points: usize, point: impl Fn(&mut Random) -> [f32; 3] + Sync) -> Array2<f32> {
    let mut words = vec![0.0; 3 * points];
    words.par_chunks_mut(PART).enumerate().for_each(|(part, words)| {
        let mut random = Random(part as u64);
        words.chunks_exact_mut(3).for_each(|p| p.copy_from_slice(&point(&mut random)));
    });
    Array2::from_shape_vec((points, 3), words).expect("three words a point")
}

/// A trefoil knot, as a tube.
pub(crate) fn cloud(points: usize) -> Array2<f32> {
    filled(points, |random| {
        let t = std::f64::consts::TAU * random.unit();
        let fuzz = 0.25 * (random.unit() + random.unit() - 1.0);
        let r = 2.0 + (3.0 * t).cos() + fuzz;
        let z = (3.0 * t).sin() + 0.25 * (random.unit() + random.unit() - 1.0);
        [r * (2.0 * t).cos(), r * (2.0 * t).sin(), z].map(|v| v as f32)
    })
}

/// A shift for each point: a common one, and a little of its own.
pub(crate) fn shifts(points: usize) -> Array2<f32> {
    filled(points, |random| [0.5, -0.5, 1.0].map(|v| (v + 0.05 * random.unit()) as f32))
}

/// v = U r + v by hand, on rayon's current pool.
pub(crate) fn rotate(u: ArrayView2<'_, f32>, r: &[f32], v: &mut [f32]) {
    let u: [[f32; 3]; 3] = std::array::from_fn(|i| std::array::from_fn(|j| u[(i, j)]));
    v.par_chunks_mut(PART).zip(r.par_chunks(PART)).for_each(|(v, r)| {
        for (v, r) in v.chunks_exact_mut(3).zip(r.chunks_exact(3)) {
            for (v, u) in v.iter_mut().zip(&u) {
                *v += u[0] * r[0] + u[1] * r[1] + u[2] * r[2];
            }
        }
    });
}

/// The roof.
pub(crate) fn copy(r: &[f32], v: &mut [f32]) {
    let parts = v.par_chunks_mut(PART).zip(r.par_chunks(PART));
    parts.for_each(|(v, r)| v.copy_from_slice(r));
}

/// The largest difference of v from U r + s, which is computed in f64.
pub(crate) fn largest_difference(
    u: ArrayView2<'_, f32>,
    r: &Array2<f32>,
    s: &Array2<f32>,
    v: &[f32],
) -> f64 {
    let u: [[f64; 3]; 3] = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u[(i, j)])));
    let (r, s) = (r.as_slice().expect("row by row"), s.as_slice().expect("row by row"));
    let parts = v.par_chunks(PART).zip(r.par_chunks(PART)).zip(s.par_chunks(PART));
    let of_part = |((v, r), s): ((&[f32], &[f32]), &[f32])| {
        let mut most = 0.0f64;
        for ((v, r), s) in v.chunks_exact(3).zip(r.chunks_exact(3)).zip(s.chunks_exact(3)) {
            for ((v, s), u) in v.iter().zip(s).zip(&u) {
                let exact = (0..3).map(|j| u[j] * f64::from(r[j])).sum::<f64>() + f64::from(*s);
                let off = (f64::from(*v) - exact).abs();
                // A NaN is the largest of all.
                most = if off.is_nan() { f64::INFINITY } else { most.max(off) };
            }
        }
        most
    };
    parts.map(of_part).reduce(|| 0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_lengths_and_its_axis() {
        let u = rotation(0.7).mapv(f64::from);
        assert!((u.dot(&u.t()) - Array2::<f64>::eye(3)).iter().all(|d| d.abs() < 1e-6));
        let axis = array![1.0, 2.0, 3.0];
        assert!((u.dot(&axis) - axis).iter().all(|d| d.abs() < 1e-6));
    }

    #[test]
    fn a_wrong_point_and_a_nan_are_found() {
        let (u, r, s) = (rotation(1.0), cloud(40_000), shifts(40_000));
        let mut v = s.clone().into_raw_vec_and_offset().0;
        rotate(u.view(), r.as_slice().unwrap(), &mut v);
        assert!(largest_difference(u.view(), &r, &s, &v) < 1e-5);
        for wrong in [0.1, f32::NAN] {
            let mut v = v.clone();
            v[100_000] += wrong;
            assert!(largest_difference(u.view(), &r, &s, &v) > 0.09);
        }
    }
}
