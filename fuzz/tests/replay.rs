//! Every target over its corpus, and over some thousand mutations of it by seed.
//!
//! An input on which a property does not hold is left under `target/fuzz/replay`; `cargo xtask fuzz --target NAME --add FILE`
//! puts it into the target's corpus.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use fuzz::mutation::{mutate, words};
use fuzz::{TARGETS, Target, corpus};

/// Longer inputs are tried as they are, but not mutated: that would take long.
const LONGEST: usize = 8_192;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All inputs of a target, its corpus and the files of other folders, in the order of their paths.
fn inputs(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = root().join("fuzz/corpus").join(target.name);
    let packed = corpus::read(&root(), target.name).unwrap();
    let packed = packed.into_iter().map(|(name, input)| (folder.join(name), input));
    let entries = target.more.iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let files = entries.map(|entry| entry.unwrap().path()).map(|path| (path.clone(), fs::read(path).unwrap()));
    let mut inputs: Vec<_> = packed.chain(files).collect();
    // Why: a mutation picks inputs by their place, so the order decides what each seed tries.
    inputs.sort();
    inputs
}

fn run(target: &Target, input: &[u8], from: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let folder = root().join("target/fuzz/replay");
        let file = folder.join(format!("{}-{:016x}", target.name, admission_core::hash::stable(input)));
        let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&file, input));
        eprintln!("{}: a property does not hold of {from}, {}: {kept:?}", target.name, file.display());
        resume_unwind(panic);
    }
}

/// How many times the usual number of mutations are tried; the environment's `FUZZ_MUTATIONS` says, for long runs.
fn times() -> u64 {
    std::env::var("FUZZ_MUTATIONS").map_or(1, |times| times.parse().expect("FUZZ_MUTATIONS is a whole number"))
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let inputs = inputs(target);
    assert!(inputs.len() >= 3, "{} inputs of {name}", inputs.len());
    for (path, input) in &inputs {
        run(target, input, &path.display().to_string());
    }
    let dictionary = fs::read_to_string(root().join(format!("fuzz/dictionaries/{name}.dict"))).unwrap();
    let words = words(&dictionary);
    let short: Vec<Vec<u8>> =
        inputs.into_iter().map(|(_, input)| input).filter(|input| input.len() <= LONGEST).collect();
    for seed in 0..target.mutations * times() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut input = short[random.usize(..short.len())].clone();
        mutate(&mut random, &mut input, &words, &short);
        run(target, &input, &format!("mutation {seed}"));
    }
}

/// One test for each target, so that they run beside each other and each failure has its name.
macro_rules! replays {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

replays! { scan rewrite headers route_metadata view record exposition configuration usage }
