//! A page whose text is shared, with gaps for what changes.

use bytes::Bytes;

/// Captured from vLLM 0.32 with one engine, while it was busy.
const VLLM: &str = include_str!("../../pages/vllm-0.32.prom");

/// Series whose values are gaps, in the page's order.
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
    /// The text before each gap, and the rest.
    texts: Vec<Bytes>,
}

impl Template {
    pub fn of_vllm() -> Self {
        Self::of(VLLM)
    }

    /// A series that the page does not have gets no gap, and its value is left out.
    fn of(page: &'static str) -> Self {
        let (mut texts, mut from, mut at) = (Vec::new(), 0, 0);
        for line in page.split_inclusive('\n') {
            if GAPS.iter().any(|gap| line.starts_with(gap)) {
                let value = at + line.rfind(' ').map_or(line.len(), |blank| blank + 1);
                texts.push(Bytes::from_static(&page.as_bytes()[from..value]));
                from = at + line.trim_end().len();
            }
            at += line.len();
        }
        texts.push(Bytes::from_static(&page.as_bytes()[from..]));
        Self { texts }
    }

    pub fn filled(&self, numbers: Numbers) -> Vec<Bytes> {
        let Numbers { running, waiting, kv_usage } = numbers;
        let values = [format!("{running}.0"), format!("{waiting}.0"), format!("{kv_usage:?}")];
        let mut values = values.into_iter().map(Bytes::from);
        let mut pieces = Vec::with_capacity(2 * self.texts.len());
        for text in &self.texts {
            pieces.push(text.clone());
            pieces.extend(values.next());
        }
        pieces.truncate(2 * self.texts.len() - 1);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_numbers_differ_from_the_page() {
        let numbers = Numbers { running: 7, waiting: 3, kv_usage: 0.25 };
        let filled = String::from_utf8(Template::of_vllm().filled(numbers).concat()).unwrap();
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
    }
}
