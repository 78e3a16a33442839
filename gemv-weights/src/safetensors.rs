//! The directory of a file of safetensors, which the crate of that name reads.

use gemv_desc::Dtype;
use safetensors::{Dtype as Type, SafeTensors};

use crate::entry::{Directory, Elements, Entry, Value};

/// Whether the bytes may begin such a file: the length of a header, and a brace.
pub(crate) fn may_be(bytes: &[u8]) -> bool {
    let header = bytes.get(8..).unwrap_or_default();
    header.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

pub(crate) fn read(bytes: &[u8]) -> Result<Directory, String> {
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let mut directory = Directory::default();
    if let Some(texts) = metadata.metadata() {
        let texts = texts.iter().map(|(key, text)| (key.clone(), Value::Text(text.clone())));
        directory.metadata.extend(texts);
        directory.metadata.sort_by(|a, b| a.0.cmp(&b.0));
    }
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).ok_or("a tensor without its description")?;
        let (begin, end) = info.data_offsets;
        let (shape, elements) = (info.shape.clone(), elements(info.dtype));
        let data = 8 + header;
        directory.tensors.push(Entry { name, shape, elements, bytes: data + begin..data + end });
    }
    Ok(directory)
}

fn elements(of: Type) -> Elements {
    Elements::Plain(match of {
        Type::F32 => Dtype::F32,
        Type::F64 => Dtype::F64,
        Type::F16 => Dtype::F16,
        Type::BF16 => Dtype::Bf16,
        Type::C64 => Dtype::C32,
        other => return Elements::Other(name(other)),
    })
}

fn name(of: Type) -> &'static str {
    match of {
        Type::BOOL => "BOOL",
        Type::F4 => "F4",
        Type::F6_E2M3 => "F6_E2M3",
        Type::F6_E3M2 => "F6_E3M2",
        Type::U8 => "U8",
        Type::I8 => "I8",
        Type::F8_E5M2 => "F8_E5M2",
        Type::F8_E4M3 => "F8_E4M3",
        Type::F8_E8M0 => "F8_E8M0",
        Type::F8_E4M3FNUZ => "F8_E4M3FNUZ",
        Type::F8_E5M2FNUZ => "F8_E5M2FNUZ",
        Type::I16 => "I16",
        Type::U16 => "U16",
        Type::I32 => "I32",
        Type::U32 => "U32",
        Type::I64 => "I64",
        Type::U64 => "U64",
        _ => "of a type that this version does not know",
    }
}
