use super::*;

const NAMES: [&str; 3] = ["vllm:a", "vllm:b", "vllm:c"];

/// A page with the first so many of some names.
fn of_first(count: usize) -> impl FnOnce(&[&'static str]) -> Held {
    move |names| Held { names: names[..count].to_vec(), ranks: vec![0, 1] }
}

fn never(_: &[&'static str]) -> Held {
    panic!("nobody asks")
}

fn new() -> Excerpts {
    Excerpts::of(&"http://worker:8000/metrics".parse().unwrap())
}

/// After a whole page with the first two of three names.
fn tried() -> Excerpts {
    let mut excerpts = new();
    assert!(!is_asked(&excerpts), "the first page is whole");
    excerpts.read_whole(NAMES.to_vec(), true, of_first(2));
    assert_eq!(excerpts.excerpt().unwrap().1, TRIAL);
    excerpts
}

fn good() -> Excerpts {
    let mut excerpts = tried();
    assert!(excerpts.read_excerpt(of_first(2)));
    excerpts
}

fn is_asked(excerpts: &Excerpts) -> bool {
    excerpts.excerpt().is_some()
}

/// Whole pages until an excerpt is tried.
fn pages_until_trial(excerpts: &mut Excerpts) -> u32 {
    let mut pages = 0;
    while !is_asked(excerpts) {
        excerpts.read_whole(NAMES.to_vec(), true, of_first(2));
        pages += 1;
    }
    pages
}

#[test]
fn all_names_are_asked_for_below_the_path() {
    let asked = |url: &str| path(Excerpts::of(&url.parse().unwrap()).whole(), &NAMES[..2]).unwrap().to_string();
    let names = "name%5B%5D=vllm:a&name%5B%5D=vllm:b";
    assert_eq!(asked("http://w:1/metrics"), format!("/metrics/?{names}"));
    assert_eq!(asked("http://w:1/a/metrics/"), format!("/a/metrics/?{names}"));
    assert_eq!(asked("http://w:1/metrics?x=1&y"), format!("/metrics/?x=1&y&{names}"));
    assert_eq!(asked("http://w:1"), format!("/?{names}"));
}

#[test]
fn a_good_trial_is_followed_by_excerpts_whatever_they_hold() {
    assert!(tried().excerpt().unwrap().0.as_str().contains("vllm:c"), "it may come later");
    let mut excerpts = good();
    assert!(excerpts.read_excerpt(never), "looked at once");
    assert_eq!(excerpts.excerpt().unwrap().1, 1.0);
}

#[test]
fn a_trial_that_lacks_a_name_or_a_rank_is_the_last_for_long() {
    let lacks_rank = |names: &[&'static str]| Held { names: names[..2].to_vec(), ranks: vec![0] };
    let mut excerpts = tried();
    assert!(!excerpts.read_excerpt(lacks_rank));
    assert_eq!(pages_until_trial(&mut excerpts), TURN + 1);
    assert!(!excerpts.read_excerpt(of_first(1)));
    assert_eq!(pages_until_trial(&mut excerpts), TURN + 1);
}

#[test]
fn a_trial_that_fails_gives_way_at_once_and_for_long() {
    for by_time in [true, false] {
        let mut excerpts = tried();
        assert!(excerpts.failed(by_time), "half of the time is left");
        assert_eq!(pages_until_trial(&mut excerpts), TURN + 1);
    }
}

#[test]
fn a_page_that_takes_long_is_followed_by_no_trial() {
    let mut excerpts = new();
    for _ in 0..3 {
        excerpts.read_whole(NAMES.to_vec(), false, never);
        assert!(!is_asked(&excerpts));
    }
    assert_eq!(pages_until_trial(&mut excerpts), 1);
}

#[test]
fn a_good_excerpt_that_fails_is_followed_by_another() {
    let mut excerpts = good();
    assert!(excerpts.failed(false), "the whole page is asked for in between");
    excerpts.read_whole(NAMES.to_vec(), true, never);
    assert!(excerpts.read_excerpt(never));
}

#[test]
fn one_late_excerpt_is_followed_by_another_and_two_by_a_whole_page() {
    let mut excerpts = good();
    assert!(!excerpts.failed(true), "no time is left");
    assert!(excerpts.read_excerpt(never));
    assert!(!excerpts.failed(true) && is_asked(&excerpts), "not two in a row");
    assert!(!excerpts.failed(true) && !is_asked(&excerpts));
    assert_eq!(pages_until_trial(&mut excerpts), 1);
}

#[test]
fn excerpts_that_fail_again_and_again_are_given_up_however_they_fail() {
    let mut random = fastrand::Rng::with_seed(11);
    for by_time in [Some(true), Some(false), None] {
        let (mut excerpts, mut failures) = (good(), 0);
        // Until a trial is long in coming.
        loop {
            if is_asked(&excerpts) {
                if !excerpts.read_excerpt(of_first(2)) || random.bool() {
                    continue;
                }
                excerpts.failed(by_time.unwrap_or_else(|| random.bool()));
                failures += 1;
            } else if pages_until_trial(&mut excerpts) > 1 {
                break;
            }
        }
        assert_eq!(failures, MOST_FAULTS, "{by_time:?}");
    }
}

#[test]
fn after_many_excerpts_the_whole_page_is_looked_at_again() {
    let mut excerpts = good();
    for _ in 0..TURN {
        assert!(is_asked(&excerpts) && excerpts.read_excerpt(never));
    }
    assert_eq!(pages_until_trial(&mut excerpts), 1);
}

#[test]
fn a_trial_may_hold_more_than_the_page_before() {
    let mut excerpts = tried();
    assert!(excerpts.read_excerpt(|names| Held { names: names.to_vec(), ranks: vec![2, 1, 0] }));
}

#[test]
fn what_was_known_can_be_forgotten() {
    let mut excerpts = tried();
    excerpts.failed(false);
    excerpts.forget();
    assert_eq!(pages_until_trial(&mut excerpts), 1);
}

#[test]
fn of_an_engine_without_names_pages_are_whole() {
    let mut excerpts = new();
    excerpts.read_whole(Vec::new(), true, never);
    assert!(!is_asked(&excerpts));
}
