//! Matrices of files of weights, as operands: `model.gguf:blk.0.ffn_up.weight`.

use std::io::Cursor;
use std::path::Path;

use anyhow::{Result, bail};
use gemv_shard::npy::Header;
use gemv_weights::{Elements, WeightFile};

use crate::npy::Npy;

/// How the names of such files end.
const ENDS: [&str; 2] = [".gguf", ".safetensors"];

/// A matrix of a file.
pub(crate) enum Matrix {
    /// Numbers.
    Plain(Npy),
    Packed(Packed),
}

/// A packed matrix, and the factor that belongs to it.
pub(crate) struct Packed {
    pub blocks: gemv::Packed,
    pub alpha: f32,
}

/// The matrix that a name stands for; none where it is no file of weights. A file of exactly this name comes first.
pub(crate) fn open(path: &Path) -> Result<Option<Matrix>> {
    if path.exists() {
        if path.extension().is_some_and(|of| ENDS.iter().any(|end| *of == end[1..])) {
            let name = path.display();
            bail!("{name} has many tensors: {name}:NAME is one, and gemv info {name} lists them");
        }
        return Ok(None);
    }
    let Some((file, tensor)) = path.to_str().and_then(parts) else { return Ok(None) };
    let matrix = WeightFile::open(file)?.matrix(tensor)?;
    let dim = (matrix.rows, matrix.columns);
    Ok(Some(match matrix.elements {
        Elements::Plain(dtype) => {
            let shape = vec![dim.0, dim.1];
            let header = Header { dtype, big_endian: false, fortran: false, shape };
            Matrix::Plain(Npy::of(path, header, Box::new(Cursor::new(matrix.bytes)))?)
        }
        Elements::Packed(format) => {
            let blocks = gemv::Packed::new(format, dim, matrix.bytes)?;
            Matrix::Packed(Packed { blocks, alpha: matrix.alpha })
        }
        Elements::Other(name) => bail!("{}: {name} has no products", path.display()),
    }))
}

/// The file that a name is of.
pub(crate) fn file(path: &Path) -> &Path {
    let of = path.to_str().filter(|_| !path.exists()).and_then(parts);
    of.map_or(path, |(file, _)| Path::new(file))
}

/// The file and the tensor. The first of the ends that a colon follows counts: names of tensors may have them too.
fn parts(name: &str) -> Option<(&str, &str)> {
    let ends = ENDS.iter().filter_map(|end| Some(name.find(&format!("{end}:"))? + end.len()));
    let at = ends.min()?;
    Some((&name[..at], &name[at + 1..]))
}
