//! `sluice-sidecar check`: what is wrong in a configuration, and what is allowed but surely not meant.
//!
//! Text in, findings out, no I/O. `kinds` recognises what a document is, `envoy` finds filters of ours in what Envoy
//! reads, `warnings` looks at what stands around them, `together` at whether several files fit. Mistakes are found by
//! those who read a configuration in earnest: [`Plugin::parse`] and [`crate::Config`].

use std::fmt;

use admission_core::config::{Config, PluginConfig};
use admission_core::policy::Plugin;
use serde::Deserialize;
use serde_json::Value;

mod envoy;
mod kinds;
mod node;
mod together;
mod warnings;

use kinds::{Kind, Written};
use node::Node;
use together::Part;
pub use together::ReadToken;

/// What is said about one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many documents it has.
    pub documents: usize,
    /// Manifests among them that are not for Sluice.
    pub passed_over: usize,
    /// In the order of the documents.
    pub findings: Vec<Finding>,
}

/// Something that is wrong or surely not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is a mistake.
    pub severity: Severity,
    /// Which document of the file, from 1.
    pub document: usize,
    /// Where in that document, as the operator wrote it; empty for the whole.
    pub path: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It would be refused.
    Error,
    /// It is allowed but surely not meant.
    Warning,
}

/// Checks every document of a file, YAML or JSON.
///
/// ```
/// let report = host_sidecar::check::text("pools: [{name: llama, max_in_flight: 4, kv: {headroom: 1.5}}]");
/// let lines: Vec<String> = report.lines("policy.yaml").collect();
/// assert_eq!(lines, ["policy.yaml: pools[0].kv.headroom: 1.5 is not a share of at least 0 and below 1"]);
/// ```
#[must_use]
pub fn text(text: &str) -> Report {
    files(&[text], &|_| None).pop().unwrap_or_default()
}

/// Checks files, each by itself and all together; a report of each. `token` reads the tokens that they name, where it can.
#[must_use]
pub fn files(texts: &[&str], token: ReadToken<'_>) -> Vec<Report> {
    let mut reports = vec![Report::default(); texts.len()];
    let read = texts.iter().zip(&mut reports).map(|(text, report)| read(text, report));
    let documents: Vec<Vec<(usize, Value)>> = read.collect();
    let mut parts = Vec::new();
    for (file, (documents, report)) in documents.iter().zip(&mut reports).enumerate() {
        alone(documents, report);
        parts.extend(documents.iter().filter_map(|(document, value)| {
            Some(Part { file, document: *document, kind: Kind::of(value)?, node: Node::root(value) })
        }));
    }
    for (file, finding) in together::findings(&parts, token) {
        reports.get_mut(file).into_iter().for_each(|report| report.findings.push(finding.clone()));
    }
    let is_empty = |report: &Report| report.findings.is_empty() && report.passed_over == report.documents;
    if reports.iter().all(is_empty) {
        reports.last_mut().into_iter().for_each(|report| report.note(Severity::Error, kinds::ONLY_OTHERS.to_owned()));
    }
    for report in &mut reports {
        report.findings.sort_by_key(|finding| finding.document);
    }
    reports
}

/// Checks the documents of one file.
fn alone(documents: &[(usize, Value)], report: &mut Report) {
    let known: Vec<_> = documents.iter().map(|(number, value)| (*number, value, Kind::of(value))).collect();
    // What one document patches into a proxy is judged by the policies of its neighbours.
    let file =
        known.iter().filter_map(|(_, value, kind)| Some(policies(value, (*kind)?))).flatten().collect::<Vec<_>>();
    let patching = known.iter().filter(|(_, _, kind)| *kind == Some(Kind::EnvoyFilter));
    let patching: Vec<Node<'_>> = patching.map(|(_, value, _)| Node::root(value)).collect();
    for (number, value, kind) in known {
        let mut notes = Notes::default();
        match kind {
            Some(kind) => document(&Node::root(value), kind, &file, &mut notes),
            None if kinds::is_of_others(value) => report.passed_over = report.passed_over.saturating_add(1),
            None => notes.error("", kinds::UNKNOWN),
        }
        if kind == Some(Kind::WasmPlugin) {
            warnings::never_idle(&Node::root(value), &patching, &mut notes);
        }
        report.findings.extend(notes.findings(number));
    }
}

/// The documents with their numbers. The first that is no YAML ends the file.
fn read(text: &str, report: &mut Report) -> Vec<(usize, Value)> {
    let mut documents = Vec::new();
    for document in serde_norway::Deserializer::from_str(text) {
        // By way of a YAML value, which refuses keys that are given twice.
        let value = serde_norway::Value::deserialize(document);
        let value = value.map_err(|error| error.to_string());
        match value.and_then(|value| serde_json::to_value(value).map_err(|error| error.to_string())) {
            Ok(Value::Null) => {}
            Ok(value) => {
                report.documents = report.documents.saturating_add(1);
                documents.push((report.documents, value));
            }
            Err(message) => {
                report.documents = report.documents.saturating_add(1);
                report.note(Severity::Error, format!("neither YAML nor JSON: {message}"));
                break;
            }
        }
    }
    if report.documents == 0 {
        report.note(Severity::Error, "is empty".to_owned());
    }
    documents
}

