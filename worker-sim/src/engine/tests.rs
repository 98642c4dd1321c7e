use super::*;

const LIMITS: Limits = Limits { max_num_seqs: 4, max_num_batched_tokens: 64, kv_blocks: 100, block_size: 16 };

fn engine(limits: Limits, sequences: &[(u32, u32)]) -> Engine {
    let mut engine = Engine::new(limits);
    for (id, (prompt, output)) in sequences.iter().enumerate() {
        engine.add(SequenceId(id as u64), *prompt, *output).unwrap();
    }
    engine
}

fn step(engine: &mut Engine) -> (Load, Vec<Token>) {
    let load = engine.begin_step().expect("something to compute");
    (load, engine.end_step())
}

/// Runs until nothing is left; the ids in the order in which they ended.
fn drain(engine: &mut Engine) -> Vec<u64> {
    let mut ended = Vec::new();
    while engine.begin_step().is_some() {
        ended.extend(engine.end_step().iter().filter(|token| token.last).map(|token| token.id.0));
    }
    assert_eq!((engine.running(), engine.waiting(), engine.used_blocks()), (0, 0, 0));
    ended
}

#[test]
fn an_empty_engine_has_no_step() {
    assert_eq!(Engine::new(LIMITS).begin_step(), None);
}

#[test]
fn a_prompt_yields_its_first_token_and_then_one_a_step() {
    let mut engine = engine(LIMITS, &[(10, 3)]);
    let (load, tokens) = step(&mut engine);
    assert_eq!(load, Load { prefill_tokens: 10, decoding: 0, kv_blocks: 0 });
    assert_eq!(tokens, [Token { id: SequenceId(0), index: 0, last: false }]);
    let (load, _) = step(&mut engine);
    assert_eq!(load, Load { prefill_tokens: 0, decoding: 1, kv_blocks: 1 });
    let (_, tokens) = step(&mut engine);
    assert_eq!(tokens, [Token { id: SequenceId(0), index: 2, last: true }]);
    assert_eq!(engine.begin_step(), None);
}

