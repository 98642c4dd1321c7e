//! Reading the filter's state page.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::parts::TOKEN;

/// Longest time for it to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// The page, as the control listener at this address serves it.
///
/// # Errors
/// When it is not served, as for a moment after a trap.
pub async fn fetch(client: &reqwest::Client, control: SocketAddr) -> Result<Value> {
    let url = format!("http://{control}/sluice/v1/state");
    let answer = client.get(url).bearer_auth(TOKEN).timeout(PATIENCE).send().await?;
    ensure!(answer.status().is_success(), "{} {}", answer.status(), answer.text().await?);
    Ok(answer.json().await?)
}

/// What a state page says is held and waits, over all pools and tenants.
pub fn held_and_waiting(state: &Value) -> (u64, u64) {
    let requests = |held: &Value| held["requests"].as_u64().unwrap_or_default();
    let of = |object: &Value, each: &dyn Fn(&Value) -> u64| {
        object.as_object().into_iter().flatten().map(|(_, item)| each(item)).sum::<u64>()
    };
    let pools = of(&state["pools"], &|pool| requests(&pool["held"]));
    let unnamed = of(&state["unnamed_tenants"], &requests) + of(&state["shared_tenants"], &requests);
    let tenants = of(&state["tenants"], &requests) + unnamed;
    let waiting = of(&state["pools"], &|pool| of(&pool["waiting"], &requests));
    (pools.max(tenants), waiting)
}

/// Tokens and blocks that are held beside requests; there are none where no request is.
pub fn nothing_is_held(state: &Value) -> bool {
    let is_none = |held: &Value| ["requests", "tokens", "blocks"].iter().all(|amount| held[amount] == 0);
    let pools = state["pools"].as_object().into_iter().flatten().map(|(_, pool)| &pool["held"]);
    let each = |kind: &str| state[kind].as_object().into_iter().flatten().map(|(_, held)| held);
    // One that holds nothing is there for what it owes to a budget.
    let mut unnamed = each("unnamed_tenants").chain(each("shared_tenants"));
    pools.chain(each("tenants")).all(is_none) && unnamed.all(|held| is_none(held) && held["budgets"].is_object())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_state_page_is_summed_up() {
        let none = json!({"requests": 0, "tokens": 0, "blocks": 0});
        let some = json!({"requests": 2, "tokens": 9, "blocks": 1});
        let page = |held: &Value, unnamed: Value| {
            json!({
                "pools": {"a": {"held": held, "waiting": {"x": {"requests": 3}, "y": {"requests": 1}}}},
                "tenants": {"t": none}, "unnamed_tenants": unnamed, "shared_tenants": {},
            })
        };
        assert_eq!(held_and_waiting(&page(&some, json!({}))), (2, 4));
        assert_eq!(held_and_waiting(&page(&none, json!({"7": some}))), (2, 4));
        assert!(nothing_is_held(&page(&none, json!({}))));
        let owing = json!({"requests": 0, "tokens": 0, "blocks": 0, "budgets": {"requests": {"remaining": 3}}});
        assert!(nothing_is_held(&page(&none, json!({"7": owing}))));
        assert!(!nothing_is_held(&page(&some, json!({}))) && !nothing_is_held(&page(&none, json!({"7": none}))));
    }
}
