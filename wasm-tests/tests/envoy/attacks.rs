//! Attacks, each named after what the attacker wants, with what callers beside it notice.

mod a_second_burst;
mod more_than_its_share;
mod other_rules;
