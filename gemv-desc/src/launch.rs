//! What is known of a kernel that people bring: its parameters, its limits, and the shape of a launch.

use std::fmt::{self, Display};

use crate::Dtype;

/// What a kernel's launch may ask for.
///
/// ```
/// use gemv_desc::{KernelLimits, LaunchShape};
///
/// let limits = KernelLimits { threads: 256, shared: 1024, ..KernelLimits::NONE };
/// assert!(limits.check(&LaunchShape::new(10, 256).with_shared(1024)).is_ok());
/// assert_eq!(
///     limits.check(&LaunchShape::new(10, 257)).unwrap_err(),
///     "a block of 257 x 1 x 1 threads, but at most 256 are possible"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLimits {
    /// Most threads of a block, all dimensions together.
    pub threads: u32,
    /// Most threads of a block in each dimension.
    pub block: [u32; 3],
    /// Most blocks in each dimension.
    pub grid: [u64; 3],
    /// The only block with which it runs, if it says so.
    pub required: Option<[u32; 3]>,
    /// Most bytes of dynamic shared memory.
    pub shared: u32,
    /// Whether it takes dynamic shared memory, where that is known.
    pub takes_shared: Option<bool>,
}

impl KernelLimits {
    /// Whatever a number holds.
    pub const NONE: KernelLimits = KernelLimits {
        threads: u32::MAX,
        block: [u32::MAX; 3],
        grid: [u64::MAX; 3],
        required: None,
        shared: u32::MAX,
        takes_shared: None,
    };

    /// Whether a launch is within them.
    ///
    /// # Errors
    /// What is too much, as the end of a sentence.
    pub fn check(&self, shape: &LaunchShape) -> Result<(), String> {
        let LaunchShape { grid, block, shared } = *shape;
        let [x, y, z] = block;
        let threads = u128::from(x) * u128::from(y) * u128::from(z);
        if threads == 0 {
            return Err(format!("a block of {x} x {y} x {z} threads has none"));
        }
        if let Some([rx, ry, rz]) = self.required.filter(|required| *required != block) {
            return Err(format!(
                "a block of {x} x {y} x {z} threads, but the kernel says {rx} x {ry} x {rz}"
            ));
        }
        if threads > self.threads.into() {
            let most = self.threads;
            return Err(format!(
                "a block of {x} x {y} x {z} threads, but at most {most} are possible"
            ));
        }
        for axis in 0..3 {
            let name = ["x", "y", "z"][axis];
            if block[axis] > self.block[axis] {
                let (asked, most) = (block[axis], self.block[axis]);
                return Err(format!("a block of {asked} threads in {name}, but at most {most}"));
            }
            // Where the device numbers threads through, their number has to be one.
            let fits = grid[axis].checked_mul(block[axis].into()).is_some();
            if grid[axis] > self.grid[axis] || !fits {
                let (asked, most) = (grid[axis], self.grid[axis]);
                let most = most.min(u64::MAX / u64::from(block[axis]));
                return Err(format!("a grid of {asked} blocks in {name}, but at most {most}"));
            }
        }
        if shared > self.shared {
            let most = self.shared;
            return Err(format!(
                "{shared} bytes of dynamic shared memory, but at most {most} are left"
            ));
        }
        match self.takes_shared {
            Some(true) if shared == 0 => {
                Err("the kernel takes dynamic shared memory, and the launch gives none".into())
            }
            Some(false) if shared > 0 => Err(format!(
                "{shared} bytes of dynamic shared memory that the kernel does not take"
            )),
            _ => Ok(()),
        }
    }
}

/// How many threads a launch starts: a grid of blocks (work-groups) of threads (work-items).
///
/// ```
/// use gemv_desc::LaunchShape;
///
/// // A thread for each of 1000 entries.
/// assert_eq!(LaunchShape::covering(1000, 64), LaunchShape::new(16, 64));
/// let tiles = LaunchShape { grid: [8, 4, 1], block: [16, 16, 1], shared: 0 };
/// assert_eq!(tiles.with_shared(1024).shared, 1024);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Blocks in each dimension. With 0 blocks nothing is started.
    pub grid: [u64; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each block.
    pub shared: u32,
}

impl LaunchShape {
    /// So many blocks of so many threads, in one dimension.
    pub const fn new(blocks: u64, threads: u32) -> LaunchShape {
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
    }

    /// As few blocks of `threads` threads as have `count` threads or more.
    ///
    /// # Panics
    /// If `threads` is 0.
    #[track_caller]
    pub const fn covering(count: u64, threads: u32) -> LaunchShape {
        LaunchShape::new(count.div_ceil(threads as u64), threads)
    }

    /// With so many bytes of dynamic shared memory.
    #[must_use]
    pub const fn with_shared(self, bytes: u32) -> LaunchShape {
        LaunchShape { shared: bytes, ..self }
    }
}

/// The type of a kernel's scalar, or of the entries of its array.
///
/// ```
/// use gemv_desc::KernelType;
/// assert_eq!((KernelType::C32.to_string(), KernelType::C32.bytes()), ("c32".into(), 8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelType {
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// `f16` or `bf16`: an `unsigned short` with its bits.
    Bits16,
    /// `float2`, a complex number.
    C32,
    /// `double2`, a complex number.
    C64,
    /// `int`.
    I32,
    /// `unsigned int`.
    U32,
    /// A signed integer of 64 bits: `long` of OpenCL C, `long long` of CUDA C++.
    I64,
    /// An unsigned integer of 64 bits.
    U64,
}

impl KernelType {
    /// Of the elements of this type.
    pub const fn of(dtype: Dtype) -> KernelType {
        match (dtype.bytes(), dtype.is_complex()) {
            (2, _) => KernelType::Bits16,
            (4, _) => KernelType::F32,
            (8, false) => KernelType::F64,
            (8, true) => KernelType::C32,
            _ => KernelType::C64,
        }
    }

    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            KernelType::Bits16 => 2,
            KernelType::F32 | KernelType::I32 | KernelType::U32 => 4,
            KernelType::F64 | KernelType::C32 | KernelType::I64 | KernelType::U64 => 8,
            KernelType::C64 => 16,
        }
    }
}

/// As [`Dtype`] names it.
impl Display for KernelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelType::F32 => "f32",
            KernelType::F64 => "f64",
            KernelType::Bits16 => "f16 or bf16",
            KernelType::C32 => "c32",
            KernelType::C64 => "c64",
            KernelType::I32 => "i32",
            KernelType::U32 => "u32",
            KernelType::I64 => "i64",
            KernelType::U64 => "u64",
        })
    }
}

/// A parameter of a kernel, as its compiler says.
///
/// ```
/// use gemv_desc::{KernelType, Parameter};
/// let y = Parameter::Array { of: KernelType::F32, writes: true };
/// assert_eq!(y.to_string(), "an array of f32 that it may write");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    /// A value.
    Scalar(KernelType),
    /// A pointer to global memory.
    Array {
        /// The type of an entry.
        of: KernelType,
        /// Whether it is no pointer to `const`.
        writes: bool,
    },
    /// A type that no argument has, as the compiler names it.
    Other(String),
}

/// What it takes, as a part of a sentence.
impl Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Scalar(of) => write!(f, "a scalar of {of}"),
            Parameter::Array { of, writes: true } => {
                write!(f, "an array of {of} that it may write")
            }
            Parameter::Array { of, writes: false } => write!(f, "an array of {of} that it reads"),
            Parameter::Other(name) => write!(f, "`{name}`"),
        }
    }
}
