//! The inputs in `corpus`, valid ones and those that a fuzzer found, and each of them cut and with bytes changed.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant};

use gemv_fuzz::TARGETS;
use gemv_testkit::{FailingAllocator, largest_allocation};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// Bytes that a parser asks for at once, at most: those of the longest directory of an archive.
const MOST_OF_MEMORY: usize = 64 << 20;
/// For an input and all that is made of it, where each takes a millisecond.
const MOST_OF_TIME: Duration = Duration::from_secs(60);

#[test]
fn every_input_is_answered() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        let entries = std::fs::read_dir(corpus.join(name)).unwrap();
        let mut inputs: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        inputs.sort();
        assert!(inputs.len() >= 2, "{name} has {} inputs", inputs.len());
        for path in inputs {
            let input = std::fs::read(&path).unwrap();
            assert!(input.len() <= 16 << 10, "{}: inputs are small", path.display());
            println!("{name}: {}", path.display());
            let begun = Instant::now();
            let target = |input: &[u8]| {
                let ((), largest) = largest_allocation(|| target(input));
                assert!(largest <= MOST_OF_MEMORY, "{largest} bytes at once");
                assert!(begun.elapsed() < MOST_OF_TIME, "it takes {:?}", begun.elapsed());
            };
            target(&input);
            // Not each place of the longer ones: a second for all.
            let step = input.len().div_ceil(60).max(1);
            for at in (0..input.len()).step_by(step) {
                target(&input[..at]);
                for value in [0, 0x7f, 0x80, 0xff, input[at] ^ 1] {
                    let mut changed = input.clone();
                    changed[at] = value;
                    target(&changed);
                }
            }
        }
    }
}
