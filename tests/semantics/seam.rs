//! The seam itself: safe code may hand a backend any operands, choices and ranges. What does not fit is refused, by an
//! error or a panic, and no other memory is read or written.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use gemv::half::f16;
use gemv::ndarray::{Array1, Array2, Array3, ArrayView1, ArrayViewMut1, Dimension, Ix1, Ix2, Ix3};
use gemv::unstable::{
    AnySlice, AnySliceMut, Dtype, Job, Memory, Number, Params, Piece, Prepared, Rank, Receive,
    Scalar, Step, Tensor, TensorMut, VectorJob, Window,
};
use gemv::{Device, Engine, Error, Result};
use gemv_testkit::Host;

use crate::common::{Check, random, same};
use crate::helpers::text;

/// A place in a block that is not named yet.
type Place<D> = Window<(), D>;

/// An array without gaps, from the beginning of its block on.
fn packed<D: Dimension + Copy>(dim: D) -> Place<D> {
    let mut strides = dim;
    let mut apart = 1;
    for axis in (0..dim.ndim()).rev() {
        strides[axis] = apart;
        apart *= dim[axis];
    }
    Window { memory: (), first: 0, dim, strides }
}

fn on<M, D>(place: Place<D>, memory: M) -> Window<M, D> {
    let Window { first, dim, strides, .. } = place;
    Window { memory, first, dim, strides }
}

fn numbers(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| random(seed, i, 0)).collect()
}

fn block(device: &Device, data: &[f32]) -> Result<Box<dyn Memory>, String> {
    device.backend().upload(AnySlice::F32(data)).map_err(text)
}

/// Whether this is refused: by an error, or by a panic.
fn refused(what: &str, call: impl FnOnce() -> Result<()>) -> Check {
    match is_taken(call) {
        true => Err(format!("{what}: it was taken")),
        false => Ok(()),
    }
}

/// Whether this returns, and no error. Its panic is not printed.
fn is_taken(call: impl FnOnce() -> Result<()>) -> bool {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let ended = panic::catch_unwind(AssertUnwindSafe(call));
    QUIET.set(false);
    matches!(ended, Ok(Ok(())))
}

