//! Every check is seen to fail on a planted violation.

use super::*;

fn package(name: &str, dependencies: &[&str]) -> Package {
    let folder = PathBuf::from(if name == "gemv" { "" } else { name });
    Package {
        roots: vec![folder.join("src/lib.rs")],
        name: name.into(),
        folder,
        dependencies: dependencies.iter().map(|d| d.to_string()).collect(),
    }
}

/// What is found in the crate gemv-gpu with these files.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let root = ("gemv-gpu/src/lib.rs", "#![deny(unsafe_code)]");
    let mut all: Files = [root].map(|(p, t)| (p.into(), t.into())).into();
    all.insert("src/lib.rs".into(), "#![forbid(unsafe_code)]".into());
    all.extend(files.iter().map(|(p, t)| (PathBuf::from(p), t.to_string())));
    findings(&[package("gemv-gpu", &["gemv-core"]), package("gemv", &[])], &all).unwrap().0
}

/// The files of the circles in a crate with this root and these modules.
fn circle(root: &str, modules: &[(&str, &str)]) -> Vec<String> {
    let mut files =
        vec![("gemv-gpu/src/lib.rs".to_owned(), format!("#![deny(unsafe_code)] {root}"))];
    files.extend(modules.iter().map(|(n, t)| (format!("gemv-gpu/src/{n}"), t.to_string())));
    let files: Vec<_> = files.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    let lines = found(&files).into_iter().map(|f| f.lines().next().unwrap_or_default().to_owned());
    lines.map(|f| f.replace("gemv-gpu/src/", "").replace("gemv-gpu: circle: ", "")).collect()
}

#[test]
fn a_clean_crate_has_no_findings() {
    assert_eq!(found(&[]), [""; 0]);
    let chain = [("a.rs", "use crate::b::B; pub struct A(B);"), ("b.rs", "pub struct B;")];
    assert_eq!(circle("mod a; mod b; pub use a::A;", &chain), [""; 0]);
}

#[test]
fn circles_by_every_kind_of_import() {
    let b = ("b.rs", "use crate::a::A; pub struct B(A);");
    for a in [
        "use crate::b::B; pub struct A(Option<&'static B>);",
        "use super::b::{self}; pub struct A; fn f(_: b::B) {}",
        "use crate::{b::*}; pub struct A;",
        "pub struct A; fn f() { crate::b::make() }",
        "pub struct A; fn f() { println!(\"{}\", crate::b::N) }",
        "pub struct A; fn f() { use super::b::{B}; }",
        "pub use crate::b::B; pub struct A; fn f(_: B) {}",
        "mod inner { use super::super::b::B; } pub struct A;",
    ] {
        assert_eq!(circle("mod a; mod b;", &[("a.rs", a), b]), ["a.rs b.rs"], "{a}");
    }
}

#[test]
fn reexports_are_followed_to_the_file_that_defines() {
    let a = ("a.rs", "use crate::B; pub struct A;");
    let b = ("b.rs", "use crate::A; pub struct B;");
    assert_eq!(circle("mod a; mod b; pub use a::A; pub use b::B;", &[a, b]), ["a.rs b.rs"]);
    let deep = ("m/b.rs", "use crate::A; pub struct B;");
    let module = ("m/mod.rs", "mod b; pub use b::*;");
    let a = ("a.rs", "use crate::m::B; pub struct A;");
    assert_eq!(circle("mod a; mod m; pub use a::A;", &[a, module, deep]), ["a.rs m/b.rs"]);
}

#[test]
fn the_root_takes_part_if_it_defines_something() {
    let a = ("a.rs", "use crate::Root; pub fn all() -> Root { Root }");
    let root = "mod a; pub struct Root; pub fn f() -> Root { a::all() }";
    assert_eq!(circle(root, &[a]), ["a.rs lib.rs"]);
    assert_eq!(circle("mod a; pub struct Root; pub use a::all;", &[a]), [""; 0]);
}

