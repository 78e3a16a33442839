//! The test of a program for packed matrices, before its first result is given out.

use std::sync::PoisonError;
use std::time::Instant;

use gemv_core::ndarray::{Array3, Ix3};
use gemv_core::order::SEGMENT;
use gemv_core::reference::ordered_sum;
use gemv_core::{
    Accumulator, AnySlice, Desc, Dtype, Element, Error, Format, Job, Memory, Number, PackedMatrix,
    PackedPlace, Result, Tensor,
};
use gemv_gpu::{SELF_TEST_ENV, packed_tiles, self_test_wanted};

use crate::first_use::Of;
use crate::memory::lock;
use crate::run::{self, Choice};

/// Makes a block of the device, without its lock.
pub(crate) type Upload<'a> = &'a dyn Fn(AnySlice<'_>) -> Result<Box<dyn Memory>>;

/// Compiles what a choice launches, compares a small product with the order, and keeps the program on disk; all of it once.
///
/// # Errors
/// [`Error::Build`]; [`Error::Params`] where the device gives other bits.
pub(crate) fn prepare(of: Of<'_>, upload: Upload<'_>, choice: &Choice) -> Result<()> {
    if choice.ready.get().is_some() {
        return Ok(());
    }
    let Of { found, programs, .. } = of;
    programs.usable()?;
    let entries = choice.entries(programs)?;
    let _testing = entries[0].testing.lock().unwrap_or_else(PoisonError::into_inner);
    if self_test_wanted() && !programs.are_tested((choice.params, choice.types()), &entries) {
        let begin = Instant::now();
        let fault = match choice.desc.vectors {
            Dtype::F32 => fault::<f32>(of, upload, choice)?,
            Dtype::F16 => fault::<gemv_core::half::f16>(of, upload, choice)?,
            _ => fault::<gemv_core::half::bf16>(of, upload, choice)?,
        };
        if let Some(fault) = fault {
            let reason = format!(
                "it gives other bits than the order of additions has ({fault}); {SELF_TEST_ENV}=off uses it all the same"
            );
            let (device, params) = (found.info.id.clone(), choice.params.to_string());
            return Err(Error::Params { device, desc: choice.desc, params, reason });
        }
        log::debug!("opencl: tested {} in {} ms", choice.params, begin.elapsed().as_millis());
        programs.passed(&entries);
    }
    programs.keep(&entries);
    choice.ready.get_or_init(|| ());
    Ok(())
}

/// Where a product of a small matrix has other bits.
fn fault<V: Element<Acc = f32>>(
    Of { found, programs, shared }: Of<'_>,
    upload: Upload<'_>,
    choice: &Choice,
) -> Result<Option<String>> {
    let format = choice.desc.packing.expect("of a packed matrix");
    // Two segments and a part of one, where the rows are so long.
    let n = choice.desc.n.min(2 * SEGMENT + format.block_len());
    let (m, rhs) = (19, choice.desc.rhs.min(5));
    let value = |i: usize| {
        let h = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        h as f32 / (1 << 23) as f32 - 1.0
    };
    let (weights, blocks) = packed(format, (m, n), value)?;
    let x = Array3::from_shape_fn((1, n, rhs), |(_, j, c)| V::narrow(value(7 * j + c + 3)));
    let mut y = Array3::from_elem((1, m, rhs), V::default());
    let host = PackedMatrix { format, dim: (m, n), place: PackedPlace::Host(&blocks) };
    let tiles = packed_tiles(host)?;
    let block = upload(AnySlice::F32(&tiles))?;
    let a = PackedMatrix { place: PackedPlace::Device(&*block, 0), ..host };
    let a = Tensor::of_packed(a, V::DTYPE);
    let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
    let (x_in, y_in) = (x.view().into(), y.view_mut().into());
    let mut job = Job { alpha, a, conj: false, x: x_in, beta, y: y_in }.check()?;
    let test = choice.of(Desc { rhs, ..Desc::packed(format, V::DTYPE, (m, n)) }, found);
    test.entries(programs)?;
    run::product(found, &mut lock(shared), &test, &mut job)?;
    for (at, got) in y.indexed_iter() {
        let (_, i, c) = at;
        let want =
            ordered_sum(n, &|j, lane: f32| lane.fma(weights[i * n + j], x[Ix3(0, j, c)].widen()));
        if V::narrow(want).widen().to_bits() != got.widen().to_bits() {
            return Ok(Some(format!("{} instead of {want} in row {i}, column {c}", got.widen())));
        }
    }
    Ok(None)
}

/// A matrix of these values, packed, and what it stands for.
fn packed(
    format: Format,
    (m, n): (usize, usize),
    value: impl Fn(usize) -> f32,
) -> Result<(Vec<f32>, Vec<u8>)> {
    let mut weights: Vec<f32> = (0..m * n).map(value).collect();
    let mut blocks = vec![0; m * format.row_bytes(n).map_err(Error::Packed)?];
    format.quantize(&weights, &mut blocks).map_err(Error::Packed)?;
    format.dequantize(&blocks, &mut weights);
    Ok((weights, blocks))
}
