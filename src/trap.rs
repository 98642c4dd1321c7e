//! Makes the filter trap when a request says so, for the tests of what a trap costs.

use admission_core::store::Store;

use crate::host;
use crate::store::SharedData;

const COMMAND: &str = "sluice-test-trap/asker";

/// Traps like a bug would when the request carries `x-sluice-test-trap`; with the value `asker`, the VM does that asks for
/// views, when it next looks whether a question is due.
pub fn if_commanded() {
    match host::request_header("x-sluice-test-trap") {
        Some(who) if who == b"asker" => command(b"trap"),
        Some(_) => std::process::abort(),
        None => {}
    }
}

/// Traps if a request has said so, once.
pub fn asker_if_commanded() {
    if SharedData.read(COMMAND).0.is_some_and(|command| command == b"trap") {
        command(b"done");
        std::process::abort();
    }
}

fn command(value: &[u8]) {
    let _ = SharedData.write(COMMAND, value, SharedData.read(COMMAND).1);
}
