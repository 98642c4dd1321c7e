//! Makes the filter trap when a request says so, for the tests of what a trap costs.

use crate::host;

/// Traps like a bug would when the request carries `x-sluice-test-trap`.
pub fn if_commanded() {
    if host::request_header("x-sluice-test-trap").is_some() {
        std::process::abort();
    }
}