/// Whether this is an error of a job's operands, before a backend sees them.
fn is_fault(what: &str, checked: Result<()>) -> Check {
    match checked {
        Err(Error::Shape(_) | Error::Operand { .. }) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

/// The blocks of one problem, and where the operands lie in them.
struct Problem<D: Dimension, V: Dimension> {
    blocks: [Box<dyn Memory>; 3],
    a: Place<D>,
    x: Place<V>,
    y: Place<V>,
    /// Y before and after.
    before: Vec<f32>,
    after: Vec<f32>,
}

/// Which operand of a problem is another one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Role {
    A,
    X,
    Y,
}
const ROLES: [Role; 3] = [Role::A, Role::X, Role::Y];

fn one(device: &Device) -> Result<Problem<Ix2, Ix1>, String> {
    let (m, n) = (3, 4);
    let (a, x, before) = (numbers(1, m * n), numbers(2, n), numbers(3, m));
    let mut after = before.clone();
    let a_view = Array2::from_shape_vec((m, n), a.clone()).expect("as many");
    gemv_testkit::gemv(1.0, a_view.view(), false, (&x[..]).into(), 1.0, (&mut after[..]).into());
    let blocks = [block(device, &a)?, block(device, &x)?, block(device, &before)?];
    let (a, x, y) = (packed(Ix2(m, n)), packed(Ix1(n)), packed(Ix1(m)));
    Ok(Problem { blocks, a, x, y, before, after })
}

fn many(device: &Device) -> Result<Problem<Ix3, Ix3>, String> {
    let (batch, m, n, rhs) = (2, 3, 4, 2);
    let (a, x) = (numbers(1, batch * m * n), numbers(2, batch * n * rhs));
    let before = numbers(3, batch * m * rhs);
    let cube = |dim, of: &[f32]| Array3::from_shape_vec(dim, of.to_vec()).expect("as many");
    let mut after = cube((batch, m, rhs), &before);
    let (a_all, x_all) = (cube((batch, m, n), &a), cube((batch, n, rhs), &x));
    gemv_testkit::gemm(1.0, a_all.view(), false, x_all.view(), 1.0, after.view_mut());
    let blocks = [block(device, &a)?, block(device, &x)?, block(device, &before)?];
    let (a, x) = (packed(Ix3(batch, m, n)), packed(Ix3(batch, n, rhs)));
    let y = packed(Ix3(batch, m, rhs));
    Ok(Problem { blocks, a, x, y, before, after: after.into_iter().collect() })
}

impl<D: Rank, V: Rank> Problem<D, V> {
    fn y_is(&self, device: &Device, want: &[f32]) -> Check {
        let mut got = vec![0.0; want.len()];
        let to = AnySliceMut::F32(&mut got);
        device.backend().download(&*self.blocks[2], 0, to).map_err(text)?;
        same(&got, want)
    }

    /// The device is as before: y is untouched, and what fits is computed.
    fn still(&mut self, device: &Device) -> Check {
        self.y_is(device, &self.before).map_err(|e| format!("y was written: {e}"))?;
        self.run(device, None).map_err(text)?;
        self.y_is(device, &self.after).map_err(|e| format!("afterwards: {e}"))
    }

    /// Each operand in turn at a place that is not in its block.
    fn far(mut self, device: &Device) -> Check {
        for place in outside(self.a) {
            let kept = std::mem::replace(&mut self.a, place);
            is_fault(&format!("A at {place:?}"), self.check())?;
            self.a = kept;
        }
        for place in outside(self.x) {
            let kept = std::mem::replace(&mut self.x, place);
            is_fault(&format!("x at {place:?}"), self.check())?;
            self.x = kept;
        }
        for place in outside(self.y) {
            let kept = std::mem::replace(&mut self.y, place);
            is_fault(&format!("y at {place:?}"), self.check())?;
            self.y = kept;
        }
        self.still(device)
    }

    /// Each operand in turn of another shape, in a block with room enough, and y with several entries at one place.
    fn short(mut self, device: &Device) -> Check {
        let wide = block(device, &[0.0; 1000])?;
        let blocks = [block(device, &[0.0; 1000])?, block(device, &[0.0; 1000])?, wide];
        let kept = std::mem::replace(&mut self.blocks, blocks);
        for axis in 0..self.a.dim.ndim() {
            for entries in [0, 1, self.a.dim[axis] + 1] {
                let right = self.a.dim;
                self.a.dim[axis] = entries;
                is_fault(&format!("A of {:?}", self.a.dim), self.check())?;
                self.a.dim = right;
            }
        }
        for axis in 0..self.x.dim.ndim() {
            for entries in [0, 1, self.x.dim[axis] + 1, self.y.dim[axis] + 1] {
                let (right, y) = (self.x.dim, self.y.dim);
                // Where it is not what it is to be.
                if entries != right[axis] {
                    self.x.dim[axis] = entries;
                    is_fault(&format!("x of {:?}", self.x.dim), self.check())?;
                    self.x.dim = right;
                }
                if entries != y[axis] {
                    self.y.dim[axis] = entries;
                    is_fault(&format!("y of {:?}", self.y.dim), self.check())?;
                    self.y.dim = y;
                }
            }
        }
        let right = self.y;
        let axes = 0..right.dim.ndim();
        for axis in axes.clone() {
            self.y.strides[axis] = 0;
            is_fault("y at one place", self.check())?;
            for other in axes.clone().filter(|&other| other != axis) {
                self.y.strides[axis] = right.strides[other];
                is_fault("a y whose axes cross", self.check())?;
            }
            self.y = right;
        }
        self.blocks = kept;
        self.still(device)
    }

    /// Each operand in turn in memory that is not the device's, or of another type.
    fn foreign(mut self, device: &Device) -> Check {
        for (whose, memory) in &mut strangers(device, 1000)? {
            for role in ROLES {
                let what = format!("{role:?} in memory of {whose}");
                refused(&what, || self.run(device, Some((role, memory))))?;
            }
        }
        self.still(device)
    }
}

/// A block, and whose it is.
type Stranger = (String, Box<dyn Memory>);

/// Blocks that are not this device's, or not of f32.
fn strangers(device: &Device, len: usize) -> Result<Vec<Stranger>, String> {
    let zeros = vec![0.0; len];
    let other = Host::new("a stranger").device();
    let mut all = vec![("another backend".to_owned(), block(&other, &zeros)?)];
    let narrow = device.backend().upload(AnySlice::F16(&vec![f16::ZERO; 2 * len]));
    all.push(("another type".into(), narrow.map_err(text)?));
    let id = &device.info().id;
    // The memory of hosts is one.
    if !["cpu", "reference"].contains(&&**id) {
        let again = Engine::new(None).device(id).map_err(text)?;
        all.push((format!("{id}, opened another time"), block(&again, &zeros)?));
    }
    Ok(all)
}

/// Places that are not in a block which this one fills.
fn outside<D: Dimension + Copy>(right: Place<D>) -> Vec<Place<D>> {
    let mut all: Vec<Place<D>> = [right.first + 1, usize::MAX, isize::MAX as usize, 1 << 40]
        .map(|first| Window { first, ..right })
        .into();
    for axis in (0..right.dim.ndim()).filter(|&axis| right.dim[axis] > 1) {
        let stride = right.stride(axis);
        for stride in [stride + 1, -stride, isize::MAX, isize::MIN, isize::MAX / 2 + 1, 1 << 61] {
            let mut place = right;
            place.strides[axis] = stride as usize;
            all.push(place);
        }
    }
    all
}

/// `Y = A X + Y` in a device's memory.
fn job<'a, D: Rank, V: Rank>(
    a: Window<&'a dyn Memory, D>,
    x: Window<&'a dyn Memory, V>,
    y: Window<&'a mut dyn Memory, V>,
) -> Job<'a> {
    let (a, x) = (Tensor::device(Dtype::F32, a), Tensor::device(Dtype::F32, x));
    let (one, y) = (Number::new(1.0f32), TensorMut::device(Dtype::F32, y));
    Job { alpha: one, a, conj: false, x, beta: one, y }
}

