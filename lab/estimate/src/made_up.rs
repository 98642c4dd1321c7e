//! Texts that are made up by seed: JSON, logs, base64, and what no vocabulary knows. Those to fit to and those to test with have nothing in common but
//! their kind.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::texts::{Half, Text};

const FIRST: [&str; 12] =
    ["Ana", "Kwame", "Li", "Olga", "Tomas", "Priya", "Yusuf", "Marie", "Jonas", "Aiko", "Diego", "Nora"];
const LAST: [&str; 12] =
    ["Ruiz", "Mensah", "Wei", "Petrova", "Novak", "Sharma", "Demir", "Laurent", "Berg", "Tanaka", "Castro", "Quinn"];
const WORDS: [&str; 24] = [
    "garden", "blue", "standard", "delivery", "late", "camera", "winter", "premium", "return", "kitchen", "sample",
    "hotel", "urgent", "battery", "review", "leather", "green", "travel", "monthly", "paper", "engine", "fragile",
    "import", "outdoor",
];

/// Texts of a half.
pub fn texts(half: Half) -> Vec<Text> {
    let mut rng = Rng::with_seed(if half == Half::Fit { 11 } else { 12 });
    let mut texts = Vec::new();
    let shapes: &[fn(&mut Rng) -> Value] = match half {
        Half::Fit => &[customer, event, article, build],
        Half::Test => &[invoice, reading, pod],
    };
    for style in 0..3 {
        for record in shapes {
            let records: Vec<String> = (0..40).map(|_| written(&record(&mut rng), style)).collect();
            texts.push(Text::new("json", records.join("\n")));
        }
    }
    let line = if half == Half::Fit { service_log } else { access_log };
    texts.push(Text::new("logs", (0..200).map(|_| line(&mut rng)).collect()));
    let bytes: Vec<u8> = (0..9_000).map(|_| rng.u8(..)).collect();
    let lines = bytes.chunks(57).map(|chunk| STANDARD.encode(chunk) + "\n");
    texts.push(Text::new("base64", lines.collect()));
    if half == Half::Test {
        texts.push(Text::new("rare", lines_of(&mut rng, rare_letter)));
        texts.push(Text::new("control", lines_of(&mut rng, control_character)));
    }
    texts
}

fn lines_of(rng: &mut Rng, character: fn(&mut Rng) -> char) -> String {
    let mut line = || (0..60).map(|_| character(rng)).chain(['\n']).collect::<String>();
    (0..200).map(|_| line()).collect()
}

/// Of a script that vocabularies hardly know: Ethiopic, Cherokee, Canadian syllabics, runes, Yi.
fn rare_letter(rng: &mut Rng) -> char {
    let scripts = [
        '\u{1200}'..='\u{1248}',
        '\u{13a0}'..='\u{13f5}',
        '\u{1401}'..='\u{166c}',
        '\u{16a0}'..='\u{16ea}',
        '\u{a000}'..='\u{a48c}',
    ];
    rng.choice(scripts).map_or(' ', |script| rng.char(script))
}

fn control_character(rng: &mut Rng) -> char {
    char::from(rng.u8(1..9))
}

/// As one program or another writes JSON: tight, with blanks, or indented.
fn written(record: &Value, style: usize) -> String {
    match style {
        0 => record.to_string(),
        1 => record.to_string().replace("\":", "\": ").replace(",\"", ", \""),
        _ => format!("{record:#}"),
    }
}

fn one<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of.get(rng.usize(..of.len())).copied().unwrap_or_default()
}

fn words(rng: &mut Rng, count: usize) -> String {
    (0..count).map(|_| one(rng, &WORDS)).collect::<Vec<_>>().join(" ")
}

fn hexadecimal(rng: &mut Rng, digits: usize) -> String {
    (0..digits).map(|_| rng.digit(16)).collect()
}

fn uuid(rng: &mut Rng) -> String {
    [8, 4, 4, 4, 12].map(|digits| hexadecimal(rng, digits)).join("-")
}

fn cents(rng: &mut Rng, most: u32) -> f64 {
    f64::from(rng.u32(..most)) / 100.0
}

