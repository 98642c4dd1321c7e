//! The pages of `docs/engines/`: their configurations are read, and they name every metric that is.

use std::path::{Path, PathBuf};

use host_sidecar::Config;
use host_sidecar::engines::read;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs/engines").join(name)).unwrap()
}

/// The configurations on a page, completed by a proxy.
fn configs(name: &str) -> Vec<Config> {
    let page = page(name);
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let proxy = "proxies: [{url: 'http://127.0.0.1:15010', token: t}]\n";
    blocks
        .map(|block| Config::parse(&format!("{proxy}{block}")).unwrap_or_else(|errors| panic!("{name}: {errors:?}")))
        .collect()
}

#[test]
fn configurations_are_as_the_sidecar_reads_them() {
    let names = |page: &str| -> Vec<_> {
        let engines = configs(page).into_iter().map(|mut config| config.pools.remove(0).engine);
        engines.map(|engine| engine.map_or("auto", |engine| engine.name())).collect()
    };
    assert_eq!(names("vllm.md"), ["vllm"]);
    assert_eq!(names("tensorrt-llm.md"), ["triton", "trtllm"]);
    assert_eq!(names("others.md"), ["custom", "custom", "vllm"]);
    assert_eq!(names("hardware.md"), ["auto"]);
}

#[test]
fn the_worked_mapping_reads_the_engine_it_is_for() {
    let engine = configs("others.md")[0].pools[0].engine.clone().unwrap();
    let page = std::fs::read_to_string(root().join("host-sidecar/tests/pages/lmdeploy-0.9.prom")).unwrap();
    let ranks = read(&engine, &page).unwrap().ranks;
    let told: Vec<_> = ranks.iter().map(|rank| (rank.rank, rank.running, rank.waiting, rank.kv_used_share)).collect();
    assert_eq!(told, [(0, Some(16), Some(7), Some(0.88)), (1, Some(2), Some(0), Some(0.0625))]);
    let in_house = configs("others.md")[1].pools[0].engine.clone().unwrap();
    let page = "engine_requests{state=\"running\",model=\"llama\"} 4\nengine_requests{state=\"queued\",model=\"llama\"} 1\n\
                engine_requests{state=\"running\",model=\"other\"} 9\nengine_cache_percent 75\n\
                engine_settings_info{blocks=\"1000\",block_size=\"32\"} 1\n";
    let reading = read(&in_house, page).unwrap();
    let rank = &reading.ranks[0];
    assert_eq!((rank.running, rank.waiting), (Some(4), Some(1)));
    assert_eq!((rank.kv_used_blocks, rank.kv_total_blocks), (Some(750), Some(1_000)), "75 × 0.01 × 1,000");
    assert_eq!(reading.limits.block_size, Some(32));
}

#[test]
fn every_metric_that_is_read_is_on_its_page() {
    for (adapter, prefix, name) in [
        ("vllm", "vllm:", "vllm.md"),
        ("sglang", "sglang:", "sglang.md"),
        ("triton", "nv_", "tensorrt-llm.md"),
        ("trtllm", "trtllm_", "tensorrt-llm.md"),
        ("tgi", "tgi_", "others.md"),
        ("llamacpp", "llamacpp:", "others.md"),
        ("dynamo", "dynamo_", "others.md"),
        ("dcgm", "DCGM_FI_", "hardware.md"),
    ] {
        let code = std::fs::read_to_string(root().join(format!("host-sidecar/src/engines/{adapter}.rs"))).unwrap();
        let page = page(name);
        let metrics = code.split('"').filter(|text| text.len() > 12 && text.starts_with(prefix));
        let metrics: Vec<_> = metrics.filter(|text| !text.ends_with('_') && *text != "dynamo_endpoint").collect();
        assert!(metrics.len() > 2, "{adapter}: {metrics:?}");
        for metric in metrics {
            assert!(page.contains(&format!("`{metric}`")), "{name} does not name {metric}");
        }
    }
}
