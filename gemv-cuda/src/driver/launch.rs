//! Launches: operands that lie in their blocks, and the arguments of each signature.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use gemv_core::{Dtype, Element, Error, Number, Result};
use gemv_gpu::{Launch as Planned, Signature, chain_launch};

use super::chain::{Argument, Chain, Given, Lines, Link, OWN, Place};
use super::function::{Function, Keep, Launch, LaunchAttribute, LaunchConfig};
use super::gpu::{Block, Gpu};
use super::tape::{Mode, Taped, Work};
use super::tensor_map::TensorMap;
use crate::lock::lock;

/// A batch of matrices in a block: element (b, i, j) lies at `first` and the sum of the indices times
/// the strides, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) block: &'a Block,
    pub(crate) first: usize,
    pub(crate) dim: [usize; 3],
    pub(crate) strides: [isize; 3],
}

impl Operand<'_> {
    /// Entry b, from column `column` on, of `columns` columns.
    fn entry(&self, b: usize, column: usize, columns: usize) -> Self {
        let [batch, _, col] = self.strides;
        let at = b as isize * batch + column as isize * col;
        let dim = [1, self.dim[1], columns];
        Operand { first: self.first.wrapping_add_signed(at), dim, ..*self }
    }

    /// Whether every element lies in the block.
    pub(super) fn inside(&self, element: usize) -> bool {
        if self.dim.contains(&0) {
            return true;
        }
        // i128: no product of two 64-bit values overflows it, and sums stay at its ends.
        let (mut lo, mut hi) = (self.first as i128, self.first as i128);
        for (len, stride) in self.dim.into_iter().zip(self.strides) {
            let far = (len as i128 - 1) * stride as i128;
            lo = lo.saturating_add(far.min(0));
            hi = hi.saturating_add(far.max(0));
        }
        lo >= 0 && hi.saturating_add(1).saturating_mul(element as i128) <= self.block.bytes as i128
    }
}

/// What the launches of a product are given; see `gemv_gpu` for both signatures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// The element types of A, and of X and Y.
    pub(crate) types: (Dtype, Dtype),
    pub(crate) a: Operand<'a>,
    pub(crate) x: Operand<'a>,
    pub(crate) y: Operand<'a>,
    pub(crate) alpha: Number,
    pub(crate) beta: Number,
    pub(crate) conj: bool,
    pub(crate) workspace: &'a Block,
    pub(crate) counters: &'a Block,
    /// Of a program that takes it in the place of beta.
    pub(crate) epilogue: Option<Fused<'a>>,
}

/// An epilogue: the bias of the entry that lies `at` elements behind y's first one is `at / by % count * stride` elements behind
/// its own first one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fused<'a> {
    pub(crate) bias: Option<Operand<'a>>,
    /// The whole y.
    pub(crate) y: Operand<'a>,
    pub(crate) by: usize,
    pub(crate) count: usize,
    pub(crate) stride: isize,
}

impl Fused<'_> {
    /// `EPILOGUE` of `epilogue.h` of gemv_gpu, beta with it.
    ///
    /// # Panics
    /// If the bias does not lie in its block.
    fn bytes(&self, element: usize, beta: &[u8; 16]) -> [u64; 8] {
        let address = |of: &Operand<'_>| of.block.at + (of.first * element) as u64;
        if let Some(bias) = &self.bias {
            assert!(bias.inside(element) && bias.dim == self.y.dim, "a bias of another shape");
        }
        let bias = self.bias.as_ref().map_or(0, address);
        let half = |k: usize| u64::from_ne_bytes(std::array::from_fn(|byte| beta[8 * k + byte]));
        let (by, count, stride) = (self.by as u64, self.count as u64, self.stride as u64);
        [bias, address(&self.y), by, count, stride, 0, half(0), half(1)]
    }
}

