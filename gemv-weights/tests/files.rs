//! Files of the packages gguf and safetensors, which `golden.py` writes, and files that are damaged. `GEMV_WEIGHTS_GOLDEN` names
//! another folder of its files.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use gemv_desc::Dtype;
use gemv_packed::Format;
use gemv_weights::{Elements, Matrix, Value, WeightFile};
use half::{bf16, f16};

fn golden(name: &str) -> PathBuf {
    let folder = std::env::var_os("GEMV_WEIGHTS_GOLDEN").map(PathBuf::from);
    folder.unwrap_or(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")).join(name)
}

fn open(name: &str) -> WeightFile {
    WeightFile::open(golden(name)).unwrap()
}

fn values(of: &Matrix) -> Vec<f32> {
    let (pairs, quads) = (of.bytes.as_chunks::<2>().0.iter(), of.bytes.as_chunks::<4>().0.iter());
    match of.elements {
        Elements::Plain(Dtype::F32) => quads.map(|b| f32::from_le_bytes(*b)).collect(),
        Elements::Plain(Dtype::F16) => pairs.map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Elements::Plain(Dtype::Bf16) => pairs.map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Elements::Packed(format) => {
            let mut values = vec![0.0; of.rows * of.columns];
            format.dequantize(&of.bytes, &mut values);
            values
        }
        other => panic!("{other}"),
    }
}

/// Compares each matrix that has values, the last rows of it where there are no others.
fn compare(name: &str, file: &WeightFile) -> usize {
    let all = open(&format!("{name}.values.safetensors"));
    for tensor in all.tensors() {
        // GPTQ's second version is asked for.
        if tensor.name() == "second.weight" {
            continue;
        }
        let matrix = file.matrix(tensor.name()).unwrap();
        let want = values(&all.matrix(tensor.name()).unwrap());
        let (rows, columns) = tensor.rows_and_columns();
        assert!(matrix.columns == columns && matrix.rows >= rows, "{}", tensor.name());
        let values = values(&matrix);
        assert_eq!(values.len(), matrix.rows * matrix.columns, "{}", tensor.name());
        assert_eq!(values[values.len() - want.len()..], want, "{}", tensor.name());
    }
    all.tensors().len()
}

#[test]
fn a_file_of_gguf_is_read_as_by_its_package() {
    let file = open("model.gguf");
    assert_eq!(compare("model", &file), 10);
    let metadata: Vec<_> = file.metadata().map(|(key, value)| (key, value.clone())).collect();
    let text = |text: &str| Value::Text(text.into());
    let want = [
        ("general.architecture", text("llama")),
        ("kinds.u8", Value::Unsigned(200)),
        ("kinds.i8", Value::Signed(-100)),
        ("kinds.u16", Value::Unsigned(60000)),
        ("kinds.i16", Value::Signed(-30000)),
        ("kinds.u32", Value::Unsigned(4000000000)),
        ("kinds.i32", Value::Signed(-2000000000)),
        ("kinds.u64", Value::Unsigned(1 << 63)),
        ("kinds.i64", Value::Signed(-(1 << 62))),
        ("kinds.f32", Value::Float(0.5)),
        ("kinds.f64", Value::Float(0.1)),
        ("kinds.bool", Value::Bool(true)),
        ("kinds.text", text("größer als\neine Zeile")),
        ("kinds.texts", Value::Array(3)),
        ("kinds.numbers", Value::Array(3)),
    ];
    assert_eq!(metadata, want);
    let tensors: Vec<_> =
        file.tensors().map(|t| (t.name(), t.shape(), t.elements().name())).collect();
    assert_eq!(tensors[0], ("output_norm.weight", &[7][..], "f32"));
    assert_eq!(tensors[3], ("blk.0.attn_v.weight", &[3, 64][..], "q8_0"));
    let experts = file.matrix("blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!((experts.rows, experts.columns), (6, 32));
    assert_eq!(file.matrix("blk.0.ffn_gate_inp.weight").unwrap().alpha, 0.75);
    assert_eq!(file.matrix("blk.0.ffn_up").unwrap().elements, Elements::Packed(Format::Q4K));
    let e = file.matrix("kinds.q5_1").unwrap_err();
    assert_eq!(e.reason(), "the tensor \"kinds.q5_1\" is Q5_1, of which there are no products");
}

#[test]
fn a_file_of_safetensors_is_read_as_by_its_package() {
    let file = open("layers.safetensors");
    assert_eq!(compare("layers", &file), 11);
    let format = |name: &str| file.matrix(name).unwrap().elements.name();
    let names =
        ["gptq.weight", "awq", "blocks.weight", "modelopt.weight", "micro.weight", "experts"];
    assert_eq!(names.map(format), ["int4g64", "int4g64", "fp8", "nvfp4", "mxfp4", "mxfp4"]);
    for name in ["modelopt.weight", "compressed.weight"] {
        assert_eq!(file.matrix(name).unwrap().alpha, 0.25, "{name}");
    }
    assert_eq!(file.metadata().next(), Some(("format", &Value::Text("pt".into()))));

    let second = open("layers.safetensors").gptq_version(2);
    let all = open("layers.values.safetensors");
    let want = values(&all.matrix("second.weight").unwrap());
    assert_eq!(values(&second.matrix("second").unwrap()), want);
    assert_ne!(values(&file.matrix("second").unwrap()), want);
    let e = open("layers.safetensors").gptq_version(7).matrix("second").unwrap_err();
    assert!(
        e.to_string().ends_with("\"second.qweight\": int4: version 7 of GPTQ is not known"),
        "{e}"
    );
}

#[test]
fn a_mapped_file_is_the_file_in_memory() {
    for name in ["model.gguf", "layers.safetensors"] {
        let bytes = std::fs::read(golden(name)).unwrap();
        let (file, memory) = (open(name), WeightFile::from_bytes(name, bytes).unwrap());
        assert_eq!(file.tensors().len(), memory.tensors().len());
        for (a, b) in file.tensors().zip(memory.tensors()) {
            assert_eq!((a.name(), a.shape(), a.bytes()), (b.name(), b.shape(), b.bytes()));
        }
    }
}

#[test]
fn what_is_no_file_of_weights_gets_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path| WeightFile::open(path).err().unwrap().reason().to_owned();
    assert_eq!(reason(folder.path()), "it is no plain file");
    assert!(reason(&folder.path().join("missing")).contains("No such file"));
    let neither = "it is neither a GGUF file nor one of safetensors";
    for bytes in [&b""[..], b"GGU", b"\x93NUMPY\x01\0", &[0; 100]] {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(reason(&path), neither);
    }
    #[cfg(unix)]
    assert_eq!(reason(Path::new("/dev/zero")), "it is no plain file");
}

/// A GGUF file by its parts.
#[derive(Clone)]
struct Gguf {
    version: u32,
    tensors: Option<u64>,
    metadata: Vec<u8>,
    values: u64,
    /// Name, dimensions, type, place.
    directory: Vec<(&'static str, Vec<u64>, u32, u64)>,
    data: usize,
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn one() -> Gguf {
    let directory = vec![("a", vec![32, 2], 8, 0)];
    Gguf { version: 3, tensors: None, metadata: Vec::new(), values: 0, directory, data: 68 }
}

impl Gguf {
    fn bytes(&self) -> Vec<u8> {
        let mut to = b"GGUF".to_vec();
        to.extend(self.version.to_le_bytes());
        to.extend(self.tensors.unwrap_or(self.directory.len() as u64).to_le_bytes());
        to.extend(self.values.to_le_bytes());
        to.extend(&self.metadata);
        for (name, shape, kind, place) in &self.directory {
            to.extend(text(name.as_bytes()));
            to.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|axis| to.extend(axis.to_le_bytes()));
            to.extend(kind.to_le_bytes());
            to.extend(place.to_le_bytes());
        }
        to.resize(to.len().next_multiple_of(32) + self.data, 0);
        to
    }

    /// With one value of the metadata, of a type by its number.
    fn value(key: &str, kind: u32, value: &[u8]) -> Gguf {
        let metadata = [&text(key.as_bytes())[..], &kind.to_le_bytes(), value].concat();
        Gguf { metadata, values: 1, ..one() }
    }

    fn with(name: &'static str, shape: &[u64], kind: u32, place: u64) -> Gguf {
        Gguf { directory: vec![(name, shape.into(), kind, place)], ..one() }
    }

    fn reason(&self) -> String {
        WeightFile::from_bytes("f", self.bytes()).err().expect("an error").reason().to_owned()
    }
}

#[test]
fn damaged_files_of_gguf_get_a_sentence() {
    let file = WeightFile::from_bytes("f", one().bytes()).unwrap();
    assert_eq!(file.tensor("a").unwrap().bytes().len(), 68);
    let two = Gguf { version: 2, ..one() };
    assert!(WeightFile::from_bytes("f", two.bytes()).is_ok());

    for (file, reason) in [
        (Gguf { version: 1, ..one() }, "version 1 of GGUF is not known, but 2 and 3 are"),
        (Gguf { version: 3 << 24, ..one() }, "it is a big-endian GGUF file"),
        (
            Gguf { tensors: Some(u64::MAX), data: 0, ..one() },
            "the file ends within a tensor's name",
        ),
        (Gguf { values: u64::MAX, data: 0, ..one() }, "the file ends within a key of the metadata"),
        (Gguf::value("k", 13, &[]), "\"k\" is a value of type 13, which is not known"),
        (Gguf::value("k", 7, &[2]), "\"k\" is the truth value 2"),
        (
            Gguf::value("general.alignment", 4, &[24, 0, 0, 0]),
            "general.alignment is 24, which is no power of two",
        ),
        (
            Gguf::value("general.alignment", 4, &[0; 4]),
            "general.alignment is 0, which is no power of two",
        ),
        (
            Gguf::value("general.alignment", 8, &text(b"32")),
            "general.alignment is 32, which is no power of two",
        ),
        (Gguf::with("b", &[32; 5], 8, 0), "the tensor \"b\" has 5 axes, where 4 are the most"),
        (Gguf::with("b", &[32], 4, 0), "the tensor \"b\" is of type 4, which is not known"),
        (
            Gguf::with("b", &[33, 2], 8, 0),
            "the tensor \"b\" has rows of 33 elements, no whole number of blocks of 32 of Q8_0",
        ),
        (
            Gguf::with("b", &[32, 1 << 60], 8, 0),
            "the tensor \"b\" of shape [1152921504606846976, 32] is larger than can be addressed",
        ),
        (
            Gguf::with("b", &[32, 3], 8, 0),
            "the tensor \"b\" has 102 bytes from 0 on, and the file has 68 bytes of tensors",
        ),
        (
            Gguf::with("b", &[32], 8, u64::MAX - 31),
            "the tensor \"b\" has 34 bytes from 18446744073709551584 on, and the file has 68 bytes of tensors",
        ),
        (Gguf::with("b", &[32], 8, 2), "the tensor \"b\" begins at 2, no multiple of 32"),
        (
            Gguf { directory: [one().directory, one().directory].concat(), ..one() },
            "the tensor \"a\" is there twice",
        ),
    ] {
        assert_eq!(file.reason(), reason);
    }
    let array = |kind: u32, len: u64| [&kind.to_le_bytes()[..], &len.to_le_bytes()].concat();
    assert!(
        Gguf::value("k", 9, &array(4, u64::MAX)).reason().starts_with("the file ends within k")
    );
    assert!(
        Gguf::value("k", 9, &array(8, u64::MAX)).reason().starts_with("the file ends within k")
    );
    let nested = array(9, 1).repeat(100);
    assert_eq!(Gguf::value("k", 9, &nested).reason(), "\"k\" has arrays in arrays in arrays");
    let twice = [Gguf::value("k", 0, &[1]).metadata, Gguf::value("k", 0, &[2]).metadata].concat();
    assert_eq!(
        Gguf { metadata: twice, values: 2, ..one() }.reason(),
        "the key \"k\" is there twice"
    );
    let lines = Gguf::with("two\nlines", &[32], 99, 0).reason();
    assert_eq!(lines, "the tensor \"two\\nlines\" is of type 99, which is not known");
    let mut long = Gguf::with("c", &[32], 99, 0);
    long.directory[0].0 = String::leak("größe".repeat(10_000));
    let long = long.reason();
    assert!(long.chars().count() < 620 && long.starts_with("the tensor \"größe"), "{long}");
    assert!(
        long.contains(" .. ") && long.ends_with("\" is of type 99, which is not known"),
        "{long}"
    );
    // Cut anywhere, it is refused.
    let whole = Gguf::value("general.name", 8, &text(b"name")).bytes();
    for len in 0..whole.len() {
        let e = WeightFile::from_bytes("f", whole[..len].into()).err().expect("an error");
        assert!(!e.reason().is_empty() && !e.reason().contains(char::is_control));
    }
}

/// A file of safetensors: names, types, shapes; all elements are zeros.
fn safetensors(tensors: &[(&str, &str, &str, usize)]) -> WeightFile {
    let (mut header, mut at) = (Vec::new(), 0);
    for (name, kind, shape, bytes) in tensors {
        let end = at + bytes;
        header.push(format!(
            r#""{name}":{{"dtype":"{kind}","shape":{shape},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", header.join(","));
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; at]].concat();
    WeightFile::from_bytes("f", bytes).unwrap()
}

#[test]
fn damaged_files_of_safetensors_get_a_sentence() {
    let whole = std::fs::read(golden("layers.safetensors")).unwrap();
    for len in (0..whole.len()).step_by(97).chain(0..300) {
        let e = WeightFile::from_bytes("f", whole[..len].into()).err().expect("an error");
        assert!(!e.reason().is_empty() && !e.reason().contains(char::is_control));
    }
    let file = |header: &str, data: usize| {
        let bytes =
            [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
        WeightFile::from_bytes("f", bytes).err().expect("an error").reason().to_owned()
    };
    let one = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert_eq!(file(one, 7), "incomplete metadata, file not fully covered");
    assert!(file(&one.replace("F32", "F33"), 8).contains("unknown variant `F33`"));
    assert!(file(&one.replace("[2]", "[3]"), 8).contains("invalid shape"));
    assert!(file(&one.replace("[0,8]", "[4,8]"), 8).contains("invalid offset for tensor `a`"));
    assert!(file(&one.replace("[2]", "[4294967296,4294967296]"), 8).contains("overflow"));
    let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    assert!(!file(&format!("{{{a},{}}}", a.replace("[0,8]", "[8,16]")), 16).is_empty());
}

#[test]
fn tensors_that_do_not_fit_together_get_a_sentence() {
    let int4 = |qweight: (&'static str, usize),
                qzeros: (&'static str, usize),
                scales: (&'static str, &'static str, usize)| {
        safetensors(&[
            ("l.qweight", "I32", qweight.0, qweight.1),
            ("l.qzeros", "I32", qzeros.0, qzeros.1),
            ("l.scales", scales.0, scales.1, scales.2),
        ])
    };
    for (file, name, reason) in [
        (
            safetensors(&[("w", "F8_E4M3", "[2,128]", 256)]),
            "w",
            "the tensor \"w\" has no \"w_scale\" beside it",
        ),
        (
            safetensors(&[("w", "F8_E4M3", "[2,128]", 256), ("w_scale", "F32", "[3]", 12)]),
            "w",
            "the scales \"w_scale\" have the shape [3]: for 2 × 128 elements [1, 1], [2], [2, 1] and [1] are known",
        ),
        (
            safetensors(&[("w", "F8_E4M3", "[2,100]", 200), ("w_scale", "F32", "[2]", 8)]),
            "w",
            "the tensor \"w\": fp8: a row of 100 elements is no whole number of blocks of 128",
        ),
        (
            safetensors(&[("w", "F8_E4M3", "[2,128]", 256), ("w_scale", "I32", "[2]", 8)]),
            "w",
            "the scales \"w_scale\" are I32, not f32, f16, bf16 or F8_E8M0",
        ),
        (
            safetensors(&[("w", "I32", "[2,128]", 1024)]),
            "w",
            "the tensor \"w\" is I32, of which there are no products",
        ),
        (
            safetensors(&[("l.qweight", "I32", "[8,8]", 256)]),
            "l",
            "the tensor \"l.qweight\" has no \"l.qzeros\" beside it",
        ),
        (
            int4(("[8,8]", 256), ("[1,2]", 8), ("F16", "[1,8]", 16)),
            "l",
            "the tensor \"l.qweight\": 2 words of zeros for 8 rows: its codes have not 4 bits",
        ),
        (
            int4(("[8,8]", 256), ("[1,1]", 4), ("F32", "[1,8]", 32)),
            "l",
            "the tensor \"l.qweight\": its scales are f32, not f16 or bf16",
        ),
        (
            int4(("[6,8]", 192), ("[1,1]", 4), ("F16", "[1,8]", 16)),
            "l.weight",
            "the tensor \"l.qweight\": 1 groups of 48 columns: groups of 32, 64, 128 and 256 are known",
        ),
        (
            int4(("[8,9]", 288), ("[1,1]", 4), ("F16", "[1,8]", 16)),
            "l",
            "the tensor \"l.qweight\": the shapes ([8, 9], [1, 1], [1, 8]) of it, qzeros and scales are neither those of GPTQ nor of AWQ",
        ),
        (
            safetensors(&[
                ("l.g_idx", "I32", "[64]", 256),
                ("l.qweight", "I32", "[8,8]", 256),
                ("l.qzeros", "I32", "[2,1]", 8),
                ("l.scales", "F16", "[2,8]", 32),
            ]),
            "l",
            "the tensor \"l.qweight\": its g_idx is not in order: columns were sorted (act-order), which no format here has",
        ),
        (
            safetensors(&[("w", "U8", "[2,32]", 64), ("w_scale", "F8_E4M3", "[2,4]", 8)]),
            "w",
            "the tensor \"w\" has no \"w_scale_2\" beside it",
        ),
        (
            safetensors(&[
                ("w", "U8", "[2,32]", 64),
                ("w_scale", "F8_E4M3", "[2,3]", 6),
                ("w_scale_2", "F32", "[]", 4),
            ]),
            "w",
            "the tensor \"w\": nvfp4: 2 × 64 elements in 64 bytes with 6 scales",
        ),
        (
            safetensors(&[("w_blocks", "U8", "[2,32]", 64), ("w_scales", "U8", "[2,3]", 6)]),
            "w",
            "the tensor \"w_blocks\": mxfp4: 2 × 96 elements in 64 bytes with 6 scales",
        ),
    ] {
        assert_eq!(file.matrix(name).unwrap_err().reason(), reason);
    }
}
