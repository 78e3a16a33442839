//! Values and blocks are those of other programs: `golden.py` writes them, and says how. `GEMV_PACKED_GOLDEN` names
//! another folder of its files.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use gemv_packed::Format;

/// The formats that ggml alone rounds to: only the folder of the repository must have them.
const OF_GGML: [&str; 3] = ["q4_k", "q6_k", "nvfp4"];

fn folder() -> (PathBuf, bool) {
    match std::env::var_os("GEMV_PACKED_GOLDEN") {
        Some(folder) => (folder.into(), true),
        None => (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), false),
    }
}

/// The number of blocks, and what follows it.
fn read(name: &str) -> (usize, Vec<u8>) {
    let path = folder().0.join(name);
    let mut bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rest = bytes.split_off(4);
    (u32::from_le_bytes(bytes.try_into().unwrap()) as usize, rest)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn values_are_those_of_the_reference() {
    for &format in Format::ALL {
        let (count, bytes) = read(&format!("{format}.values"));
        assert!(count >= 6, "{format}: {count} blocks");
        let (blocks, want) = bytes.split_at(count * format.block_bytes());
        let want = floats(want);
        let mut values = vec![0.0; count * format.block_len()];
        format.dequantize(blocks, &mut values);
        assert_eq!(values.len(), want.len(), "{format}");
        for (i, (value, want)) in values.iter().zip(want).enumerate() {
            let same = value.to_bits() == want.to_bits() || value.is_nan() && want.is_nan();
            assert!(same, "{format}: element {i}: {value:e}, and the reference has {want:e}");
        }
    }
}

#[test]
fn blocks_are_those_of_the_reference() {
    let (folder, other) = folder();
    for name in ["q8_0", "q4_0", "q4_k", "q6_k", "fp8", "mxfp4", "nvfp4"] {
        let file = format!("{name}.blocks");
        if other && OF_GGML.contains(&name) && !folder.join(&file).exists() {
            continue;
        }
        let format: Format = name.parse().unwrap();
        let (count, bytes) = read(&file);
        assert!(count >= 24, "{format}: {count} blocks");
        let (weights, want) = bytes.split_at(count * format.block_len() * 4);
        let mut blocks = vec![0; count * format.block_bytes()];
        format.quantize(&floats(weights), &mut blocks).unwrap();
        assert_eq!(blocks.len(), want.len(), "{format}");
        let pairs = blocks.chunks(format.block_bytes()).zip(want.chunks(format.block_bytes()));
        for (i, (block, want)) in pairs.enumerate() {
            assert_eq!(block, want, "{format}: block {i}");
        }
    }
}
