//! Operands in memory: the same numbers in every layout, poison in the gaps.

use gemv::ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, Slice};
use gemv::unstable::{Desc, Layout};
use gemv::{Device, DeviceMatrix, DeviceVector, Element};

use super::{nan, verify};

/// Memory that starts on a 64-byte boundary, with an offset of some elements: poison (NaN)
/// wherever no operand lies.
pub struct Buffer<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Element> Buffer<T> {
    pub fn new(offset: usize, len: usize, fill: T) -> Buffer<T> {
        let size = size_of::<T>();
        let data = vec![fill; len + offset + 128 / size];
        // In elements: a Vec is aligned to its type at least, whose size divides 64.
        let start = (data.as_ptr() as usize).wrapping_neg() % 64 / size + offset;
        Buffer { data, start, len }
    }

    pub fn get(&self) -> &[T] {
        &self.data[self.start..][..self.len]
    }

    pub fn get_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..][..self.len]
    }
}

/// How the logical values depend on the indices: the same numbers can then be held by a view that
/// repeats elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Repeat {
    /// Every element is its own.
    None,
    /// All rows are equal (row stride 0).
    Rows,
    /// All columns are equal (column stride 0).
    Columns,
    /// All elements are equal (both strides 0).
    Both,
    /// `A[i][j] = h[i + j]`: overlapping windows (both strides 1).
    Hankel,
}

/// One way to hold a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    pub name: &'static str,
    /// The parent is stored as its transpose.
    pub transposed: bool,
    /// Steps of the view in its parent: rows, columns; negative for reversed.
    pub steps: (isize, isize),
    /// Rows and columns of the parent before and after the view.
    pub pad: (usize, usize),
    pub repeat: Repeat,
    /// Elements between a 64-byte boundary and the parent.
    pub offset: usize,
}

const PLAIN: Variant = Variant {
    name: "c",
    transposed: false,
    steps: (1, 1),
    pad: (0, 0),
    repeat: Repeat::None,
    offset: 0,
};

const F: Variant = Variant { name: "f", transposed: true, ..PLAIN };

/// Every layout there is a word for.
pub const VARIANTS: [Variant; 29] = [
    PLAIN,
    F,
    Variant { name: "window", pad: (1, 19), offset: 3, ..PLAIN },
    Variant { name: "window-f", pad: (21, 1), offset: 5, ..F },
    Variant { name: "columns2", steps: (1, 2), ..PLAIN },
    Variant { name: "columns3", steps: (1, 3), pad: (0, 1), ..PLAIN },
    Variant { name: "rows2", steps: (2, 1), ..PLAIN },
    Variant { name: "rows3", steps: (3, 1), pad: (1, 5), offset: 1, ..PLAIN },
    Variant { name: "rows-1", steps: (-1, 1), ..PLAIN },
    Variant { name: "rows-2", steps: (-2, 1), pad: (0, 3), ..PLAIN },
    Variant { name: "columns-1", steps: (1, -1), ..PLAIN },
    Variant { name: "columns-2", steps: (1, -2), offset: 7, ..PLAIN },
    Variant { name: "columns-3", steps: (2, -3), ..PLAIN },
    Variant { name: "both-1", steps: (-1, -1), pad: (1, 1), ..PLAIN },
    Variant { name: "both2", steps: (2, 2), ..PLAIN },
    Variant { name: "f-columns2", steps: (1, 2), ..F },
    Variant { name: "f-columns-1", steps: (1, -1), pad: (2, 0), ..F },
    Variant { name: "f-columns-3", steps: (1, -3), offset: 9, ..F },
    Variant { name: "f-rows2", steps: (2, 1), ..F },
    Variant { name: "f-rows3", steps: (3, 1), offset: 2, ..F },
    Variant { name: "f-rows-1", steps: (-1, 1), ..F },
    Variant { name: "f-rows-2", steps: (-2, 1), pad: (1, 0), ..F },
    Variant { name: "f-both-3", steps: (-3, -3), ..F },
    Variant { name: "repeated-rows", repeat: Repeat::Rows, ..PLAIN },
    Variant { name: "repeated-rows-reversed", repeat: Repeat::Rows, steps: (1, -1), ..PLAIN },
    Variant { name: "repeated-columns", repeat: Repeat::Columns, ..F },
    Variant { name: "repeated-columns2", repeat: Repeat::Columns, steps: (2, 1), ..F },
    Variant { name: "repeated", repeat: Repeat::Both, ..PLAIN },
    Variant { name: "hankel", repeat: Repeat::Hankel, ..PLAIN },
];

