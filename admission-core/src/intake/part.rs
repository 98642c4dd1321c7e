//! A part of a body that does not say where the request belongs.

use crate::outcome::{Detail, Reason, Refusal, Retry};
use crate::units::Millis;

const NOT_IN_PART: &str = "no `model` in the part of the body that is held back (body.hold_limit); name it first";

const NO_ROOM: &str = "too many bodies are held back, and this one has not named its `model` yet; name it first";

/// Refusal of a request that has not named its model in the part of its body that may be held; in none where there is no room.
pub(super) fn not_in_part(hold_limit: u64) -> Refusal {
    let (reason, detail, retry) = if hold_limit == 0 {
        (Reason::QueueFull, NO_ROOM, Retry::After(Millis(1_000)))
    } else {
        (Reason::UnknownModel, NOT_IN_PART, Retry::Never)
    };
    Refusal { reason, limit: None, detail: Detail::Fixed(detail), retry, place: None }
}
