//! A file and its tensors.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::entry::{Directory, Elements, Entry, Value};
use crate::error::{Error, Result};
use crate::map::{Bytes, MatrixBytes};
use crate::{gguf, safetensors};

/// A file of weights: GGUF of version 2 or 3, or safetensors. See the [crate](crate) on files that change while they are open.
///
/// ```no_run
/// use gemv_weights::WeightFile;
///
/// let file = WeightFile::open("model.gguf")?;
/// for tensor in file.tensors() {
///     println!("{} {:?} {}", tensor.name(), tensor.shape(), tensor.elements());
/// }
/// let up = file.matrix("blk.0.ffn_up.weight")?;
/// println!("{} × {} of {}", up.rows, up.columns, up.elements);
/// # Ok::<(), gemv_weights::Error>(())
/// ```
pub struct WeightFile {
    name: String,
    bytes: Arc<Bytes>,
    directory: Directory,
    by_name: HashMap<String, usize>,
    /// Of the zeros of GPTQ.
    pub(crate) gptq_version: u32,
}

impl WeightFile {
    /// Maps a file into memory and reads its directory.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is of neither kind, or its directory is not well formed: a version or a type that is not
    /// known, a tensor twice or outside of the file, a number of elements that overflows, a row that is no whole number of
    /// blocks.
    pub fn open(path: impl AsRef<Path>) -> Result<WeightFile> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let bytes = Bytes::map(path).map_err(|e| Error::new(&name, e))?;
        WeightFile::new(name, bytes)
    }

    /// A file in memory; the name is that of its errors.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightFile> {
        WeightFile::new(name.into(), Bytes::Owned(bytes))
    }

    fn new(name: String, bytes: Bytes) -> Result<WeightFile> {
        let directory = if bytes.starts_with(gguf::MAGIC) {
            gguf::read(&bytes)
        } else if safetensors::may_be(&bytes) {
            safetensors::read(&bytes)
        } else {
            Err("it is neither a GGUF file nor one of safetensors".into())
        };
        let directory = directory.map_err(|reason| Error::new(&name, reason))?;
        let names = directory.tensors.iter().enumerate().map(|(i, entry)| (entry.name.clone(), i));
        let by_name = names.collect();
        Ok(WeightFile { name, bytes: Arc::new(bytes), directory, by_name, gptq_version: 1 })
    }

    /// The file with GPTQ's zeros read as this version has them: 1, the default, where a zero is stored as one less, or 2,
    /// which a model's `config.json` calls `gptq_v2`. The tensors do not tell.
    pub fn gptq_version(self, version: u32) -> WeightFile {
        WeightFile { gptq_version: version, ..self }
    }

    /// The file's name, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The metadata, in the order of the file; of safetensors by key.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.directory.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.directory
            .tensors
            .iter()
            .map(|entry| Tensor { entry, bytes: &self.bytes[entry.bytes.clone()] })
    }

    /// The tensor of this name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let among = self.directory.tensors.len();
        self.find(name)
            .ok_or_else(|| self.error(format!("there is no tensor {name:?} among its {among}")))
    }

    pub(crate) fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let entry = &self.directory.tensors[*self.by_name.get(name)?];
        Some(Tensor { entry, bytes: &self.bytes[entry.bytes.clone()] })
    }

    /// The bytes of a tensor of this file, which keep it open.
    pub(crate) fn shared(&self, of: &Tensor<'_>) -> MatrixBytes {
        MatrixBytes::part(&self.bytes, of.entry.bytes.clone())
    }

    pub(crate) fn error(&self, reason: impl std::fmt::Display) -> Error {
        Error::new(&self.name, reason)
    }
}

/// A tensor of a file.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    entry: &'a Entry,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// Its shape; the elements of the last axis lie side by side. GGUF's own order is the other way round.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// What its elements are.
    pub fn elements(&self) -> Elements {
        self.entry.elements
    }

    /// Its bytes in the file. They may begin anywhere: the elements of safetensors need not be aligned.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its shape as a matrix: all axes but the last are rows, one matrix below the other. A vector is one row.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        match self.shape().split_last() {
            Some((columns, rows)) => (rows.iter().product(), *columns),
            None => (1, 1),
        }
    }
}
