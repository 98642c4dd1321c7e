//! Workers by a file, read again every second.
//!
//! Reading it is cheaper than telling whether to, and right whatever way it is replaced: a ConfigMap by a link to a link, an
//! editor by a rename, a shell in place, all within the same tick of the file system's clock.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Found, LookError, Member, Teller};
use crate::config::discover::Source;

/// From one reading to the next.
const EVERY: Duration = Duration::from_secs(1);

/// Longest file, in bytes: some ten thousand workers.
const MAX_BYTES: u64 = 1 << 20;

/// Reads for ever.
pub async fn run<P: FnMut(Found) + Send>(path: &Path, source: &Source, teller: Teller<P>) {
    follow(path, source, teller, EVERY).await;
}

async fn follow<P: FnMut(Found) + Send>(path: &Path, source: &Source, mut teller: Teller<P>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let file = path.to_owned();
        // A file system may hang; then only this source waits.
        let text = match tokio::task::spawn_blocking(move || read(&file)).await {
            Ok(read) => read.map_err(|error| format!("{}: {error}", path.display())),
            Err(error) => Err(error.to_string()),
        };
        if last.as_ref() == Some(&text) {
            continue;
        }
        teller.tell(found(source, &text));
        last = Some(text);
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("is longer than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// What a reading means.
fn found(source: &Source, text: &Result<String, String>) -> Found {
    let text = match text {
        Ok(text) => text,
        Err(problem) => return Found::failed(LookError::Connection(problem.clone())),
    };
    match source.workers(text) {
        Ok(workers) => Found::all(workers.into_iter().map(Member::from).collect()),
        Err(errors) => {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Found::failed(LookError::Unreadable(errors.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests;
