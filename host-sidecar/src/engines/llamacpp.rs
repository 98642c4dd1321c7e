//! The metrics page of llama.cpp's server, which shows it with `--metrics`: one rank.
//!
//! KV use is a share, and builds since 2025 no longer tell it. It tells no prefill tokens and none of its limits.

use super::sheet::{Load, Sheet};
use super::{PageError, note_single};
use crate::page::Page;

/// Notes what the page says.
///
/// # Errors
/// None: one rank is never too many.
pub fn note(sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    note_single(sheet, page, load)
}

/// Whether a series of this name is read.
pub fn wants(name: &str) -> bool {
    name.starts_with("llamacpp:") && load(name).is_some()
}

fn load(name: &str) -> Option<Load> {
    Some(match name {
        "llamacpp:requests_processing" => Load::Running,
        "llamacpp:requests_deferred" => Load::Waiting,
        "llamacpp:kv_cache_usage_ratio" => Load::KvShare,
        _ => return None,
    })
}
