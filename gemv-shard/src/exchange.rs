//! Copies between devices, not through the host's memory.

use gemv_core::{Device, DeviceVector, Element, Exchange, Piece, Receive, Window};

use crate::Result;
use crate::threads::{Task, started};

/// A vector without gaps that shares its memory with no other, and what is copied to it: from which entry on, and the
/// entries.
pub(crate) struct Written<'a, T: Element> {
    pub to: &'a mut DeviceVector<T>,
    pub pieces: Vec<(usize, DeviceVector<T>)>,
}

/// Whether the devices copy from each other: they are of one backend, which does so.
pub(crate) fn are_peers<'a>(devices: impl IntoIterator<Item = &'a Device>) -> bool {
    let mut backends = devices.into_iter().map(|device| {
        let info = device.info();
        info.peers.then(|| info.id.split(':').next())
    });
    let first = backends.next().flatten();
    first.is_some() && backends.all(|backend| backend == first)
}

/// Copies that were started. What the devices do later runs beside them until [`finish`](Self::finish).
#[must_use]
pub(crate) struct Copies(Option<(Device, Box<dyn Exchange>)>);

impl Copies {
    /// Lets later work on the devices wait for them.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((device, copies)) = self.0 else { return Ok(()) };
        let task: Task<'_, ()> = (&device, Box::new(move || Ok(copies.finish()?)));
        started(vec![task]).map(|_| ())
    }
}

/// Starts copies between [peers](are_peers).
pub(crate) fn exchange<T: Element>(mut writes: Vec<Written<'_, T>>) -> Result<Copies> {
    let Some(device) = writes.first().map(|write| write.to.device().clone()) else {
        return Ok(Copies(None));
    };
    for (_, piece) in writes.iter_mut().flat_map(|write| &mut write.pieces) {
        // The user may have put entries that lie apart in the place of a part.
        if piece.stride() != 1 && piece.len() > 1 {
            let mut dense = piece.device().zeros(piece.len())?;
            dense.assign(&*piece)?;
            *piece = dense;
        }
    }
    let blocks = writes.iter_mut().map(|Written { to, pieces }| {
        let to = to.window_mut().expect("nobody shares it");
        let pieces = pieces.iter().map(|(at, piece)| {
            let Window { memory, first, dim, .. } = piece.window();
            Piece { at: to.first + at, from: memory, range: first..first + dim[0] }
        });
        Receive { pieces: pieces.collect(), to: to.memory }
    });
    let mut blocks: Vec<_> = blocks.collect();
    let copy = || Ok(device.backend().exchange(&mut blocks)?);
    let task: Task<'_, Box<dyn Exchange>> = (&device, Box::new(copy));
    let copies = started(vec![task])?.pop();
    Ok(Copies(copies.map(|copies| (device, copies))))
}
