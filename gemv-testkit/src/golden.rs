//! What other programs make: NumPy's files, and the numbers of `tests/golden/make.py`.

use bytemuck::Pod;
use gemv_core::ndarray::Array2;
use gemv_core::{Accumulator, Dtype, Element};

/// A file as NumPy writes it, of bytes in the order of its elements.
///
/// ```
/// let file = gemv_testkit::npy("<f4", false, "(1, 2)", &[0; 8]);
/// assert_eq!((file.len(), file[127]), (128 + 8, b'\n'));
/// ```
pub fn npy(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let header = format!("{dict:<117}\n");
    [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), data].concat()
}

/// A matrix as NumPy writes it, in either order and byte order.
pub fn npy_of<T: Element + Pod>(a: &Array2<T>, fortran: bool, big_endian: bool) -> Vec<u8> {
    let kind = match T::DTYPE {
        Dtype::F16 => "f2",
        Dtype::F32 => "f4",
        Dtype::F64 => "f8",
        Dtype::C32 => "c8",
        Dtype::C64 => "c16",
        Dtype::Bf16 => "V2",
    };
    let elements: Vec<T> =
        if fortran { a.t().iter().copied().collect() } else { a.iter().copied().collect() };
    let mut data = bytemuck::cast_slice(&elements).to_vec();
    if big_endian != cfg!(target_endian = "big") {
        let parts = if T::DTYPE.is_complex() { 2 } else { 1 };
        data.chunks_exact_mut(size_of::<T>() / parts).for_each(<[u8]>::reverse);
    }
    let order = if big_endian { '>' } else { '<' };
    npy(&format!("{order}{kind}"), fortran, &format!("{:?}", a.dim()), &data)
}

/// Element `k` of the formula in `tests/golden/make.py`.
pub fn generated<T: Element>(seed: u64, k: usize) -> T {
    let part = |k: usize| {
        let z = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add((k as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = z ^ (z >> 32);
        ((z & 0xffff) as f64 - 32768.0) * 2f64.powi(((z >> 16) & 7) as i32 - 15)
    };
    let (re, im) =
        if T::DTYPE.is_complex() { (part(2 * k), part(2 * k + 1)) } else { (part(k), 0.0) };
    T::narrow(T::Acc::from_parts(re, im))
}