/// Steps and length of one axis in its parent.
fn span(len: usize, step: isize, pad: usize) -> usize {
    2 * pad + if len == 0 { 0 } else { (len - 1) * step.unsigned_abs() + 1 }
}

impl Variant {
    pub fn at(self, offset: usize) -> Variant {
        Variant { offset, ..self }
    }

    /// Rows and columns of the parent, before it is transposed.
    fn parent(&self, m: usize, n: usize) -> (usize, usize) {
        let (m, n) = match self.repeat {
            Repeat::None => (m, n),
            Repeat::Rows => (m.min(1), n),
            Repeat::Columns => (m, n.min(1)),
            Repeat::Both => (m.min(1), n.min(1)),
            Repeat::Hankel => (1, if m * n == 0 { 0 } else { m + n - 1 }),
        };
        (span(m, self.steps.0, self.pad.0), span(n, self.steps.1, self.pad.1))
    }

    /// The problem that this variant poses, without making it.
    pub fn desc<T: Element>(&self, m: usize, n: usize) -> Desc {
        let (pm, pn) = self.parent(m, n);
        let unit = if self.transposed { (1, pm as isize) } else { (pn as isize, 1) };
        // As ndarray has them: a sliced axis of one entry has stride 0, an empty array only zeros.
        let of = |len: usize, unit: isize, step: isize, pad: usize| match len {
            _ if pm * pn == 0 => 0,
            0 | 1 if step != 1 || pad != 0 => 0,
            _ => unit * step,
        };
        let mut strides =
            (of(m, unit.0, self.steps.0, self.pad.0), of(n, unit.1, self.steps.1, self.pad.1));
        match self.repeat {
            Repeat::None => {}
            _ if m * n == 0 => strides = (0, 0),
            Repeat::Hankel => strides = (1, 1),
            Repeat::Rows => strides.0 = 0,
            Repeat::Columns => strides.1 = 0,
            Repeat::Both => strides = (0, 0),
        }
        // The first element's place in the parent: a negative step starts at the far end.
        let start = |len: usize, step: isize, pad: usize| {
            pad + if step < 0 && len > 0 { (len - 1) * step.unsigned_abs() } else { 0 }
        };
        let (r, c) = (start(m, self.steps.0, self.pad.0), start(n, self.steps.1, self.pad.1));
        let (r, c) = match self.repeat {
            Repeat::None | Repeat::Hankel => (r, c),
            Repeat::Rows => (self.pad.0, c),
            Repeat::Columns => (r, self.pad.1),
            Repeat::Both => self.pad,
        };
        let first = self.offset + r * unit.0 as usize + c * unit.1 as usize;
        Desc::new(T::DTYPE, m, n, strides, first * size_of::<T>())
    }

    /// Its layout class.
    pub fn layout<T: Element>(&self, m: usize, n: usize) -> Layout {
        self.desc::<T>(m, n).layout
    }

    /// Puts the values of `a` in memory.
    pub fn hold<T: Element>(self, a: &Array2<T>) -> Held<T> {
        let (m, n) = a.dim();
        let (pm, pn) = self.parent(m, n);
        let mut buffer = Buffer::new(self.offset, pm * pn, nan());
        let unit = if self.transposed { (1, pm) } else { (pn, 1) };
        let place = |len: usize, i: usize, step: isize, pad: usize| {
            pad + step.unsigned_abs() * if step < 0 { len - 1 - i } else { i }
        };
        let data = buffer.get_mut();
        let rows = if matches!(self.repeat, Repeat::Rows | Repeat::Both) { m.min(1) } else { m };
        let columns =
            if matches!(self.repeat, Repeat::Columns | Repeat::Both) { n.min(1) } else { n };
        for (i, row) in a.outer_iter().enumerate().take(rows) {
            let r = place(rows, i, self.steps.0, self.pad.0);
            for (j, &e) in row.iter().enumerate().take(columns) {
                if self.repeat == Repeat::Hankel {
                    data[i + j] = e;
                    continue;
                }
                let c = place(columns, j, self.steps.1, self.pad.1);
                data[r * unit.0 + c * unit.1] = e;
            }
        }
        Held { variant: self, dim: (m, n), buffer }
    }
}

