//! Elementwise steps: lines shared by several threads.

use gemv_core::ndarray::{ArrayView1, ArrayViewMut1, Ix3};
use gemv_core::{Accumulator, Any, Element, Family, Memory, Scalar, Step, VectorJob, Window};

use crate::run::{Work, sharing};
use crate::simd::{CpuElement, Isa, Line, Lines, Neighbours, on_host};

/// Bytes of y that are worth a task of their own.
const TASK: usize = 128 << 10;

/// Computes one step; `read` are the elements of a block, `block` those of y's.
pub(crate) fn run<'a, T: CpuElement>(
    isa: Isa,
    job: &VectorJob<'a, T, ()>,
    read: impl Fn(&'a dyn Memory) -> &'a [T],
    block: &mut [T],
) {
    if !job.is_plain() {
        return elementwise(isa, job, read, block);
    }
    let (step, y) = (job.step, &job.y);
    let alpha = job.alpha.value(|memory, at| read(memory)[at]);
    let [n0, n1, len] = [0, 1, 2].map(|axis| y.dim[axis]);
    for (i, j) in (0..n0).flat_map(|i| (0..n1).map(move |j| (i, j))) {
        let line = |window: &Window<&'a dyn Memory, Ix3>| {
            let first = window.place([i, j, 0]);
            Line { all: read(window.memory), first, stride: window.stride(2) }
        };
        let (x, z) = (job.x.as_ref().map(line), job.z.as_ref().map(line));
        let first = y.place([i, j, 0]);
        if y.stride(2) != 1 || len * size_of::<T>() < 2 * TASK {
            Lines { step, alpha, x, z }.strided(isa, block, first, y.stride(2), len);
            continue;
        }
        share(isa, (step, alpha), x, z, &mut block[first..][..len]);
    }
}

/// Entries that are computed at a time, from copies where they are no neighbours.
const PART: usize = 256;

/// A step that takes y for x, or whose factor is an array.
fn elementwise<'a, T: CpuElement>(
    isa: Isa,
    job: &VectorJob<'a, T, ()>,
    read: impl Fn(&'a dyn Memory) -> &'a [T],
    block: &mut [T],
) {
    let y = &job.y;
    let array = |window: Window<&'a dyn Memory, Ix3>| {
        let strides = [0, 1, 2].map(|axis| window.stride(axis));
        Array { all: read(window.memory), first: window.first, strides }
    };
    let factor = |scalar: &Scalar<'a, T>| match *scalar {
        Scalar::Number(number) => Numbers::One(number),
        _ if scalar.is_uniform() => Numbers::One(scalar.value(|memory, at| read(memory)[at])),
        Scalar::Device { of, negated } => Numbers::Each { of: array(of), by: None, negated },
        Scalar::Quotient { of, by, negated } => {
            Numbers::Each { of: array(of), by: Some(array(by)), negated }
        }
    };
    let [n0, n1, len] = [0, 1, 2].map(|axis| y.dim[axis]);
    let [apart, near] = [1, 2].map(|axis| y.stride(axis));
    let of = Rows {
        isa,
        step: job.step,
        x: job.x.map(array),
        factors: [factor(&job.alpha), factor(&job.beta)],
        len,
    };
    for i in 0..n0 {
        let (of, first) = (of.at(i, 0, 0), y.place([i, 0, 0]));
        let whole = n0 == 1 && near == 1 && (n1 == 1 || apart >= len as isize);
        let task = TASK / size_of::<T>();
        if whole && n1 * len >= 2 * task {
            let apart = if n1 == 1 { len } else { apart as usize };
            let y = &mut block[first..][..(n1 - 1) * apart + len];
            let tasks = gemv_threads::count().min(n1 * len / task);
            // A row alone is cut into pieces.
            match n1 {
                1 => sharing(Pieces { of, y }, tasks, task),
                _ => sharing(Several { of, apart, rows: n1, y }, tasks, task.div_ceil(len)),
            }
            continue;
        }
        let mut room = Room::new();
        match whole && n1 > 1 {
            true => of.rows(&mut block[first..], apart as usize, n1, &mut room),
            false => (0..n1).for_each(|j| {
                let first = first.wrapping_add_signed(apart * j as isize);
                of.at(0, j, 0).row(block, first, near, len, &mut room);
            }),
        }
    }
}

