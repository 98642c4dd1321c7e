//! The GPUs of this machine, through NVIDIA's management library.
//!
//! The library is looked for at run time, so the sidecar runs where there is none. Every call may wait for the driver:
//! call from a thread that may block.

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, Utilization};
use tracing::info;

use crate::reading::Gpu;

/// The library, open for as long as this lives.
#[derive(Debug)]
pub struct Nvml(Library);

/// Opens the library; where it is missing or has no driver to talk to, one line in the log says so and there is nothing to
/// read.
pub fn open() -> Option<Nvml> {
    match Library::init() {
        Ok(library) => Some(Nvml(library)),
        Err(error) => {
            info!(%error, "no NVIDIA library: the GPUs of this machine are not read");
            None
        }
    }
}

impl Nvml {
    /// All GPUs, by rising number. What one does not tell is absent; one that cannot be reached at all is left out.
    pub fn read(&self) -> Vec<Gpu> {
        let count = self.0.device_count().unwrap_or(0);
        let gpus = (0..count).filter_map(|index| {
            let device = self.0.device_by_index(index).ok()?;
            Some(gpu(index, device.uuid().ok(), device.utilization_rates().ok(), device.memory_info().ok()))
        });
        gpus.collect()
    }
}

fn gpu(index: u32, uuid: Option<String>, rates: Option<Utilization>, memory: Option<MemoryInfo>) -> Gpu {
    let percent = rates.map(|rates| rates.gpu).filter(|percent| *percent <= 100);
    Gpu {
        index: Some(index),
        uuid,
        mig_instance: None,
        utilization: percent.map(|percent| f64::from(percent) / 100.0),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total).filter(|total| *total > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_tells_becomes_a_gpu() {
        let memory = MemoryInfo { free: 60, reserved: 1, total: 81, used: 20, version: 2 };
        let rates = Utilization { gpu: 37, memory: 12 };
        assert_eq!(
            gpu(3, Some("GPU-1".into()), Some(rates), Some(memory)),
            Gpu {
                index: Some(3),
                uuid: Some("GPU-1".into()),
                mig_instance: None,
                utilization: Some(0.37),
                memory_used_bytes: Some(20),
                memory_total_bytes: Some(81),
            }
        );
    }

    #[test]
    fn what_it_does_not_tell_is_absent() {
        assert_eq!(gpu(0, None, None, None), Gpu { index: Some(0), ..Gpu::default() });
        assert_eq!(gpu(0, None, Some(Utilization { gpu: 255, memory: 0 }), None).utilization, None);
    }

    #[test]
    fn a_machine_without_the_library_is_no_failure() {
        // Where there is one, it must be readable.
        for gpu in open().map(|nvml| nvml.read()).unwrap_or_default() {
            assert!(gpu.index.is_some());
        }
    }
}
