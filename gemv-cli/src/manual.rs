//! `gemv completions` and `gemv man`: what a package of this program installs beside it.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

/// Print the completions of a shell, such as for ~/.local/share/bash-completion/completions/gemv.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

/// Write manual pages, one for each command, such as to ~/.local/share/man/man1.
#[derive(clap::Args)]
pub(crate) struct Man {
    /// The directory, which is made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn completions(args: Completions, mut command: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "gemv", &mut text);
    Ok(stdout().write_all(&text)?)
}

pub(crate) fn man(args: Man, command: Command) -> anyhow::Result<()> {
    let dir = args.dir.display();
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {dir}"))?;
    // Without a page for `gemv help`, which has them too.
    let command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("cannot write to {dir}"))?;
    Ok(writeln!(stdout(), "manual pages in {dir}")?)
}
