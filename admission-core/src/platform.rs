//! Request headers that only the platform may set.

/// Headers that begin so are this filter's alone.
pub const PREFIX: &str = "x-sluice-";

/// Header that a cluster with the `override_host` policy reads.
pub const ENDPOINT: &str = "x-gateway-destination-endpoint";

/// Header that names the workers which a picker may choose from.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// Headers by which the platform, and no caller, chooses a worker.
const ENDPOINTS: [&str; 3] = [ENDPOINT, "x-gateway-destination-endpoint-served", SUBSET];

/// Headers by which an endpoint picker knows whose a request is, the one that it reads first before the older one.
pub const FAIRNESS: [&str; 2] = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];

/// Headers by which a caller, or the platform, names a request's objective, the one that is read first before the older one.
pub const OBJECTIVE: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];

/// Header that tells the worker who sends the request.
pub const TENANT: &str = "x-sluice-tenant";

/// Header that tells the worker the request's lane.
pub const LANE: &str = "x-sluice-lane";

/// Header that tells the worker how urgent that lane is.
pub const PRIORITY: &str = "x-sluice-priority";

/// Header that tells the proxy's routes to which pool the request goes.
pub const POOL: &str = "x-sluice-pool";

/// Header that tells the worker how many prompt tokens the request was taken for.
pub const PROMPT_TOKENS: &str = "x-sluice-prompt-tokens";

/// Header that tells the worker how many output tokens the request was taken for.
pub const OUTPUT_TOKENS: &str = "x-sluice-output-tokens";

/// Header that says why a request would have been refused that is in shadow; of requests and of answers.
pub const WOULD_REJECT: &str = "x-sluice-would-reject";

/// Header by which a caller would rather be refused than wait in a queue; the only one with the prefix that callers may always set.
pub const NO_QUEUE: &str = "x-sluice-no-queue";

/// Every header that the filter sets for the platform.
const TAGS: [&str; 7] = [TENANT, LANE, PRIORITY, POOL, PROMPT_TOKENS, OUTPUT_TOKENS, WOULD_REJECT];

/// Says whether a caller's header is to be taken off. An underscore counts as a hyphen: servers that hand headers on as variables of an
/// environment read one for the other. Names are in lower case.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    let begins = |with: &str| {
        let alike = |(byte, wanted): (u8, u8)| byte == wanted || (byte, wanted) == (b'_', b'-');
        name.len() >= with.len() && name.bytes().zip(with.bytes()).all(alike)
    };
    begins(PREFIX) || ENDPOINTS.iter().any(|header| header.len() == name.len() && begins(header))
}

/// Says whether a header carries a choice of worker.
#[must_use]
pub fn chooses_workers(name: &str) -> bool {
    ENDPOINTS.contains(&name)
}

/// Says whether the proxy may have a route that matches on a header, since the filter sets it for that.
///
/// ```
/// use admission_core::platform::chooses_routes;
///
/// assert!(chooses_routes("x-sluice-pool"));
/// assert!(!chooses_routes("x-sluice-invented"));
/// ```
#[must_use]
pub fn chooses_routes(name: &str) -> bool {
    TAGS.contains(&name) || ENDPOINTS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_ours_however_they_are_spelled() {
        for name in TAGS.iter().chain(&ENDPOINTS) {
            assert!(is_ours(name) && is_ours(&name.replace('-', "_")), "{name}");
            assert!(chooses_routes(name) && !chooses_routes(&name.replace('-', "_")), "{name}: routes match bytes");
        }
        for name in ["x-sluice-", "x_sluice-anything", NO_QUEUE] {
            assert!(is_ours(name) && !chooses_routes(name), "{name}");
        }
        for name in ["x-sluic", "x-sluice", "x-gateway-destination-endpoint-mine", "x-mine", ""] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