impl<D: Rank, V: Rank> Problem<D, V> {
    fn run(&mut self, device: &Device, other: Option<(Role, &mut Box<dyn Memory>)>) -> Result<()> {
        let [a, x, y] = &mut self.blocks;
        let (mut a, mut x, mut y) = (&mut **a, &mut **x, &mut **y);
        match other {
            Some((Role::A, other)) => a = &mut **other,
            Some((Role::X, other)) => x = &mut **other,
            Some((Role::Y, other)) => y = &mut **other,
            None => {}
        }
        let mut job = job(on(self.a, &*a), on(self.x, &*x), on(self.y, y)).check()?;
        let prepared = device.prepared(&job.desc())?;
        device.backend().product(&mut job, &prepared)
    }

    fn check(&mut self) -> Result<()> {
        let [a, x, y] = &mut self.blocks;
        job(on(self.a, &**a), on(self.x, &**x), on(self.y, &mut **y)).check().map(|_| ())
    }
}

/// Products of operands that do not lie in their blocks.
pub fn far_operands(device: &Device) -> Check {
    one(device)?.far(device)?;
    many(device)?.far(device)
}

/// Products of operands of other shapes, of the host too; a result of several entries at one place.
pub fn short_operands(device: &Device) -> Check {
    let (a, x) = (Array2::<f32>::ones((100_000, 64)), Array1::<f32>::ones(64));
    let with = |x: &[f32], y: &mut [f32]| {
        let (x, y) = (ArrayView1::from(x), ArrayViewMut1::from(y));
        let (a, x, y) = (a.view().into(), x.into(), y.into());
        let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
        let mut job = Job { alpha, a, conj: false, x, beta, y }.check()?;
        let prepared = device.prepared(&job.desc())?;
        device.backend().product(&mut job, &prepared)
    };
    let x = x.as_slice().expect("without gaps");
    for len in [0, 1, 99_999, 100_001] {
        is_fault(&format!("a y of {len}"), with(x, &mut vec![0.0; len]))?;
    }
    for len in [0, 1, 63] {
        is_fault(&format!("an x of {len}"), with(&x[..len], &mut vec![0.0; 100_000]))?;
    }
    one(device)?.short(device)?;
    many(device)?.short(device)
}

/// Products of operands in memory that is not the device's, or of another type.
pub fn foreign_operands(device: &Device) -> Check {
    one(device)?.foreign(device)?;
    many(device)?.foreign(device)
}

/// What a step is made of; x, z and the factor's two numbers are at these places of one block, y of another.
#[derive(Clone, Copy)]
struct StepPlaces {
    step: Step,
    x: Option<Place<Ix3>>,
    z: Option<Place<Ix3>>,
    factor: Option<[Place<Ix3>; 2]>,
    y: Place<Ix3>,
}

impl StepPlaces {
    fn of(step: Step) -> StepPlaces {
        let all = packed(Ix3(1, 2, 3));
        let number = Window { strides: Ix3(0, 0, 0), ..all };
        let operand = |least| (step.operands() >= least).then_some(all);
        let factor = (step.factors() > 0).then_some([number, number]);
        StepPlaces { step, x: operand(1), z: operand(2), factor, y: all }
    }

