//! Headers that say what is left of a tenant's budgets.

use std::time::{Duration, SystemTime};

use crate::budget::{Budgets, Standing};

/// The budgets of a caller's tenant: in the fields of the RateLimit draft, in those of OpenAI's API, and in Anthropic's own, which give
/// instants, where the time of day is given.
#[must_use]
pub fn rate_limits(budgets: &Budgets, time_of_day: Option<SystemTime>) -> Vec<(&'static str, String)> {
    let known = [(&REQUESTS, budgets.requests), (&TOKENS, budgets.tokens)];
    let mut headers = Vec::with_capacity(8);
    let (mut policy, mut state) = (String::with_capacity(64), String::with_capacity(64));
    for (fields, standing) in known {
        let Some(standing) = standing else { continue };
        let Standing { limit, remaining, reset, window } = standing;
        headers.push((fields.limit, limit.to_string()));
        headers.push((fields.remaining, remaining.to_string()));
        headers.push((fields.reset, reset.0.to_string() + "ms"));
        push_item(&mut policy, fields.name, [(";q=", limit), (";w=", window.0.div_ceil(1_000))]);
        push_item(&mut state, fields.name, [(";r=", remaining), (";t=", reset.0.div_ceil(1_000))]);
        headers.extend(time_of_day.into_iter().flat_map(|now| of_anthropic(&fields.anthropic, standing, now)));
    }
    if !policy.is_empty() {
        headers.push(("ratelimit-policy", policy));
        headers.push(("ratelimit", state));
    }
    headers
}

/// The three fields of Anthropic's API for one budget. The instant is in whole seconds, rounded up.
fn of_anthropic(names: &[&'static str; 3], standing: Standing, now: SystemTime) -> [(&'static str, String); 3] {
    let Standing { limit, remaining, reset, .. } = standing;
    const NEARLY_A_SECOND: u64 = 999;
    // Why: an instant beyond the calendar of the format would be a panic.
    let until = now.checked_add(Duration::from_millis(reset.0.saturating_add(NEARLY_A_SECOND).min(CENTURY_MS)));
    let until = humantime::format_rfc3339_seconds(until.unwrap_or(now)).to_string();
    let [limit_name, remaining_name, reset_name] = *names;
    [(limit_name, limit.to_string()), (remaining_name, remaining.to_string()), (reset_name, until)]
}

const CENTURY_MS: u64 = 3_155_760_000_000;

/// Appends an item of a structured header, such as `"tokens";r=120;t=4`.
fn push_item(list: &mut String, name: &str, parameters: [(&str, u64); 2]) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.push_str(name);
    list.push('"');
    for (key, value) in parameters {
        list.push_str(key);
        push_number(list, value);
    }
}

/// Appends a number. Formatting would cost several times as much, and every answer has a dozen numbers.
pub fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Names of a budget's headers: of the draft, of OpenAI's API, and of Anthropic's the limit, the remainder and the reset.
struct Fields {
    name: &'static str,
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    anthropic: [&'static str; 3],
}

const REQUESTS: Fields = Fields {
    name: "requests",
    limit: "x-ratelimit-limit-requests",
    remaining: "x-ratelimit-remaining-requests",
    reset: "x-ratelimit-reset-requests",
    anthropic: [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ],
};

const TOKENS: Fields = Fields {
    name: "tokens",
    limit: "x-ratelimit-limit-tokens",
    remaining: "x-ratelimit-remaining-tokens",
    reset: "x-ratelimit-reset-tokens",
    anthropic: [
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Millis;

    fn standing(limit: u64, remaining: u64, reset: u64) -> Standing {
        Standing { limit, remaining, reset: Millis(reset), window: Millis(60_000) }
    }

    fn header<'a>(headers: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
        headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn budgets_are_said_in_the_fields_of_each_api() {
        let budgets = Budgets { requests: Some(standing(600, 599, 100)), tokens: Some(standing(9_000, 0, 61_500)) };
        let headers = rate_limits(&budgets, None);
        let header = |name| header(&headers, name);
        assert_eq!(header("ratelimit-policy"), Some("\"requests\";q=600;w=60, \"tokens\";q=9000;w=60"));
        assert_eq!(header("ratelimit"), Some("\"requests\";r=599;t=1, \"tokens\";r=0;t=62"));
        assert_eq!(header("x-ratelimit-remaining-requests"), Some("599"));
        assert_eq!(header("x-ratelimit-reset-tokens"), Some("61500ms"));
        assert_eq!(header("anthropic-ratelimit-tokens-reset"), None);
        assert!(rate_limits(&Budgets::default(), Some(SystemTime::UNIX_EPOCH)).is_empty());
    }

    #[test]
    fn anthropics_fields_give_the_instant() {
        let budgets = Budgets { requests: None, tokens: Some(standing(9_000, 7, 61_500)) };
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_400);
        let headers = rate_limits(&budgets, Some(now));
        assert_eq!(header(&headers, "anthropic-ratelimit-tokens-limit"), Some("9000"));
        assert_eq!(header(&headers, "anthropic-ratelimit-tokens-remaining"), Some("7"));
        assert_eq!(header(&headers, "anthropic-ratelimit-tokens-reset"), Some("2023-11-14T22:14:22Z"));
        assert_eq!(header(&headers, "anthropic-ratelimit-requests-limit"), None);
        assert_eq!(header(&headers, "x-ratelimit-remaining-tokens"), Some("7"));
        let never = Budgets { requests: Some(standing(1, 0, u64::MAX)), tokens: None };
        assert!(!rate_limits(&never, Some(now)).is_empty(), "no panic");
    }
}
