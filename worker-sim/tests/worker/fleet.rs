//! Many pages: what is served, how slowly, and what is counted of those who read.

use std::time::{Duration, Instant};

use worker_sim::fleet::{Fleet, Pace};

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn each_worker_has_its_own_numbers_and_counts_its_readers() {
    let fleet = Fleet::start(3).unwrap();
    let client = client();
    let [first, second, _] = fleet.workers() else { panic!("three were asked for") };
    second.set_kv_usage(0.95);
    assert_eq!(second.shown_at(), None);
    let page = async |worker: &worker_sim::fleet::FleetWorker| {
        client.get(format!("http://{}/metrics", worker.address())).send().await.unwrap().text().await.unwrap()
    };
    let (one, two, again) = (page(first).await, page(second).await, page(first).await);
    assert!(one.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0\n"));
    assert!(two.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.95\n"));
    assert_ne!(one, again, "a worker that works shows other numbers every time");
    assert!(second.shown_at().is_some());
    let seen = first.take_seen();
    assert_eq!((seen.connections, seen.asked, seen.gaps.len()), (1, 2, 1));
    assert_eq!(first.take_seen().asked, 0);
}

#[tokio::test]
async fn slow_workers_are_slow_as_they_are_told() {
    let fleet = Fleet::start(3).unwrap();
    let client = client();
    let delay = Duration::from_millis(60);
    let paces = [Pace::Late(delay), Pace::Trickling(delay), Pace::Hanging];
    for (worker, pace) in fleet.workers().iter().zip(paces) {
        worker.set_pace(pace);
    }
    for (worker, ends) in fleet.workers().iter().zip([true, true, false]) {
        let began = Instant::now();
        let url = format!("http://{}/metrics", worker.address());
        let patience = if ends { Duration::from_secs(20) } else { Duration::from_millis(200) };
        let page =
            tokio::time::timeout(patience, async { client.get(url).send().await.unwrap().text().await.unwrap() });
        let page = page.await;
        assert_eq!(page.is_ok(), ends);
        if let Ok(page) = page {
            assert!(began.elapsed() >= delay && page.len() > 45_000);
        }
    }
}
