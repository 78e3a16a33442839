//! What the ranks of one `mpirun` do. A failed assertion ends all of them.

mod products;
mod refusals;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use gemv_core::ndarray::Array1;
use gemv_mpi::{Distributed, Grid, Split, mpi};
use mpi::traits::*;

/// Runs a case on this rank.
pub fn run(case: &str) -> ExitCode {
    let (universe, _) =
        mpi::initialize_with_threading(mpi::Threading::Funneled).expect("MPI, for the first time");
    gemv_mpi::abort_on_panic();
    let world = universe.world();
    match case {
        "products" => products::all(&world),
        "wrong_bits" => products::wrong_bits(&world),
        "refusals" => refusals::all(&world),
        "killed" => endless(&world, || {
            let id = std::process::id().to_string();
            let _ = Command::new("kill").args(["-KILL", &id]).status();
        }),
        "panics" => endless(&world, || panic!("a planted panic")),
        case => panic!("there is no case {case:?}"),
    }
    ExitCode::SUCCESS
}

/// The folder that all ranks of one `mpirun` share.
fn folder() -> PathBuf {
    std::env::var_os("GEMV_MPI_FOLDER").expect("set by the trial").into()
}

/// The number of this rank and how many there are.
fn rank_and_size(world: &impl Communicator) -> (usize, usize) {
    (world.rank() as usize, world.size() as usize)
}

/// One product after the other, until the last rank ends in one of them.
fn endless(world: &impl Communicator, end: impl Fn()) {
    let (rank, size) = rank_and_size(world);
    let grid = Grid::new(world, Split::Columns).unwrap();
    let device = grid.device("reference").unwrap();
    let a = Distributed::from_fn(&grid, &device, (300, 2000), |i, j| (i + j) as f32).unwrap();
    let (x, mut y) = (Array1::<f32>::ones(2000), Array1::<f32>::zeros(300));
    for product in 0.. {
        if product == 20 && rank == size - 1 {
            eprintln!("rank {rank} ends after {product} products");
            end();
        }
        a.gemv(1.0, &x, 0.0, &mut y).unwrap();
    }
}