impl Arguments<'_> {
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(super) fn check(&self) {
        let Arguments { types, a, x, y, .. } = self;
        let [of_a, size] = [types.0, types.1].map(Dtype::bytes);
        for (name, operand, size) in [("A", a, of_a), ("X", x, size), ("Y", y, size)] {
            assert!(operand.inside(size), "{name} does not lie in its block");
        }
        let ([batch, m, n], rhs) = (a.dim, x.dim[2]);
        let shapes = x.dim == [batch, n, rhs] && y.dim == [batch, m, rhs];
        assert!(shapes, "operands of shapes that do not fit");
    }

    /// The same product with the rows of A and Y in the other order, where those of A descend in memory.
    pub(crate) fn with_rows_ascending(&self) -> Self {
        let last = self.a.dim[1].saturating_sub(1) as isize;
        let turned = |of: &Operand<'_>| of.strides[1].wrapping_neg();
        match self.a.strides[1] < 0 {
            false => *self,
            true => {
                let [a, y] = [self.a, self.y].map(|of| {
                    let first = of.first.wrapping_add_signed(last * of.strides[1]);
                    let [batch, _, columns] = of.strides;
                    Operand { first, strides: [batch, turned(&of), columns], ..of }
                });
                Arguments { a, y, ..*self }
            }
        }
    }

    /// Those of one column of one entry.
    pub(crate) fn column(&self, b: usize, c: usize) -> Self {
        let (x, y) = (self.x.entry(b, c, 1), self.y.entry(b, c, 1));
        Arguments { a: self.a.entry(b, 0, self.a.dim[2]), x, y, ..*self }
    }
}

/// What a launch of an elementwise step is given; see `vector.k` of gemv_gpu for the signature.
pub(crate) struct VectorArguments<'a, T: Element> {
    pub(crate) x: Option<Operand<'a>>,
    pub(crate) z: Option<Operand<'a>>,
    pub(crate) y: Operand<'a>,
    /// Where the factor's number is, or its numerator.
    pub(crate) s: Option<Operand<'a>>,
    /// Where its denominator is.
    pub(crate) t: Option<Operand<'a>>,
    pub(crate) alpha: T::Acc,
    pub(crate) negate: bool,
}

impl<T: Element> VectorArguments<'_, T> {
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(super) fn check(&self) {
        let VectorArguments { x, z, y, s, t, .. } = self;
        let operands = [("x", x), ("z", z), ("the factor", s), ("the denominator", t)];
        let given = operands.into_iter().filter_map(|(name, of)| Some((name, of.as_ref()?)));
        for (name, operand) in given.chain([("y", y)]) {
            assert!(operand.inside(size_of::<T>()), "{name} does not lie in its block");
        }
        assert!([x, z].into_iter().flatten().all(|of| of.dim == y.dim), "other shapes than y's");
        assert!([s, t].into_iter().flatten().all(|of| of.dim == [1; 3]), "a factor is one number");
    }

    /// As the arguments of a dot product.
    ///
    /// # Panics
    /// As [`check`](Self::check).
    fn check_dot(&self) {
        let VectorArguments { x, z, y, .. } = self;
        let (Some(x), Some(z)) = (x, z) else { panic!("a dot product has two operands") };
        let inside = [x, z, y].into_iter().all(|of| of.inside(size_of::<T>()));
        assert!(inside && x.dim == z.dim && y.dim == [1; 3], "not a dot product's operands");
    }
}

/// A factor as the kernels have it: where its numbers are, or its numerators and denominators, with the shape of y; the
/// number, and whether its negative is meant.
pub(crate) type Numbers<'a, N> = ([Option<Operand<'a>>; 2], N, bool);

/// What a launch of `elementwise.k` of gemv_gpu is given; see there for the signature.
pub(crate) struct ElementwiseArguments<'a, T: Element> {
    pub(crate) x: Option<Operand<'a>>,
    pub(crate) y: Operand<'a>,
    pub(crate) factors: [Numbers<'a, T::Acc>; 2],
}

