//! What choosing costs: a look-up of a shape that was asked before, and of a new one. The first
//! fails if it takes 100 ns or more.

#![allow(missing_docs)] // the function that the macro makes

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use gemv::{Desc, Dtype, Engine, Layout};

fn desc(m: usize) -> Desc {
    Desc::of(Dtype::F32, Layout::Row, (m, 4096), 6)
}

fn lookup(c: &mut Criterion) {
    let device = Engine::global().default_device().expect("a device");
    let known = desc(4096);
    device.choose(&known).expect("f32 is for every device");
    let start = Instant::now();
    let count = 1_000_000;
    for _ in 0..count {
        let _ = black_box(device.choose(black_box(&known)));
    }
    let each = start.elapsed().as_nanos() / count;
    assert!(each < 100, "a look-up of a known shape takes {each} ns");
    c.bench_function("known shape", |b| b.iter(|| device.choose(black_box(&known))));
    let mut m = 0;
    c.bench_function("new shape", |b| {
        b.iter(|| {
            m += 1;
            device.choose(black_box(&desc(m)))
        });
    });
}

criterion_group!(benches, lookup);
criterion_main!(benches);