/// A matrix in memory.
pub struct Held<T> {
    variant: Variant,
    dim: (usize, usize),
    buffer: Buffer<T>,
}

impl<T: Element> Held<T> {
    /// Whether it is held so; of one shape, this is the same memory.
    pub fn is(&self, variant: &Variant) -> bool {
        self.variant == *variant
    }

    fn parent(&self) -> ArrayView2<'_, T> {
        let (pm, pn) = self.variant.parent(self.dim.0, self.dim.1);
        let shape = if self.variant.transposed { (pn, pm) } else { (pm, pn) };
        ArrayView2::from_shape(shape, self.buffer.get()).expect("the parent's own shape")
    }

    /// The view under test.
    pub fn view(&self) -> ArrayView2<'_, T> {
        let ((m, n), v) = (self.dim, self.variant);
        if v.repeat != Repeat::None && m * n == 0 {
            return ArrayView2::from_shape((m, n), &[]).expect("empty");
        }
        if v.repeat == Repeat::Hankel {
            let strides = (m, n).strides((1, 1));
            return ArrayView2::from_shape(strides, self.buffer.get()).expect("windows of a row");
        }
        let mut view = self.parent();
        if v.transposed {
            view = view.reversed_axes();
        }
        for (axis, step, pad) in [(0, v.steps.0, v.pad.0), (1, v.steps.1, v.pad.1)] {
            if (step, pad) == (1, 0) {
                continue;
            }
            let end = view.len_of(Axis(axis)) - pad;
            let part = Slice::new(pad as isize, Some(end as isize), step);
            view.slice_axis_inplace(Axis(axis), part);
        }
        if v.repeat == Repeat::None {
            return view;
        }
        // A view cannot be broadcast for its buffer's lifetime through a temporary one; its
        // strides can be named instead.
        let first = view.first().map_or(0, |e| {
            (std::ptr::from_ref(e) as usize - self.buffer.get().as_ptr() as usize) / size_of::<T>()
        });
        let (mut dim, mut strides) = (view.dim(), (view.strides()[0], view.strides()[1]));
        if matches!(v.repeat, Repeat::Rows | Repeat::Both) {
            (dim.0, strides.0) = (m, 0);
        }
        if matches!(v.repeat, Repeat::Columns | Repeat::Both) {
            (dim.1, strides.1) = (n, 0);
        }
        // from_shape takes the lowest address, and no negative strides.
        let back = |len: usize, s: isize| if s < 0 { (len - 1) * s.unsigned_abs() } else { 0 };
        let low = first - back(dim.0, strides.0) - back(dim.1, strides.1);
        let shape = dim.strides((strides.0.unsigned_abs(), strides.1.unsigned_abs()));
        let mut view =
            ArrayView2::from_shape(shape, &self.buffer.get()[low..]).expect("inside the parent");
        for (axis, stride) in [strides.0, strides.1].into_iter().enumerate() {
            if stride < 0 {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }

    /// The view, uploaded.
    pub fn upload(&self, device: &Device) -> gemv::Result<DeviceMatrix<T>> {
        device.matrix(&self.view())
    }

    /// The parent, uploaded, and the view made of it on the device; where the view repeats
    /// elements, which a resident view cannot, it is uploaded itself.
    pub fn sub_view(&self, device: &Device) -> gemv::Result<DeviceMatrix<T>> {
        let v = self.variant;
        if v.repeat != Repeat::None {
            return self.upload(device);
        }
        let (pm, pn) = v.parent(self.dim.0, self.dim.1);
        let mut a = device.matrix(&self.parent())?;
        if v.transposed {
            a = a.t();
        }
        Ok(a.step_rows(v.pad.0..pm - v.pad.0, v.steps.0)
            .step_columns(v.pad.1..pn - v.pad.1, v.steps.1))
    }
}