impl Gpu {
    /// A planned launch of this function.
    ///
    /// # Errors
    /// If its grid is more than the driver takes.
    pub(crate) fn launch_of(&self, function: Arc<Function>, planned: &Planned) -> Result<Launch> {
        let grid = planned.grid.map(|g| u32::try_from(g).unwrap_or(u32::MAX));
        // Beyond these the driver says no more than "invalid value".
        if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Err(Error::Device {
                device: self.id().into(),
                call: "cuLaunchKernel",
                reason: format!("{} asks for a grid of {:?} blocks", function.name, planned.grid),
            });
        }
        let early = planned.pdl_wait && function.pdl_waits;
        let Planned { block, shared, parts, boxes, .. } = *planned;
        Ok(Launch { function, grid, block, shared, early, parts, boxes, at_places: None })
    }

    /// Queues one launch of a kernel of this signature; of `Gemv`, for one column of one entry.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or the scratch blocks are smaller than the bytes of
    /// workspace and counters in `scratch`.
    pub(crate) fn launch(
        &self,
        launch: &Launch,
        signature: Signature,
        arguments: &Arguments<'_>,
        scratch: (usize, usize),
    ) -> Result<()> {
        arguments.check();
        let Arguments { a, x, y, alpha, beta, conj, workspace, counters, epilogue, .. } = arguments;
        assert!(
            scratch.0 <= workspace.bytes && scratch.1 <= counters.bytes,
            "scratch memory is too small"
        );
        let bias = epilogue.and_then(|of| of.bias).map(|bias| bias.block);
        let memory = || {
            let blocks = [a.block, x.block, y.block, *workspace, *counters].into_iter();
            blocks.chain(bias).map(Block::keep).collect()
        };
        let with_beta = epilogue.map(|of| of.bytes(arguments.types.1.bytes(), beta.bytes()));
        let (alpha, beta) = (alpha.bytes(), beta.bytes());
        let beta = with_beta.as_ref().map_or_else(|| at(beta), at);
        let [batch, m, n, rhs] = [a.dim[0], a.dim[1], a.dim[2], x.dim[2]].map(|d| d as u64);
        let conj = u32::from(*conj);
        let map = match launch.boxes {
            None => None,
            // Of a matrix that is not read there is nothing to say: its address may be any, and the driver refuses no columns.
            _ if arguments.alpha.is_zero() || n == 0 => Some(TensorMap::default()),
            Some(boxes) => {
                let bytes = arguments.types.0.bytes();
                let address = a.block.at + (a.first * bytes) as u64;
                let [_, rows, columns] = a.strides.map(|s| s as i64 * bytes as i64);
                let (dim, steps) = ([a.dim[1], a.dim[2]], [rows, columns]);
                Some(self.tensor_map(address, dim, steps, bytes as u32, boxes)?)
            }
        };
        let [a0, x0, y0] = [a, x, y].map(|o| o.first as u64);
        let [sa, sx, sy] = [a, x, y].map(|o| o.strides.map(|s| s as i64));
        if signature == Signature::Gemv {
            assert!(batch == 1 && rhs == 1, "one column of one entry");
            let values = [
                at(&m),
                at(&n),
                at(&a.block.at),
                at(&a0),
                at(&sa[1]),
                at(&sa[2]),
                at(&x.block.at),
                at(&x0),
                at(&sx[1]),
                at(&y.block.at),
                at(&y0),
                at(&sy[1]),
                at(alpha),
                beta,
                at(&conj),
                at(&workspace.at),
                at(&counters.at),
            ];
            if self.recording() {
                let element = arguments.types.0.bytes();
                let address = a.block.at + (a.first * element) as u64;
                let [_, rows, columns] = a.dim;
                let strides = [a.strides[1], a.strides[2]];
                self.end_chain(Lines::of(address, [rows, columns], strides, element))?;
            }
            let size = arguments.types.1.bytes();
            let whole = y.strides[1] == 1 || m == 1;
            let written = whole.then(|| (y.block.at + (y.first * size) as u64, m as usize * size));
            // SAFETY: these are the arguments of a kernel of the signature `Gemv`, which the caller's choice
            // has; operands and scratch memory were checked above.
            return unsafe { self.queue_launch(launch, values, memory, written) };
        }
        let values = [
            at(&m),
            at(&n),
            at(&rhs),
            at(&batch),
            at(&a.block.at),
            at(&a0),
            at(&sa[1]),
            at(&sa[2]),
            at(&sa[0]),
            at(&x.block.at),
            at(&x0),
            at(&sx[1]),
            at(&sx[2]),
            at(&sx[0]),
            at(&y.block.at),
            at(&y0),
            at(&sy[1]),
            at(&sy[2]),
            at(&sy[0]),
            at(alpha),
            beta,
            at(&conj),
            at(&workspace.at),
            at(&counters.at),
            // The driver reads as many as the entry point has.
            map.as_ref().map_or_else(|| at(&launch.parts), at),
        ];
        // SAFETY: these are the arguments of a kernel of the signature `Gemm`, which the caller's choice
        // has; operands and scratch memory were checked above.
        unsafe { self.queue_launch(launch, values, memory, None) }
    }

    /// Queues one elementwise step.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(crate) fn launch_vector<T: Element>(
        &self,
        launch: &Launch,
        arguments: &VectorArguments<'_, T>,
    ) -> Result<()> {
        arguments.check();
        let VectorArguments { x, z, y, s, t, alpha, negate } = arguments;
        let none = Operand { block: y.block, first: 0, dim: y.dim, strides: [0; 3] };
        let (x, z) = (x.unwrap_or(none), z.unwrap_or(none));
        let of = u32::from(s.is_some()) + u32::from(t.is_some());
        let (s, t) = (s.unwrap_or(none), t.unwrap_or(none));
        let memory = || [x.block, z.block, y.block, s.block, t.block].map(Block::keep).to_vec();
        let [ni, nj, nk] = y.dim.map(|d| d as u64);
        let first = [x, z, *y, s, t].map(|o| o.first as u64);
        let [xs, zs, ys] = [x, z, *y].map(|o| o.strides.map(|s| s as i64));
        let (number, negate) = (Number::new(*alpha), u32::from(*negate));
        let values = [
            at(&ni),
            at(&nj),
            at(&nk),
            at(&x.block.at),
            at(&first[0]),
            at(&xs[0]),
            at(&xs[1]),
            at(&xs[2]),
            at(&z.block.at),
            at(&first[1]),
            at(&zs[0]),
            at(&zs[1]),
            at(&zs[2]),
            at(&y.block.at),
            at(&first[2]),
            at(&ys[0]),
            at(&ys[1]),
            at(&ys[2]),
            at(&s.block.at),
            at(&first[3]),
            at(&t.block.at),
            at(&first[4]),
            at(number.bytes()),
            at(&of),
            at(&negate),
        ];
        // SAFETY: these are the arguments of every entry point of `vector.k`, of which `launch` is one;
        // operands were checked above, and what is not given is not read.
        unsafe { self.queue_launch(launch, values, memory, None) }
    }

    /// Queues one step of `elementwise.k`.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or its shape is not y's.
    pub(crate) fn launch_elementwise<T: Element>(
        &self,
        launch: &Launch,
        arguments: &ElementwiseArguments<'_, T>,
    ) -> Result<()> {
        let ElementwiseArguments { x, y, factors: [alpha, beta] } = arguments;
        let given = [*x, Some(*y), alpha.0[0], alpha.0[1], beta.0[0], beta.0[1]];
        for operand in given.iter().flatten() {
            assert!(operand.inside(size_of::<T>()), "an operand does not lie in its block");
            assert!(operand.dim == y.dim, "another shape than y's");
        }
        let none = Operand { block: y.block, first: 0, dim: y.dim, strides: [0; 3] };
        let operands = given.map(|of| of.unwrap_or(none));
        let memory = || operands.map(|of| of.block.keep()).to_vec();
        let dim = y.dim.map(|d| d as u64);
        let first = operands.map(|of| of.first as u64);
        let strides = operands.map(|of| of.strides.map(|stride| stride as i64));
        let numbers = [alpha, beta].map(|of| Number::new(of.1));
        let [of_alpha, of_beta] = [alpha, beta].map(|(places, _, negate)| {
            places.iter().flatten().count() as u32 | u32::from(*negate) << 2
        });
        let of = of_alpha | of_beta << 4;
        // x, y, and of each factor s, t and the number.
        let operand = |k: usize| {
            let [i, j, k_] = &strides[k];
            [at(&operands[k].block.at), at(&first[k]), at(i), at(j), at(k_)]
        };
        let values: [_; 36] = {
            let shape = dim.iter().map(at);
            let arrays = [0, 1, 2, 3].into_iter().flat_map(operand);
            let more = [4, 5].into_iter().flat_map(operand);
            let all = shape.chain(arrays).chain([at(numbers[0].bytes())]).chain(more);
            let mut all = all.chain([at(numbers[1].bytes()), at(&of)]);
            std::array::from_fn(|_| all.next().expect("3 + 4 * 5 + 1 + 2 * 5 + 2"))
        };
        // SAFETY: these are the arguments of every entry point of `elementwise.k`, of which `launch` is one;
        // operands were checked above, and what is not given is not read.
        unsafe { self.queue_launch(launch, values, memory, None) }
    }

    /// While steps are recorded to be kept: lets one join those before it, in a launch that comes when
    /// something else is queued. False where it has to be queued by itself.
    ///
    /// The function is `vector_chain` for elements of `T`. Of a dot product, the arguments have x and z.
    ///
    /// # Panics
    /// If an operand does not lie in its block.
    pub(crate) fn join<T: Element>(
        &self,
        function: &Arc<Function>,
        link: Link,
        arguments: &VectorArguments<'_, T>,
    ) -> Result<bool> {
        if !self.recording() || matches!(lock(&self.tape).mode, Mode::Stream) {
            return Ok(false);
        }
        match link {
            Link::Step(_) => arguments.check(),
            Link::Dot { .. } => arguments.check_dot(),
        }
        let element = size_of::<T>();
        let VectorArguments { x, z, y, s, t, alpha, negate } = arguments;
        let place = |of: &Operand<'_>| Place {
            address: of.block.at + (of.first * element) as u64,
            dim: of.dim,
            stride: of.strides[2],
            keep: of.block.keep(),
        };
        let given = Given {
            y: place(y),
            others: [x, z, s, t].map(|of| of.as_ref().map(place)),
            number: words(Number::new(*alpha).bytes()),
            negate: *negate,
        };
        let most = self.shared.1.saturating_sub(OWN);
        for _ in 0..2 {
            let mut tape = lock(&self.tape);
            let (of, chain) =
                tape.chain.get_or_insert_with(|| (function.clone(), Chain::new(element)));
            if Arc::ptr_eq(of, function) && chain.add(link, &given, most) {
                return Ok(true);
            }
            drop(tape);
            // Into the next one, if that can have it.
            self.end_chain(None)?;
        }
        Ok(false)
    }

    /// Queues the launch of the steps that wait for others. It prefetches of what the launch behind reads.
    pub(super) fn end_chain(&self, behind: Option<Lines>) -> Result<()> {
        let Some((function, chain)) = lock(&self.tape).chain.take() else { return Ok(()) };
        if chain.is_empty() {
            return Ok(());
        }
        let pieces = behind.map(|lines| lines.pieces(self.cache)).unwrap_or_default();
        let blocks = if pieces.count > 0 { 1 + self.units } else { 1 };
        let planned = chain_launch(blocks, chain.shared);
        let launch = self.launch_of(function, &planned)?;
        let argument = Argument::new(&chain, pieces);
        // SAFETY: this is the one argument of `vector_chain`. Every operand lies in its block, which was
        // looked at when it joined, and has a place of its own in shared memory, of which the launch has
        // as many bytes. What is prefetched is not read.
        unsafe { self.queue_launch(&launch, [at(&argument)], || chain.memory.clone(), None) }
    }

    /// Takes note of a launch while launches are recorded, and of what it writes. Whether it is to be queued.
    ///
    /// # Safety
    /// The values are those of the launch's arguments, alive.
    unsafe fn taped(
        &self,
        launch: &Launch,
        values: &[Value],
        memory: impl Fn() -> Vec<Keep>,
        written: Option<(sys::CUdeviceptr, usize)>,
    ) -> bool {
        let mut tape = lock(&self.tape);
        if matches!(tape.mode, Mode::Stream) {
            return true;
        }
        let mut arguments = Vec::new();
        for value in values {
            // SAFETY: the caller's: the value is alive, and has as many initialised bytes.
            arguments.extend(unsafe {
                std::slice::from_raw_parts(value.at.cast::<u8>().cast_const(), value.bytes)
            });
        }
        match &mut tape.mode {
            Mode::Stream => true,
            Mode::List { gpu, list } => {
                let sizes = values.iter().map(|value| value.bytes).collect();
                let taped = Taped::new(launch, (arguments, sizes), memory(), written);
                lock(list).push(Work::Launch(*gpu, taped));
                false
            }
        }
    }

    /// Queues a launch with pointers to its arguments' values. While launches are recorded or captured, the record has
    /// it, and keeps the memory that it works on. `written` is all that it writes, if a record may want to know.
    ///
    /// # Safety
    /// They are those of the kernel's signature (gemv_gpu); every operand lies in its block, and the
    /// scratch memory is what the kernel's plan asks for.
    unsafe fn queue_launch<const N: usize>(
        &self,
        launch: &Launch,
        values: [Value; N],
        memory: impl Fn() -> Vec<Keep>,
        written: Option<(sys::CUdeviceptr, usize)>,
    ) -> Result<()> {
        if self.recording() {
            self.end_chain(None)?;
            // SAFETY: the caller's.
            if !unsafe { self.taped(launch, &values, &memory, written) } {
                return Ok(());
            }
        }
        let captured = self.captured();
        if captured {
            self.keep_in_graph(memory(), &launch.function)?;
        }
        let mut values = values.map(|value| value.at);
        let Launch { function, grid, block, shared, early, .. } = launch;
        // In a graph of another library, what is ahead need not be a launch.
        let shape = (*grid, *block, *shared);
        // SAFETY: the caller's.
        unsafe { self.queue_function(function, shape, *early && !captured, &mut values) }
    }

    /// Queues a function, which may begin before the launch ahead has ended if it is `early`.
    ///
    /// # Safety
    /// As [`queue_launch`](Self::queue_launch): the values are the function's arguments, alive.
    pub(super) unsafe fn queue_function(
        &self,
        function: &Function,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        early: bool,
        values: &mut [*mut c_void],
    ) -> Result<()> {
        let function = function.inner.cu_function();
        if let Some(queue) = self.launch_ex.filter(|_| early) {
            // It may begin before the launch ahead has ended, for whose results it waits by itself
            // (CUDA C++ Programming Guide, "Programmatic Dependent Launch").
            let config = LaunchConfig {
                grid,
                block,
                shared,
                stream: self.stream.cu_stream(),
                attributes: &LaunchAttribute::EARLY,
                count: 1,
            };
            // SAFETY: as below; and the kernel was compiled to wait.
            let code =
                unsafe { queue(&config, function, values.as_mut_ptr(), std::ptr::null_mut()) };
            return code.result().map_err(|e| self.failed("cuLaunchKernelEx", e));
        }
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the function lives as long as its module, which it owns. The caller gives the arguments
        // of its signature, and by its contract the kernel touches the elements of A, X and Y, and as
        // much scratch memory as its plan says. The driver copies the values before it returns.
        unsafe {
            let stream = self.stream.cu_stream();
            result::launch_kernel(function, (gx, gy, gz), (bx, by, bz), shared, stream, values)
        }
        .map_err(|e| self.failed("cuLaunchKernel", e))
    }
}

/// The bytes of a number, as words.
fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let word = |k| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 * k + byte]));
    std::array::from_fn(word)
}

/// A kernel's argument: where its value lies, and how many bytes it has, all of them initialised.
#[derive(Clone, Copy)]
struct Value {
    at: *mut c_void,
    bytes: usize,
}

/// A kernel's argument, as the driver takes it: a number without padding.
fn at<V>(value: &V) -> Value {
    Value { at: std::ptr::from_ref(value).cast_mut().cast(), bytes: size_of::<V>() }
}
