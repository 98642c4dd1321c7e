//! A page whose text is shared, with gaps for what changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hyper::Uri;

use crate::excerpt;

/// Captured from vLLM 0.32 with one engine, while it was busy.
const VLLM: &str = include_str!("../../pages/vllm-0.32.prom");

/// Series whose values are gaps.
const GAPS: [&str; 3] = ["vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{"];

/// What stands in the gaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    pub running: u64,
    pub waiting: u64,
    /// 0 to 1.
    pub kv_usage: f64,
}

pub struct Template {
    /// Texts, and which gap is behind each.
    parts: Vec<(Bytes, usize)>,
    /// Behind the last gap.
    rest: Bytes,
}

/// A template for each way in which the page is asked for.
#[derive(Default)]
pub struct Templates {
    by_request: Mutex<HashMap<String, Arc<Template>>>,
    /// The whole page goes out whatever is asked for.
    pub ignores_names: AtomicBool,
}

impl Templates {
    /// That of the page as far as this request asks for it.
    pub fn of(&self, request: &Uri) -> Arc<Template> {
        let names = if self.ignores_names.load(Ordering::Relaxed) { None } else { excerpt::names(request) };
        let key = if names.is_some() { request.query().unwrap_or_default() } else { "" };
        let mut known = self.by_request.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = known.get(key) {
            return Arc::clone(template);
        }
        let page = names.map_or(Bytes::from_static(VLLM.as_bytes()), |names| excerpt::of(VLLM, &names).into());
        Arc::clone(known.entry(key.to_owned()).or_insert_with(|| Arc::new(Template::new(&page))))
    }
}

impl Template {
    fn new(page: &Bytes) -> Self {
        let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
        for line in page.split_inclusive(|byte| *byte == b'\n') {
            if let Some(gap) = GAPS.iter().position(|gap| line.starts_with(gap.as_bytes())) {
                let value = at + line.iter().rposition(|byte| *byte == b' ').map_or(line.len(), |blank| blank + 1);
                parts.push((page.slice(from..value), gap));
                from = at + line.trim_ascii_end().len();
            }
            at += line.len();
        }
        Self { parts, rest: page.slice(from..) }
    }

    pub fn filled(&self, numbers: Numbers) -> Vec<Bytes> {
        let Numbers { running, waiting, kv_usage } = numbers;
        let values = [format!("{running}.0"), format!("{waiting}.0"), format!("{kv_usage:?}")].map(Bytes::from);
        let filled = self.parts.iter().flat_map(|(text, gap)| [text.clone(), values[*gap].clone()]);
        filled.chain([self.rest.clone()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_numbers_differ_from_the_page() {
        let numbers = Numbers { running: 7, waiting: 3, kv_usage: 0.25 };
        let templates = Templates::default();
        let page = |path: &str| templates.of(&path.parse().unwrap()).filled(numbers).concat();
        let filled = String::from_utf8(page("/metrics")).unwrap();
        let changed: Vec<&str> =
            filled.lines().zip(VLLM.lines()).filter(|(new, old)| new != old).map(|(new, _)| new).collect();
        assert_eq!(
            changed,
            [
                "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 7.0",
                "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 3.0",
                "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25",
            ]
        );
        assert_eq!(filled.lines().count(), VLLM.lines().count());
        assert!(filled.len() > 45_000, "a real page is long");
        let excerpt = String::from_utf8(page("/metrics/?name[]=vllm:kv_cache_usage_perc")).unwrap();
        assert_eq!(excerpt.lines().last(), Some("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25"));
        assert_eq!(excerpt.lines().count(), 3, "{excerpt}");
    }
}