/// Copies of a part.
struct Room<T: CpuElement> {
    factors: [[T::Acc; PART]; 2],
    x: [T; PART],
    y: [T; PART],
}

impl<T: CpuElement> Room<T> {
    fn new() -> Self {
        let none = T::default();
        Room { factors: [[none.widen(); PART]; 2], x: [none; PART], y: [none; PART] }
    }
}

/// An operand of three axes.
#[derive(Clone, Copy)]
struct Array<'a, T> {
    all: &'a [T],
    first: usize,
    strides: [isize; 3],
}

impl<'a, T: Copy + Default> Array<'a, T> {
    /// From this entry on.
    fn at(self, i: usize, j: usize, k: usize) -> Self {
        let [a, b, c] = self.strides;
        let far = a * i as isize + b * j as isize + c * k as isize;
        Array { first: self.first.wrapping_add_signed(far), ..self }
    }

    fn line(&self) -> Line<'a, T> {
        Line { all: self.all, first: self.first, stride: self.strides[2] }
    }
}

/// A factor of each entry.
#[derive(Clone, Copy)]
enum Numbers<'a, T: CpuElement> {
    One(T::Acc),
    Each { of: Array<'a, T>, by: Option<Array<'a, T>>, negated: bool },
}

impl<T: CpuElement> Numbers<'_, T> {
    fn at(self, i: usize, j: usize, k: usize) -> Self {
        match self {
            Numbers::Each { of, by, negated } => {
                Numbers::Each { of: of.at(i, j, k), by: by.map(|by| by.at(i, j, k)), negated }
            }
            one => one,
        }
    }

    /// Those of the first entries of a row.
    fn fill(&self, to: &mut [T::Acc]) {
        match self {
            Numbers::One(number) => to.fill(*number),
            Numbers::Each { of, by, negated } => {
                let (of, by) = (of.line(), by.as_ref().map(Array::line));
                for (i, to) in to.iter_mut().enumerate() {
                    let number = of.entry(i).widen();
                    let number = by.as_ref().map_or(number, |by| number.div(by.entry(i).widen()));
                    *to = if *negated { number.neg() } else { number };
                }
            }
        }
    }
}

/// What rows of y are computed from, from an entry on.
#[derive(Clone, Copy)]
struct Rows<'a, T: CpuElement> {
    isa: Isa,
    step: Step,
    x: Option<Array<'a, T>>,
    factors: [Numbers<'a, T>; 2],
    /// Entries of a row.
    len: usize,
}

