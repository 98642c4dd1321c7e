//! The overloads that the simulation plays in virtual time, shorter, in the real proxy with two and four worker threads: the
//! worker writes down in which order it got the requests.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use wasm_tests::caller::{RawCaller, chat};
use wasm_tests::line::{order, queues, send, send_more, waiting};
use wasm_tests::rig::{MODEL, Rig, Wait, reason_of, text_of};
use wasm_tests::view;

const THREADS: [u32; 2] = [2, 4];

/// Whose requests reached the worker, in that order.
fn tenants(rig: &Rig) -> Vec<String> {
    let arrivals = rig.worker.arrivals().requests.into_iter();
    arrivals.filter(|arrival| arrival.id.is_some()).filter_map(|arrival| arrival.tenant).collect()
}

async fn all_are_answered(callers: &mut [RawCaller]) {
    for caller in callers {
        assert_eq!(caller.status().await, Some(200));
    }
}

async fn nothing_is_left(rig: &Rig) {
    rig.nothing_is_held().await;
    waiting(rig, 0).await;
    rig.nothing_trapped().await;
}

/// Sixty at once for lanes of sixteen places: whoever finds none is told so at once, the others go by lane.
#[tokio::test]
async fn of_a_burst_the_lanes_are_served_in_order_and_the_rest_is_told() {
    for threads in THREADS {
        let rig = Rig::start(queues(threads, Wait::Unread).with("/pools/0/max_in_flight", json!(2))).await;
        let running = [rig.endless("first", &[]).await, rig.endless("first", &[]).await];
        let lanes = ["interactive", "standard", "batch"];
        let mut callers = Vec::new();
        for number in 0..60 {
            callers.push(send(&rig, "acme", lanes[number % 3], number).await);
        }
        waiting(&rig, 48).await;
        drop(running);
        let mut refused = 0;
        for caller in &mut callers {
            let head = caller.read_until("\r\n\r\n").await;
            if !head.starts_with("HTTP/1.1 200") {
                refused += 1;
                for told in
                    ["HTTP/1.1 429", "x-sluice-reason: queue_full", "x-sluice-queue-position: ", "retry-after: "]
                {
                    assert!(head.contains(told), "{head}");
                }
            }
        }
        assert_eq!(refused, 12);
        let served: Vec<usize> = order(&rig).iter().map(|number| number.parse::<usize>().unwrap() % 3).collect();
        // Two run at a time, so two that start one after the other may reach the worker the other way round.
        let lane_of = |places: std::ops::Range<usize>, lane| served[places].iter().filter(|own| **own == lane).count();
        assert_eq!(served.len(), 48);
        assert!(lane_of(0..16, 0) >= 15 && lane_of(16..32, 1) >= 14 && lane_of(32..48, 2) >= 15, "{served:?}");
        assert!(rig.worker.stats().peak_running <= 2, "{:?}", rig.worker.stats());
        nothing_is_left(&rig).await;
    }
}

#[tokio::test]
async fn a_tenant_that_floods_keeps_nobody_out() {
    for threads in THREADS {
        let rig = Rig::start(queues(threads, Wait::Unread)).await;
        let running = rig.endless("first", &[]).await;
        let mut flood = Vec::new();
        for number in 0..12 {
            flood.push(send(&rig, "greedy", "standard", number).await);
        }
        waiting(&rig, 12).await;
        let mut modest = Vec::new();
        for number in 12..16 {
            modest.push(send(&rig, "modest", "standard", number).await);
        }
        waiting(&rig, 16).await;
        drop(running);
        all_are_answered(&mut flood).await;
        all_are_answered(&mut modest).await;
        let tenants = tenants(&rig);
        let last = tenants.iter().rposition(|tenant| tenant == "modest").unwrap();
        assert!(last <= 8, "four of sixteen, in turns: {tenants:?}");
        nothing_is_left(&rig).await;
    }
}

