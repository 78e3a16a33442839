//! Writes the PTX that travels with the crate; `cargo xtask ptx` runs it with the right NVRTC.
//!
//! ```text
//! GEMV_NVRTC=/path/of/libnvrtc.so.12 cargo run --release -p gemv-cuda --example ptx
//! ```
//!
//! A program that the bundle has already, from the same version of NVRTC, is not compiled again.

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_cuda::{Bundle, Nvrtc, Shipped, bundle_key, options_of, shipped};
use gemv_gpu::Program;
use lzma_rust2::{LzipOptions, LzipWriter};

/// The highest of the usual levels: it is packed once, and unpacked often.
const LEVEL: u32 = 9;

fn compile(nvrtc: &Nvrtc, shipped: &Shipped, program: &Program) -> Result<String, String> {
    let options = options_of(program, &format!("compute_{}", shipped.target));
    let failed = |why| format!("{:?} {}: {why}", shipped.types, shipped.params);
    let (image, _) = nvrtc.compile(program, &options).map_err(failed)?;
    String::from_utf8(image.bytes().to_vec()).map_err(|e| failed(e.to_string()))
}

fn lzip(text: &[u8]) -> Vec<u8> {
    let mut writer = LzipWriter::new(Vec::new(), LzipOptions::with_preset(LEVEL));
    writer.write_all(text).and_then(|()| writer.finish()).expect("memory takes what is written")
}

fn main() -> Result<(), Box<dyn Error>> {
    let nvrtc = Nvrtc::find()?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx/programs.bin");
    let bytes = std::fs::read(&path).unwrap_or_default();
    let known: HashMap<(u128, u32), String> = match Bundle::read(&bytes) {
        Ok(old) if old.compiler() == nvrtc.version() => old.texts().collect::<Result<_, _>>()?,
        _ => HashMap::new(),
    };

    let all = shipped();
    let programs: Vec<Program> = all.iter().map(Shipped::program).collect();
    let texts: Vec<_> = all.iter().map(|_| Mutex::new(Ok(String::new()))).collect();
    let (next, compiled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some((shipped, program)) = all.get(place).zip(programs.get(place)) else { break };
            let text = match known.get(&(bundle_key(program), shipped.target)) {
                Some(text) => Ok(text.clone()),
                None => {
                    compiled.fetch_add(1, Ordering::Relaxed);
                    compile(&nvrtc, shipped, program)
                }
            };
            *texts[place].lock().expect("no panic") = text;
        }
    };
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));

    let mut alike: Vec<(u32, Vec<_>)> = Vec::new();
    let (mut last, mut plain) = (None, 0);
    for ((shipped, program), text) in all.iter().zip(&programs).zip(texts) {
        let text = text.into_inner()??;
        plain += text.len();
        let of = (shipped.target, shipped.kernel.name, shipped.types);
        if last.replace(of) != Some(of) {
            alike.push((shipped.target, Vec::new()));
        }
        alike.last_mut().expect("just made").1.push((program, text));
    }
    let bytes = Bundle::write(nvrtc.version(), &alike, lzip)?;
    std::fs::write(&path, &bytes)?;
    let (major, minor) = nvrtc.version();
    println!("{} programs, {compiled:?} of them compiled now by NVRTC {major}.{minor}", all.len());
    println!("{plain} bytes of PTX, {} bytes in {}", bytes.len(), path.display());
    Ok(())
}