    /// Runs it, with these blocks for x, z, the numerator and the denominator, and y.
    fn run(self, device: &Device, read: [&dyn Memory; 4], y: &mut dyn Memory) -> Result<()> {
        let StepPlaces { step, x, z, factor, y: y_at } = self;
        let alpha = match factor {
            None => Scalar::Number(0.0),
            Some([of, by]) => {
                Scalar::Quotient { of: on(of, read[2]), by: on(by, read[3]), negated: false }
            }
        };
        let (x, z) = (x.map(|x| on(x, read[0])), z.map(|z| on(z, read[1])));
        let beta = if step.factors() > 1 { alpha } else { Scalar::Number(0.0) };
        let job = VectorJob::<f32> { step, alpha, beta, x, z, y: on(y_at, y) }.check()?;
        device.backend().vector(job.erase())
    }
}

/// Steps of operands that are short, far, missing, too many, in other memory; and of a y whose entries meet.
pub fn steps(device: &Device) -> Check {
    let [ones, mut y] = [block(device, &[1.0; 6])?, block(device, &[5.0; 6])?];
    let wide = block(device, &[1.0; 1000])?;
    for step in Step::all() {
        let right = StepPlaces::of(step);
        let fault = |what: &str, wrong: StepPlaces, read: &dyn Memory, y: &mut dyn Memory| {
            let what = format!("{step:?}, {what}");
            is_fault(&what, wrong.run(device, [read; 4], y))
        };
        let other_shapes = [Ix3(1, 3, 2), Ix3(2, 1, 3), Ix3(1, 1, 6), Ix3(1, 1, 1), Ix3(1, 2, 0)];
        for shape in other_shapes.map(packed) {
            if right.x.is_some() {
                fault("a short x", StepPlaces { x: Some(shape), ..right }, &*wide, &mut *y)?;
            }
            if right.z.is_some() {
                fault("a short z", StepPlaces { z: Some(shape), ..right }, &*wide, &mut *y)?;
            }
        }
        for place in outside(right.y) {
            if right.x.is_some() {
                fault("a far x", StepPlaces { x: Some(place), ..right }, &*ones, &mut *y)?;
            }
            if right.z.is_some() {
                fault("a far z", StepPlaces { z: Some(place), ..right }, &*ones, &mut *y)?;
            }
            fault("a far y", StepPlaces { y: place, ..right }, &*ones, &mut *y)?;
        }
        for strides in [Ix3(6, 0, 1), Ix3(6, 3, 0), Ix3(6, 1, 1)] {
            let place = Window { strides, ..right.y };
            fault("a y at one place", StepPlaces { y: place, ..right }, &*ones, &mut *y)?;
        }
        for first in [6, usize::MAX] {
            let Some([of, by]) = right.factor else { continue };
            for factor in [[Window { first, ..of }, by], [of, Window { first, ..by }]] {
                let wrong = StepPlaces { factor: Some(factor), ..right };
                fault("a far number", wrong, &*ones, &mut *y)?;
            }
        }
        // A number for each entry: too few of them, or far ones.
        let shapes = other_shapes.map(|shape| (packed(shape), &*wide));
        for (place, block) in
            shapes.into_iter().chain(outside(right.y).into_iter().map(|far| (far, &*ones)))
        {
            let Some([of, by]) = right.factor else { continue };
            for factor in [[place, by], [of, place]] {
                let wrong = StepPlaces { factor: Some(factor), ..right };
                fault("other numbers", wrong, block, &mut *y)?;
            }
        }
        // Too few operands, or too many.
        let flipped = |of: Option<Place<Ix3>>| of.is_none().then_some(right.y);
        let wrong = StepPlaces { z: flipped(right.z), ..right };
        fault("another z", wrong, &*ones, &mut *y)?;
        if !step.takes_y() {
            let wrong = StepPlaces { x: flipped(right.x), ..right };
            fault("another x", wrong, &*ones, &mut *y)?;
        }
    }
    for (whose, memory) in &mut strangers(device, 6)? {
        let axpy = StepPlaces::of(Step::Axpy);
        let quotient = StepPlaces::of(Step::Quotient);
        for (job, role) in [(axpy, 0), (axpy, 2), (axpy, 3), (quotient, 0), (quotient, 1)] {
            let mut read: [&dyn Memory; 4] = [&*ones; 4];
            read[role] = &**memory;
            let what = format!("operand {role} of {:?} in memory of {whose}", job.step);
            refused(&what, || job.run(device, read, &mut *y))?;
        }
        let what = format!("y in memory of {whose}");
        refused(&what, || axpy.run(device, [&*ones; 4], &mut **memory))?;
    }
    let mut got = [0.0; 6];
    device.backend().download(&*y, 0, AnySliceMut::F32(&mut got)).map_err(text)?;
    same(&got, &[5.0; 6]).map_err(|e| format!("y was written: {e}"))?;
    // What fits, and what has no entries.
    StepPlaces::of(Step::Axpy).run(device, [&*ones; 4], &mut *y).map_err(text)?;
    let none = Window { first: 1 << 40, ..packed(Ix3(1, 0, 3)) };
    let factor = Some([none; 2]);
    let none = StepPlaces { x: Some(none), y: none, factor, ..StepPlaces::of(Step::Axpy) };
    none.run(device, [&*ones; 4], &mut *y).map_err(text)?;
    device.backend().download(&*y, 0, AnySliceMut::F32(&mut got)).map_err(text)?;
    same(&got, &[6.0; 6])
}

