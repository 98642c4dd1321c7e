use std::path::Path;

use admission_core::saturation::{Detector, SaturationRule, UtilizationThresholds};

use super::super::WhenStale;
use super::*;

fn errors(text: &str) -> Vec<String> {
    Config::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

const SMALLEST: &str = r#"
proxies: [{url: "http://127.0.0.1:15010", token: secret}]
pools: [{name: llama, workers: ["127.0.0.1:8000"]}]
"#;

#[test]
fn the_smallest_configuration_has_every_default() {
    let config = Config::parse(SMALLEST).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.scrape.interval, Duration::from_millis(100));
    assert_eq!(config.scrape.timeout, Duration::from_secs(1));
    assert_eq!(config.scrape.down_after, Duration::from_secs(2));
    assert_eq!(config.push.heartbeat, Duration::from_secs(1));
    assert_eq!(config.push.timeout, Duration::from_secs(1));
    assert_eq!(config.proxies[0].url, "http://127.0.0.1:15010");
    let pool = &config.pools[0];
    assert_eq!((pool.models[0].as_str(), pool.max_num_batched_tokens), ("llama", None));
    assert_eq!(pool.saturation, SaturationRule::default());
    assert_eq!((pool.busy_hysteresis, pool.when_stale, &pool.dispatch_budget), (0.05, WhenStale::Hold, &None));
    assert_eq!(pool.workers[0].metrics_url, "http://127.0.0.1:8000/metrics");
    assert!(!pool.workers[0].draining);
    assert!(config.warnings().is_empty());
}

#[test]
fn every_field_is_read() {
    let config = Config::parse(
        r#"
listen: "[::1]:0"
scrape: {interval: 250ms, timeout: 200ms, stale_after: 2s, down_after: 3s}
api: {token_file: /run/secrets/api}
push: {heartbeat: 2s, timeout: 500ms}
proxies:
- {url: "http://127.0.0.1:15010/", token_file: /run/secrets/token}
pools:
- name: llama-70b
  model: llama-3.3-70b
  busy: {active_decode_blocks_threshold: 1, active_prefill_tokens_threshold: 10000, active_prefill_tokens_threshold_frac: 0.8}
  saturation: {queue_depth_threshold: 8, kv_cache_util_threshold: 1}
  max_num_batched_tokens: 8192
  busy_hysteresis: 0.1
  when_stale: full
  workers: ["gpu-7.local:8000", {address: "[fd00::8]:8000", metrics_url: "http://10.0.0.8:9000/m?x=1", draining: true}]
"#,
    )
    .unwrap();
    assert_eq!(config.proxies[0].url, "http://127.0.0.1:15010");
    assert!(matches!(&config.proxies[0].token, TokenSource::File(path) if path.ends_with("token")));
    assert_eq!(config.push.timeout, Duration::from_millis(500));
    assert_eq!(config.scrape.stale_after, Duration::from_secs(2));
    assert_eq!(config.api_token, Some(TokenSource::File("/run/secrets/api".into())));
    let pool = &config.pools[0];
    assert_eq!(pool.busy.active_decode_blocks_threshold, Some(1.0));
    assert_eq!(pool.busy.active_prefill_tokens_threshold, Some(10_000));
    let full = UtilizationThresholds { queue_depth_threshold: 8.0, kv_cache_util_threshold: 1.0 };
    assert_eq!(pool.saturation, SaturationRule { detector: Detector::Utilization(full), headroom: None });
    assert_eq!((pool.busy_hysteresis, pool.when_stale), (0.1, WhenStale::Full));
    assert_eq!(pool.max_num_batched_tokens, Some(8_192));
    assert_eq!(pool.workers[1].metrics_url, "http://10.0.0.8:9000/m?x=1");
    assert!(pool.workers[1].draining);
}

#[test]
fn json_is_read_too() {
    let json = r#"{"proxies":[{"url":"http://p:1","token":"t"}],"pools":[{"name":"a","workers":["w:1"]}]}"#;
    assert_eq!(Config::parse(json).unwrap().pools[0].name, "a");
}

