//! The page of NVIDIA's DCGM exporter: the GPUs of a machine.
//!
//! GPUs stand by the labels `gpu` and `UUID`, parts of a divided GPU by `GPU_I_ID` too. Utilization is
//! `DCGM_FI_DEV_GPU_UTIL`, of a part of a GPU `DCGM_FI_PROF_GR_ENGINE_ACTIVE`. Memory there is, where `DCGM_FI_DEV_FB_TOTAL`
//! does not tell it, is what is used, free and, where that is told, reserved.

use super::PageError;
use super::gpus::{Fact, Gpus};
use crate::page::{Page, Sample};
use crate::reading::Gpu;

/// DCGM counts memory in mebibytes.
const MIB: f64 = 1_048_576.0;

/// What the page says, by rising number of the GPU.
///
/// # Errors
/// The page tells of neither utilization nor memory, or of more GPUs than a machine can have, or is too long.
pub fn read(page: impl AsRef<[u8]>) -> Result<Vec<Gpu>, PageError> {
    let mut gpus = Gpus::default();
    let page = Page::of(page, |name| str::from_utf8(name).is_ok_and(|name| fact(name).is_some()));
    if page.is_too_long() {
        return Err(PageError::TooLong);
    }
    for ((fact, scale), sample) in page.samples(fact) {
        let name = (number(sample, "gpu"), sample.label("UUID").map(Into::into), number(sample, "GPU_I_ID"));
        gpus.note(name, fact, sample.value * scale)?;
    }
    let gpus = gpus.list();
    if gpus.is_empty() { Err(PageError::NoGpu) } else { Ok(gpus) }
}

/// What a metric is of, and by what its value is to be multiplied.
fn fact(name: &str) -> Option<(Fact, f64)> {
    Some(match name {
        "DCGM_FI_DEV_GPU_UTIL" => (Fact::Utilization, 0.01),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => (Fact::EngineActive, 1.0),
        "DCGM_FI_DEV_FB_USED" => (Fact::UsedBytes, MIB),
        "DCGM_FI_DEV_FB_FREE" => (Fact::FreeBytes, MIB),
        "DCGM_FI_DEV_FB_RESERVED" => (Fact::ReservedBytes, MIB),
        "DCGM_FI_DEV_FB_TOTAL" => (Fact::TotalBytes, MIB),
        _ => return None,
    })
}

fn number(sample: &Sample, label: &str) -> Option<u32> {
    sample.label(label)?.parse().ok()
}
