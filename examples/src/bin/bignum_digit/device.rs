//! The product by the kernels of `kernels.k`, on a device of OpenCL or CUDA.

use gemv::kernel::{DeviceIntegers, Kernel, LaunchShape};
use gemv::{Device, Result};

/// How a product is computed on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A thread a digit, with three products each.
    Direct,
    /// A thread a digit; parts of neighbours through local memory.
    Local,
    /// So many digits a thread.
    Several(u32),
    /// Sums, then carries.
    TwoPasses,
}

impl Way {
    pub(crate) const ALL: [Way; 7] = [
        Way::Direct,
        Way::Local,
        Way::Several(2),
        Way::Several(4),
        Way::Several(8),
        Way::Several(16),
        Way::TwoPasses,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Way::Direct => "direct".into(),
            Way::Local => "local memory".into(),
            Way::Several(digits) => format!("{digits} digits a thread"),
            Way::TwoPasses => "two passes".into(),
        }
    }
}

/// The compiled kernels.
pub(crate) struct Kernels {
    direct: Kernel,
    shared: Kernel,
    sums: Kernel,
    carries: Kernel,
    copy: Kernel,
    several: Vec<(u32, Kernel)>,
}

/// A number of n digits, and room for its product: n + 1 digits and, for two passes, as many sums.
pub(crate) struct Numbers {
    pub(crate) x: DeviceIntegers<i32>,
    pub(crate) y: DeviceIntegers<i32>,
    sums: DeviceIntegers<i32>,
}

impl Numbers {
    pub(crate) fn new(device: &Device, x: &[i32]) -> Result<Numbers> {
        let room = || DeviceIntegers::zeros(device, x.len() + 1);
        Ok(Numbers { x: DeviceIntegers::upload(device, x)?, y: room()?, sums: room()? })
    }
}

impl Kernels {
    pub(crate) fn compile(device: &Device) -> Result<Kernels> {
        let of = |digits: u32, entry: &str| {
            let text = format!("#define DIGITS {digits}\n{}", include_str!("kernels.k"));
            Kernel::from_source(device, &text, entry)
        };
        let several = Way::ALL.into_iter().filter_map(|way| match way {
            Way::Several(digits) => Some(of(digits, "several").map(|kernel| (digits, kernel))),
            _ => None,
        });
        Ok(Kernels {
            several: several.collect::<Result<_>>()?,
            direct: of(4, "direct")?,
            shared: of(4, "shared")?,
            sums: of(4, "sums")?,
            carries: of(4, "carries")?,
            copy: of(4, "copy")?,
        })
    }

    /// Most threads of a block with which every kernel runs.
    pub(crate) fn most_threads(&self) -> u32 {
        let all = [&self.direct, &self.shared, &self.sums, &self.carries, &self.copy];
        let several = self.several.iter().map(|(_, kernel)| kernel);
        all.into_iter().chain(several).map(|kernel| kernel.limits().threads).min().unwrap_or(1)
    }

    /// Enqueues y = k x with blocks of so many threads.
    pub(crate) fn multiply(
        &self,
        way: Way,
        group: u32,
        numbers: &mut Numbers,
        k: i32,
    ) -> Result<()> {
        let Numbers { x, y, sums } = numbers;
        let n = x.len();
        let count = n as u64;
        let shape = LaunchShape::covering(count + 1, group);
        let plain = |kernel: &Kernel, out: &mut DeviceIntegers<i32>, shape| {
            let call = kernel.arguments().read(x).of_len(n).write(out).of_len(n + 1);
            // SAFETY: the kernel reads x below n and writes up to n, whatever the number of threads;
            // `shared` has 2 (threads + 1) words of shared memory.
            unsafe { call.scalar(count).scalar(k).launch(shape) }
        };
        match way {
            Way::Direct => plain(&self.direct, y, shape),
            Way::Local => plain(&self.shared, y, shape.with_shared(8 * (group + 1))),
            Way::Several(digits) => {
                let known = self.several.iter().find(|(of, _)| *of == digits);
                let (_, kernel) = known.expect("compiled for every way");
                let threads = (count + 1).div_ceil(digits.into());
                plain(kernel, y, LaunchShape::covering(threads, group))
            }
            Way::TwoPasses => {
                plain(&self.sums, sums, shape)?;
                let call = self.carries.arguments().read(sums).of_len(n + 1);
                let call = call.write(y).of_len(n + 1).scalar(count);
                // SAFETY: as above; it reads up to n as well.
                unsafe { call.launch(shape) }
            }
        }
    }

    /// Enqueues a copy of x to y: as many words read and written, but one.
    ///
    /// # Panics
    /// If the digits are no multiple of 4.
    pub(crate) fn copy(&self, group: u32, numbers: &mut Numbers) -> Result<()> {
        let (n, count) = (numbers.x.len(), numbers.x.len() as u64);
        assert!(n.is_multiple_of(4), "vectors of 4 digits");
        let call = self.copy.arguments().read(&numbers.x).of_len(n);
        let call = call.write(&mut numbers.y).of_len(n + 1).scalar(count);
        // SAFETY: vectors of 4 digits begin below n, a multiple of 4.
        unsafe { call.launch(LaunchShape::covering(count / 4, group)) }
    }
}
