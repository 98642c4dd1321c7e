//! What a process of this machine uses, as Linux counts it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// CPU time that the threads a process has now have used so far, to the nanosecond where they rest and to a few milliseconds
/// where they run. Of threads that have ended it knows nothing.
///
/// # Errors
/// When there is no such process, or the kernel keeps no such account (`CONFIG_SCHED_INFO`).
pub fn cpu_time(id: u32) -> Result<Duration> {
    let folder = format!("/proc/{id}/task");
    let mut nanos = 0;
    for thread in fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))? {
        let file = thread?.path().join("schedstat");
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let first = text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
        nanos += first.with_context(|| format!("no CPU time in {}", file.display()))?;
    }
    ensure!(nanos > 0, "{folder} holds no schedstat: this kernel does not count CPU time by thread");
    Ok(Duration::from_nanos(nanos))
}

/// Bytes of memory that a process holds at present.
///
/// # Errors
/// When there is no such process.
pub fn resident_bytes(id: u32) -> Result<u64> {
    status_bytes(id, "VmRSS:")
}

/// The most bytes of memory that a process has held so far.
///
/// # Errors
/// When there is no such process.
pub fn peak_resident_bytes(id: u32) -> Result<u64> {
    status_bytes(id, "VmHWM:")
}

fn status_bytes(id: u32, field: &str) -> Result<u64> {
    let file = format!("/proc/{id}/status");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {field} in {file}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_shows() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        let used = || cpu_time(busy.id()).unwrap_or_default();
        let before = used();
        let deadline = Instant::now() + Duration::from_secs(60);
        while used() <= before && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let after = used();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(after > before);
        assert!(cpu_time(u32::MAX).is_err());
    }

    #[test]
    fn memory_that_is_written_is_held() {
        const WRITTEN: u64 = 64 << 20;
        // The kernel counts by processor and adds up now and then, so what it says is short of the truth by some pages.
        const ADRIFT: u64 = 8 << 20;
        let id = std::process::id();
        let written = std::hint::black_box(vec![1_u8; WRITTEN as usize]);
        assert!(resident_bytes(id).unwrap() > WRITTEN - ADRIFT);
        drop(written);
        assert!(peak_resident_bytes(id).unwrap() > WRITTEN - ADRIFT);
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
