//! Products of candle's tensors on the CPU: the bits of gemv's reference, in every layout.

use candle_core::{D, DType, Device, Module, Result, Tensor, Var, WithDType};
use gemv::Element;
use gemv::half::{bf16, f16};
use gemv::ndarray::{ArrayView1, ArrayView2};
use gemv_candle::{Linear, linear, matmul};

/// Numbers of both signs and some size, whose sum depends on its order.
fn filled(dims: &[usize], dtype: DType, seed: u32) -> Result<Tensor> {
    let mut state = seed;
    let numbers = (0..dims.iter().product()).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = [0.01, 1.0, 30.0][(state >> 8) as usize % 3];
        (f64::from(state >> 9) / f64::from(1 << 22) - 1.0) * size
    });
    Tensor::from_vec(numbers.collect::<Vec<_>>(), dims, &Device::Cpu)?.to_dtype(dtype)
}

fn bits<T: WithDType + Element>(of: &Tensor) -> Result<Vec<u128>> {
    Ok(of.flatten_all()?.to_vec1::<T>()?.into_iter().map(Element::bits).collect())
}

/// `x Wᵀ` by the reference, each row by itself, of copies without gaps.
fn expected<T: WithDType + Element>(x: &Tensor, w: &Tensor) -> Result<Vec<u128>> {
    let device = gemv::device("reference").unwrap();
    let (out, n) = w.dims2()?;
    let (w, x) = (w.flatten_all()?.to_vec1::<T>()?, x.flatten_all()?.to_vec1::<T>()?);
    let w = ArrayView2::from_shape((out, n), &w).unwrap();
    let rows = x.chunks(n.max(1));
    let y = rows.flat_map(|row| device.try_gpu_dot(&w, ArrayView1::from(row)).unwrap());
    Ok(y.map(Element::bits).collect())
}

fn check<T: WithDType + Element>(x: &Tensor, w: &Tensor) -> Result<()> {
    let y = linear(x, w)?;
    let what = format!("{:?} of {:?} by {:?}", x.dtype(), x.layout(), w.layout());
    let (last, rows) = (w.dim(0)?, &x.dims()[..x.rank() - 1]);
    assert_eq!(y.dims(), [rows, &[last]].concat(), "{what}");
    assert!(y.dtype() == x.dtype() && y.is_contiguous(), "{what}");
    assert_eq!(bits::<T>(&y)?, expected::<T>(x, w)?, "{what}");
    Ok(())
}

/// Runs a generic function for each type.
macro_rules! of_each_type {
    ($name:ident) => {
        $name::<f32>(DType::F32)?;
        $name::<f64>(DType::F64)?;
        $name::<f16>(DType::F16)?;
        $name::<bf16>(DType::BF16)?;
    };
}

#[test]
fn rows_have_the_bits_of_each_alone() -> Result<()> {
    fn of<T: WithDType + Element>(dtype: DType) -> Result<()> {
        for (out, n) in [(1, 1), (5, 7), (33, 300), (40, 1031)] {
            let w = filled(&[out, n], dtype, 1)?;
            let all = filled(&[8, n], dtype, 2)?;
            for k in [1, 2, 4, 8] {
                let x = all.narrow(0, 8 - k, k)?;
                check::<T>(&x, &w)?;
                let together = bits::<T>(&linear(&x, &w)?)?;
                let mut alone = Vec::new();
                for row in 0..k {
                    alone.extend(bits::<T>(&linear(&x.get(row)?, &w)?)?);
                }
                assert_eq!(together, alone, "{k} rows of {out} x {n} of {dtype:?}");
            }
        }
        Ok(())
    }
    of_each_type!(of);
    Ok(())
}

