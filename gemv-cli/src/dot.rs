//! `gemv dot`.

/// The product of a matrix and a vector in NumPy files.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}