#[test]
fn every_mistake_is_reported_at_once_with_its_path() {
    let found = errors(
        r#"
listen: nowhere
colour: red
scrape: {interval: 0s, timeout: soon, down_after: 5, patience: 1s}
push: {heartbeat: 9000000000y, timeout: []}
proxies:
- {url: "ftp://127.0.0.1:1", token: t}
- {url: "http://127.0.0.1:1/path", token: t}
- {url: "http://127.0.0.1:2", token: t, token_file: f}
- {token: "two words"}
- 7
- {url: "unix:run/sluice.sock", token: t}
- {url: "http://127.0.0.1:3", token: t, tls: {ca_file: /ca.pem}}
- {url: "https://10.0.0.3:15010", token: t, tls: {client_certificate: {key_file: 7}, server_name: "no name", verify: false}}
pools:
- {name: a, model: m, workers: ["127.0.0.1", "127.0.0.1:8000", "127.0.0.1:8000", 8000], busy: {active_decode_blocks_threshold: 1.5}, saturation: {queue_depth_threshold: 0}}
- {name: a, model: m, workers: [], max_num_batched_tokens: 0, busy: {decode: 1}, saturation: {depth: 1}}
- {saturation: {kv_cache_util_threshold: 80}, workers: [{metrics_url: "ftp://x"}, {address: "h:1", draining: maybe, weight: 3}]}
"#,
    );
    let expected = [
        "colour: no such field",
        "listen: \"nowhere\" is not ip:port",
        "scrape.patience: no such field",
        "scrape.interval: must be longer than zero",
        "scrape.timeout: \"soon\" is not a duration",
        "scrape.down_after: invalid type",
        "push.heartbeat: must be at most 24h",
        "push.timeout: invalid type",
        "proxies[4]: must be an object, which holds its token",
        "proxies[0].url: \"ftp://127.0.0.1:1\" must begin with http:// or https://",
        "proxies[5].url: \"unix:run/sluice.sock\" must name a socket by its whole path",
        "proxies[6].tls: is only for a URL that begins with https://",
        "proxies[7].tls.verify: no such field",
        "proxies[7].tls.client_certificate.certificate_file: missing",
        "proxies[7].tls.client_certificate.key_file: invalid type",
        "proxies[7].tls.server_name: \"no name\" is not a DNS name",
        "proxies[1].url: \"http://127.0.0.1:1/path\" must end after the port",
        "proxies[2]: exactly one of token and token_file must be set",
        "proxies[3].url: missing",
        "proxies[3].token: the token holds characters",
        "pools[0].busy: active_decode_blocks_threshold is 1.5",
        "pools[0].saturation: queue_depth_threshold is 0;",
        "pools[0].workers[0]: \"127.0.0.1\" is not host:port",
        "pools[0].workers[3]: a worker is host:port or an object",
        "pools[0].workers[2]: \"127.0.0.1:8000\" is already taken by pools[0].workers[1]",
        "pools[1].name: \"a\" is already taken by pools[0].name",
        "pools[1].model: \"m\" is already taken by pools[0].model",
        "pools[1].busy.decode: unknown field `decode`",
        "pools[1].saturation.depth: no such field",
        "pools[1].max_num_batched_tokens: must be at least 1",
        "pools[1].workers: must not be empty",
        "pools[2].name: missing",
        "pools[2].model: missing",
        "pools[2].saturation: kv_cache_util_threshold is 80;",
        "pools[2].workers[0].address: missing",
        "pools[2].workers[0].metrics_url: \"ftp://x\" must begin with http://",
        "pools[2].workers[1].weight: no such field",
        "pools[2].workers[1].draining: invalid type",
    ];
    for expected in expected {
        assert!(found.iter().any(|error| error.starts_with(expected)), "{expected:?} is not in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn a_token_without_quotes_is_not_repeated() {
    for config in [
        "{api: {token: 20406080}, proxies: [{url: 'http://p:1', token: t}], pools: [{name: a, workers: ['w:1']}]}",
        "{proxies: [{url: 'http://p:1', token: 20406080}], pools: [{name: a, workers: ['w:1']}]}",
    ] {
        let found = errors(config);
        assert!(found[0].ends_with("token: must be a text: put it in quotes"), "{found:?}");
        assert!(!found.concat().contains("20406080"), "{found:?}");
    }
}

#[test]
fn proxies_and_pages_may_be_behind_tls_or_a_socket() {
    let config = Config::parse(
        r#"
proxies:
- {url: "unix:/run/sluice/control.sock", token: t}
- url: "https://10.0.0.3:15010"
  token: t
  tls: {ca_file: /ca.pem, client_certificate: {certificate_file: /own.pem, key_file: /own.key}, server_name: gateway.internal}
pools:
- {name: a, tls: {ca_file: /workers.pem}, workers: [{address: "w:1", metrics_url: "https://w:1/metrics"}]}
"#,
    )
    .unwrap();
    let [socket, secured] = config.proxies.as_slice() else { panic!("{:?}", config.proxies) };
    assert_eq!(
        (socket.unix_socket(), socket.base()),
        (Some(Path::new("/run/sluice/control.sock")), "http://localhost")
    );
    assert_eq!((secured.unix_socket(), secured.base()), (None, "https://10.0.0.3:15010"));
    let files: Vec<_> = secured.tls.files().collect();
    assert_eq!(files, [Path::new("/ca.pem"), Path::new("/own.pem"), Path::new("/own.key")]);
    assert_eq!(secured.tls.server_name.as_deref(), Some("gateway.internal"));
    assert_eq!(config.pools[0].tls.ca_file.as_deref(), Some(Path::new("/workers.pem")));
}

#[test]
fn with_a_token_for_those_who_ask_no_proxy_need_be_listed() {
    assert_eq!(Config::parse("{api: {token: t}, pools: [{name: p, workers: ['w:1']}]}").unwrap().proxies.len(), 0);
    assert_eq!(
        errors("{api: {token: t}, proxies: [], pools: [{name: p, workers: ['w:1']}]}"),
        ["proxies: must not be empty"]
    );
}

#[test]
fn nothing_to_read_and_nobody_to_tell_are_mistakes() {
    assert_eq!(errors("{}"), ["proxies: missing", "pools: missing"]);
    assert!(errors("listen: [")[0].contains("line"), "text that is not YAML names the line");
}

#[test]
fn addresses_are_a_host_and_a_port() {
    for good in ["10.0.0.7:8000", "gpu_7.cluster-a.local:1", "[::1]:65535"] {
        assert!(is_host_and_port(good), "{good}");
    }
    for bad in ["", ":", "10.0.0.7", "h:0", "h:65536", "h:+1", ":80", "::1:80", "[x]:80", "http://h:80", "a b:80"] {
        assert!(!is_host_and_port(bad), "{bad}");
    }
}

#[test]
fn a_token_never_shows() {
    let config = Config::parse(SMALLEST).unwrap();
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn an_interval_beyond_the_patience_is_warned_of() {
    let warnings = |scrape: &str| Config::parse(&format!("scrape: {scrape}\n{SMALLEST}")).unwrap().warnings();
    for (scrape, says) in [
        ("{interval: 600ms}", "(600ms) is longer than scrape.stale_after (500ms)"),
        ("{interval: 3s}", "(3s) is longer than scrape.down_after (2s)"),
        ("{timeout: 2s}", "scrape.timeout (2s) is not below scrape.down_after (2s)"),
    ] {
        let found = warnings(scrape);
        assert!(found.len() == 1 && found[0].contains(says), "{scrape}: {found:?}");
    }
    assert_eq!(warnings("{interval: 500ms, timeout: 1900ms}"), [""; 0]);
}

#[test]
fn no_mistake_shows_what_may_be_a_token() {
    const REST: &str = "pools: [{name: p, workers: ['w:1']}]";
    let proxy = |proxy: &str| format!("proxies: [{proxy}]\n{REST}");
    let api = |api: &str| format!("api: {api}\nproxies: [{{url: 'http://p:1', token: t}}]\n{REST}");
    for text in [
        api("hush-hush"),
        api("[hush-hush]"),
        api("{hush-hush}"),
        api("{token: {hush-hush: 1}}"),
        format!("proxies: hush-hush\n{REST}"),
        proxy("hush-hush"),
        proxy("{url: 'http://p:1', token: t, hush-hush}"),
        proxy("{url: 'http://p:1', token: [hush-hush]}"),
        proxy("{url: 'htp://hush-hush@p:1', token: t}"),
        proxy("{url: 'http://p:1/?token=hush-hush', token: t}"),
        proxy("{url: 'http://a:hush-hush@p:99999', token: t}"),
    ] {
        let errors = Config::parse(&text).unwrap_err();
        assert!(errors.iter().all(|error| !error.to_string().contains("hush")), "{text}: {errors:?}");
    }
}

#[test]
fn urls_are_shown_without_what_may_be_secret() {
    for (url, shown) in
        [("http://a:b@w:1/metrics?token=c#d", "http://w:1/metrics"), ("https://w:1", "https://w:1"), ("a@w:1?x", "w:1")]
    {
        assert_eq!(crate::config::without_secrets(url), shown);
    }
}

#[test]
fn pools_are_named_as_proxies_take_them() {
    let error = |pools: &str| {
        let text = format!("{{proxies: [{{url: 'http://p:1', token: t}}], pools: {pools}}}");
        Config::parse(&text).err().map(|errors| errors[0].to_string()).unwrap_or_default()
    };
    let named = |name: &str| error(&format!("[{{name: '{name}', model: m, workers: ['w:1']}}]"));
    assert_eq!(named(&"a".repeat(128)), "");
    assert!(named(&"a".repeat(129)).starts_with("pools[0].name: "));
    assert!(named("my pool").contains("\"my pool\" is no name of a pool"), "{}", named("my pool"));
    let many: Vec<_> = (0..1_025).map(|pool| format!("{{name: p{pool}, workers: ['w:{}']}}", pool + 1)).collect();
    assert_eq!(
        error(&format!("[{}]", many.join(", "))),
        "pools: 1025 pools are more than 1024, the most that proxies take"
    );
}

#[test]
fn an_engine_that_never_reports_kv_blocks_is_warned_of() {
    let warnings = |engine: &str| {
        let text = format!(
            "{{proxies: [{{url: 'http://p:1', token: t}}], pools: [{{name: main, engine: {engine}, workers: ['a:1']}}]}}"
        );
        Config::parse(&text).unwrap().warnings().iter().filter(|warning| warning.contains("no KV blocks")).count()
    };
    let mapping = |more: &str| format!("{{custom: {{running: r{more}}}}}");
    assert_eq!((warnings("tgi"), warnings("vllm"), warnings("llamacpp")), (1, 0, 0));
    assert_eq!(warnings(&mapping("")), 1);
    assert_eq!(warnings(&mapping(", kv_total_blocks: t, kv_used_blocks: u")), 0);
}