fn policies(value: &Value, kind: Kind) -> Vec<Config> {
    let written = kinds::written(&Node::root(value), kind);
    let configs = written.iter().filter_map(|written| match written.config()? {
        PluginConfig::Filter(config) => Some(*config),
        PluginConfig::Control(_) => None,
    });
    configs.collect()
}

fn document(node: &Node<'_>, kind: Kind, file: &[Config], notes: &mut Notes) {
    let written = kinds::written(node, kind);
    for written in &written {
        plugin(written, notes);
    }
    warnings::one_name(&written, notes);
    if kind != Kind::Sidecar {
        warnings::no_default(node, notes);
    }
    match kind {
        Kind::Sidecar => sidecar(node.value, notes),
        Kind::EnvoyFilter => warnings::patches(node, file, notes),
        Kind::Bootstrap | Kind::Resources if written.is_empty() && !envoy::is_discovered(node) => {
            notes.error("", "no filter of Sluice is in it, nor one that is loaded from elsewhere");
        }
        _ => {}
    }
}

fn plugin(written: &Written<'_>, notes: &mut Notes) {
    if let Err(problems) = Plugin::parse(written.json.as_bytes()) {
        for problem in problems {
            notes.error(node::join(&written.path, &problem.path), problem.message);
        }
    }
    warnings::any_role(written, notes);
    // A mistake of meaning leaves enough to warn of; one of shape does not.
    match written.config() {
        Some(PluginConfig::Filter(config)) => warnings::filter(&config, written, notes),
        Some(PluginConfig::Control(config)) => warnings::control(&config, written, notes),
        None => {}
    }
}

fn sidecar(value: &Value, notes: &mut Notes) {
    match crate::Config::from_value(value.clone()) {
        Ok(config) => config.warnings().into_iter().for_each(|warning| notes.warn("", warning)),
        Err(errors) => errors.into_iter().for_each(|error| notes.error(error.path, error.message)),
    }
}

/// Findings of one document.
#[derive(Default)]
struct Notes(Vec<(Severity, String, String)>);

impl Notes {
    /// The findings of a document of this number.
    fn findings(self, document: usize) -> impl Iterator<Item = Finding> {
        self.0.into_iter().map(move |(severity, path, message)| Finding { severity, document, path, message })
    }

    fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push((Severity::Error, path.into(), message.into()));
    }

    /// Once for each place and message, however many ways lead to it.
    fn warn(&mut self, path: impl Into<String>, message: impl Into<String>) {
        let warning = (Severity::Warning, path.into(), message.into());
        if !self.0.contains(&warning) {
            self.0.push(warning);
        }
    }
}

impl Report {
    fn note(&mut self, severity: Severity, message: String) {
        self.findings.push(Finding { severity, document: self.documents, path: String::new(), message });
    }

    /// How many findings are that bad.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// A line for each finding, with the file's name in front, and the document's number where there are several.
    pub fn lines<'a>(&'a self, file: &'a str) -> impl Iterator<Item = String> + 'a {
        self.findings.iter().map(move |finding| {
            let mark = if finding.severity == Severity::Warning { "warning: " } else { "" };
            match self.documents {
                0 | 1 => format!("{mark}{file}: {finding}"),
                _ => format!("{mark}{file}, document {}: {finding}", finding.document),
            }
        })
    }
}

/// What is said in the end of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub files: usize,
    /// Documents in them.
    pub documents: usize,
    /// Documents that are not for Sluice.
    pub passed_over: usize,
    /// Mistakes.
    pub errors: usize,
    /// What is allowed but surely not meant.
    pub warnings: usize,
}

impl Totals {
    /// Counts a file.
    pub fn add(&mut self, report: &Report) {
        self.files = self.files.saturating_add(1);
        self.documents = self.documents.saturating_add(report.documents);
        self.passed_over = self.passed_over.saturating_add(report.passed_over);
        self.errors = self.errors.saturating_add(report.count(Severity::Error));
        self.warnings = self.warnings.saturating_add(report.count(Severity::Warning));
    }

    /// Counts a file that cannot be read, which is a mistake.
    pub fn unreadable(&mut self) {
        self.files = self.files.saturating_add(1);
        self.errors = self.errors.saturating_add(1);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: usize, word: &str| match number {
            0 => format!("no {word}s"),
            1 => format!("1 {word}"),
            many => format!("{many} {word}s"),
        };
        let (files, documents) = (count(self.files, "file"), count(self.documents, "document"));
        let (errors, warnings) = (count(self.errors, "error"), count(self.warnings, "warning"));
        let others = if self.passed_over == 0 { String::new() } else { format!(" ({} passed over)", self.passed_over) };
        write!(out, "{files}, {documents}{others}: {errors}, {warnings}")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}
