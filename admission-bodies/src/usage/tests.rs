use super::*;

mod absurd;
mod recorded;
mod strip;

/// What is known of an answer: served, output so far, whether it has ended.
type Known = (Served, Tokens, bool);

fn known(reader: &AnswerReader) -> Known {
    (reader.served(), reader.output(), reader.ended())
}

/// Reads an answer at once, byte by byte and in random pieces, which must come to the same.
fn read(form: Form, answer: &str) -> Known {
    let mut whole = AnswerReader::new(form);
    whole.feed(answer.as_bytes());
    let mut by_byte = AnswerReader::new(form);
    answer.as_bytes().iter().for_each(|byte| by_byte.feed(&[*byte]));
    assert_eq!(known(&whole), known(&by_byte), "byte by byte: {answer}");
    for seed in 0..20 {
        let mut in_pieces = AnswerReader::new(form);
        pieces(answer.as_bytes(), seed).for_each(|piece| in_pieces.feed(piece));
        assert_eq!(known(&whole), known(&in_pieces), "seed {seed}: {answer}");
    }
    known(&whole)
}

/// Splits bytes at random, sometimes into many small pieces and sometimes into a few.
fn pieces(bytes: &[u8], seed: u64) -> impl Iterator<Item = &[u8]> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let longest = [3, 40, 400][rng.usize(0..3)];
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[test]
fn reports_of_one_answer_are_not_those_of_all() {
    let choice = |index: u64, output: u64| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\" a\"}}}}],\
             \"usage\":{{\"prompt_tokens\":6,\"completion_tokens\":{output}}}}}\n\n"
        )
    };
    let cut: String = (1..=5).flat_map(|output| [choice(0, output), choice(1, output)]).collect();
    let end = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":10}}\n\ndata: [DONE]\n\n";
    let read = |answer: &str, mut reader: AnswerReader| {
        reader.feed(answer.as_bytes());
        reader.served()
    };
    let several = || AnswerReader::of_several(Form::Stream);
    assert_eq!(read(&cut, several()), by_deltas(10), "of two prompts six tokens each, and of ten deltas five each");
    assert_eq!(read(&(cut.clone() + end), several()), served(12, 0, 10));
    assert_eq!(read(&cut, AnswerReader::new(Form::Stream)), served(6, 0, 5), "of one answer a report is the whole");
}

fn served(prompt: u64, cached: u64, output: u64) -> Served {
    Served { cached: Tokens(cached), ..Served::whole(Tokens(prompt), Tokens(output)) }
}

/// As estimated for the prompt, and so much output.
fn by_deltas(output: u64) -> Served {
    Served { output: Some(Tokens(output)), ..Served::default() }
}
