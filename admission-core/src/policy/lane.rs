//! Priority bands, and what gives a request its own.

use std::sync::Arc;

use super::pool::ModelPattern;
use crate::ledger::LaneKey;

/// A named priority band.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// As configured.
    pub name: String,
    /// In records.
    pub key: LaneKey,
    /// Higher is served first.
    pub priority: i32,
    /// It admits while its pool's saturation is below this.
    pub ceiling: Option<Ceiling>,
}

/// A highest saturation, and its place in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// 1 is a full pool.
    pub saturation: f64,
    /// Such as `lanes[batch].ceiling`.
    pub knob: Arc<str>,
}

/// Named priority bands, highest first; there is always one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lanes {
    pub(super) highest: Arc<Lane>,
    pub(super) others: Vec<Arc<Lane>>,
    pub(super) default: usize,
}

impl Lanes {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        std::iter::once(&self.highest).chain(&self.others)
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.iter().position(|lane| lane.name == name)
    }

    /// The lane at a position; the lowest for one beyond.
    pub(super) fn at(&self, position: usize) -> &Arc<Lane> {
        match position.checked_sub(1) {
            None => &self.highest,
            Some(place) => self.others.get(place).or(self.others.last()).unwrap_or(&self.highest),
        }
    }
}

/// Gives a lane to requests that ask for none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneRule {
    pub(super) model: Option<ModelPattern>,
    pub(super) path_prefix: Option<String>,
    pub(super) lane: usize,
}

/// What the rules say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleSays {
    /// This lane, whatever the model.
    Lane(usize),
    /// Nothing, whatever the model.
    Nothing,
    /// It takes the model to know.
    AskModel,
}

/// The first rule that fits. `model` is `None` while the body has not been read, and `Some(None)` when it names none.
pub(super) fn first_rule(rules: &[LaneRule], path: &str, model: Option<Option<&str>>) -> RuleSays {
    for rule in rules {
        if rule.path_prefix.as_ref().is_some_and(|prefix| !path.starts_with(prefix.as_str())) {
            continue;
        }
        match (&rule.model, model) {
            (None, _) => return RuleSays::Lane(rule.lane),
            (Some(_), None) => return RuleSays::AskModel,
            (Some(pattern), Some(Some(model))) if pattern.strength(model).is_some() => {
                return RuleSays::Lane(rule.lane);
            }
            (Some(_), Some(_)) => {}
        }
    }
    RuleSays::Nothing
}
