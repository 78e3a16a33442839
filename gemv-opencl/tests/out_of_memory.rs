//! Each packing of an operand or a result fails for want of memory, and the arrangement of a packed matrix.

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
        #[cfg(feature = "packed")]
        packed(&device);
    }
}

#[cfg(feature = "packed")]
fn packed(device: &gemv_core::Device) {
    use gemv_core::{Error, Format, Packed, ToDevice};
    let a = Packed::new(Format::Q8_0, (600, 64), vec![0; 600 * 68]).unwrap();
    let failed = gemv_testkit::each_failure(|failure| {
        match failure.during(|| a.to_device(device)) {
            Ok(_) | Err(Error::OutOfMemory { .. }) => {}
            Err(e) => panic!("{e}"),
        }
        assert!(a.to_device(device).is_ok());
    });
    assert!(failed > 0, "no allocation failed");
}
