//! Reading the proxy's metrics page.

/// Sum of a metric's samples that have at least these labels; 0 where there is none.
#[must_use]
pub fn sum(page: &str, metric: &str, labels: &[(&str, &str)]) -> u64 {
    let wanted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    let samples = page.lines().filter_map(|line| {
        let (name, rest) = line.split_once('{')?;
        let (found, value) = rest.split_once('}')?;
        let found: Vec<&str> = found.split(',').collect();
        let fits = name == metric && wanted.iter().all(|label| found.contains(&label.as_str()));
        // Sums of histograms have fractions.
        fits.then(|| value.trim().parse::<f64>().ok())?.map(|value| value.round() as u64)
    });
    samples.sum()
}