#[test]
fn modules_that_a_macro_declares_are_followed() {
    let a = ("a.rs", "use crate::Root; pub const K: Root = Root;");
    let root = "pub struct Root; kernel_files! { static ALL: Root = K; mod a; }";
    assert_eq!(circle(root, &[a]), ["a.rs lib.rs"]);
    assert_eq!(circle(root, &[("a.rs", "pub const K: u8 = 1;")]), [""; 0]);
}

#[test]
fn tests_and_documentation_make_no_circle() {
    let b = ("b.rs", "use crate::a::A; pub struct B(A);");
    for a in [
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(test)] use crate::b::B; pub struct A;",
        "/// `crate::b::B`\npub struct A; impl A { #[cfg(test)] fn f(_: crate::b::B) {} }",
    ] {
        assert_eq!(circle("mod a; mod b;", &[("a.rs", a), b]), [""; 0], "{a}");
    }
}

#[test]
fn imports_that_climb() {
    let climbing = |name: &str, to: &[&str]| climbs(&package(name, to));
    assert_eq!(climbing("gemv-cuda", &["gemv-gpu", "gemv-core", "log"]), [""; 0]);
    assert_eq!(climbing("gemv-gpu", &["gemv-cuda"]), ["climbs to gemv-cuda"]);
    assert_eq!(climbing("gemv-cuda", &["gemv-opencl"]), ["climbs to gemv-opencl"]);
    assert_eq!(climbing("gemv-core", &["gemv-testkit"]), ["climbs to gemv-testkit"]);
    assert_eq!(climbing("gemv-new", &[]), ["stands on no floor"]);
}

#[test]
fn prints_that_panic() {
    let prints = |text| words::prints(text).unwrap();
    assert!(prints("fn f() { println!(\"{}\", 1) }") && prints("fn f() { print!(\"\") }"));
    assert!(!prints("/// println!\nfn f() { eprintln!(\"println!\"); }"));
    assert!(!prints("#[cfg(test)] mod tests { fn f() { println!() } }"));
    // Of the command alone.
    assert_eq!(found(&[("gemv-gpu/src/a.rs", "fn f() { println!() }")]), [""; 0]);
    let package = package("gemv-cli", &[]);
    let lib = "#![deny(unsafe_code)] fn f() { println!() }";
    let files = [("gemv-cli/src/lib.rs".into(), lib.into())].into();
    let found = findings(&[package], &files).unwrap().0;
    assert_eq!(found, ["gemv-cli: gemv-cli/src/lib.rs: println: it panics where nobody reads"]);
}

#[test]
fn unsafe_outside_its_folders() {
    let file = "gemv-gpu/src/a.rs";
    let text = "fn f() { unsafe { g() } }";
    assert_eq!(found(&[(file, text)]), ["gemv-gpu: gemv-gpu/src/a.rs: unsafe"]);
    let in_test = "#[cfg(test)] mod tests { unsafe fn f() {} }";
    assert_eq!(found(&[(file, in_test)]).len(), 1);
    let words = "/// unsafe\n#[deny(unsafe_code)] fn f() { \"unsafe\"; }";
    assert_eq!(found(&[(file, words)]), [""; 0]);
    assert!(words::below("gemv-cpu/src/simd/x86.rs".as_ref(), UNSAFE));
    assert!(!words::below("gemv-cpu/src/simd2.rs".as_ref(), UNSAFE));
}

#[test]
fn functions_of_opencl_that_have_to_be_inlined() {
    let of = |text: &str| found(&[("gemv-gpu/src/kernels/a.k", text)]);
    let pointer = "STATIC ACC sum(const U32 n,\n    LOCAL_PTR(ACC) from) { return from[n]; }";
    assert_eq!(of(pointer), ["gemv-gpu/src/kernels/a.k: sum is not INLINED"]);
    assert_eq!(of("STATIC void f(U32 n) {\n  if (n) { BARRIER(); }\n}").len(), 1);
    assert_eq!(of(&pointer.replace("STATIC", "STATIC INLINED")), [""; 0]);
    // The barrier is the kernel's.
    assert_eq!(of("STATIC U32 f(U32 n) { return n; }\nKERNEL(9) g() { BARRIER(); }"), [""; 0]);
}

