//! On CUDA: the bits of the CPU, in every layout and on every thread. It needs a GPU.

use candle_core::{DType, Device, Result, Tensor};
use gemv_candle::{linear, matmul};

fn bits(of: &Tensor) -> Result<Vec<u64>> {
    let numbers = of.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok(numbers.into_iter().map(f64::to_bits).collect())
}

/// The layouts of tests/linear.rs, of one block of memory each, so that they are the same on both devices.
fn operands(device: &Device, dtype: DType) -> Result<[Vec<Tensor>; 2]> {
    let of = |dims: &[usize]| {
        let count: usize = dims.iter().product();
        let numbers = (0..count).map(|i| ((i * 7919 + count) % 2003) as f64 / 512.0 - 1.9);
        Tensor::from_vec(numbers.collect::<Vec<_>>(), dims, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(device)
    };
    let (out, n) = (190, 1300);
    let weights = vec![
        of(&[out, n])?,
        of(&[n, out])?.t()?,
        of(&[out + 5, n + 9])?.narrow(0, 3, out)?.narrow(1, 5, n)?,
        of(&[1, n])?.broadcast_as((out, n))?,
    ];
    let three = of(&[3, 4, n])?;
    let rows = vec![
        of(&[n])?,
        of(&[n + 8])?.narrow(0, 5, n)?,
        of(&[2, n])?,
        of(&[n, 3])?.t()?,
        of(&[4, 1])?.broadcast_as((4, n))?,
        of(&[8, n])?,
        three.narrow(1, 3, 1)?,
        three.narrow(1, 1, 2)?,
        three.transpose(0, 1)?,
        of(&[300, n])?,
    ];
    Ok([weights, rows])
}

#[test]
fn every_layout_has_the_bits_of_the_cpu() -> Result<()> {
    let cuda = Device::new_cuda(0)?;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let [weights, rows] = operands(&Device::Cpu, dtype)?;
        let [cuda_weights, cuda_rows] = operands(&cuda, dtype)?;
        for (w, cuda_w) in weights.iter().zip(&cuda_weights) {
            for (x, cuda_x) in rows.iter().zip(&cuda_rows) {
                let y = linear(cuda_x, cuda_w)?;
                let what = format!("{dtype:?} of {:?} by {:?}", x.layout(), w.layout());
                assert_eq!(bits(&y)?, bits(&linear(x, w)?)?, "{what}");
            }
        }
    }
    Ok(())
}

/// The device of candle computes on another stream on each thread.
#[test]
fn threads_have_streams_of_their_own() -> Result<()> {
    let cuda = Device::new_cuda(0)?;
    let [weights, rows] = operands(&cuda, DType::F32)?;
    let alone = bits(&linear(&rows[5], &weights[0])?)?;
    cuda.synchronize()?;
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let run = || (0..50).map(|_| bits(&linear(&rows[5], &weights[0])?)).collect();
            let threads: [_; 3] = std::array::from_fn(|_| scope.spawn(run));
            for thread in threads {
                let all: Result<Vec<_>> = thread.join().unwrap();
                assert!(all?.iter().all(|y| *y == alone));
            }
            Ok::<_, candle_core::Error>(())
        })?;
    }
    Ok(())
}

/// More devices with streams of their own than a thread keeps.
#[test]
fn streams_come_and_go() -> Result<()> {
    for _ in 0..3 {
        for _ in 0..10 {
            let cuda = Device::new_cuda_with_stream(0)?;
            let w = Tensor::ones((300, 700), DType::F32, &cuda)?;
            let y = matmul(&w, &w.t()?)?;
            assert_eq!(y.to_vec2::<f32>()?, vec![vec![700.0; 300]; 300]);
        }
    }
    let [one, other] = [Device::new_cuda_with_stream(0)?, Device::new_cuda_with_stream(0)?];
    let (x, w) = (Tensor::ones(7, DType::F32, &one)?, Tensor::ones((5, 7), DType::F32, &other)?);
    let text = linear(&x, &w).expect_err("two streams").to_string();
    assert!(text.contains("another stream"), "{text}");
    Ok(())
}

/// Of no columns: candle allocates no memory of no bytes.
#[test]
fn sums_of_nothing_are_zeros() -> Result<()> {
    let cuda = Device::new_cuda(0)?;
    for (k, out) in [(2, 3), (1, 1)] {
        let of = |rows| Tensor::ones((rows, 4), DType::F32, &cuda)?.narrow(1, 0, 0);
        let y = linear(&of(k)?, &of(out)?)?;
        assert_eq!((y.dims(), bits(&y)?), (&[k, out][..], vec![0; k * out]));
    }
    Ok(())
}
