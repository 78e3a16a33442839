//! Whether `gemv.h` has the types of this crate: a program in C11 and in C++17 prints what it sees of them.

use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use gemv::Dtype;

use crate::array::{Array, CONJUGATED, DEVICE, READ_ONLY, RESIDENT};
use crate::error::Status;

/// What the program prints, by the crate.
fn expected() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    let mut say = |name: &str, value: usize| all.push((name.into(), value as u64));
    say("sizeof(gemv_array)", size_of::<Array>());
    say("offsetof(gemv_array, data)", offset_of!(Array, data));
    say("offsetof(gemv_array, offset)", offset_of!(Array, offset));
    say("offsetof(gemv_array, dim)", offset_of!(Array, dim));
    say("offsetof(gemv_array, stride)", offset_of!(Array, stride));
    say("offsetof(gemv_array, ndim)", offset_of!(Array, ndim));
    say("offsetof(gemv_array, dtype)", offset_of!(Array, dtype));
    say("offsetof(gemv_array, flags)", offset_of!(Array, flags));
    say("offsetof(gemv_array, reserved)", offset_of!(Array, reserved));
    say("sizeof(gemv_status)", size_of::<Status>());
    say("sizeof(gemv_dtype)", size_of::<i32>());
    for (name, status) in [
        ("GEMV_OK", Status::Ok),
        ("GEMV_ERROR_ARGUMENT", Status::Argument),
        ("GEMV_ERROR_SHAPE", Status::Shape),
        ("GEMV_ERROR_NO_DEVICE", Status::NoDevice),
        ("GEMV_ERROR_UNSUPPORTED", Status::Unsupported),
        ("GEMV_ERROR_OUT_OF_MEMORY", Status::OutOfMemory),
        ("GEMV_ERROR_DEVICE", Status::Device),
        ("GEMV_ERROR_FORKED", Status::Forked),
        ("GEMV_ERROR_INTERNAL", Status::Internal),
    ] {
        say(name, status as usize);
    }
    for (at, dtype) in Dtype::ALL.into_iter().enumerate() {
        let name = match dtype.to_string().as_str() {
            "c32" => "GEMV_C64".into(),
            "c64" => "GEMV_C128".into(),
            other => format!("GEMV_{}", other.to_uppercase()),
        };
        say(&name, at);
    }
    for (name, flag) in [
        ("GEMV_RESIDENT", RESIDENT),
        ("GEMV_DEVICE", DEVICE),
        ("GEMV_CONJUGATED", CONJUGATED),
        ("GEMV_READ_ONLY", READ_ONLY),
    ] {
        say(name, flag as usize);
    }
    let version = [
        ("GEMV_VERSION_MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("GEMV_VERSION_MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("GEMV_VERSION_PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    version.iter().for_each(|(name, text)| say(name, text.parse().unwrap()));
    all
}

#[test]
fn the_header_has_the_types_of_the_crate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = std::env::temp_dir().join(format!("gemv-header-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let expected = expected();
    let lines: String = expected
        .iter()
        .map(|(name, _)| format!("  printf(\"%llu\\n\", (unsigned long long)({name}));\n"))
        .collect();
    let text = format!(
        "#include <gemv.h>\n#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
    );
    for (compiler, standard, file) in
        [("cc", "-std=c11", "header.c"), ("c++", "-std=c++17", "header.cpp")]
    {
        let (source, program) = (place.join(file), place.join(format!("{file}.out")));
        std::fs::write(&source, &text).unwrap();
        let flags = [standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"];
        let mut compile = Command::new(compiler);
        compile.args(flags).arg(folder.join("include")).arg(&source).arg("-o").arg(&program);
        let done = compile.output().unwrap_or_else(|e| panic!("{compiler}: {e}"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let printed = Command::new(&program).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        let found: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(found.len(), expected.len());
        for ((name, value), found) in expected.iter().zip(found) {
            assert_eq!(*value, found, "{name}, by {compiler}");
        }
    }
    std::fs::remove_dir_all(place).unwrap();
}