#[test]
fn a_root_that_denies_nothing() {
    let root = found(&[("gemv-gpu/src/lib.rs", "//! deny(unsafe_code)\n#![warn(unsafe_code)]")]);
    assert_eq!(root, ["gemv-gpu: gemv-gpu/src/lib.rs: no deny(unsafe_code)"]);
}

#[test]
fn kernels_named_outside_their_files() {
    let own = ("gemv-gpu/src/a.rs", "static A: Kernel = Kernel { name: \"row-a\", n: 1 };");
    let table = ("gemv-gpu/tables/default.txt", "* * : row-a n=2 # row-b\n* * : col n=1\n");
    let named = |file: &str, text: &str| {
        let root = match file {
            "gemv-gpu/src/b.rs" => "#![deny(unsafe_code)] mod b;",
            _ => "#![deny(unsafe_code)]",
        };
        found(&[("gemv-gpu/src/lib.rs", root), own, table, (file, text)]).len()
    };
    assert_eq!(named("gemv-gpu/src/b.rs", "fn f() { g(\"row-a\") }"), 1);
    assert_eq!(named("gemv-gpu/src/b.rs", "fn f() { assert!(g == \"row-a n=4\") }"), 1);
    assert_eq!(named("gemv-gpu/src/b.rs", "fn f() { g(\"row-b\", \"a row-a\") }"), 0);
    assert_eq!(named("gemv-gpu/src/b.rs", "#[cfg(test)] mod t { fn f() { g(\"row-a\") } }"), 0);
    assert_eq!(named("gemv-gpu/src/b.rs", "/// \"row-a\"\nfn f() {}"), 0);
    assert_eq!(named("gemv-gpu/tests/b.rs", "fn f() { g(\"row-a\") }"), 0);
    assert_eq!(named("tests/b.rs", "fn f() { g(\"row-a\") }"), 1);
    // A word that is also a kernel's name, unless it makes parameters.
    let core =
        |text: &str| named("src/lib.rs", &format!("#![forbid(unsafe_code)] fn f() {{ {text} }}"));
    assert_eq!(core("g(\"col\")"), 0);
    assert_eq!(core("Params::new(\"col\")"), 1);
    assert_eq!(core("g(\"col n=2\")"), 1);
    assert_eq!(named("tests/b.rs", "fn f() { Params::new(\"col\") }"), 0);
}

#[test]
fn a_core_that_is_too_large() {
    let text = "// a comment\n\nconst A: u32 = 1;\n".repeat(CORE_LINES);
    let files: Files = [
        ("gemv-core/src/a.rs", text.as_str()),
        ("gemv-core/src/lib.rs", "#![forbid(unsafe_code)] mod a;"),
    ]
    .map(|(p, t)| (p.into(), t.to_owned()))
    .into();
    let found = findings(&[package("gemv-core", &[])], &files).unwrap().0;
    assert_eq!(
        found,
        [format!(
            "gemv-core, gemv-desc: too large: {} lines of code of {CORE_LINES}",
            CORE_LINES + 1
        )]
    );
}

#[test]
fn dependencies_beyond_the_allowed() {
    let found = extra(&package("gemv-core", &["half", "serde", "toml"]));
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("serde") && found[1].contains("toml"));
}

#[test]
fn an_example_names_what_users_depend_on() {
    let text = "/// [`gemv_core::Desc`]\n/// ```\n/// use gemv_core::Desc;\n/// ```\nuse gemv_core::X;\n\
                //! ```\n//! gemv::device(\"cpu\");\n//! # gemv_core::device(\"cpu\");\n";
    assert_eq!(words::examples_of_core(text), [3, 8]);
}
