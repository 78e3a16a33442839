//! Several right-hand sides and batches: `Y = alpha A X + beta Y`.

use gemv_core::ndarray::{Dimension, Ix3};
use gemv_core::{Accumulator, Checked, Element, GemmJob, Input, Result, Span, Times, span};
use gemv_gpu::{Signature, assert_layout};

use crate::cl::Args;
use crate::discover::Found;
use crate::memory::{Slot, State};
use crate::run::{Choice, Finish, Operand, fetch, host, output, resident, unread, workspace};

/// Computes one job. A host Y is written on return; a product of resident operands alone may still be
/// in flight.
///
/// # Panics
/// If the choice is for another problem, or an operand is another device's or of another type.
pub(crate) fn product<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<GemmJob<'_, T, V>>,
) -> Result<()> {
    let result = run(found, state, choice, job);
    state.buffers.trim();
    result
}

fn run<T: Element + Times<V>, V: Element>(
    found: &Found,
    state: &mut State,
    choice: &Choice,
    job: Checked<GemmJob<'_, T, V>>,
) -> Result<()> {
    let desc = &choice.desc;
    assert_eq!(job.desc(), *desc, "a choice for another problem");
    let GemmJob { alpha, a, conj, x, beta, y } = job.into_inner();
    let (batch, m, n) = a.raw_dim().into_pattern();
    let rhs = x.raw_dim()[2];
    if m * rhs * batch == 0 {
        return Ok(());
    }
    let entries = choice.entries(found, state)?;

    // Copies of operands with gaps; they outlive `Finish` below.
    let (a_data, x_data): (Span<'_, T, Ix3>, Span<'_, V, Ix3>);
    let reads = alpha != V::Acc::ZERO && n > 0;
    let (a, x) = if reads {
        let a = match a {
            Input::Device(a) => resident::<T, _, 3>(&state.queue, &a),
            Input::Host(a) => {
                a_data = span(&a)?;
                host(found, state, Slot::A, &a_data)?
            }
        };
        assert_layout(desc.layout, [batch, m, n], a.strides);
        let x = match x {
            Input::Device(x) => resident::<V, _, 3>(&state.queue, &x),
            Input::Host(x) => {
                x_data = span(&x)?;
                host(found, state, Slot::X, &x_data)?
            }
        };
        (a, x)
    } else {
        (unread(state), unread(state))
    };
    let y_at: Operand<'_, 3> = output(found, state, &y, beta != V::Acc::ZERO)?;
    let (workspace, bytes) = workspace::<V>(found, state, choice)?;
    let counters = state.buffers.counters(&state.queue, found, choice.plan.counters)?;

    let State { queue, programs, .. } = &*state;
    let in_place = a.is_borrowed() || x.is_borrowed();
    let finish = in_place.then(|| Finish(queue));
    let launch = |b: usize, c: usize| -> Result<()> {
        for (launch, &entry) in choice.plan.launches.iter().zip(entries) {
            let kernel = programs.get(entry);
            let args = Args::of(kernel).unsigned(m).unsigned(n);
            let args = match choice.kernel.signature {
                Signature::Gemm => {
                    let args = args.unsigned(rhs).unsigned(batch);
                    [&a, &x, &y_at].into_iter().fold(args, strided)
                }
                // One column of one entry: a part of the same memory.
                Signature::Gemv => {
                    let first = |of: &Operand<'_, 3>, column: usize| {
                        let [batch, _, col] = of.strides;
                        let at = b as isize * batch + column as isize * col;
                        of.first.wrapping_add_signed(at)
                    };
                    let args = args.mem(a.mem()).unsigned(first(&a, 0));
                    let args = args.signed(a.strides[1]).signed(a.strides[2]);
                    let args = args.mem(x.mem()).unsigned(first(&x, c)).signed(x.strides[1]);
                    args.mem(y_at.mem()).unsigned(first(&y_at, c)).signed(y_at.strides[1])
                }
            };
            args.factor::<V>(alpha)
                .factor::<V>(beta)
                .flag(conj)
                .mem(&workspace)
                .mem(&counters)
                .done()
                .and_then(|()| queue.launch(kernel, launch))
                .map_err(|e| found.failed(e, bytes))?;
        }
        Ok(())
    };
    match choice.kernel.signature {
        Signature::Gemm => launch(0, 0)?,
        Signature::Gemv => (0..batch)
            .flat_map(|b| (0..rhs).map(move |c| (b, c)))
            .try_for_each(|(b, c)| launch(b, c))?,
    }
    fetch(found, queue, finish, y, (y_at.mem(), bytes))
}

/// An operand of three axes.
fn strided<'k>(args: Args<'k>, of: &Operand<'_, 3>) -> Args<'k> {
    let [batch, row, col] = of.strides;
    args.mem(of.mem()).unsigned(of.first).signed(row).signed(col).signed(batch)
}
