//! The PTX that travels with the crate: of every program that its tables name, as the kernels are now, and of
//! no other. NVRTC is not needed to see it.

use std::collections::HashMap;
use std::sync::LazyLock;

use memchr::memmem;

use gemv_cuda::{Bundle, Image, Shipped, bundle_key, shipped};

/// The list, which takes seconds to make.
static ALL: LazyLock<Vec<Shipped>> = LazyLock::new(shipped);

fn name(shipped: &Shipped) -> String {
    let Shipped { types, params, target, .. } = shipped;
    format!("{params} of {}*{} for sm_{target}", types.0, types.1)
}

/// Whether the text has this part. The standard library's search is compiled with this test, without the optimiser.
fn has(text: &str, part: &str) -> bool {
    memmem::find(text.as_bytes(), part.as_bytes()).is_some()
}

#[test]
fn the_bundle_has_each_program_of_the_tables_and_no_other() {
    let bundle = Bundle::shipped().unwrap();
    let missing: Vec<&Shipped> =
        ALL.iter().filter(|shipped| !bundle.holds(&shipped.program(), shipped.target)).collect();
    let others = bundle.len() + missing.len() - ALL.len();
    assert!(
        missing.is_empty() && others == 0,
        "kernels or tables have changed; `cargo xtask ptx` compiles them. {} programs are missing{}, and {others} \
         are of nothing",
        missing.len(),
        missing.first().map_or(String::new(), |first| format!(", such as {}", name(first)))
    );
}

#[test]
fn each_ptx_is_for_its_target_and_has_every_entry_point_and_rounds_as_it_says() {
    let bundle = Bundle::shipped().unwrap();
    let of: HashMap<_, _> = ALL
        .iter()
        .map(|shipped| ((bundle_key(&shipped.program()), shipped.target), shipped))
        .collect();
    assert_eq!(of.len(), ALL.len(), "programs with one key");
    assert_eq!(bundle.compiler(), (12, 0));
    for text in bundle.texts() {
        let (id, ptx) = text.unwrap();
        // Of nothing, which the test above tells.
        let Some(shipped) = of.get(&id) else { continue };
        let head = ptx.split_once(".entry ").unwrap().0;
        // What a driver for CUDA 12.0 reads, as the README has it.
        assert!(head.starts_with(".version 8.0\n"), "{}: {head}", name(shipped));
        let alone = if shipped.program().is_for_sm_90a() { "a" } else { "" };
        let target = format!("\n.target sm_{}{alone}\n", shipped.target);
        assert!(head.contains(&target), "{}: {head}", name(shipped));
        assert!(!shipped.entries.is_empty(), "{}", name(shipped));
        for entry in &shipped.entries {
            let begin = format!(".visible .entry {entry}(");
            assert!(has(&ptx, &begin), "{} has no {entry}", name(shipped));
        }
        let end = memchr::memchr(0, ptx.as_bytes());
        assert!(ptx.ends_with("}\n\0") && end == Some(ptx.len() - 1), "{}", name(shipped));
        // The driver compiles without our options: what does not say how it rounds, it may contract.
        for loose in ["add.f", "sub.f", "mul.f", "mad.f", ".ftz", ".approx", ".full"] {
            assert!(!has(&ptx, loose), "{} has {loose}", name(shipped));
        }
    }
}

/// What is compiled for Hopper alone is in the PTX for it.
#[test]
fn dependent_launches_and_large_tiles_of_tensor_cores_are_for_sm_90_alone() {
    let bundle = Bundle::shipped().unwrap();
    let mut all: Vec<_> = ALL.iter().collect();
    all.dedup_by_key(|shipped| (shipped.target, shipped.kernel.name, shipped.types));
    let [on_80, on_90] = [80, 90].map(|target| {
        let of_it = all.iter().filter(|shipped| shipped.target == target);
        let found = of_it.filter_map(|shipped| bundle.find(&shipped.program(), target));
        let text = |image: Image| String::from_utf8(image.bytes().into()).unwrap();
        found.map(|image| text(image.unwrap())).collect::<String>()
    });
    for (what, is_on_80, is_on_90) in [
        ("griddepcontrol.wait", false, true),
        ("mma.sync.aligned.m16n8k4.row.col.f64", false, true),
        ("mma.sync.aligned.m8n8k4.row.col.f64", true, false),
        ("cp.async.", true, true),
    ] {
        assert_eq!((has(&on_80, what), has(&on_90, what)), (is_on_80, is_on_90), "{what}");
    }
}
