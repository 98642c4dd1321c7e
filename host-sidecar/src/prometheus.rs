//! Asks a Prometheus for a pool's dispatch budget.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};
use url::form_urlencoded;

use crate::config::PrometheusQuery;
use crate::fetch::{self, Peer, exchange};
use crate::shared::Shared;

/// Longest answer, in bytes. One number has some 200.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Questions in a row that may go unanswered before the last answer is no longer believed.
const PATIENCE: u32 = 3;

/// Asks for ever. A number that stands too long unconfirmed is taken back, so that the next source is asked.
pub async fn follow(shared: Arc<Shared>, pool: String, query: PrometheusQuery) {
    let peer = match Peer::new(&query.tls, None) {
        Ok(peer) => peer,
        Err(error) => {
            warn!(pool, %error, "Prometheus cannot be asked");
            return std::future::pending().await;
        }
    };
    let url = question(&query);
    let mut ticks = interval(query.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut answered, mut was_good) = (Instant::now(), None);
    loop {
        ticks.tick().await;
        let answer = ask(&peer, &url, &query).await;
        shared.counters.queried(&pool, answer.is_ok());
        if was_good.replace(answer.is_ok()) != Some(answer.is_ok()) {
            match &answer {
                Ok(budget) => info!(pool, budget, "Prometheus answers"),
                Err(error) => warn!(pool, url = query.url, error, "Prometheus gives no dispatch budget"),
            }
        }
        match answer {
            Ok(budget) => {
                answered = Instant::now();
                shared.update(|table| table.saw_budget(&pool, Some(budget)));
            }
            Err(_) if answered.elapsed() >= query.interval * PATIENCE => {
                shared.update(|table| table.saw_budget(&pool, None));
            }
            Err(_) => {}
        }
    }
}

fn question(query: &PrometheusQuery) -> String {
    let text: String = form_urlencoded::byte_serialize(query.query.as_bytes()).collect();
    format!("{}/api/v1/query?query={text}", query.url)
}

async fn ask(peer: &Peer, url: &str, query: &PrometheusQuery) -> Result<f64, String> {
    let mut request = peer.client().get(url);
    if let Some(token) = &query.token {
        request = request.bearer_auth(&fetch::token(token).await?);
    }
    let (status, body) = exchange(request, query.timeout, MAX_ANSWER_BYTES).await.map_err(|error| error.to_string())?;
    // It explains a refused query in the body, with a status of 400 or 422.
    number(&body)
        .map_err(|problem| if status == StatusCode::OK { problem } else { format!("status {status}: {problem}") })
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Series>),
    Scalar(Point),
    #[serde(untagged)]
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Series {
    value: Point,
}

/// When, and what; the number is written as a string, since it may be `NaN`.
#[derive(Deserialize)]
struct Point(#[expect(dead_code, reason = "its place has to be taken")] f64, String);

/// The one number of an answer: a scalar, or a vector of one sample. Of several samples nobody knows which is meant, and in what
/// order they come.
fn number(body: &[u8]) -> Result<f64, String> {
    let answer: Answer =
        serde_json::from_slice(body).map_err(|error| format!("its answer is none to a query: {error}"))?;
    if let Some(error) = answer.error {
        return Err(error);
    }
    let Point(_, text) = match answer.data {
        Some(Data::Scalar(point)) => point,
        Some(Data::Vector(series)) => match <[Series; 1]>::try_from(series) {
            Ok([one]) => one.value,
            Err(none) if none.is_empty() => return Err("the query has no sample".into()),
            Err(many) => return Err(format!("the query has {} samples; aggregate them to one", many.len())),
        },
        Some(Data::Other(_)) => return Err("the query is for neither a vector nor a scalar".into()),
        None => return Err("the answer holds no data".into()),
    };
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if value.is_finite() { Ok(value) } else { Err(format!("the query gives {text}")) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn queries_are_escaped() {
        let query = PrometheusQuery {
            url: "http://prom:9090".into(),
            query: "1 - avg(a{b=\"c&d\"})".into(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            token: None,
            tls: crate::config::Tls::default(),
        };
        let expected = "http://prom:9090/api/v1/query?query=1+-+avg%28a%7Bb%3D%22c%26d%22%7D%29";
        assert_eq!(question(&query), expected);
    }

    #[test]
    fn the_number_of_an_answer() {
        let of = |data: &str| number(format!(r#"{{"status":"success","data":{data}}}"#).as_bytes());
        assert_eq!(of(r#"{"resultType":"scalar","result":[1795187205.1,"0.25"]}"#), Ok(0.25));
        assert_eq!(of(r#"{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"0.5"]}]}"#), Ok(0.5));
        let two = r#"{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"0.5"]},{"metric":{},"value":[1,"1"]}]}"#;
        for (data, says) in [
            (two, "2 samples; aggregate"),
            (r#"{"resultType":"vector","result":[]}"#, "no sample"),
            (r#"{"resultType":"matrix","result":[]}"#, "neither"),
            (r#"{"resultType":"scalar","result":[1,"NaN"]}"#, "gives NaN"),
            (r#"{"resultType":"scalar","result":[1,"+Inf"]}"#, "gives +Inf"),
            (r#"{"resultType":"scalar","result":[1,"much"]}"#, "not a number"),
            ("null", "no data"),
        ] {
            let problem = of(data).unwrap_err();
            assert!(problem.contains(says), "{data}: {problem}");
        }
        assert_eq!(
            number(br#"{"status":"error","errorType":"bad_data","error":"parse error"}"#),
            Err("parse error".into())
        );
        assert!(number(b"<html>").unwrap_err().contains("none to a query"));
    }
}
