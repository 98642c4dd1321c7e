//! The scan of a request body, for an engine that calls it with bodies of its own. `run.mjs` does.

use std::mem::ManuallyDrop;

use admission_core::request::Scanner;

/// Where samples of long texts are taken; the filter draws another for each request.
const SEED: u64 = 0x0bad_5eed;

/// Room for a body of so many bytes, which is never given back.
#[unsafe(no_mangle)]
pub extern "C" fn room(bytes: usize) -> *mut u8 {
    ManuallyDrop::new(vec![0_u8; bytes]).as_mut_ptr()
}

/// Scans a body and returns how many bytes of it were read; 0 when it is not one JSON object.
///
/// # Safety
/// The bytes must be in [`room`] that was given for at least as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn scan(body: *const u8, bytes: usize) -> usize {
    // SAFETY: the caller promises that they are there.
    let body = unsafe { std::slice::from_raw_parts(body, bytes) };
    let mut scanner = Scanner::sampling(SEED);
    scanner.feed(body);
    if scanner.finish().is_err() {
        return 0;
    }
    usize::try_from(scanner.facts().bytes).unwrap_or(usize::MAX)
}
