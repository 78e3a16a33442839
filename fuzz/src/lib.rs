//! Parsers of gemv as functions of any bytes. Whatever these are, a parser answers with a value or a sentence.
//!
//! `tests/corpus.rs` replays the inputs in `corpus`, a folder for each target; `cargo xtask fuzz` looks for further ones.
#![deny(unsafe_code)]

use std::io::{Cursor, Read};

use gemv_cli::npz;
use gemv_core::{Desc, Params, Table};
use gemv_cuda::Bundle;
use gemv_gpu::Cache;
use gemv_lab::report;
use gemv_shard::npy::Header;
use gemv_shard::{Partial, dtype_of_bytes};
use gemv_weights::{Elements, WeightFile};

/// A name, and what takes the bytes. It panics where a parser is wrong.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 10] = [
    ("npy", npy),
    ("npz", archive),
    ("table", table),
    ("params", params),
    ("desc", desc),
    ("partial", partial),
    ("bundle", bundle),
    ("cache", cache),
    ("report", measured),
    ("weights", weights),
];

/// The target of this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.into_iter().find(|target| target.0 == name).map(|target| target.1)
}

/// An error is one line that says something.
fn is_sentence(text: &str) {
    assert!(!text.trim().is_empty() && text.len() < 1 << 20, "{text:?}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

fn npy(mut data: &[u8]) {
    let all = data.len();
    match Header::read(&mut data) {
        Ok((header, bytes)) => {
            assert_eq!(all - data.len(), bytes, "as many bytes are read as are told");
            if let Some((len, bytes)) = header.size() {
                assert_eq!(len * header.dtype.bytes(), bytes);
            }
        }
        Err(e) => is_sentence(&e.to_string()),
    }
}

fn archive(data: &[u8]) {
    for name in [None, Some("a"), Some("x.npy")] {
        match npz::open(Cursor::new(data.to_vec()), name) {
            Ok(member) => {
                // What is packed well may be long: a reader takes what it has asked for.
                let (mut bytes, most) = (Vec::new(), 1 << 16);
                if member.data.take(most).read_to_end(&mut bytes).is_ok() {
                    assert_eq!(bytes.len() as u64, member.len.min(most));
                }
            }
            Err(e) => is_sentence(&format!("{e:#}")),
        }
    }
}

fn table(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match Table::parse("table", text) {
        Ok(table) => {
            let again = Table::parse("table", &table.to_string());
            let again = again.expect("a table reads what it writes");
            assert_eq!(again.rows, table.rows);
            table.rows.iter().for_each(|row| row.examples().take(4).for_each(drop));
        }
        Err(e) => is_sentence(&e.to_string()),
    }
}

fn params(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match text.parse::<Params>() {
        Ok(params) => assert_eq!(params.to_string().parse(), Ok(params)),
        Err(e) => is_sentence(&e),
    }
}

fn desc(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match text.parse::<Desc>() {
        Ok(desc) => assert_eq!(desc.to_string().parse::<Desc>().ok(), Some(desc), "{desc}"),
        Err(e) => is_sentence(&e.to_string()),
    }
}

fn partial(data: &[u8]) {
    if let Err(e) = dtype_of_bytes(data) {
        is_sentence(&e.to_string());
    }
    match Partial::<f32>::from_bytes(data) {
        Ok(partial) => assert_eq!(partial.to_bytes().expect("memory for as many bytes"), data),
        Err(e) => is_sentence(&e.to_string()),
    }
    if let Err(e) = Partial::<f64>::from_bytes(data) {
        is_sentence(&e.to_string());
    }
}

fn bundle(data: &[u8]) {
    match Bundle::read(data) {
        Ok(bundle) => bundle.texts().take(8).for_each(|text| {
            if let Err(e) = text {
                is_sentence(&e);
            }
        }),
        Err(e) => is_sentence(&e),
    }
}

fn cache(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("entry"), data).expect("a file");
    let cache = Cache::at(folder.path());
    // Most bytes are no entry, but all can be what one holds.
    cache.put("kept", data);
    assert_eq!(cache.get("kept").unwrap_or_default(), data);
    if let Some(contents) = cache.get("entry") {
        cache.put("again", &contents);
        assert_eq!(cache.get("again"), Some(contents));
    }
}

fn measured(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for name in ["bench.csv", "f32.cells.csv"] {
        match report::html(name, text) {
            Ok(page) => {
                assert!(page.contains("</html>") && page.len() < 16 << 20, "{}", page.len())
            }
            Err(e) => is_sentence(&format!("{e:#}")),
        }
    }
}

fn weights(data: &[u8]) {
    let file = match WeightFile::from_bytes("file", data.to_vec()) {
        Ok(file) => file,
        Err(e) => return is_sentence(&e.to_string()),
    };
    for tensor in file.tensors() {
        assert!(tensor.bytes().len() <= data.len());
        match file.matrix(tensor.name()) {
            Ok(matrix) => {
                let len = match matrix.elements {
                    Elements::Plain(dtype) => Some(matrix.columns * dtype.bytes()),
                    Elements::Packed(format) => format.row_bytes(matrix.columns).ok(),
                    Elements::Other(name) => panic!("a matrix of {name}"),
                };
                let len = len.expect("rows of whole blocks");
                assert_eq!(matrix.bytes.len(), matrix.rows * len, "{}", tensor.name());
            }
            Err(e) => is_sentence(&e.to_string()),
        }
    }
}
