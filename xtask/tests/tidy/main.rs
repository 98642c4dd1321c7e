//! Tidy: the style that matters, checked over every tracked file.
//!
//! Some rules hold without exception: links lead somewhere, every reason of a refusal has a test in Envoy, the tests that
//! pages promise exist. Others are a ratchet: files that broke a rule when it was introduced are counted in `baseline/`, and
//! a count may only shrink. `TIDY_WRITE=1 cargo test -p xtask --test tidy` writes the counts of now.
//! A failure names the file, the line and the way out.

mod baseline;
mod files;
mod forbidden;
mod guards;
mod headless;
mod length;
mod links;
mod metrics;
mod nightly;
mod reasons;
mod words;

/// Fails with all findings of a rule.
fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn links_in_pages_lead_somewhere() {
    report(&links::check(&files::tracked()));
}

#[test]
fn files_of_code_are_short() {
    report(&baseline::check("length", &length::check(&files::tracked())));
}

#[test]
fn words_that_hide_the_meaning_become_fewer() {
    report(&baseline::check("words", &words::check(&files::tracked())));
}

#[test]
fn doc_comments_begin_with_their_subject() {
    report(&baseline::check("headless", &headless::check(&files::tracked())));
}

#[test]
fn nothing_unfinished_and_no_registry_is_named() {
    report(&forbidden::check(&files::tracked()));
}

#[test]
fn every_reason_has_a_test_in_envoy() {
    report(&reasons::check(&files::tracked()));
}

#[test]
fn tests_that_pages_name_exist() {
    report(&guards::check(&files::tracked()));
}

/// A stale page is a warning only: its figures take a night, and a change of the code must not wait for them.
#[test]
fn the_nightly_page_is_looked_at() {
    nightly::warn(&files::tracked());
}
