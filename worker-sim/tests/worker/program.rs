//! The program: its line on stdout, and how it goes.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn it_says_where_it_listens_and_goes_at_once_on_sigterm() {
    let mut program =
        Command::new(env!("CARGO_BIN_EXE_worker-sim")).args(["--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ").unwrap();
    let mut open = TcpStream::connect(address).unwrap();
    let stop = Command::new("kill").arg(program.id().to_string()).status().unwrap();
    assert!(stop.success());
    let signalled = Instant::now();
    assert!(program.wait().unwrap().success());
    assert!(signalled.elapsed() < Duration::from_secs(5), "it waits for the open connection");
    assert_eq!(open.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
}

#[test]
fn a_bad_setting_is_named_and_fails() {
    let program = Command::new(env!("CARGO_BIN_EXE_worker-sim")).args(["--speed", "0"]).output().unwrap();
    assert!(!program.status.success());
    assert_eq!(String::from_utf8(program.stderr).unwrap(), "worker-sim: --speed must be a number above 0\n");
}
