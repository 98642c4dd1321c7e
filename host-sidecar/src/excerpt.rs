//! How much of its page a worker is asked for.
//!
//! An engine's page is long, most of it buckets of histograms that nobody reads here, and it is written by the process that
//! serves the engine's requests; what is read costs vLLM about an eighth of that (docs/vllm.md). The Prometheus client for
//! Python leaves out all series but those that `name[]` asks for. vLLM has it answer below `/metrics/` only: without the slash at
//! the end another handler answers, which always writes the whole page.
//!
//! That a server heeds the names is never taken for granted. The first page is whole. The first excerpt must hold each of the
//! names, and each of the ranks, that the whole page held, in half of the time that a scrape may take, so that the whole page can
//! still be asked for. An excerpt that fails otherwise than by being late gives way to a whole page within the same scrape. Now and
//! then all of this begins anew, since another server may have come to stand behind the address.

use hyper::Uri;
use hyper::http::uri::PathAndQuery;

/// Share of the time for a scrape in which the first excerpt must come, and the whole page before it must have come.
pub const TRIAL: f64 = 0.5;

/// Whole pages that are read after excerpts have proved useless before the next trial, and excerpts before the next whole page.
const TURN: u32 = 1_000;

/// Excerpts of that many that may fail.
const MOST_FAULTS: u32 = 10;

/// What to ask one worker for.
#[derive(Debug)]
pub struct Excerpts {
    whole: PathAndQuery,
    state: State,
    /// Excerpts that failed after a trial that did not, since the last turn began.
    faults: u32,
}

#[derive(Debug)]
enum State {
    /// The whole page; after so many an excerpt is tried.
    Whole { pause: u32 },
    /// An excerpt, for the first time.
    Trial(Excerpt),
    /// An excerpt, so many times.
    Good {
        excerpt: Excerpt,
        left: u32,
        /// The last one did not come in time. The whole page would hardly have either, so one is let pass.
        is_late: bool,
    },
}

/// A request for some series of a page.
#[derive(Debug)]
struct Excerpt {
    path: PathAndQuery,
    names: Vec<&'static str>,
    /// What the whole page held.
    expected: Held,
}

/// What a page holds.
#[derive(Debug)]
pub struct Held {
    /// Of the names that were asked for.
    pub names: Vec<&'static str>,
    pub ranks: Vec<u32>,
}

impl Excerpts {
    /// Of the page at `url`.
    pub fn of(url: &Uri) -> Self {
        let whole = url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Self { whole, state: State::Whole { pause: 0 }, faults: 0 }
    }

    /// The path of the whole page.
    pub fn whole(&self) -> &PathAndQuery {
        &self.whole
    }

    /// The path of what to ask for instead, if anything, and for which share of the time for a scrape.
    pub fn excerpt(&self) -> Option<(&PathAndQuery, f64)> {
        match &self.state {
            State::Whole { .. } => None,
            State::Trial(excerpt) => Some((&excerpt.path, TRIAL)),
            State::Good { excerpt, .. } => Some((&excerpt.path, 1.0)),
        }
    }

    /// The whole page could be read, of an engine with series of these `names`. `is_quick`: there would have been time for a trial
    /// before it. `held` says what of some names it holds.
    pub fn read_whole(&mut self, names: Vec<&'static str>, is_quick: bool, held: impl FnOnce(&[&'static str]) -> Held) {
        match &mut self.state {
            State::Whole { pause: 0 } if is_quick => {
                if let Some(path) = path(&self.whole, &names) {
                    let expected = held(&names);
                    self.state = State::Trial(Excerpt { path, names, expected });
                }
            }
            State::Whole { pause } => *pause = pause.saturating_sub(1),
            State::Trial(_) | State::Good { .. } => {}
        }
    }

    /// An excerpt could be read; `held` says what of some names it holds. Returns whether it is to be believed.
    pub fn read_excerpt(&mut self, held: impl FnOnce(&[&'static str]) -> Held) -> bool {
        let state = std::mem::replace(&mut self.state, State::Whole { pause: TURN });
        let (excerpt, left) = match state {
            State::Trial(excerpt) if held(&excerpt.names).has_all_of(&excerpt.expected) => (excerpt, TURN),
            State::Good { excerpt, left, .. } => (excerpt, left.saturating_sub(1)),
            State::Trial(_) | State::Whole { .. } => return false,
        };
        match left {
            0 => self.forget(),
            left => self.state = State::Good { excerpt, left, is_late: false },
        }
        true
    }

    /// An excerpt has failed, by not coming in time or otherwise. Returns whether the whole page is to be asked for at once.
    pub fn failed(&mut self, by_time: bool) -> bool {
        match &mut self.state {
            State::Trial(_) => {
                self.state = State::Whole { pause: TURN };
                true
            }
            State::Good { is_late, .. } => {
                self.faults += 1;
                if self.faults >= MOST_FAULTS {
                    (self.state, self.faults) = (State::Whole { pause: TURN }, 0);
                } else if by_time && std::mem::replace(is_late, true) {
                    self.state = State::Whole { pause: 0 };
                }
                !by_time
            }
            State::Whole { .. } => true,
        }
    }

    /// Whatever answers next may be something else: what was known of it says nothing.
    pub fn forget(&mut self) {
        (self.state, self.faults) = (State::Whole { pause: 0 }, 0);
    }
}

impl Held {
    fn has_all_of(&self, other: &Self) -> bool {
        other.names.iter().all(|name| self.names.contains(name))
            && other.ranks.iter().all(|rank| self.ranks.contains(rank))
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
mod tests;
