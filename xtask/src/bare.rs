//! Runs a program where neither libcuda nor libOpenCL is to be had: in a root folder that holds
//! nothing but the program and the libraries that it names itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

/// A root folder with this program in it.
pub struct Bare {
    root: PathBuf,
    program: String,
}

impl Bare {
    /// Copies the program and what its loader needs into `root`.
    pub fn new(sh: &Shell, root: &Path, program: &Path) -> Result<Bare> {
        sh.remove_path(root)?;
        sh.create_dir(root)?;
        let listed = cmd!(sh, "ldd {program}").quiet().read()?;
        for forbidden in ["libOpenCL", "libcuda", "libnvrtc"] {
            ensure!(!listed.contains(forbidden), "the program is linked to {forbidden}:\n{listed}");
        }
        let libraries = listed.split_whitespace().filter(|w| w.starts_with('/'));
        for library in libraries {
            let to = root.join(library.trim_start_matches('/'));
            sh.create_dir(to.parent().context("a folder")?)?;
            sh.copy_file(library, to)?;
        }
        let name = program.file_name().context("a file")?.to_string_lossy().into_owned();
        sh.copy_file(program, root.join(&name))?;
        Ok(Bare { root: root.to_path_buf(), program: format!("/{name}") })
    }

    /// Copies a file into the root folder.
    pub fn add(&self, sh: &Shell, file: &Path) -> Result<String> {
        let name = file.file_name().context("a file")?.to_string_lossy().into_owned();
        sh.copy_file(file, self.root.join(&name))?;
        Ok(format!("/{name}"))
    }

    /// Runs the program there; exit code and both outputs.
    pub fn run(&self, sh: &Shell, args: &[&str]) -> Result<(i32, String)> {
        let (root, program) = (&self.root, &self.program);
        let prefix: &[&str] = match cmd!(sh, "id -u").quiet().read()?.as_str() {
            "0" => &["chroot"],
            _ => &["unshare", "--user", "--map-root-user", "chroot"],
        };
        let (enter, rest) = prefix.split_first().context("a program")?;
        let out = cmd!(sh, "{enter} {rest...} {root} {program} {args...}")
            .env_remove("GEMV_BACKEND")
            .quiet()
            .ignore_status()
            .output()
            .context("a root folder of its own could not be entered")?;
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        match out.status.code() {
            Some(125..=127) | None => bail!("the program did not start: {text}"),
            Some(code) => Ok((code, text)),
        }
    }
}