/// Documents cost eight times what chats do, and their tenant has four times the weight.
#[tokio::test]
async fn tokens_are_shared_by_weight_whatever_the_size_of_requests() {
    const CHATS: usize = 24;
    const DOCUMENTS: usize = 12;
    for threads in THREADS {
        let queue = json!([{"name": "standard", "queue": {"max_requests": 64, "max_wait": "60s"}}]);
        let tenants_of = json!({"documents": {"weight": 4}, "chats": {}});
        let setup = queues(threads, Wait::Unread).with("/lanes", queue).with("/tenants", tenants_of);
        let rig = Rig::start(setup).await;
        let running = rig.endless("first", &[]).await;
        let mut callers = Vec::new();
        for number in 0..CHATS + DOCUMENTS {
            let (tenant, words) = if number < CHATS { ("chats", 100) } else { ("documents", 800) };
            callers.push(send_more(&rig, tenant, "standard", number, &[], &"word".repeat(words)).await);
        }
        waiting(&rig, (CHATS + DOCUMENTS) as u64).await;
        drop(running);
        all_are_answered(&mut callers).await;
        // With four times the tokens in requests of eight times the size, one document goes for two chats, as long as both
        // wait: a round more or less.
        let tenants = tenants(&rig);
        let (mut chats, mut documents) = (0_usize, 0_usize);
        for tenant in &tenants {
            if tenant == "chats" {
                chats += 1
            } else {
                documents += 1
            }
            if chats < CHATS && documents < DOCUMENTS {
                assert!(chats.abs_diff(2 * documents) <= 3, "{chats} chats, {documents} documents: {tenants:?}");
            }
        }
        assert_eq!((chats, documents), (CHATS, DOCUMENTS));
        nothing_is_left(&rig).await;
    }
}

/// Both are below a flood that never ends; only one of them ages.
#[tokio::test]
async fn under_a_flood_who_ages_moves() {
    for threads in THREADS {
        let queue = json!({"max_requests": 64, "max_wait": "60s"});
        let lanes = json!([
            {"name": "interactive", "priority": 100, "queue": queue},
            {"name": "batch", "priority": 1, "queue": queue, "aging": {"after": "300ms", "to": "interactive"}},
            {"name": "last", "priority": 0, "queue": queue},
        ]);
        let setup = queues(threads, Wait::Unread).with("/lanes", lanes).with("/default_lane", json!("last"));
        let rig = Rig::start(setup).await;
        let (is_over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
        let flood = async || {
            while !is_over.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                let mut caller = send(&rig, "acme", "interactive", 1_000 + number).await;
                assert_eq!(caller.status().await, Some(200));
            }
        };
        let watch = async {
            waiting(&rig, 7).await;
            let mut last = send(&rig, "acme", "last", 1).await;
            waiting(&rig, 8).await;
            let mut batch = send(&rig, "acme", "batch", 2).await;
            assert_eq!(batch.status().await, Some(200));
            let served = order(&rig);
            is_over.store(true, Ordering::Relaxed);
            assert!(!served.contains(&"1".to_owned()), "{served:?}");
            assert_eq!(last.status().await, Some(200));
        };
        tokio::join!(watch, flood(), flood(), flood(), flood(), flood(), flood(), flood(), flood());
        nothing_is_left(&rig).await;
    }
}

