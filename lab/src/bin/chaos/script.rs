//! What goes wrong when: the same seed gives the same script.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use worker_sim::Fault;

use super::policy::Draw;

/// Workers there are.
pub const WORKERS: usize = 4;

/// At the beginning and at the end nothing goes wrong.
const CALM: Duration = Duration::from_secs(8);

/// Mean time between two events.
const MEAN_GAP_S: f64 = 1.3;

/// A proxy lives at least so long before another takes its place, and the last one at least so long until the end: memory is
/// compared over its life.
const LEAST_LIFE: Duration = Duration::from_secs(25);

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// Since the start; later when what came before it takes longer.
    pub at: Duration,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A worker is in trouble from now on.
    Trouble(usize, Trouble),
    /// A worker is well again.
    Well(usize),
    /// The sidecar is in trouble from now on.
    Sidecar(SidecarTrouble),
    /// The sidecar is well again.
    SidecarWell,
    /// Another policy.
    Policy(Draw),
    /// A configuration with a mistake, which is to change nothing.
    Mistake(usize),
    /// Another build of the filter.
    Code(Code),
    /// A bug in the filter.
    Trap,
    /// The proxy's process is killed and another one started.
    Kill,
    /// Another process takes over; the former one ends when its last request has.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its process is gone.
    Killed,
    Fault(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarTrouble {
    Killed,
    /// Stopped by a signal.
    Paused,
    /// No byte passes between it and the proxy.
    Partitioned,
    /// It has the wrong token.
    WrongToken,
}

/// A build of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// As released.
    Released,
    /// The same, with other bytes.
    Rebuilt,
    /// That traps on command.
    Trapping,
}

/// What can be drawn. All are drawn before one comes again.
#[derive(Clone, Copy)]
enum Card {
    Worker(Trouble),
    Sidecar(SidecarTrouble),
    Policy,
    Mistake,
    Code,
    Trap,
    Proxy,
}

const DECK: [Card; 25] = [
    Card::Worker(Trouble::Killed),
    Card::Worker(Trouble::Killed),
    Card::Worker(Trouble::Fault(Fault::Hang)),
    Card::Worker(Trouble::Fault(Fault::Refuse503)),
    Card::Worker(Trouble::Fault(Fault::Refuse429)),
    Card::Worker(Trouble::Fault(Fault::Slow)),
    Card::Worker(Trouble::Fault(Fault::Truncate)),
    Card::Worker(Trouble::Fault(Fault::HangMetrics)),
    Card::Worker(Trouble::Fault(Fault::GarbageMetrics)),
    Card::Worker(Trouble::Fault(Fault::AbsurdUsage)),
    Card::Sidecar(SidecarTrouble::Killed),
    Card::Sidecar(SidecarTrouble::Paused),
    Card::Sidecar(SidecarTrouble::Partitioned),
    Card::Sidecar(SidecarTrouble::WrongToken),
    Card::Policy,
    Card::Policy,
    Card::Policy,
    Card::Policy,
    Card::Policy,
    Card::Mistake,
    Card::Code,
    Card::Trap,
    Card::Trap,
    Card::Trap,
    Card::Proxy,
];

/// All that happens within this time, in order.
pub fn acts(seed: u64, length: Duration) -> Vec<Act> {
    let mut writer = Writer::new(seed, length);
    let mut deck = Vec::new();
    let mut at = CALM;
    loop {
        let gap = -(1.0 - writer.random.f64()).ln() * MEAN_GAP_S;
        at += Duration::from_secs_f64(gap.clamp(0.2, 4.0));
        if at + CALM > length {
            break;
        }
        if deck.is_empty() {
            deck.extend(DECK);
            writer.random.shuffle(&mut deck);
        }
        if let Some(card) = deck.pop() {
            writer.play(at, card);
        }
        writer.replace(at);
    }
    writer.acts.sort_by_key(|act| act.at);
    writer.acts
}

struct Writer {
    random: Rng,
    end: Duration,
    acts: Vec<Act>,
    /// Until when each worker is in trouble.
    workers: [Duration; WORKERS],
    sidecar: Duration,
    code: Code,
    born: Duration,
    proxy_due: bool,
    /// The last proxy was killed.
    kills: bool,
}

impl Writer {
    fn new(seed: u64, end: Duration) -> Self {
        let mut random = Rng::with_seed(seed);
        let kills = random.bool();
        let (workers, sidecar) = ([Duration::ZERO; WORKERS], Duration::ZERO);
        Self {
            random,
            end,
            acts: Vec::new(),
            workers,
            sidecar,
            code: Code::Trapping,
            born: Duration::ZERO,
            proxy_due: false,
            kills,
        }
    }

