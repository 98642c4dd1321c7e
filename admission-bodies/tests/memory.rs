//! A body of any length is read in the same memory. Alone in its process, whose most memory ever held is looked at.
#![cfg(target_os = "linux")]

use admission_bodies::request::Scanner;

/// Of one body, in bytes: a copy of a part of it, or a node for each of its values, could not be overlooked.
const BODY: usize = 16 << 20;

/// As the proxy hands bodies over.
const CHUNK: usize = 16 << 10;

/// What may be held of it, in bytes; names, numbers and keys are bounded far below.
const HELD: u64 = 1 << 20;

/// The most memory that this process has ever held.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Reads `open`, as much of `again` as makes a long body, and `close`.
fn read(open: &str, again: &str, close: &str) {
    let chunk = again.repeat(CHUNK / again.len());
    let mut scanner = Scanner::sampling(7);
    scanner.feed(open.as_bytes());
    for _ in 0..BODY / chunk.len() {
        scanner.feed(chunk.as_bytes());
    }
    scanner.feed(close.as_bytes());
    scanner.finish().unwrap_or_else(|error| panic!("{open}…{close}: {error:?}"));
    assert!(scanner.facts().model.is_some());
}

#[test]
fn long_bodies_are_read_in_little_memory() {
    let shapes = [
        (r#"{"model":"m","messages":[{"role":"user","content":""#, "some words \\n and \\u00e9 ", r#""}]}"#),
        (r#"{"model":"m","messages":["#, r#"{"role":"user","content":[{"type":"text","text":"x"}]},"#, "{}]}"),
        (r#"{"model":"m","prompt":["#, "17,", "17]}"),
        (r#"{"model":"m","prompt":["#, r#""another one","#, r#""x"]}"#),
        (r#"{"model":"m","messages":[],"tools":["#, r#"{"function":{"name":"f","parameters":{}}},"#, "{}]}"),
        (r#"{"model":"m","unknown":{"#, r#""a":{"b":[1,null,true]},"#, r#""c":1}}"#),
        (r#"{"model":"m","messages":[{"role":"user","content":"x"}],"#, r#""max_tokens":17,"#, r#""n":1}"#),
    ];
    for (open, again, close) in shapes {
        let before = peak();
        read(open, again, close);
        let grown = peak() - before;
        assert!(grown < HELD, "{open}…{close}: {grown} bytes");
    }
}
