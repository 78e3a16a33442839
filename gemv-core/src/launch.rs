//! What crosses the seam for a kernel that people bring: what was compiled, and a launch.

use std::any::Any;
use std::sync::Arc;

use crate::memory::Memory;
use crate::{Dtype, KernelLimits, KernelType, LaunchShape, Parameter};

/// What a backend has compiled, for [`Backend::compile`](crate::Backend::compile).
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    /// The parameters in order, as the compiler says.
    pub parameters: Arc<[Parameter]>,
    /// What a launch may ask for.
    pub limits: KernelLimits,
    /// What the backend needs to launch it.
    pub state: Arc<dyn Any + Send + Sync>,
}

/// A launch that was checked, for [`Backend::launch`](crate::Backend::launch).
///
/// Only [`KernelCall::launch`](crate::KernelCall::launch) makes one: whoever called it answers for what the kernel touches. The
/// arguments are of the parameters' types, and the shape is within the limits.
#[derive(Debug)]
pub struct KernelLaunch<'a> {
    compiled: &'a CompiledKernel,
    arguments: Vec<KernelArgument<'a>>,
    shape: LaunchShape,
}

impl<'a> KernelLaunch<'a> {
    /// Arguments of the parameters' types and a shape within the limits, for a kernel that stays within
    /// its arrays.
    pub(crate) fn new(
        compiled: &'a CompiledKernel,
        arguments: Vec<KernelArgument<'a>>,
        shape: LaunchShape,
    ) -> KernelLaunch<'a> {
        KernelLaunch { compiled, arguments, shape }
    }

    /// What was compiled.
    pub fn compiled(&self) -> &'a CompiledKernel {
        self.compiled
    }

    /// An argument for each parameter.
    pub fn arguments(&self) -> &[KernelArgument<'a>] {
        &self.arguments
    }

    /// The grid, the blocks and their shared memory.
    pub fn shape(&self) -> LaunchShape {
        self.shape
    }
}

/// An argument of a [`KernelLaunch`].
#[derive(Debug)]
pub enum KernelArgument<'a> {
    /// An array that is read: so many entries from `first` on.
    Read {
        /// The block that it lies in.
        memory: &'a dyn Memory,
        /// What the block holds: of integers, elements of their size.
        dtype: Dtype,
        /// Index of the first entry.
        first: usize,
        /// Number of entries.
        len: usize,
    },
    /// An array that is written: the first entries of a block that nothing shares.
    Write {
        /// The block.
        memory: &'a mut dyn Memory,
        /// What the block holds: of integers, elements of their size.
        dtype: Dtype,
        /// Number of entries.
        len: usize,
    },
    /// A value.
    Scalar(ScalarValue),
}

/// A scalar argument as its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalarValue {
    of: KernelType,
    bytes: [u8; 16],
}

impl ScalarValue {
    pub(crate) fn new(of: KernelType, value: &[u8]) -> ScalarValue {
        let mut bytes = [0; 16];
        bytes[..value.len()].copy_from_slice(value);
        ScalarValue { of, bytes }
    }

    /// Its type.
    pub fn kernel_type(&self) -> KernelType {
        self.of
    }

    /// Its bytes, as the host has them in memory.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.of.bytes()]
    }
}