/// Twenty callers for four places in line, each of whom comes back when it was told to, until it is served.
#[tokio::test]
async fn who_comes_back_when_told_is_served() {
    for threads in THREADS {
        let lanes = json!([{"name": "standard", "queue": {"max_requests": 4, "max_wait": "60s"}}]);
        let setup = queues(threads, Wait::Unread).with("/lanes", lanes);
        let mut setup = setup.with("/reject", json!({"retry_after": {"min": "10ms", "jitter": 0.0}}));
        setup.worker.base_ms = 20.0;
        let rig = Rig::start(setup).await;
        // How long requests take is known from some that nobody waits behind.
        for _ in 0..4 {
            assert_eq!(rig.post("acme", &[], &chat(MODEL, 4, false)).await.status(), 200);
        }
        let (returned, refused_again) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (rig, returned, refused_again) = (&rig, &returned, &refused_again);
        let caller = async || {
            let mut comes_back = false;
            loop {
                let answer = rig.post("acme", &[], &chat(MODEL, 4, false)).await;
                returned.fetch_add(usize::from(comes_back), Ordering::Relaxed);
                if answer.status() == 200 {
                    return answer.bytes().await.map(drop).unwrap();
                }
                refused_again.fetch_add(usize::from(comes_back), Ordering::Relaxed);
                assert!(["queue_full", "wait_too_long"].contains(&&*reason_of(&answer)));
                let advice = text_of(&answer, "retry-after-ms").parse().unwrap();
                comes_back = true;
                tokio::time::sleep(Duration::from_millis(advice)).await;
            }
        };
        futures_util::future::join_all((0..20).map(|_| caller())).await;
        let (returned, again) = (returned.load(Ordering::Relaxed), refused_again.load(Ordering::Relaxed));
        assert!(returned >= 10 && again * 5 <= returned, "{again} of {returned} that came back were refused again");
        nothing_is_left(rig).await;
    }
}

#[tokio::test]
async fn when_workers_are_lost_those_in_line_wait_for_them() {
    for threads in THREADS {
        let rig = Rig::start(queues(threads, Wait::Unread).with("/pools/0/hold_when_empty", json!("60s"))).await;
        let worker = rig.worker.address();
        let shown = async |generation: u64, state: &str| {
            let pool = json!({"workers": [view::idle(worker, state)]});
            assert_eq!(rig.push_view(1, generation, pool).await.0, 200);
        };
        shown(1, "up").await;
        let running = rig.endless("first", &[]).await;
        let mut callers = Vec::new();
        for number in 0..4 {
            callers.push(send(&rig, "acme", "standard", number).await);
            waiting(&rig, number as u64 + 1).await;
        }
        shown(2, "down").await;
        drop(running);
        rig.nothing_is_held().await;
        waiting(&rig, 4).await;
        assert_eq!(order(&rig), Vec::<String>::new());
        shown(3, "up").await;
        all_are_answered(&mut callers).await;
        assert_eq!(order(&rig), ["0", "1", "2", "3"]);
        nothing_is_left(&rig).await;
    }
}

/// A tenant that may use the standard lane at most tries all it can say to come before others.
#[tokio::test]
async fn nobody_raises_its_own_priority() {
    for threads in THREADS {
        let setup = queues(threads, Wait::Unread);
        let setup =
            setup.with("/tenants", json!({"climber": {"max_lane": "standard", "max_in_flight": 9}, "acme": {}}));
        let setup = setup.with("/objectives", json!({"now": "interactive"}));
        let rig = Rig::start(setup).await;
        let running = rig.endless("first", &[]).await;
        let mut callers = Vec::new();
        let tricks = [
            ("x-sluice-priority", "1000"),
            ("x-llm-d-inference-objective", "now"),
            ("x-gateway-inference-objective", "now"),
            ("x-slo-ttft-ms", "60000"),
        ];
        for (number, trick) in tricks.into_iter().enumerate() {
            callers.push(send_more(&rig, "climber", "interactive", number, &[trick], "Now!").await);
            waiting(&rig, number as u64 + 1).await;
        }
        for (number, lane) in [(4, "standard"), (5, "interactive")] {
            callers.push(send(&rig, "acme", lane, number).await);
            waiting(&rig, number as u64 + 1).await;
        }
        drop(running);
        all_are_answered(&mut callers).await;
        let order = order(&rig);
        let place = |number: &str| order.iter().position(|other| other == number).unwrap();
        assert_eq!(place("5"), 0, "{order:?}");
        assert!(place("4") <= 2, "in turns with the other tenant: {order:?}");
        let lanes: BTreeSet<_> = rig
            .worker
            .arrivals()
            .requests
            .into_iter()
            .filter_map(|arrival| (arrival.tenant.as_deref() == Some("climber")).then_some(arrival.lane).flatten())
            .collect();
        assert_eq!(lanes.into_iter().collect::<Vec<_>>(), ["standard"]);
        nothing_is_left(&rig).await;
    }
}