impl<T: CpuElement> Rows<'_, T> {
    fn at(self, i: usize, j: usize, k: usize) -> Self {
        let (x, factors) = (self.x.map(|x| x.at(i, j, k)), self.factors.map(|of| of.at(i, j, k)));
        Rows { x, factors, ..self }
    }

    /// Computes so many entries of the first row, which lie `stride` apart in `y` from `first` on.
    fn row(&self, y: &mut [T], first: usize, stride: isize, len: usize, room: &mut Room<T>) {
        let Room { factors: numbers, x: copy_x, y: copy_y } = room;
        for from in (0..len).step_by(PART) {
            let (of, count) = (self.at(0, 0, from), PART.min(len - from));
            for (of, to) in of.factors.iter().zip(&mut *numbers).take(self.step.factors()) {
                // One number is the same in every part.
                if from == 0 || !matches!(of, Numbers::One(_)) {
                    of.fill(&mut to[..count]);
                }
            }
            let factors = [&numbers[0][..count], &numbers[1][..count]];
            let x = of.x.map(|x| x.line());
            let x = x.map(|x| {
                x.slice(count).unwrap_or_else(|| {
                    copy_x[..count].iter_mut().enumerate().for_each(|(i, to)| *to = x.entry(i));
                    &copy_x[..count]
                })
            });
            let place = |i: usize| first.wrapping_add_signed(stride * (from + i) as isize);
            if stride == 1 {
                let y = &mut y[place(0)..][..count];
                Neighbours { x, factors, y }.run(self.isa, self.step);
                continue;
            }
            let part = &mut copy_y[..count];
            part.iter_mut().enumerate().for_each(|(i, to)| *to = y[place(i)]);
            Neighbours { x, factors, y: part }.run(self.isa, self.step);
            copy_y[..count].iter().enumerate().for_each(|(i, from)| y[place(i)] = *from);
        }
    }

    /// Computes so many rows, whose entries are neighbours in `y`.
    fn rows(&self, y: &mut [T], apart: usize, rows: usize, room: &mut Room<T>) {
        let len = self.len;
        let same = |of: &Numbers<'_, T>| match of {
            Numbers::One(_) => true,
            Numbers::Each { of, by, .. } => {
                of.strides[1] == 0 && by.is_none_or(|by| by.strides[1] == 0)
            }
        };
        let together = |x: Array<'_, T>| x.strides[1..] == [len as isize, 1];
        // Short rows without gaps, of the same factors: several are one long row, whose factors are copied once.
        if apart != len
            || 2 * len > PART
            || !self.x.is_none_or(together)
            || !self.factors.iter().all(same)
        {
            return (0..rows).for_each(|j| self.at(0, j, 0).row(y, j * apart, 1, len, room));
        }
        for (of, to) in self.factors.iter().zip(&mut room.factors).take(self.step.factors()) {
            of.fill(&mut to[..len]);
            (len..PART).for_each(|i| to[i] = to[i - len]);
        }
        let (all, part) = (rows * len, PART / len * len);
        for from in (0..all).step_by(part) {
            let count = part.min(all - from);
            let factors = [&room.factors[0][..count], &room.factors[1][..count]];
            let x = self.x.map(|x| &x.all[x.first + from..][..count]);
            Neighbours { x, factors, y: &mut y[from..][..count] }.run(self.isa, self.step);
        }
    }
}

/// Pieces of a row whose entries are neighbours.
struct Pieces<'a, T: CpuElement> {
    of: Rows<'a, T>,
    y: &'a mut [T],
}

impl<T: CpuElement> Work for Pieces<'_, T> {
    fn len(&self) -> usize {
        self.y.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let at = at.next_multiple_of(UNIT).min(self.y.len());
        let (y, rest) = self.y.split_at_mut(at);
        (Pieces { of: self.of, y }, Pieces { of: self.of.at(0, 0, at), y: rest })
    }

    fn run(&mut self) {
        let len = self.y.len();
        self.of.row(self.y, 0, 1, len, &mut Room::new());
    }
}

/// Rows whose entries are neighbours.
struct Several<'a, T: CpuElement> {
    of: Rows<'a, T>,
    /// From one row to the next.
    apart: usize,
    rows: usize,
    y: &'a mut [T],
}

impl<T: CpuElement> Work for Several<'_, T> {
    fn len(&self) -> usize {
        self.rows
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Several { of, apart, rows, y } = self;
        let (y, rest) = y.split_at_mut((at * apart).min(y.len()));
        let after = of.at(0, at, 0);
        (Several { of, apart, rows: at, y }, Several { of: after, apart, rows: rows - at, y: rest })
    }

    fn run(&mut self) {
        self.of.rows(self.y, self.apart, self.rows, &mut Room::new());
    }
}

