//! Attacks, each named after what the attacker wants, with what callers beside it notice.

mod more_than_its_share;
