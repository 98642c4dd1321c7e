//! Makes the filter trap when a request says so, for the tests of what a trap costs and of what it writes.

use std::cell::Cell;

use admission_core::store::Store;

use crate::host;
use crate::store::SharedData;

const COMMAND: &str = "sluice-test-trap/asker";

thread_local! {
    /// What the next body of a request or an answer is to do to this VM.
    static NEXT_BODY: Cell<Option<Panic>> = const { Cell::new(None) };
}

/// A panic whose message quotes what was being read, as those of real bugs do; but for the last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Panic {
    OfAnswer,
    Formatted,
    Sliced,
    Unwrapped,
    Fixed,
}

/// Traps like a bug would when the request carries `x-sluice-test-trap`; with the value `asker`, the VM does that asks for
/// views, when it next looks whether a question is due; with the name of a [`Panic`] it panics so at the next body.
pub fn if_commanded() {
    let Some(command) = host::request_header("x-sluice-test-trap") else { return };
    let next = match &*command {
        b"asker" => return self::command(b"trap"),
        b"answer" => Panic::OfAnswer,
        b"formatted" => Panic::Formatted,
        b"sliced" => Panic::Sliced,
        b"unwrapped" => Panic::Unwrapped,
        b"fixed" => Panic::Fixed,
        _ => std::process::abort(),
    };
    NEXT_BODY.set(Some(next));
}

/// Panics if a request has said so.
pub fn at_request_body(size: usize) {
    if NEXT_BODY.get().is_some_and(|panic| panic != Panic::OfAnswer) {
        panic_about(&host::request_body(0, size));
    }
}

/// Panics if a request has said so.
pub fn at_answer_body(size: usize) {
    if NEXT_BODY.get() == Some(Panic::OfAnswer) {
        panic_about(&host::response_body(0, size));
    }
}

#[expect(clippy::panic, clippy::unwrap_used, reason = "to do so is its purpose")]
fn panic_about(body: &[u8]) {
    let text = String::from_utf8_lossy(body).into_owned();
    match NEXT_BODY.take() {
        Some(Panic::OfAnswer | Panic::Formatted) => panic!("cannot read {text}"),
        Some(Panic::Sliced) => host::log_critical(&text[text.len() + 1..]),
        Some(Panic::Unwrapped) => text.parse::<u64>().map(drop).map_err(|_| text.as_str()).unwrap(),
        Some(Panic::Fixed) => panic!("a fixed message"),
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
