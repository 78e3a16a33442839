//! The directory of a GGUF file, versions 2 and 3, as <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> describes them.

use std::collections::HashSet;

use gemv_desc::Dtype;
use gemv_packed::Format;

use crate::entry::{Directory, Elements, Entry, Value};

pub(crate) const MAGIC: &[u8] = b"GGUF";

/// A tensor has no more axes in ggml.
const MOST_AXES: u32 = 4;
/// Arrays of arrays: no program writes any.
const MOST_NESTED: u32 = 4;
/// The key of the alignment of tensors, and what it is without.
const ALIGNMENT: (&str, u64) = ("general.alignment", 32);

/// A type by its number in the file: its name, and elements and bytes of a block.
const TYPES: [(u32, &str, u64, u64); 32] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
];

fn elements(name: &'static str) -> Elements {
    match name {
        "F32" => Elements::Plain(Dtype::F32),
        "F64" => Elements::Plain(Dtype::F64),
        "F16" => Elements::Plain(Dtype::F16),
        "BF16" => Elements::Plain(Dtype::Bf16),
        "Q8_0" => Elements::Packed(Format::Q8_0),
        "Q4_0" => Elements::Packed(Format::Q4_0),
        "Q4_K" => Elements::Packed(Format::Q4K),
        "Q6_K" => Elements::Packed(Format::Q6K),
        "MXFP4" => Elements::Packed(Format::Mxfp4),
        "NVFP4" => Elements::Packed(Format::Nvfp4),
        other => Elements::Other(other),
    }
}

type Result<T> = std::result::Result<T, String>;

/// Reads the directory. It takes no more memory than the file has bytes, whatever the counts in it say.
pub(crate) fn read(bytes: &[u8]) -> Result<Directory> {
    let mut from = Cursor { bytes, at: MAGIC.len() };
    match from.u32("the version")? {
        2 | 3 => {}
        version if version & 0xffff == 0 => return Err("it is a big-endian GGUF file".into()),
        version => return Err(format!("version {version} of GGUF is not known, but 2 and 3 are")),
    }
    let tensors = from.u64("the number of tensors")?;
    let values = from.u64("the number of metadata")?;
    let mut directory = Directory::default();
    let mut alignment = ALIGNMENT.1;
    let mut keys = HashSet::new();
    for _ in 0..values {
        let key = from.text("a key of the metadata")?;
        if !keys.insert(key) {
            return Err(format!("the key {key:?} is there twice"));
        }
        let kind = from.u32("a type of the metadata")?;
        let value = from.value(kind, key, 0)?;
        if key == ALIGNMENT.0 {
            alignment = match value {
                Value::Unsigned(value) if value.is_power_of_two() && value <= 1 << 30 => value,
                other => return Err(format!("{key} is {other}, which is no power of two")),
            };
        }
        directory.metadata.push((key.into(), value));
    }
    let mut offsets = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensors {
        let (entry, offset, len) = tensor(&mut from)?;
        if !names.insert(entry.name.clone()) {
            return Err(format!("the tensor {:?} is there twice", entry.name));
        }
        if offset % alignment != 0 {
            let name = &entry.name;
            return Err(format!(
                "the tensor {name:?} begins at {offset}, no multiple of {alignment}"
            ));
        }
        offsets.push((offset, len));
        directory.tensors.push(entry);
    }
    let data = (from.at as u64).next_multiple_of(alignment);
    for (entry, (offset, len)) in directory.tensors.iter_mut().zip(offsets) {
        let begin = data.checked_add(offset);
        let end = begin.and_then(|begin| begin.checked_add(len));
        let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= bytes.len() as u64)) else {
            return Err(format!(
                "the tensor {:?} has {len} bytes from {offset} on, and the file has {} bytes of tensors",
                entry.name,
                (bytes.len() as u64).saturating_sub(data)
            ));
        };
        // Both are places in the file.
        entry.bytes = begin as usize..end as usize;
    }
    Ok(directory)
}

/// A tensor, and where its bytes are among those of all tensors.
fn tensor(from: &mut Cursor<'_>) -> Result<(Entry, u64, u64)> {
    let name = from.text("a tensor's name")?;
    let axes = from.u32("a tensor's number of axes")?;
    if axes > MOST_AXES {
        return Err(format!("the tensor {name:?} has {axes} axes, where {MOST_AXES} are the most"));
    }
    let mut shape = (0..axes).map(|_| from.u64("a tensor's shape")).collect::<Result<Vec<_>>>()?;
    let kind = from.u32("a tensor's type")?;
    let offset = from.u64("a tensor's place")?;
    let known = TYPES.iter().find(|(number, ..)| *number == kind);
    let Some((_, type_name, of_block, block)) = known else {
        return Err(format!("the tensor {name:?} is of type {kind}, which is not known"));
    };
    let row = shape.first().copied().unwrap_or(1);
    if row % of_block != 0 {
        return Err(format!(
            "the tensor {name:?} has rows of {row} elements, no whole number of blocks of {of_block} of {type_name}"
        ));
    }
    shape.reverse();
    let len = shape.iter().try_fold(1_u64, |len, axis| len.checked_mul(*axis));
    let len = len.and_then(|len| (len / of_block).checked_mul(*block));
    let sizes: Option<Vec<usize>> = shape.iter().map(|axis| usize::try_from(*axis).ok()).collect();
    let (Some(len), Some(shape)) = (len, sizes) else {
        return Err(format!(
            "the tensor {name:?} of shape {shape:?} is larger than can be addressed"
        ));
    };
    let elements = elements(type_name);
    Ok((Entry { name: name.into(), shape, elements, bytes: 0..0 }, offset, len))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let len = usize::try_from(len).ok().filter(|len| *len <= rest.len());
        let len = len.ok_or_else(|| format!("the file ends within {what}"))?;
        self.at += len;
        Ok(&rest[..len])
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N as u64, what)?.try_into().expect("as many bytes as asked"))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.number(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.number(what)?))
    }

    fn text(&mut self, what: &str) -> Result<&'a str> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| format!("{what} is no text in UTF-8"))
    }

    /// A value of the metadata, of the type of this number.
    fn value(&mut self, kind: u32, key: &str, nested: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.number(key)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.number(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.number(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.number(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.number(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.number(key)?).into()),
            7 => match self.number(key)? {
                [value @ (0 | 1)] => Value::Bool(value == 1),
                [other] => return Err(format!("{key:?} is the truth value {other}")),
            },
            8 => Value::Text(self.text(key)?.into()),
            9 => self.array(key, nested)?,
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.number(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.number(key)?)),
            _ => return Err(format!("{key:?} is a value of type {kind}, which is not known")),
        })
    }

    /// Passes over an array.
    fn array(&mut self, key: &str, nested: u32) -> Result<Value> {
        let (kind, len) = (self.u32(key)?, self.u64(key)?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            9 if nested == MOST_NESTED => {
                return Err(format!("{key:?} has arrays in arrays in arrays"));
            }
            _ => {
                // A text takes 8 bytes or more, an array 12: the file's end ends this.
                for _ in 0..len {
                    match kind {
                        8 => drop(self.text(key)?),
                        _ => drop(self.value(kind, key, nested + 1)?),
                    }
                }
                return Ok(Value::Array(len));
            }
        };
        self.take(len.saturating_mul(size), key)?;
        Ok(Value::Array(len))
    }
}
