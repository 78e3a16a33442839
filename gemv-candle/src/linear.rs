//! Products of tensors, and a layer of them.

use candle_core::{Error, Module, Result, Tensor};

use crate::op::Product;

/// `x Wᵀ`: the product of each row of x with W.
///
/// x has the shape `[.., in]`, W `[out, in]`, the result `[.., out]`; a vector x of shape `[in]` gives a vector. Each of its entries
/// has the bits of [gemv](gemv::unstable::order) for a row of W and a row of x, however many there are.
///
/// ```
/// use gemv_candle::candle_core::{Device, Tensor};
///
/// let w = Tensor::new(&[[1f64, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f64, -1.], &Device::Cpu)?;
/// assert_eq!(gemv_candle::linear(&x, &w)?.to_vec1::<f64>()?, [-1., -1., -1.]);
/// # Ok::<(), gemv_candle::candle_core::Error>(())
/// ```
///
/// # Errors
/// One sentence if the shapes do not fit or are of other numbers of axes, if the types differ or are of integers, if the
/// tensors are on two devices or on two streams; what the device refuses.
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.apply_op2(w, Product)
}

/// `A B` of a matrix B, as candle's [`matmul`](Tensor::matmul): A has the shape `[.., rows, n]`, B `[n, columns]`.
///
/// Each entry has the bits of [gemv](gemv::unstable::order) for a row of A and a column of B, however many there are of either. It
/// takes as long as reading the one with more of them, where the other has few: a weight matrix is A or B.
///
/// ```
/// use gemv_candle::candle_core::{Device, Tensor};
///
/// let w = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let x = Tensor::new(&[[1f32], [-1.]], &Device::Cpu)?; // a column
/// assert_eq!(gemv_candle::matmul(&w, &x)?.to_vec2::<f32>()?, [[-1.], [-1.]]);
/// assert_eq!(gemv_candle::matmul(&x.t()?, &w)?.to_vec2::<f32>()?, [[-2., -2.]]);
/// # Ok::<(), gemv_candle::candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`linear`].
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() < 2 || b.rank() != 2 {
        let (a, b) = (a.dims(), b.dims());
        let what = "A has two axes or more, and B has two";
        return Err(Error::msg(format!("there is no product A B of {a:?} and {b:?}: {what}")));
    }
    linear(a, &b.t()?)
}

/// A layer `y = x Wᵀ + b`, as candle-nn's of this name: W has the shape `[out, in]`, b `[out]`.
///
/// ```
/// use gemv_candle::candle_core::{Device, Module, Tensor};
///
/// let w = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let b = Tensor::new(&[10f32, 20.], &Device::Cpu)?;
/// let x = Tensor::new(&[[[1f32, 1.]], [[0., 1.]]], &Device::Cpu)?; // [batch, tokens, in]
/// let y = gemv_candle::Linear::new(w, Some(b)).forward(&x)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[13., 27.]], [[12., 24.]]]);
/// # Ok::<(), gemv_candle::candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer of these tensors, which it shares. Shapes are compared when it is used.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Linear { weight, bias }
    }

    /// W.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// b.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    /// The layer's result for each row of x; see [`linear`]. The bias is added to what is rounded to the type of x.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = linear(x, &self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
