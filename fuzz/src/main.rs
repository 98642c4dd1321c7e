//! What libFuzzer drives: the target that `FUZZ_TARGET` names. Without a name it says which targets there are and with which
//! folders each begins, one a line.
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
                for target in fuzz::TARGETS {
                    println!("{} {}", target.name, target.folders().join(" "));
                }
                std::process::exit(0);
            }
        }
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
