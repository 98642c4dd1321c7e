//! Text Generation Inference's metrics page: one rank.
//!
//! It tells nothing of its KV cache and of none of its limits. Prefill tokens are worked out: waiting requests × mean
//! prompt of all requests so far.

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
    name.starts_with("tgi_") && load(name).is_some()
}

fn load(name: &str) -> Option<Load> {
    Some(match name {
        "tgi_batch_current_size" => Load::Running,
        "tgi_queue_size" => Load::Waiting,
        "tgi_request_input_length_sum" => Load::PromptTokens,
        "tgi_request_input_length_count" => Load::Prompts,
        _ => return None,
    })
}
