//! What this crate's tests ask of a device.

use gemv_gpu::{Caps, Language};

use crate::backend::cluster;

/// An H200's.
pub(crate) fn caps() -> Caps {
    let mut caps = Caps::new(Language::Cuda);
    (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
    (caps.fp64_mma, caps.async_copies, caps.sm_90a) = (true, true, true);
    (caps.cluster, caps.dynamic_bytes) = (cluster(90), 227 << 10);
    caps
}