#[test]
fn operands_have_any_strides() -> Result<()> {
    fn of<T: WithDType + Element>(dtype: DType) -> Result<()> {
        let (out, n) = (19, 270);
        let w = filled(&[out, n], dtype, 3)?;
        let weights = [
            w.clone(),
            filled(&[n, out], dtype, 4)?.t()?,
            filled(&[out + 5, n + 9], dtype, 5)?.narrow(0, 3, out)?.narrow(1, 4, n)?,
            filled(&[n + 9, out + 5], dtype, 6)?.narrow(0, 4, n)?.narrow(1, 3, out)?.t()?,
            filled(&[1, n], dtype, 7)?.broadcast_as((out, n))?,
            filled(&[out, 1], dtype, 8)?.broadcast_as((out, n))?,
        ];
        let three = filled(&[3, 4, n], dtype, 9)?;
        let rows = [
            filled(&[n], dtype, 10)?,
            filled(&[n + 8], dtype, 10)?.narrow(0, 5, n)?,
            filled(&[n, 3], dtype, 11)?.t()?,
            filled(&[1, n], dtype, 12)?.broadcast_as((4, n))?,
            filled(&[4, 1], dtype, 13)?.broadcast_as((4, n))?,
            three.clone(),
            three.narrow(1, 3, 1)?,
            three.narrow(1, 1, 2)?,
            three.transpose(0, 1)?,
            three.transpose(0, 2)?.contiguous()?.transpose(0, 2)?,
            filled(&[2, 3, 2, n + 1], dtype, 14)?.narrow(3, 1, n)?.transpose(0, 2)?,
            // More of them than W has.
            filled(&[40, n], dtype, 15)?,
            filled(&[n, 40], dtype, 16)?.t()?,
        ];
        for w in &weights {
            rows.iter().try_for_each(|x| check::<T>(x, w))?;
        }
        Ok(())
    }
    of_each_type!(of);
    Ok(())
}

#[test]
fn either_operand_of_matmul_may_be_the_weight() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let w = filled(&[70, 300], dtype, 17)?;
        for k in [1, 2, 5, 90] {
            let x = filled(&[k, 300], dtype, 18)?;
            let by_rows = matmul(&x, &w.t()?)?;
            let by_columns = matmul(&w, &x.t()?)?;
            assert_eq!((by_rows.dims(), by_columns.dims()), (&[k, 70][..], &[70, k][..]));
            let text = |of: &Tensor| of.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            assert_eq!(text(&by_rows)?, text(&linear(&x, &w)?)?);
            assert_eq!(text(&by_rows)?, text(&by_columns.t()?)?);
        }
    }
    let batch = filled(&[2, 3, 300], DType::F32, 19)?;
    assert_eq!(matmul(&batch, &filled(&[300, 4], DType::F32, 20)?)?.dims(), [2, 3, 4]);
    Ok(())
}

#[test]
fn empty_shapes_have_products() -> Result<()> {
    for (k, out, n) in [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)] {
        let (x, w) = (filled(&[k, n], DType::F32, 1)?, filled(&[out, n], DType::F32, 1)?);
        let y = linear(&x, &w)?;
        assert_eq!(y.dims(), [k, out]);
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, vec![0.0; k * out]);
    }
    Ok(())
}

/// A sum of ones in bf16 stays at 256, unless it is kept in f32.
#[test]
fn sums_of_short_types_are_rounded_once() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let ones = Tensor::ones((3, 8192), dtype, &Device::Cpu)?;
        let y = linear(&ones, &ones)?.to_dtype(DType::F64)?;
        assert_eq!(y.to_vec2::<f64>()?, vec![vec![8192.0; 3]; 3]);
    }
    Ok(())
}

