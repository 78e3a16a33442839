use gemv_core::*;
use gemv_gpu::*;
#[test]
fn dump() {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes, caps.dynamic_bytes) =
        (132, 1024, 48 << 10, 227 << 10);
    std::fs::create_dir_all("/tmp/pk").unwrap();
    for f in Format::ALL {
        for (k, n) in [(1, 4096), (2, 4096), (4, 4096)] {
            let desc = Desc { rhs: k, ..Desc::packed(*f, Dtype::F32, (4096, n)) };
            let p = packed_params(&desc, &caps)[0];
            let program = PACKED.program(Dtype::F32, &p);
            let d: String =
                program.defines.iter().map(|(a, b)| format!("#define {a} {b}\n")).collect();
            std::fs::write(format!("/tmp/pk/{f}-{k}.cu"), d + &program.source).unwrap();
            println!("{f} {k} {p} {:?}", (PACKED.plan)(&desc, &p, &caps));
        }
    }
}
