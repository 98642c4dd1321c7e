//! Headers that are put on a request: for its worker, for the proxy's routes and for an endpoint picker.

use std::rc::Rc;
use std::sync::Arc;

use crate::ask::Ask;
use crate::outcome::Reason;
use crate::platform;
use crate::policy::{Lane, Pool};

/// Facts that a request is tagged with, as far as they are known.
#[derive(Clone, Debug)]
pub struct Tags {
    /// Name of the tenant that sends it.
    pub tenant: Rc<str>,
    /// Lane that it is in.
    pub lane: Option<Arc<Lane>>,
    /// Pool that it goes to.
    pub pool: Option<Arc<Pool>>,
    /// Tokens that it was taken for.
    pub estimate: Option<Ask>,
    /// Workers that the proxy's cluster is to take, as [`crate::endpoint::Endpoint::header`] has them.
    pub endpoint: Option<String>,
    /// Reason for which it would have been refused, were it not in shadow.
    pub would_reject: Option<Reason>,
    /// True where an endpoint picker of the same chain reads its own headers.
    pub for_picker: bool,
}

impl Tags {
    /// Calls `set` with the name and the value of each header.
    pub fn each(&self, mut set: impl FnMut(&'static str, &str)) {
        set(platform::TENANT, &self.tenant);
        if self.for_picker {
            platform::FAIRNESS.iter().for_each(|header| set(header, &self.tenant));
        }
        if let Some(lane) = &self.lane {
            set(platform::LANE, &lane.name);
            set(platform::PRIORITY, &lane.priority.to_string());
            if self.for_picker {
                platform::OBJECTIVE.iter().for_each(|header| set(header, &lane.name));
            }
        }
        if let Some(pool) = &self.pool {
            set(platform::POOL, &pool.name);
        }
        if let Some(estimate) = &self.estimate {
            set(platform::PROMPT_TOKENS, &estimate.prompt.0.to_string());
            set(platform::OUTPUT_TOKENS, &estimate.output.0.to_string());
        }
        if let Some(endpoint) = &self.endpoint {
            set(platform::ENDPOINT, endpoint);
        }
        if let Some(reason) = self.would_reject {
            set(platform::WOULD_REJECT, reason.label());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::Plugin;
    use crate::units::Tokens;

    #[test]
    fn each_thing_known_has_its_headers_and_a_picker_its_own() {
        let json = json!({"lanes": [{"name": "chat", "priority": 7}], "pools": [{"name": "p", "max_in_flight": 9}]});
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.to_string().as_bytes()) else { panic!("{json}") };
        let written = |tags: Tags| {
            let mut written = String::new();
            tags.each(|name, value| written += &format!("{name}: {value}\n"));
            written
        };
        let tenant = Tags {
            tenant: "acme".into(),
            lane: None,
            pool: None,
            estimate: None,
            endpoint: None,
            would_reject: None,
            for_picker: false,
        };
        assert_eq!(written(tenant.clone()), "x-sluice-tenant: acme\n");
        let (lane, pool) = (policy.line_up().iter().next().cloned(), policy.only_pool().cloned());
        let ask = Ask { prompt: Tokens(30), output: Tokens(2), ..Ask::default() };
        let all = Tags {
            lane: lane.clone(),
            pool,
            estimate: Some(ask),
            would_reject: Some(Reason::KvBlocks),
            ..tenant.clone()
        };
        assert_eq!(
            written(all),
            "x-sluice-tenant: acme\nx-sluice-lane: chat\nx-sluice-priority: 7\nx-sluice-pool: p\n\
             x-sluice-prompt-tokens: 30\nx-sluice-output-tokens: 2\nx-sluice-would-reject: kv_blocks\n"
        );
        assert_eq!(
            written(Tags { lane, for_picker: true, ..tenant }),
            "x-sluice-tenant: acme\nx-llm-d-inference-fairness-id: acme\nx-gateway-inference-fairness-id: acme\n\
             x-sluice-lane: chat\nx-sluice-priority: 7\nx-llm-d-inference-objective: chat\n\
             x-gateway-inference-objective: chat\n"
        );
    }
}
