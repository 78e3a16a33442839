//! The pass that only reads: an upper bound for the bandwidth of a product.

use std::hint::black_box;

use gemv_core::float_mode::outside;
use gemv_core::{Desc, Dtype, Layout, Params};
use rayon::prelude::*;

/// Its parameters; the argument is the least KiB for each thread.
pub(crate) const READ: Params = Params::new(gemv_core::READ);

/// The passes to try: one thread for what the caches hold, all threads for the rest.
pub(crate) fn passes() -> Vec<Params> {
    vec![READ.with("grain_kib", 1 << 30), READ.with("grain_kib", 256)]
}

/// Whether it can read such a matrix, or why not.
pub(crate) fn fits(desc: &Desc) -> Result<(), String> {
    match (desc.dtype, desc.layout) {
        (Dtype::F32, Layout::Row) if !desc.is_mixed() => Ok(()),
        _ => Err("bandwidth is read from a row-major f32 matrix".into()),
    }
}

/// Streams that a thread reads together: a single one does not reach the full bandwidth.
const STREAMS: usize = 8;

/// Reads all of `data` once.
pub(crate) fn read(data: &[f32], grain: usize) {
    let piece = (grain << 10) / size_of::<f32>();
    let threads = rayon::current_num_threads();
    let bits = if data.len() < 2 * piece || threads == 1 {
        streams(data)
    } else {
        // A few pieces a thread, so that no thread waits long for the last.
        let piece = data.len().div_ceil(4 * threads).max(piece);
        // Integers alone, so in any mode.
        outside(|| data.par_chunks(piece).map(streams).reduce(|| 0, |a, b| a ^ b))
    };
    black_box(bits);
}

/// Elements of a cache line.
const LINE: usize = 16;

fn streams(data: &[f32]) -> u32 {
    let (lines, rest) = data.as_chunks::<LINE>();
    let len = lines.len() / STREAMS;
    let (body, last) = lines.split_at(len * STREAMS);
    let parts: [&[[f32; LINE]]; STREAMS] = std::array::from_fn(|s| &body[s * len..][..len]);
    // Integers: the compiler may not regroup additions of floats into vectors. One vector of 16 bytes for each stream:
    // more would not stay in registers, and the pass would be bound by its instructions.
    let mut acc = [[0u32; 4]; STREAMS];
    for i in 0..len {
        for (part, acc) in parts.iter().zip(&mut acc) {
            let line = part[i].map(f32::to_bits);
            for k in 0..4 {
                acc[k] ^= line[k] ^ line[k + 4] ^ line[k + 8] ^ line[k + 12];
            }
        }
    }
    let ends = last.as_flattened().iter().chain(rest).fold(0, |a, v| a ^ v.to_bits());
    acc.iter().flatten().fold(ends, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_counts_once() {
        for len in [0, 1, 7, 8, 127, 128, 129, 5000] {
            let mut data = vec![0f32; len];
            assert_eq!(streams(&data), 0);
            for k in 0..len {
                data[k] = f32::from_bits(k as u32 + 1);
                assert_eq!(streams(&data), k as u32 + 1, "{k} of {len}");
                data[k] = 0.0;
            }
        }
    }
}