    fn play(&mut self, at: Duration, card: Card) {
        match card {
            Card::Worker(trouble) => {
                let number = self.random.usize(..WORKERS);
                let well = self.until(at);
                if self.workers[number] <= at {
                    self.workers[number] = well;
                    self.add(at, What::Trouble(number, trouble));
                    self.add(well, What::Well(number));
                }
            }
            Card::Sidecar(trouble) => {
                let well = self.until(at);
                if self.sidecar <= at {
                    self.sidecar = well;
                    self.add(at, What::Sidecar(trouble));
                    self.add(well, What::SidecarWell);
                }
            }
            Card::Policy => {
                let draw = Draw::any(&mut self.random);
                self.add(at, What::Policy(draw));
            }
            Card::Mistake => {
                let mistake = self.random.usize(..4);
                self.add(at, What::Mistake(mistake));
            }
            Card::Code => {
                let others = match self.code {
                    Code::Released => [Code::Rebuilt, Code::Trapping],
                    Code::Rebuilt => [Code::Released, Code::Trapping],
                    Code::Trapping => [Code::Released, Code::Rebuilt],
                };
                let code = self.random.choice(others).unwrap_or(Code::Released);
                self.change_code(at, code);
            }
            Card::Trap => {
                self.change_code(at, Code::Trapping);
                self.add(at, What::Trap);
            }
            Card::Proxy => self.proxy_due = true,
        }
    }

    /// Until when a trouble lasts.
    fn until(&mut self, at: Duration) -> Duration {
        (at + Duration::from_millis(self.random.u64(500..5_000))).min(self.end - CALM / 2)
    }

    fn change_code(&mut self, at: Duration, code: Code) {
        if code != self.code {
            self.code = code;
            self.add(at, What::Code(code));
        }
    }

    /// Ends the proxy if that is due and it has lived long enough: by turns in either way.
    fn replace(&mut self, at: Duration) {
        if self.proxy_due && at >= self.born + LEAST_LIFE && at + LEAST_LIFE <= self.end {
            (self.born, self.proxy_due, self.kills) = (at, false, !self.kills);
            self.add(at, if self.kills { What::Kill } else { What::Replace });
        }
    }

    fn add(&mut self, at: Duration, what: What) {
        self.acts.push(Act { at, what });
    }
}

impl fmt::Display for What {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble(number, Trouble::Killed) => write!(out, "worker {number} is killed"),
            Self::Trouble(number, Trouble::Fault(fault)) => write!(out, "worker {number}: {fault:?}"),
            Self::Well(number) => write!(out, "worker {number} is well again"),
            Self::Sidecar(SidecarTrouble::Killed) => out.write_str("the sidecar is killed"),
            Self::Sidecar(SidecarTrouble::Paused) => out.write_str("the sidecar is stopped"),
            Self::Sidecar(SidecarTrouble::Partitioned) => out.write_str("nothing passes between sidecar and proxy"),
            Self::Sidecar(SidecarTrouble::WrongToken) => out.write_str("the sidecar has a wrong token"),
            Self::SidecarWell => out.write_str("the sidecar is well again"),
            Self::Policy(draw) => {
                let (caps, shadow) = (&draw.caps, if draw.shadow { ", in shadow" } else { "" });
                let wait = draw.wait;
                write!(out, "another policy: pool {}, tenants {:?}, {wait:?}{shadow}", caps.pool, caps.tenants)
            }
            Self::Mistake(mistake) => write!(out, "a configuration with mistake {mistake}"),
            Self::Code(code) => write!(out, "another build of the filter: {code:?}"),
            Self::Trap => out.write_str("the filter traps"),
            Self::Kill => out.write_str("the proxy is killed and started again"),
            Self::Replace => out.write_str("another proxy takes over"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(120);

    #[test]
    fn the_same_seed_gives_the_same_script_and_another_one_another() {
        assert_eq!(acts(7, LENGTH), acts(7, LENGTH));
        assert_ne!(acts(7, LENGTH), acts(8, LENGTH));
    }

    #[test]
    fn every_script_of_two_minutes_has_every_kind_of_event_and_ends_well() {
        for seed in 0..50 {
            let acts = acts(seed, LENGTH);
            assert!(acts.is_sorted_by_key(|act| act.at) && acts.iter().all(|act| act.at >= CALM));
            let count = |wanted: fn(&What) -> bool| acts.iter().filter(|act| wanted(&act.what)).count();
            assert_eq!(count(|what| matches!(what, What::Trouble(..))), count(|what| matches!(what, What::Well(_))));
            assert_eq!(count(|what| matches!(what, What::Sidecar(_))), count(|what| *what == What::SidecarWell));
            for kind in [
                count(|what| matches!(what, What::Trouble(..))),
                count(|what| matches!(what, What::Sidecar(_))),
                count(|what| matches!(what, What::Policy(_))),
                count(|what| matches!(what, What::Mistake(_))),
                count(|what| *what == What::Trap),
                count(|what| *what == What::Kill),
                count(|what| *what == What::Replace),
            ] {
                assert!(kind > 0, "seed {seed}: {acts:?}");
            }
        }
    }

    #[test]
    fn a_trap_finds_the_build_that_traps() {
        for seed in 0..50 {
            let mut code = Code::Trapping;
            for act in acts(seed, LENGTH) {
                match act.what {
                    What::Code(other) => code = other,
                    What::Trap => assert_eq!(code, Code::Trapping),
                    _ => {}
                }
            }
        }
    }
}
