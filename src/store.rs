//! The proxy's shared data as a [`Store`].

use admission_core::store::{Conflict, Store, Version};
use proxy_wasm::hostcalls;

/// Shared by all VMs of the process whose vm_id is the same.
pub struct SharedData;

/// The host ignores the version of a key that is absent and treats 0 as "whatever stands": with a version that no key
/// reaches, a write creates or fails.
const CREATE: u32 = u32::MAX;

impl Store for SharedData {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        match hostcalls::get_shared_data(key) {
            Ok((value, Some(version))) => (Some(value.unwrap_or_default()), Version::Written(version)),
            Ok((_, None)) | Err(_) => (None, Version::Absent),
        }
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        #[cfg(feature = "test-faults")]
        if crate::faults::loses(key) {
            return Err(Conflict);
        }
        let version = match expected {
            Version::Absent => CREATE,
            Version::Written(version) => version,
        };
        hostcalls::set_shared_data(key, Some(value), Some(version)).map_err(|_| Conflict)
    }
}
