//! `gemv info FILE`: the tensors of a file of weights.

use std::io::{self, Write};

use gemv_weights::{Value, WeightFile};

/// Columns of the metadata's texts.
const MOST: usize = 60;

/// A name of the file on one line.
fn plain(name: &str) -> String {
    if name.contains(char::is_control) { name.escape_debug().to_string() } else { name.into() }
}

fn shape(of: &[usize]) -> String {
    let axes: Vec<String> = of.iter().map(usize::to_string).collect();
    if axes.is_empty() { "1".into() } else { axes.join(" x ") }
}

/// As text: the metadata, then a tensor a line.
pub(crate) fn list(file: &WeightFile, out: &mut impl Write) -> io::Result<()> {
    let (tensors, metadata) = (file.tensors(), file.metadata());
    writeln!(out, "{}: {} tensors\n", file.name(), tensors.len())?;
    for (key, value) in metadata {
        let text = plain(&value.to_string());
        let short: String = text.chars().take(MOST).collect();
        let rest = if short.len() < text.len() { " .." } else { "" };
        writeln!(out, "  {} = {short}{rest}", plain(key))?;
    }
    writeln!(out)?;
    let width = tensors.map(|tensor| plain(tensor.name()).chars().count()).max().unwrap_or(0);
    for tensor in file.tensors() {
        let (name, bytes) = (plain(tensor.name()), tensor.bytes().len());
        let (elements, shape) = (tensor.elements(), shape(tensor.shape()));
        writeln!(out, "  {name:<width$}  {elements:<8}  {shape:<14}  {bytes} bytes")?;
    }
    Ok(())
}

/// As JSON.
pub(crate) fn json(file: &WeightFile) -> serde_json::Value {
    let value = |value: &Value| match value {
        Value::Unsigned(value) => (*value).into(),
        Value::Signed(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Bool(value) => (*value).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Array(len) => serde_json::json!({ "values": len }),
    };
    let metadata = file.metadata().map(|(key, of)| (key.to_owned(), value(of)));
    let metadata: serde_json::Map<_, _> = metadata.collect();
    let tensors = file.tensors().map(|tensor| {
        serde_json::json!({
            "name": tensor.name(),
            "type": tensor.elements().name(),
            "shape": tensor.shape(),
            "bytes": tensor.bytes().len(),
        })
    });
    let tensors: Vec<_> = tensors.collect();
    serde_json::json!({ "file": file.name(), "metadata": metadata, "tensors": tensors })
}
