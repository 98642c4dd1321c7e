//! How much of its page a worker is asked for.
//!
//! An engine's page is long, most of it buckets of histograms that nobody reads here, and it is written by the process that
//! serves the engine's requests. An excerpt of what is read costs vLLM a tenth of that (docs/vllm.md). The Prometheus client for Python leaves out all series but those that `name[]` asks for. vLLM has it answer
//! below `/metrics/` only: without the slash at the end another handler answers, which always writes the whole page.
//!
//! That a server heeds the names is never taken for granted. The first page is whole; the first excerpt must hold each of the names
//! that the whole page held; and one that cannot be read gives way to a whole page at once, so that no scrape is lost by asking.

use hyper::Uri;
use hyper::http::uri::PathAndQuery;

/// Share of the time for a scrape in which the first excerpt must come.
const TRIAL: f64 = 0.5;

/// What to ask one worker for.
#[derive(Debug)]
pub struct Excerpts {
    whole: PathAndQuery,
    state: State,
}

#[derive(Debug)]
enum State {
    /// No page has been read, so nobody knows yet which series there are.
    Unknown,
    /// An excerpt is to be tried.
    Trial(Excerpt),
    /// Excerpts are good.
    Good(Excerpt),
    /// Excerpts are of no use, until the worker fails: then it may come back as another one.
    Useless,
}

/// A request for some series of a page.
#[derive(Debug)]
struct Excerpt {
    path: PathAndQuery,
    /// What must be found on it.
    names: Vec<&'static str>,
}

impl Excerpts {
    /// Of the page at `url`.
    pub fn of(url: &Uri) -> Self {
        let whole = url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Self { whole, state: State::Unknown }
    }

    /// The path of the whole page.
    pub fn whole(&self) -> &PathAndQuery {
        &self.whole
    }

    /// The path of what to ask for instead, if anything, and for which share of the time that there is for a scrape: a trial leaves
    /// enough for the whole page.
    pub fn excerpt(&self) -> Option<(&PathAndQuery, f64)> {
        match &self.state {
            State::Trial(excerpt) => Some((&excerpt.path, TRIAL)),
            State::Good(excerpt) => Some((&excerpt.path, 1.0)),
            State::Unknown | State::Useless => None,
        }
    }

    /// This worker has given one.
    pub fn are_good(&self) -> bool {
        matches!(self.state, State::Good(_))
    }

    /// The whole page could be read. It is by an engine with series of these `names`; `found` says which of some stand on it.
    pub fn read_whole(&mut self, names: &[&'static str], found: impl FnOnce(&[&'static str]) -> Vec<&'static str>) {
        if !matches!(self.state, State::Unknown) {
            return;
        }
        self.state = match path(&self.whole, names) {
            Some(path) => State::Trial(Excerpt { path, names: found(names) }),
            None => State::Useless,
        };
    }

    /// An excerpt could be read; `found` says which of some names stand on it. Returns whether it is all that was asked for.
    pub fn read_excerpt(&mut self, found: impl FnOnce(&[&'static str]) -> Vec<&'static str>) -> bool {
        self.state = match std::mem::replace(&mut self.state, State::Useless) {
            State::Trial(excerpt) if found(&excerpt.names) == excerpt.names => State::Good(excerpt),
            State::Trial(_) => State::Useless,
            state => state,
        };
        self.are_good()
    }

    /// What was asked for one gave none.
    pub fn are_useless(&mut self) {
        self.state = State::Useless;
    }

    /// The worker did not answer in time, or its whole page could not be read: what was known of it says nothing.
    pub fn forget(&mut self) {
        self.state = State::Unknown;
    }
}

/// Where these series of the page are asked for; nowhere when they are none.
fn path(whole: &PathAndQuery, names: &[&str]) -> Option<PathAndQuery> {
    if names.is_empty() {
        return None;
    }
    let names = names.iter().map(|name| format!("name%5B%5D={name}"));
    let query: Vec<_> = whole.query().map(str::to_owned).into_iter().chain(names).collect();
    format!("{}/?{}", whole.path().trim_end_matches('/'), query.join("&")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["vllm:a", "vllm:b", "vllm:c"];

    /// After a whole page with the first two of three names.
    fn tried() -> Excerpts {
        let mut excerpts = Excerpts::of(&"http://worker:8000/metrics".parse().unwrap());
        assert!(excerpts.excerpt().is_none(), "the first page is whole");
        excerpts.read_whole(&NAMES, |names| names[..2].to_vec());
        excerpts
    }

    fn is_asked(excerpts: &Excerpts) -> bool {
        excerpts.excerpt().is_some()
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
        let mut excerpts = tried();
        assert!(excerpts.excerpt().unwrap().0.as_str().contains("vllm:c"), "it may come later");
        assert!(excerpts.read_excerpt(<[_]>::to_vec));
        assert!(excerpts.read_excerpt(|_| panic!("looked at once")));
        assert!(is_asked(&excerpts));
    }

    #[test]
    fn a_trial_that_lacks_a_name_is_the_last() {
        let mut excerpts = tried();
        assert!(!excerpts.read_excerpt(|names| names[1..].to_vec()));
        assert!(!is_asked(&excerpts));
        excerpts.read_whole(&NAMES, |_| panic!("nothing more is tried"));
        assert!(!is_asked(&excerpts));
    }

    #[test]
    fn an_excerpt_that_is_none_ends_them_until_the_worker_fails() {
        let mut excerpts = tried();
        excerpts.read_excerpt(<[_]>::to_vec);
        excerpts.are_useless();
        assert!(!is_asked(&excerpts));
        excerpts.forget();
        excerpts.read_whole(&NAMES, <[_]>::to_vec);
        assert!(is_asked(&excerpts));
    }

    #[test]
    fn of_an_engine_without_names_pages_are_whole() {
        let mut excerpts = Excerpts::of(&"http://worker:8000/metrics".parse().unwrap());
        excerpts.read_whole(&[], |_| panic!("there is nothing to look for"));
        assert!(!is_asked(&excerpts));
    }
}
