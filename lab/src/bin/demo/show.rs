//! Single requests and workers, shown as a person at a terminal would see them.

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use reqwest::{RequestBuilder, Response};
use serde_json::json;

use super::scenario::GUEST;
use testkit::parts::{Front, MODEL, Parts, TOKEN};

/// Shows a request that is let in, and one that is refused because its tenant already has all it may and it will not wait.
///
/// # Errors
/// When one of them goes otherwise.
pub async fn requests(parts: &Parts) -> Result<()> {
    let admitted = guest(parts, false, 8).send().await?;
    println!("\nA request that is let in:\n");
    let status = print(admitted).await?;
    ensure!(status == 200, "it was not let in");

    // The tenant may have one request in flight. This one is, for as long as its answer is not read to the end.
    let busy = guest(parts, true, 1_000).send().await?;
    ensure!(busy.status() == 200, "the first of two requests was not let in: {}", busy.status());
    let mut answer = busy.bytes_stream();
    answer.next().await.context("the first of two requests was not answered")??;
    let refused = guest(parts, false, 8).header("x-sluice-no-queue", "true").send().await?;
    println!(
        "\nAnother one of the same tenant, while its first is being answered, that would rather fail than wait:\n"
    );
    let status = print(refused).await?;
    ensure!(status == 429, "it was not refused");
    Ok(())
}

fn guest(parts: &Parts, stream: bool, max_tokens: u32) -> RequestBuilder {
    let url = format!("http://{}/v1/chat/completions", parts.with);
    let message = json!({"role": "user", "content": "Say something."});
    let body = json!({"model": MODEL, "messages": [message], "max_tokens": max_tokens, "stream": stream});
    parts.client.post(url).header("x-tenant-id", GUEST).json(&body)
}

async fn print(response: Response) -> Result<u16> {
    let status = response.status();
    println!("    {:?} {status}", response.version());
    for (name, value) in response.headers() {
        println!("    {name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    println!("\n    {}", response.text().await?);
    Ok(status.as_u16())
}

/// What the sidecar says of the workers now, in lines.
///
/// # Errors
/// When it does not say.
pub async fn workers(parts: &Parts) -> Result<Vec<String>> {
    let page = parts.client.get(format!("http://{}/metrics", parts.sidecar.address)).send().await?.text().await?;
    let mut lines = Vec::new();
    for worker in &parts.workers {
        let label = format!("worker=\"{}\"", worker.address);
        let value = |metric: &str| sample(&page, &format!("sluice_sidecar_worker_{metric}"), &label).unwrap_or(0.0);
        let state = if value("busy") > 0.0 { "busy" } else { "free" };
        let (running, waiting) = (value("running"), value("waiting"));
        let kv = value("kv_used_ratio") * 100.0;
        lines.push(format!("{} {state}  KV {kv:>3.0} %  {running:>3} running  {waiting:>3} waiting", worker.address));
    }
    Ok(lines)
}

/// The value of a metric with a label on a Prometheus page.
fn sample(page: &str, metric: &str, label: &str) -> Option<f64> {
    let mine = |line: &&str| line.split_once('{').is_some_and(|(name, rest)| name == metric && rest.contains(label));
    page.lines().find(mine)?.split_whitespace().last()?.parse().ok()
}

/// The filter's own count, by label, as Prometheus would scrape it.
///
/// # Errors
/// When Envoy does not say, or its tags do not make labels of what the filter writes.
pub async fn counted(parts: &Parts) -> Result<Vec<String>> {
    let page = parts.envoy.prometheus().await?;
    let lines: Vec<String> =
        page.lines().filter(|line| line.starts_with("sluice_requests_total{")).map(str::to_owned).collect();
    let labelled = |line: &&String| ["pool=\"", "lane=\"", "outcome=\""].iter().all(|label| line.contains(label));
    ensure!(
        lines.iter().any(|line| labelled(&line)),
        "sluice_requests_total has lost its labels:\n{}",
        lines.join("\n")
    );
    Ok(lines)
}

/// What there is to try while everything is left running.
pub fn addresses(parts: &Parts) {
    let Front { with, without, control, .. }: &Front = parts;
    println!("\nEverything is left running. Ctrl-C ends it. With the filter at {with}, without it at {without}:");
    println!("    curl -i http://{with}/v1/chat/completions -H 'x-tenant-id: {GUEST}' \\");
    println!(
        "      -d '{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}],\"max_tokens\":200}}'"
    );
    println!(
        "    (twice at once, and the second waits: {GUEST} may have one; with -H 'x-sluice-no-queue: true' it is refused)"
    );
    println!("    curl -s http://{control}/sluice/v1/state -H 'authorization: Bearer {TOKEN}' | python3 -m json.tool");
    println!("    curl -s {}/stats/prometheus | grep sluice_", parts.envoy.admin_url());
    println!("    curl -s http://{}/metrics", parts.sidecar.address);
}