#[test]
fn no_more_than_max_num_seqs_run_and_the_rest_wait_in_order() {
    let mut engine = engine(LIMITS, &[(1, 2), (1, 2), (1, 2), (1, 2), (1, 2), (1, 2)]);
    step(&mut engine);
    assert_eq!((engine.running(), engine.waiting()), (4, 2));
    assert_eq!(drain(&mut engine), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_that_leave_room_for_decodes() {
    let mut engine = engine(LIMITS, &[(4, 50), (4, 50), (100, 1)]);
    let (load, tokens) = step(&mut engine);
    assert_eq!((load.prefill_tokens, tokens.len()), (64, 2));
    let (load, tokens) = step(&mut engine);
    assert_eq!((load.decoding, load.prefill_tokens, tokens.len()), (2, 44, 3));
    assert!(tokens[2].last);
}

#[test]
fn a_prompt_waits_while_decodes_take_the_whole_budget() {
    let limits = Limits { max_num_seqs: 2, max_num_batched_tokens: 2, ..LIMITS };
    let mut engine = engine(limits, &[(1, 3), (3, 1)]);
    assert_eq!(step(&mut engine).0.prefill_tokens, 2);
    let (load, _) = step(&mut engine);
    assert_eq!((load.decoding, load.prefill_tokens), (1, 1));
    assert_eq!(drain(&mut engine), [0, 1]);
}

#[test]
fn blocks_are_taken_as_tokens_are_computed() {
    let mut engine = engine(LIMITS, &[(100, 20)]);
    step(&mut engine);
    assert_eq!(engine.used_blocks(), 4, "64 of 100 prompt tokens");
    step(&mut engine);
    assert_eq!(engine.used_blocks(), 7);
    assert_eq!(engine.kv_usage(), 0.07);
}

#[test]
fn a_head_that_does_not_fit_holds_back_those_behind_it() {
    let limits = Limits { kv_blocks: 4, max_num_batched_tokens: 200, ..LIMITS };
    let mut engine = engine(limits, &[(48, 10), (32, 1), (1, 1)]);
    engine.begin_step();
    assert_eq!((engine.running(), engine.waiting()), (1, 2));
}

#[test]
fn the_newest_is_preempted_when_blocks_run_out_and_computes_again() {
    // The first two prompts fill the first step, so that the third comes to ask for blocks only afterwards.
    let limits = Limits { kv_blocks: 5, max_num_batched_tokens: 60, ..LIMITS };
    let mut engine = engine(limits, &[(30, 20), (30, 20), (32, 1)]);
    let mut steps = 0;
    while engine.preemptions() == 0 {
        step(&mut engine);
        steps += 1;
    }
    // The first to pass 32 tokens is the older one: it takes the fifth block, and the younger finds none.
    assert_eq!((engine.running(), engine.waiting()), (1, 2));
    assert_eq!(engine.used_blocks(), 3);
    let generated_by_then = steps - 1;
    let mut recomputed = 0;
    let mut ended = Vec::new();
    while let Some(load) = engine.begin_step() {
        recomputed += load.prefill_tokens;
        let tokens = engine.end_step();
        ended.extend(tokens.iter().filter(|token| token.last).map(|token| token.id.0));
    }
    assert_eq!(engine.preemptions(), 1);
    assert_eq!(recomputed, 30 + generated_by_then + 32, "prompt and output of the victim, and the third prompt");
    assert_eq!(ended, [0, 2, 1], "the victim goes before those that wait, and then takes its time");
}

#[test]
fn a_preempted_sequence_repeats_no_token() {
    let limits = Limits { kv_blocks: 5, ..LIMITS };
    let mut engine = engine(limits, &[(30, 20), (30, 20)]);
    let mut indices = Vec::new();
    while engine.begin_step().is_some() {
        indices.extend(engine.end_step().iter().filter(|token| token.id.0 == 1).map(|token| token.index));
    }
    assert!(engine.preemptions() > 0);
    assert_eq!(indices, (0..20).collect::<Vec<_>>());
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut engine = Engine::new(Limits { kv_blocks: 4, ..LIMITS });
    assert_eq!(engine.add(SequenceId(0), 60, 5), Ok(()));
    assert_eq!(engine.add(SequenceId(1), 60, 6), Err(NeverFits { needed: 5, total: 4 }));
    assert_eq!(engine.add(SequenceId(2), u32::MAX, 1).unwrap_err().total, 4);
    assert_eq!(drain(&mut engine), [0]);
}

#[test]
fn an_abort_frees_in_every_phase() {
    let mut engine = engine(LIMITS, &[(10, 5), (100, 5), (1, 5), (1, 5), (1, 5)]);
    step(&mut engine);
    step(&mut engine);
    engine.begin_step();
    assert!(engine.abort(SequenceId(0)), "decoding, within a step");
    assert!(engine.end_step().iter().all(|token| token.id.0 != 0));
    assert!(engine.abort(SequenceId(1)), "after its prompt");
    assert!(engine.abort(SequenceId(4)), "still waiting");
    assert!(!engine.abort(SequenceId(4)), "not twice");
    assert_eq!(engine.used_blocks(), 2);
    assert_eq!(drain(&mut engine), [2, 3]);
}

#[test]
fn an_abort_within_a_prompt_chunk_frees_its_blocks() {
    let mut engine = engine(LIMITS, &[(1000, 5)]);
    step(&mut engine);
    engine.begin_step();
    assert_eq!(engine.used_blocks(), 8);
    assert!(engine.abort(SequenceId(0)));
    assert_eq!(engine.end_step(), []);
    assert!(drain(&mut engine).is_empty());
}

/// Whatever arrives and leaves, the limits hold and everything ends with exactly its tokens.
#[test]
fn any_load_keeps_the_limits_and_ends() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = Limits {
            max_num_seqs: random.usize(1..=8),
            max_num_batched_tokens: random.u32(8..=64),
            kv_blocks: random.u32(1..=24),
            block_size: random.u32(1..=16),
        };
        any_load(limits, &mut random, seed);
    }
}

fn any_load(limits: Limits, random: &mut fastrand::Rng, seed: u64) {
    let mut engine = Engine::new(limits);
    let mut owed = std::collections::BTreeMap::new();
    let mut arrivals = 60;
    for steps in 0.. {
        assert!(steps < 100_000, "seed {seed}: does not end");
        if arrivals > 0 && random.u32(0..3) == 0 {
            arrivals -= 1;
            let (id, prompt, output) = (SequenceId(60 - arrivals), random.u32(1..=80), random.u32(1..=40));
            let fits = limits.blocks_at_end(prompt, output) <= limits.kv_blocks;
            assert_eq!(engine.add(id, prompt, output).is_ok(), fits, "seed {seed}");
            if fits {
                owed.insert(id, (0, output));
            }
        }
        let load = engine.begin_step();
        assert!(engine.used_blocks() <= limits.kv_blocks && engine.running() <= limits.max_num_seqs, "seed {seed}");
        if random.u32(0..20) == 0
            && let Some(id) = owed.keys().nth(random.usize(0..=owed.len())).copied()
        {
            assert!(engine.abort(id), "seed {seed}");
            owed.remove(&id);
        }
        let Some(load) = load else {
            assert!(owed.is_empty(), "seed {seed}: no step, yet {owed:?} are owed tokens");
            if arrivals == 0 {
                break;
            }
            continue;
        };
        assert!(load.prefill_tokens + load.decoding <= limits.max_num_batched_tokens, "seed {seed}");
        for token in engine.end_step() {
            let (next, output) = owed.get_mut(&token.id).expect("a live sequence");
            assert_eq!((token.index, token.last), (*next, *next + 1 == *output), "seed {seed}");
            *next += 1;
            if token.last {
                owed.remove(&token.id);
            }
        }
    }
    assert_eq!((engine.running(), engine.waiting(), engine.used_blocks()), (0, 0, 0), "seed {seed}");
}