fn time(rng: &mut Rng) -> String {
    let (month, day) = (rng.u8(1..=12), rng.u8(1..=28));
    format!("2025-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rng.u8(..24), rng.u8(..60), rng.u8(..60))
}

fn customer(rng: &mut Rng) -> Value {
    let (first, last) = (one(rng, &FIRST), one(rng, &LAST));
    let tags: Vec<&str> = (0..rng.usize(..4)).map(|_| one(rng, &WORDS)).collect();
    json!({
        "id": rng.u32(1..100_000), "name": format!("{first} {last}"), "active": rng.bool(), "tags": tags,
        "email": format!("{}.{}@example.org", first.to_lowercase(), last.to_lowercase()),
        "created_at": time(rng), "score": cents(rng, 10_000), "referrer": null,
        "address": {
            "street": format!("{} {} Street", rng.u8(1..), one(rng, &LAST)),
            "zip": format!("{:05}", rng.u32(..99_999)),
        },
    })
}

fn event(rng: &mut Rng) -> Value {
    json!({
        "eventId": uuid(rng),
        "eventType": format!("{}.{}", one(rng, &WORDS), one(rng, &["created", "updated", "deleted"])),
        "occurredAt": time(rng),
        "actor": {"userId": uuid(rng), "ipAddress": format!("10.{}.{}.{}", rng.u8(..), rng.u8(..), rng.u8(..))},
        "payload": {"previousValue": words(rng, 2), "newValue": words(rng, 3), "retryCount": rng.u8(..5)},
    })
}

fn article(rng: &mut Rng) -> Value {
    json!({
        "title": words(rng, 5), "body": words(rng, 40), "lang": one(rng, &["en", "de", "fr"]),
        "word_count": rng.u16(..900),
        "coordinates": [f64::from(rng.i32(-900_000..900_000)) / 1e4, f64::from(rng.i32(-900_000..900_000)) / 1e4],
        "url": format!("https://www.example.com/{}/{}?ref={}", one(rng, &WORDS), rng.u32(..99_999), one(rng, &WORDS)),
    })
}

fn build(rng: &mut Rng) -> Value {
    let steps: Vec<Value> = (0..rng.usize(1..4))
        .map(|_| {
            json!({
                "run": {"name": one(rng, &["lint", "unit-tests", "package"]), "exit": {"code": rng.u8(..2)}},
                "cache": [{"key": hexadecimal(rng, 12)}],
            })
        })
        .collect();
    json!({
        "build": {"commit": {"sha": hexadecimal(rng, 40), "author": {"login": one(rng, &FIRST)}}, "steps": steps},
        "host": {"net": {
            "mac": format!("{}:{}", hexadecimal(rng, 2), hexadecimal(rng, 2)),
            "ipv4": [format!("172.16.{}.{}", rng.u8(..), rng.u8(..))],
        }},
        "branchName": one(rng, &["main", "release/4.2", "fix-login"]), "ok": rng.bool(),
        "durationMs": rng.u32(..900_000), "ratio": rng.f64(),
    })
}

fn invoice(rng: &mut Rng) -> Value {
    let lines: Vec<Value> = (0..rng.usize(1..4))
        .map(|_| {
            json!({
                "sku": format!("{}-{}", one(rng, &["KX", "PT", "ZU"]), rng.u16(1_000..9_999)),
                "description": words(rng, 3), "quantity": rng.u8(1..20), "unitPrice": cents(rng, 90_000),
            })
        })
        .collect();
    json!({
        "invoiceNumber": format!("INV-2025-{:06}", rng.u32(..999_999)), "issued": time(rng),
        "currency": one(rng, &["EUR", "USD", "JPY"]),
        "billTo": {
            "company": format!("{} & {} Ltd.", one(rng, &LAST), one(rng, &LAST)),
            "vatId": format!("DE{}", rng.u32(100_000_000..999_999_999)),
        },
        "lines": lines, "total": cents(rng, 5_000_000), "paid": rng.bool(),
        "notes": if rng.bool() { json!(words(rng, 6)) } else { Value::Null },
    })
}

fn reading(rng: &mut Rng) -> Value {
    json!({
        "sensor_id": format!("node-{:03}/temp", rng.u16(..999)),
        "ts": 1_735_000_000_000_u64 + rng.u64(..30_000_000_000),
        "values": (0..rng.usize(2..8)).map(|_| cents(rng, 4_000)).collect::<Vec<_>>(), "unit": "celsius",
        "battery": rng.f64(), "status": one(rng, &["OK", "LOW_BATTERY", "OUT_OF_RANGE"]),
        "checksum": hexadecimal(rng, 16),
    })
}

fn pod(rng: &mut Rng) -> Value {
    let name = format!("{}-{}-{}", one(rng, &WORDS), one(rng, &["api", "worker", "cache"]), hexadecimal(rng, 10));
    let version = format!("v{}.{}.{}", rng.u8(..9), rng.u8(..30), rng.u8(..9));
    let image = format!("registry.example.com/{}:{version}", one(rng, &WORDS));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": one(rng, &["default", "kube-system", "staging"]), "uid": uuid(rng),
            "labels": {"app.kubernetes.io/name": one(rng, &WORDS), "pod-template-hash": hexadecimal(rng, 9)},
        },
        "spec": {
            "containers": [{
                "name": "main", "image": image,
                "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}},
            }],
            "restartPolicy": "Always",
        },
        "status": {
            "phase": one(rng, &["Running", "Pending"]), "podIP": format!("10.244.{}.{}", rng.u8(..), rng.u8(..)),
            "startTime": time(rng),
        },
    })
}

fn service_log(rng: &mut Rng) -> String {
    let level = one(rng, &["INFO", "WARN", "ERROR", "DEBUG"]);
    let (at, worker, request) = (time(rng), rng.u8(..32), hexadecimal(rng, 8));
    format!("{at} {level} [worker-{worker}] com.example.Service - request {request} took {} ms\n", rng.u16(..9_000))
}

fn access_log(rng: &mut Rng) -> String {
    let (day, hour, minute, second) = (rng.u8(1..28), rng.u8(..24), rng.u8(..60), rng.u8(..60));
    let path = format!("/{}/{}", one(rng, &WORDS), rng.u32(..99_999));
    let (status, size) = (one(rng, &["200", "304", "404", "502"]), rng.u32(..90_000));
    let at = format!("{day:02}/Mar/2025:{hour:02}:{minute:02}:{second:02} +0000");
    let (caller, client) = (format!("192.168.{}.{}", rng.u8(..), rng.u8(..)), rng.u8(..9));
    format!("{caller} - - [{at}] \"GET {path} HTTP/1.1\" {status} {size} \"-\" \"curl/8.{client}.0\"\n")
}
