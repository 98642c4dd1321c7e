//! Attacks, each named after what the attacker wants, with what callers beside it notice.

mod a_second_burst;
mod another_name;
mod more_than_its_share;
mod other_rules;
mod tunnels;
mod without_a_key;
