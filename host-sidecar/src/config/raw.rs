//! The configuration as it is written.
//!
//! Every struct keeps the keys it does not know and every value its own error, so that no mistake hides another;
//! [`super::checks`] refuses both.

use std::collections::BTreeMap;

use admission_core::saturation::BusyThresholds;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_norway::Value;

use super::discover::{RawSource, Role};
use super::saturation::{RawDispatchBudget, RawSaturation};
use super::tls::RawTls;
use super::{WhenStale, WhenUnreadable};
use super::{engine, hardware};

/// Keys that mean nothing.
pub type Unknown = BTreeMap<String, Value>;

/// A value, or what is wrong with it and where inside it.
#[derive(Debug)]
pub struct Part<T>(pub Result<T, Wrong>);

/// What is wrong with a [`Part`].
#[derive(Debug)]
pub struct Wrong {
    /// Relative to the part; empty when it is the part itself.
    pub path: String,
    pub message: String,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            Wrong { path: if path == "." { String::new() } else { path }, message: error.into_inner().to_string() }
        })))
    }
}

#[derive(Debug, Deserialize)]
pub struct Config {
    pub listen: Option<Part<String>>,
    pub scrape: Option<Part<Scrape>>,
    pub push: Option<Part<Push>>,
    pub api: Option<Part<Api>>,
    pub hardware: Option<Part<hardware::Raw>>,
    pub proxies: Option<Part<Vec<Part<Proxy>>>>,
    pub pools: Option<Part<Vec<Part<Pool>>>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Default, Deserialize)]
pub struct Scrape {
    pub interval: Option<Part<String>>,
    pub timeout: Option<Part<String>>,
    pub stale_after: Option<Part<String>>,
    pub down_after: Option<Part<String>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Default, Deserialize)]
pub struct Push {
    pub heartbeat: Option<Part<String>>,
    pub timeout: Option<Part<String>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub struct Api {
    pub token: Option<Part<String>>,
    pub token_file: Option<Part<String>>,
    pub thresholds_file: Option<Part<String>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub struct Proxy {
    pub url: Option<Part<String>>,
    pub tls: Option<Part<RawTls>>,
    pub token: Option<Part<String>>,
    pub token_file: Option<Part<String>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub struct Pool {
    pub name: Option<Part<String>>,
    pub model: Option<Part<String>>,
    pub models: Option<Part<Vec<Part<String>>>>,
    pub engine: Option<Part<engine::Raw>>,
    pub busy: Option<Part<BusyThresholds>>,
    pub busy_hysteresis: Option<Part<f64>>,
    pub when_stale: Option<Part<WhenStale>>,
    pub when_unreadable: Option<Part<WhenUnreadable>>,
    pub saturation: Option<Part<RawSaturation>>,
    pub dispatch_budget: Option<Part<RawDispatchBudget>>,
    pub max_num_batched_tokens: Option<Part<u64>>,
    pub tls: Option<Part<RawTls>>,
    pub workers: Option<Part<Vec<Part<Worker>>>>,
    pub discover: Option<Part<Vec<Part<RawSource>>>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A worker is its address, or an object when there is more to say.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a worker is host:port or an object with `address`")]
pub enum Worker {
    Address(String),
    Object(Box<WorkerObject>),
}

#[derive(Debug, Deserialize)]
pub struct WorkerObject {
    pub address: Option<Part<String>>,
    pub metrics_url: Option<Part<String>>,
    pub hardware_url: Option<Part<String>>,
    pub draining: Option<Part<bool>>,
    pub role: Option<Part<Role>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}