/// Ranges beyond a block, and blocks that are not the device's, of copies to and from the host and between blocks.
pub fn copies(device: &Device) -> Check {
    let backend = device.backend();
    let data = numbers(1, 6);
    let [from, mut to] = [block(device, &data)?, block(device, &[0.0; 6])?];
    let mut place = [0.0; 7];
    for (first, len) in [(0, 7), (1, 6), (6, 1), (7, 0), (usize::MAX, 2), (1 << 62, 4)] {
        let what = format!("{len} of 6 elements from {first} on");
        let part = AnySliceMut::F32(&mut place[..len]);
        refused(&what, || backend.download(&*from, first, part))?;
    }
    // The end of a block is not beyond it.
    backend.download(&*from, 6, AnySliceMut::F32(&mut [])).map_err(text)?;
    let strangers = strangers(device, 6)?;
    for (whose, memory) in &strangers {
        let what = format!("a download from memory of {whose}");
        refused(&what, || backend.download(&**memory, 0, AnySliceMut::F32(&mut place[..6])))?;
    }
    let mut copy = |at: usize, from: &dyn Memory, range: std::ops::Range<usize>| {
        let pieces = vec![Piece { at, from, range }];
        backend.exchange(&mut [Receive { to: &mut *to, pieces }])?.finish()
    };
    let back = std::ops::Range { start: 4, end: 2 };
    for (at, range) in [(0, 0..7), (1, 0..6), (0, 1..7), (usize::MAX, 0..2), (0, back)] {
        let what = format!("a copy of {range:?} to {at}");
        refused(&what, || copy(at, &*from, range))?;
    }
    for (whose, memory) in strangers.iter().filter(|(whose, _)| !whose.contains("another time")) {
        refused(&format!("a copy from memory of {whose}"), || copy(0, &**memory, 0..6))?;
    }
    if device.info().peers {
        copy(0, &*from, 0..6).map_err(text)?;
    }
    let want = if device.info().peers { &data[..] } else { &[0.0; 6] };
    backend.download(&*to, 0, AnySliceMut::F32(&mut place[..6])).map_err(text)?;
    same(&place[..6], want)?;
    // A block that is filled.
    let bytes = |count: usize| {
        move |_: usize, piece: &mut [u8]| {
            piece.fill(count as u8);
            true
        }
    };
    let mut strangers = strangers;
    match backend.fill(&mut *to, 24, &bytes(0)).map_err(text)? {
        // It takes arrays of the host instead.
        false => Ok(()),
        true => {
            refused("a piece too many", || backend.fill(&mut *to, 28, &bytes(1)).map(|_| ()))?;
            for (whose, memory) in strangers.iter_mut().filter(|(whose, _)| whose != "another type")
            {
                let what = format!("memory of {whose} is filled");
                refused(&what, || backend.fill(&mut **memory, 24, &bytes(1)).map(|_| ()))?;
            }
            backend.download(&*to, 0, AnySliceMut::F32(&mut place[..6])).map_err(text)?;
            same(&place[..6], &[0.0; 6])
        }
    }
}

/// A problem of host arrays, and its answer.
struct Arrays {
    a: Array3<f32>,
    x: Array3<f32>,
    want: Array3<f32>,
}

