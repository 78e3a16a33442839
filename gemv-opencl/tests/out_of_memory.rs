//! Each packing of an operand or a result fails for want of memory.

// Links the backend.
use gemv_opencl as _;
use gemv_testkit::{FailingAllocator, packing_fails, required_device};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// One test: allocations of others would be counted.
#[test]
fn packing_without_memory_is_an_error() {
    if let Some(device) = required_device("opencl:0") {
        packing_fails(&device);
    }
}
