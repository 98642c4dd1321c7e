//! Makes the filter fail when a request says so, for the tests of what a trap costs, of what it writes, and of what becomes of a
//! request that cannot be counted.

use std::cell::Cell;

use admission_core::store::Store;

use crate::host;
use crate::store::SharedData;

/// Header in which a request says how the filter is to fail.
const HEADER: &str = "x-sluice-test-fault";

const COMMAND: &str = "sluice-test-faults/asker";

thread_local! {
    /// Panic that the next body of a request or an answer causes in this VM.
    static NEXT_BODY: Cell<Option<Panic>> = const { Cell::new(None) };
    /// Keys whose writes are lost at present.
    static LOST: Cell<Lost> = const { Cell::new(Lost::Nothing) };
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

/// The compare-and-swaps that fail, as if another VM had always been faster.
#[derive(Clone, Copy)]
enum Lost {
    Nothing,
    Everything,
    Pools,
}

/// While this lives, compare-and-swaps fail if the request of the current callback has said so.
pub struct Losing;

impl Drop for Losing {
    fn drop(&mut self) {
        LOST.set(Lost::Nothing);
    }
}

/// Does what the header [`HEADER`] says: `trap` does so immediately, `asker` in the VM that asks for views, when it next looks whether a
/// question is due, and the name of a [`Panic`] panics so at the next body. With `contention` every compare-and-swap of the callback
/// fails, with `pool-contention` those of pools.
pub fn if_commanded() -> Losing {
    let next = match host::request_header(HEADER).as_deref() {
        Some(b"asker") => {
            command(b"trap");
            None
        }
        Some(b"contention") => {
            LOST.set(Lost::Everything);
            None
        }
        Some(b"pool-contention") => {
            LOST.set(Lost::Pools);
            None
        }
        Some(b"answer") => Some(Panic::OfAnswer),
        Some(b"formatted") => Some(Panic::Formatted),
        Some(b"sliced") => Some(Panic::Sliced),
        Some(b"unwrapped") => Some(Panic::Unwrapped),
        Some(b"fixed") => Some(Panic::Fixed),
        Some(_) => std::process::abort(),
        None => None,
    };
    if next.is_some() {
        NEXT_BODY.set(next);
    }
    Losing
}

/// True when a compare-and-swap of this key is to fail.
pub fn loses(key: &str) -> bool {
    match LOST.get() {
        Lost::Nothing => false,
        Lost::Everything => true,
        Lost::Pools => key.contains("/pool/"),
    }
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
