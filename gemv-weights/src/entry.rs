//! What a file's directory says of a tensor.

use std::fmt::{self, Display};
use std::ops::Range;

use gemv_desc::Dtype;
use gemv_packed::Format;

/// What the elements of a tensor are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    /// Numbers, little-endian.
    Plain(Dtype),
    /// Blocks of a packed format.
    Packed(Format),
    /// Another type of GGUF or safetensors, by its name there: there are no products of it.
    Other(&'static str),
}

impl Elements {
    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Elements::Plain(dtype) => dtype.name(),
            Elements::Packed(format) => format.name(),
            Elements::Other(name) => name,
        }
    }
}

impl Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A value of a file's metadata.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// An integer that is not negative.
    Unsigned(u64),
    /// An integer of a type with a sign.
    Signed(i64),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// An array of so many values, which are not read.
    Array(u64),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(value) => write!(f, "{value}"),
            Value::Signed(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Text(text) => f.write_str(text),
            Value::Array(len) => write!(f, "{len} values"),
        }
    }
}

/// A tensor in the directory.
pub(crate) struct Entry {
    pub name: String,
    /// The axis whose elements lie side by side is the last.
    pub shape: Vec<usize>,
    pub elements: Elements,
    /// Its bytes in the file, which are there.
    pub bytes: Range<usize>,
}

/// A file's directory.
#[derive(Default)]
pub(crate) struct Directory {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Entry>,
}
