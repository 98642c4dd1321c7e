//! The worker from outside: its answers, its metrics page, its fleet, and the program.

mod answers;
mod common;
mod fleet;
mod program;
mod usage;
mod watching;
