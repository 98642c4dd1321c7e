//! What is written when the filter panics: enough for a report, and nothing that a caller has sent.

use std::panic::{self, PanicHookInfo};

use crate::host;

/// Has panics say where they happened. The SDK's own hook writes the whole message, and that of a failed slice of text, or of a
/// result unwrapped in vain, quotes what it failed on: a prompt, an answer, a key.
pub fn say_only_where() {
    panic::set_hook(Box::new(|panic| host::log_critical(&report(panic))));
}

fn report(panic: &PanicHookInfo<'_>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let place = panic.location().map_or_else(|| "a place unknown".to_owned(), ToString::to_string);
    // A message that stands in the program as it is has room for nothing else.
    let message = match panic.payload().downcast_ref::<&'static str>() {
        Some(message) => message,
        None => "its message is left out, since it may quote a request",
    };
    format!("Sluice {version} panicked at {place}: {message}; please report this line and the backtrace below it")
}