#[test]
fn layers_add_a_bias() -> Result<()> {
    let (w, b) = (filled(&[6, 50], DType::F32, 21)?, filled(&[6], DType::F32, 22)?);
    let x = filled(&[2, 3, 50], DType::F32, 23)?;
    let layer = Linear::new(w.clone(), Some(b.clone()));
    assert_eq!((layer.weight().id(), layer.bias().map(|b| b.id())), (w.id(), Some(b.id())));
    let y = layer.forward(&x)?;
    let rest = y.broadcast_sub(&linear(&x, &w)?.broadcast_add(&b)?)?;
    assert_eq!(rest.abs()?.sum_all()?.to_scalar::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn threads_get_the_same_bits() -> Result<()> {
    let layer = Linear::new(filled(&[300, 700], DType::F32, 24)?, None);
    let x = filled(&[4, 700], DType::F32, 25)?;
    let alone = bits::<f32>(&layer.forward(&x)?)?;
    std::thread::scope(|scope| {
        let run = || (0..20).map(|_| bits::<f32>(&layer.forward(&x)?)).collect::<Result<Vec<_>>>();
        let threads = [scope.spawn(run), scope.spawn(run)];
        for thread in threads {
            assert!(thread.join().unwrap()?.iter().all(|y| *y == alone));
        }
        Ok(())
    })
}

/// Of small whole numbers every order gives the same sum: candle's own gradients are the expected ones.
#[test]
fn gradients_are_those_of_matmul() -> Result<()> {
    let whole = |dims: &[usize], seed| filled(dims, DType::F64, seed)?.round();
    let w = Var::from_tensor(&whole(&[5, 9], 26)?)?;
    for dims in [&[9][..], &[4, 9], &[2, 3, 9], &[1, 9]] {
        let x = Var::from_tensor(&whole(dims, 27)?)?;
        let weights = whole(&[&dims[..dims.len() - 1], &[5]].concat(), 28)?;
        let ours = (linear(&x, &w)? * &weights)?.sum_all()?.backward()?;
        let rows = x.reshape(((), 9))?.matmul(&w.t()?)?.reshape(weights.shape())?;
        let theirs = (rows * &weights)?.sum_all()?.backward()?;
        for of in [&x, &w] {
            let [ours, theirs] = [&ours, &theirs].map(|all| all.get(of).unwrap());
            assert_eq!((ours.dims(), theirs.dims()), (of.dims(), of.dims()));
            let text = |of: &Tensor| of.flatten_all()?.to_vec1::<f64>();
            assert_eq!(text(ours)?, text(theirs)?, "{dims:?}");
        }
    }
    Ok(())
}

#[test]
fn what_has_no_product_is_refused_in_a_sentence() -> Result<()> {
    let of = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu);
    let f32s = |dims: &[usize]| of(dims, DType::F32);
    let cases = [
        (linear(&f32s(&[2, 5])?, &f32s(&[3, 4])?), "last axes differ"),
        (linear(&f32s(&[4])?, &f32s(&[4])?), "a weight has two axes"),
        (linear(&f32s(&[4])?, &f32s(&[1, 3, 4])?), "a weight has two axes"),
        (linear(&f32s(&[])?, &f32s(&[3, 4])?), "x has an axis or more"),
        (matmul(&f32s(&[4])?, &f32s(&[4, 3])?), "no product A B of [4] and [4, 3]"),
        (matmul(&f32s(&[2, 3, 4])?, &f32s(&[2, 4, 3])?), "and B has two"),
        (matmul(&f32s(&[3, 4])?, &f32s(&[3, 4])?), "last axes differ"),
        (linear(&f32s(&[4])?, &of(&[3, 4], DType::F64)?), "lhs: F32, rhs: F64"),
        (linear(&of(&[4], DType::U8)?, &of(&[3, 4], DType::U8)?), "unsupported dtype U8"),
        (linear(&of(&[4], DType::I64)?, &of(&[3, 4], DType::I64)?), "unsupported dtype I64"),
    ];
    for (result, part) in cases {
        let text = result.expect_err(part).to_string();
        assert!(text.contains(part), "{text:?} does not say {part:?}");
        // With RUST_BACKTRACE candle's errors have more lines.
        if std::env::var_os("RUST_BACKTRACE").is_none() {
            assert_eq!(text.trim().lines().count(), 1, "{text}");
        }
    }
    // A result that no memory holds is no panic.
    let (x, w) = (f32s(&[1, 1])?, f32s(&[1, 1])?);
    let (x, w) = (x.broadcast_as((1 << 30, 1))?, w.broadcast_as((1 << 30, 1))?);
    let text = linear(&x, &w).expect_err("a result of 2^60 entries").to_string();
    assert!(text.contains("memory"), "{text}");
    assert_eq!(x.dim(D::Minus1)?, 1);
    Ok(())
}
