//! The crowd against a real worker.

use std::time::Duration;

use testkit::crowd::Crowd;
use worker_sim::{Config, Fault, Worker};

#[tokio::test]
async fn each_of_a_crowd_asks_again_once_answered() {
    let worker = Worker::start(Config { base_ms: 1.0, ..Config::default() }).await.unwrap();
    let mut crowd = Crowd::new(worker.address(), "/v1/completions");
    for id in ["a", "b", "c"] {
        let headers = vec![("x-client-request-id", id.to_owned())];
        let connection = crowd.connect().await.unwrap();
        crowd.join(connection, headers, r#"{"prompt":[1],"max_tokens":1}"#.to_owned());
    }
    while crowd.tally().answered < 30 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((crowd.len(), worker.stats().peak_in_server, crowd.tally().otherwise.len()), (3, 3, 0));
    let arrivals = worker.arrivals().requests;
    assert!(["a", "b", "c"].iter().all(|id| arrivals.iter().filter(|one| one.id.as_deref() == Some(id)).count() > 1));
    worker.set_faults([Fault::Refuse503]);
    while crowd.tally().otherwise.get("status 503") < Some(&4) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.set_faults([]);
    let before = crowd.tally().answered;
    while crowd.tally().answered < before + 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