impl Arrays {
    fn new((batch, m, n, rhs): (usize, usize, usize, usize), by_columns: bool) -> Arrays {
        let (a, x) = (numbers(1, batch * m * n), numbers(2, batch * n * rhs));
        let cube = |dim, of: Vec<f32>| Array3::from_shape_vec(dim, of).expect("as many");
        let a = match by_columns {
            true => cube((batch, n, m), a).permuted_axes([0, 2, 1]),
            false => cube((batch, m, n), a),
        };
        let (x, mut want) = (cube((batch, n, rhs), x), Array3::zeros((batch, m, rhs)));
        gemv_testkit::gemm(1.0, a.view(), false, x.view(), 0.0, want.view_mut());
        Arrays { a, x, want }
    }

    /// Its product with a choice that was not prepared for it: it is refused, or it is right.
    fn with_choice(&self, device: &Device, what: &str, prepared: &Prepared) -> Check {
        let (dim, mut y) = (self.want.dim(), Array3::zeros(self.want.dim()));
        let (a, x, to) = (self.a.view().into(), self.x.view().into(), y.view_mut().into());
        let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
        let job = Job { alpha, a, conj: false, x, beta, y: to };
        let mut job = job.check().map_err(text)?;
        if !is_taken(|| device.backend().product(&mut job, prepared)) {
            return Ok(());
        }
        let entries = |of: &Array3<f32>| of.iter().copied().collect::<Vec<_>>();
        same(&entries(&y), &entries(&self.want)).map_err(|e| format!("{what}, {dim:?}: {e}"))
    }
}

/// Choices for other problems, types and devices, and choices that nobody has proved.
pub fn choices_of_others(device: &Device) -> Check {
    use gemv::unstable::{Desc, Layout};
    let backend = device.backend();
    let of = |layout, m, n| Desc::of(Dtype::F32, layout, (m, n), 2);
    let one = of(Layout::Row, 40, 300);
    let descs = [
        one,
        of(Layout::Row, 4000, 300),
        of(Layout::Row, 3, 70_000),
        of(Layout::Row, 40, 3),
        of(Layout::Col, 40, 300),
        of(Layout::Col, 40_000, 2),
        of(Layout::Strided, 40, 300),
        Desc { align: 6, ..one },
        Desc { rhs: 3, ..one },
        Desc { batch: 3, ..one },
        Desc { batch: 2, rhs: 2, ..one },
        one.of_type(Dtype::F16),
        one.of_type(Dtype::Bf16),
    ];
    let problems = [
        ((1, 41, 301, 1), false),
        ((1, 41, 301, 1), true),
        ((1, 1000, 2, 1), false),
        ((1, 41, 301, 5), false),
        ((5, 41, 301, 1), true),
        ((2, 20, 7, 3), false),
    ];
    let problems = problems.map(|(dim, by_columns)| Arrays::new(dim, by_columns));
    for desc in descs {
        for params in backend.candidates(&desc).into_iter().take(4) {
            let prepared = backend.prepare(&desc, &params).map_err(text)?;
            for problem in &problems {
                problem.with_choice(device, &format!("{params} of {desc}"), &prepared)?;
            }
        }
    }
    // Kernels that there are not, and arguments beyond what a kernel takes: nobody has looked at them.
    let mut made_up = vec![Params::new("none"), Params::new("vendor-cblas")];
    for kernel in backend.kernels() {
        let of =
            |value| kernel.args.iter().fold(Params::new(kernel.name), |p, a| p.with(a.name, value));
        made_up.extend([Params::new(kernel.name), of(0), of(1), of(u32::MAX)]);
        // One at a time.
        for (arg, value) in kernel.args.iter().flat_map(|arg| [(arg, 0), (arg, u32::MAX)]) {
            made_up.push(Params::new(kernel.name).with(arg.name, value));
        }
    }
    for params in made_up {
        for problem in &problems {
            let what = format!("{params}, made up");
            problem.with_choice(device, &what, &Prepared::new(params))?;
        }
    }
    let id = &device.info().id;
    if !["cpu", "reference"].contains(&&**id) {
        let again = Engine::new(None).device(id).map_err(text)?;
        let desc = of(Layout::Row, 41, 301);
        let prepared = again.prepared(&desc).map_err(text)?;
        problems[0].with_choice(device, "another device's choice", &prepared)?;
    }
    // The device is as before.
    self::one(device)?.still(device)
}