/// One elementwise step of vectors that lie in the host's memory, for [`Cpu::step`](crate::Cpu::step).
#[derive(Debug)]
pub struct HostStep<'a, T: Element> {
    /// What is computed: one of [`Step::PLAIN`].
    pub step: Step,
    /// The factor; steps without one ignore it.
    pub alpha: T::Acc,
    /// The first operand, of a step that reads one or two.
    pub x: Option<ArrayView1<'a, T>>,
    /// The second operand, of a step that reads two.
    pub z: Option<ArrayView1<'a, T>>,
    /// What is written.
    pub y: ArrayViewMut1<'a, T>,
}

/// A [`HostStep`] of each element type.
pub(crate) enum HostSteps {}

impl Family for HostSteps {
    type Of<'a, T: Element> = HostStep<'a, T>;
}

pub(crate) type AnyHostStep<'a> = Any<'a, HostSteps>;

impl<T: Element> HostStep<'_, T> {
    /// Why it is no step: it is not plain, an operand is missing or has another length.
    pub(crate) fn wrong(&self) -> Option<(&'static str, String)> {
        let Self { step, x, z, y, .. } = self;
        if !Step::PLAIN.contains(step) {
            return Some(("y", format!("is resident in a step that is {step:?}")));
        }
        for (name, of, least) in [("x", x, 1), ("z", z, 2)] {
            match of {
                None if step.operands() >= least => {
                    return Some((name, format!("is missing: {step:?} reads it")));
                }
                Some(of) if of.len() != y.len() => {
                    return Some((name, format!("has {} entries, and y {}", of.len(), y.len())));
                }
                _ => {}
            }
        }
        None
    }
}

/// Computes one step on the host.
pub(crate) fn run_on_host<'a, T: CpuElement>(isa: Isa, of: HostStep<'a, T>) {
    let HostStep { step, alpha, x, z, mut y } = of;
    if y.len() * size_of::<T>() >= 2 * TASK
        && let Some(y) = y.as_slice_mut()
    {
        let slice = |of: &Option<ArrayView1<'a, T>>| of.as_ref().map(|of| of.to_slice());
        let line = |all| Line { all, first: 0, stride: 1 };
        let (x, z) = (slice(&x), slice(&z));
        if x != Some(None) && z != Some(None) {
            return share(isa, (step, alpha), x.flatten().map(line), z.flatten().map(line), y);
        }
    }
    on_host(isa, (step, alpha), x, z, y);
}

/// Cuts a line of neighbours in y into tasks.
fn share<T: CpuElement>(
    isa: Isa,
    (step, alpha): (Step, T::Acc),
    x: Option<Line<'_, T>>,
    z: Option<Line<'_, T>>,
    y: &mut [T],
) {
    let task = TASK / size_of::<T>();
    let tasks = gemv_threads::count().min(y.len() / task);
    sharing(Entries { isa, step, alpha, x, z, y }, tasks, task);
}

/// Entries at whose multiples a line is cut, so that vectors begin where those of the whole line do.
const UNIT: usize = 64;

/// Neighbours in y, and what they are computed from.
struct Entries<'a, T: CpuElement> {
    isa: Isa,
    step: Step,
    alpha: T::Acc,
    x: Option<Line<'a, T>>,
    z: Option<Line<'a, T>>,
    y: &'a mut [T],
}

impl<T: CpuElement> Work for Entries<'_, T> {
    fn len(&self) -> usize {
        self.y.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Entries { x, z, .. } = self;
        let at = at.next_multiple_of(UNIT).min(self.y.len());
        let (y, rest) = self.y.split_at_mut(at);
        let [after_x, after_z] = [x, z].map(|line| line.map(|line| line.from(at)));
        (Entries { y, ..self }, Entries { x: after_x, z: after_z, y: rest, ..self })
    }

    fn run(&mut self) {
        let Entries { isa, step, alpha, x, z, .. } = *self;
        Lines { step, alpha, x, z }.strided(isa, self.y, 0, 1, self.y.len());
    }
}
