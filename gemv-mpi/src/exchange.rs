//! Bytes from rank to rank. Every function is called by all ranks of the communicator, and takes what all of them
//! have agreed on: so none of them fails.
//!
//! MPI counts what a message holds by a C int. What is larger than `limit` bytes goes in pieces, from one rank to
//! another; what is not goes by the collective of that name, for which an MPI library has its best algorithms.

use std::ops::Range;

use mpi::Count;
use mpi::datatype::{Partition, PartitionMut};
use mpi::request::{self, LocalScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// The most bytes of one message where nothing else is asked for: what a C int counts, rounded down.
pub(crate) const LIMIT: usize = 1 << 30;

/// The number of this rank, and how many there are.
pub(crate) fn rank_and_size(comm: &SimpleCommunicator) -> (usize, usize) {
    // MPI gives no negative ones.
    (usize::try_from(comm.rank()).unwrap_or(0), usize::try_from(comm.size()).unwrap_or(1))
}

/// Sends the bytes of the rank `root` to all others.
pub(crate) fn broadcast(comm: &SimpleCommunicator, root: usize, bytes: &mut [u8], limit: usize) {
    let root = comm.process_at_rank(root as Count);
    bytes.chunks_mut(limit).for_each(|piece| root.broadcast_into(piece));
}

/// Puts the bytes of all ranks one after the other, on every rank: `counts` of each.
pub(crate) fn all_gather(
    comm: &SimpleCommunicator,
    mine: &[u8],
    counts: &[usize],
    to: &mut [u8],
    limit: usize,
) {
    if to.len() <= limit {
        let (counts, places) = small(counts);
        comm.all_gather_varcount_into(mine, &mut PartitionMut::new(to, counts, places));
    } else {
        let others = |size| vec![mine; size];
        in_pieces(comm, &others(counts.len()), split(to, counts), limit);
    }
}

/// Puts the bytes of all ranks one after the other, on the rank `root` alone, which has `to`.
pub(crate) fn gather(
    comm: &SimpleCommunicator,
    root: usize,
    mine: &[u8],
    counts: &[usize],
    to: Option<&mut [u8]>,
    limit: usize,
) {
    let process = comm.process_at_rank(root as Count);
    if counts.iter().sum::<usize>() <= limit {
        match to {
            Some(to) => {
                let (counts, places) = small(counts);
                let mut to = PartitionMut::new(to, counts, places);
                process.gather_varcount_into_root(mine, &mut to);
            }
            None => process.gather_varcount_into(mine),
        }
    } else {
        let mut from: Vec<&[u8]> = vec![&[]; counts.len()];
        from[root] = mine;
        let to =
            to.map_or_else(|| counts.iter().map(|_| &mut [][..]).collect(), |to| split(to, counts));
        in_pieces(comm, &from, to, limit);
    }
}

/// Deals out the bytes of the rank `root`, which has `from`: `counts` of them to each.
pub(crate) fn scatter(
    comm: &SimpleCommunicator,
    root: usize,
    from: Option<&[u8]>,
    counts: &[usize],
    to: &mut [u8],
    limit: usize,
) {
    let process = comm.process_at_rank(root as Count);
    if counts.iter().sum::<usize>() <= limit {
        match from {
            Some(from) => {
                let (counts, places) = small(counts);
                process.scatter_varcount_into_root(&Partition::new(from, counts, places), to);
            }
            None => process.scatter_varcount_into(to),
        }
    } else {
        let from = match from {
            Some(from) => ranges(counts).map(|range| &from[range]).collect(),
            None => vec![&[][..]; counts.len()],
        };
        let mut all: Vec<&mut [u8]> = counts.iter().map(|_| &mut [][..]).collect();
        all[root] = to;
        in_pieces(comm, &from, all, limit);
    }
}

/// Sends bytes from every rank to every rank. `most` is the most that any rank of the communicator sends.
pub(crate) fn all_to_all(
    comm: &SimpleCommunicator,
    from: &[u8],
    send: &[usize],
    to: &mut [u8],
    receive: &[usize],
    most: usize,
    limit: usize,
) {
    // No rank receives more than this, so all of them take the same way.
    if most.checked_mul(send.len()).is_some_and(|all| all <= limit) {
        let (send, send_places) = small(send);
        let (receive, receive_places) = small(receive);
        let from = Partition::new(from, send, send_places);
        let mut to = PartitionMut::new(to, receive, receive_places);
        comm.all_to_all_varcount_into(&from, &mut to);
    } else {
        let from: Vec<&[u8]> = ranges(send).map(|range| &from[range]).collect();
        in_pieces(comm, &from, split(to, receive), limit);
    }
}

/// Sends `from[r]` to each rank r, and receives `to[r]`, in pieces. MPI keeps the order of messages between two
/// ranks.
fn in_pieces(comm: &SimpleCommunicator, from: &[&[u8]], mut to: Vec<&mut [u8]>, limit: usize) {
    let (rank, _) = rank_and_size(comm);
    if from[rank].len() == to[rank].len() {
        to[rank].copy_from_slice(from[rank]);
    }
    to[rank] = &mut [];
    let mut to: Vec<_> = to.into_iter().map(|to| to.chunks_mut(limit)).collect();
    let from = from.iter().enumerate();
    let mut from: Vec<_> = from
        .map(|(other, from)| if other == rank { [].chunks(limit) } else { from.chunks(limit) })
        .collect();
    // One piece of each at a time: as many messages are under way as there are ranks.
    loop {
        let (receives, sends): (Vec<_>, Vec<_>) = (
            to.iter_mut().map(Iterator::next).collect(),
            from.iter_mut().map(Iterator::next).collect(),
        );
        if receives.iter().all(Option::is_none) && sends.iter().all(Option::is_none) {
            return;
        }
        request::scope(|scope: &LocalScope<'_>| {
            let mut requests = Vec::with_capacity(2 * sends.len());
            for (other, piece) in receives.into_iter().enumerate() {
                let process = comm.process_at_rank(other as Count);
                requests.extend(piece.map(|piece| process.immediate_receive_into(scope, piece)));
            }
            for (other, piece) in sends.into_iter().enumerate() {
                let process = comm.process_at_rank(other as Count);
                requests.extend(piece.map(|piece| process.immediate_send(scope, piece)));
            }
            requests.into_iter().for_each(|request| request.wait_without_status());
        });
    }
}

/// Counts and places as MPI takes them, of no more bytes than [`LIMIT`].
fn small(counts: &[usize]) -> (Vec<Count>, Vec<Count>) {
    let places = ranges(counts).map(|range| range.start as Count).collect();
    (counts.iter().map(|&count| count as Count).collect(), places)
}

/// Where each of so many bytes lie, one after the other.
pub(crate) fn ranges(counts: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    counts.iter().map(move |count| {
        let start = end;
        end += count;
        start..end
    })
}

fn split<'a>(mut bytes: &'a mut [u8], counts: &[usize]) -> Vec<&'a mut [u8]> {
    let mut all = Vec::with_capacity(counts.len());
    for &count in counts {
        let (first, rest) = bytes.split_at_mut(count);
        all.push(first);
        bytes = rest;
    }
    all
}