/// A vector in memory: stride (0: one element repeated), offset, poison or canaries around it.
pub struct Strided<T> {
    len: usize,
    stride: isize,
    pad: usize,
    buffer: Buffer<T>,
}

/// Elements before and after a vector.
const PAD: usize = 6;

/// What stands around and between the entries of `y`.
pub fn canary<T: Element>(at: usize) -> T {
    super::elem(1001.0 + (at % 13) as f64, -77.0)
}

impl<T: Element> Strided<T> {
    fn place(&self, i: usize) -> usize {
        let i = if self.stride < 0 { self.len - 1 - i } else { i };
        self.pad + i * self.stride.unsigned_abs()
    }

    /// `x` for reading, with poison around it.
    pub fn read_only(x: &[T], stride: isize, offset: usize) -> Strided<T> {
        // Nothing cannot be repeated.
        let stride = if x.is_empty() { 1 } else { stride };
        let size = span(x.len(), stride, PAD);
        let mut v =
            Strided { len: x.len(), stride, pad: PAD, buffer: Buffer::new(offset, size, nan()) };
        for (i, &e) in x.iter().enumerate() {
            let at = v.place(i);
            v.buffer.get_mut()[at] = e;
        }
        v
    }

    /// `y` for writing, with canaries around it.
    pub fn writable(y: &[T], stride: isize, offset: usize) -> Strided<T> {
        let mut v = Strided::read_only(y, stride, offset);
        for at in 0..v.buffer.data.len() {
            if v.entry(at).is_none() {
                v.buffer.data[at] = canary(at);
            }
        }
        v
    }

    /// The entry at a place in the whole buffer.
    fn entry(&self, at: usize) -> Option<usize> {
        let at = at.checked_sub(self.buffer.start + self.pad)?;
        let i = match self.stride.unsigned_abs() {
            0 => return (at == 0).then(|| self.len - 1),
            1 => at,
            step if at.is_multiple_of(step) => at / step,
            _ => return None,
        };
        (i < self.len).then(|| if self.stride < 0 { self.len - 1 - i } else { i })
    }

    pub fn view(&self) -> ArrayView1<'_, T> {
        if self.stride == 0 {
            let shape = self.len.strides(0);
            return ArrayView1::from_shape(shape, &self.buffer.get()[self.pad..]).expect("one");
        }
        let all = ArrayView1::from(self.buffer.get());
        let end = (self.buffer.len - self.pad) as isize;
        all.slice_move(gemv::ndarray::s![self.pad as isize..end; self.stride])
    }

    pub fn view_mut(&mut self) -> ArrayViewMut1<'_, T> {
        let (pad, end, stride) =
            (self.pad as isize, (self.buffer.len - self.pad) as isize, self.stride);
        let all = ArrayViewMut1::from(self.buffer.get_mut());
        all.slice_move(gemv::ndarray::s![pad..end; stride])
    }

    /// The parent, uploaded, and the vector as a view of it on the device.
    pub fn sub_view(&self, device: &Device) -> gemv::Result<(DeviceVector<T>, DeviceVector<T>)> {
        if self.stride == 0 {
            let x = device.vector(&self.view())?;
            return Ok((x.clone(), x));
        }
        let parent = device.vector(&ArrayView1::from(self.buffer.get()))?;
        let part = parent.step(self.pad..self.buffer.len - self.pad, self.stride);
        Ok((parent, part))
    }

    /// The whole buffer, canaries and all.
    pub fn whole(&self) -> &[T] {
        &self.buffer.data
    }

    /// As [`whole`](Self::whole), to write to.
    pub fn whole_mut(&mut self) -> &mut [T] {
        &mut self.buffer.data
    }

    /// Whether the entries are `want` and every canary is as it was.
    pub fn verify(&self, want: &[T]) -> super::Check {
        verify(&self.buffer.data, |at| self.entry(at), want, canary)
    }

    /// Whether an unchanged parent came back from the device.
    pub fn untouched(&self, parent: &[T]) -> super::Check {
        super::same(parent, self.buffer.get())
    }
}
