//! The program that libFuzzer drives: it runs the target that `FUZZ_TARGET` names.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<fuzz::Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        match fuzz::TARGETS.into_iter().find(|target| target.name == name) {
            Some(target) => drop(TARGET.set(target)),
            None => {
                eprintln!("FUZZ_TARGET names no target: {name:?}");
                std::process::exit(1);
            }
        }
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
