//! Where the filter's view comes from.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::text;
use crate::units::Millis;

/// Where the view comes from. With nothing here a control listener of the same namespace takes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ViewConfig {
    /// Asks a sidecar for it, where no control listener can be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullConfig>,
}

/// How a sidecar is asked for the view.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PullConfig {
    /// The proxy's cluster that leads to the sidecar. Istio's are called such as
    /// `outbound|9090||sluice-sidecar.inference.svc.cluster.local`.
    pub cluster: String,
    /// `:authority` of the question; the name of the cluster if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Where the sidecar answers.
    #[serde(default = "default_path")]
    pub path: String,
    /// The bearer token of the sidecar's `pull`. Nothing that is logged, printed or shown says it.
    pub token: Secret,
    /// How long the sidecar may keep its answer back while there is no news, at most 60s. It answers at its heartbeat in any
    /// case.
    #[serde(default = "default_wait", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub wait: Millis,
    /// How much longer than `wait` an answer may take, more than 0 and at most 60s.
    #[serde(default = "default_timeout", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub timeout: Millis,
    /// Age at which the standing view may be replaced by that of any other sidecar.
    #[serde(default = "super::default_hold", with = "text::duration")]
    #[cfg_attr(feature = "schema", schemars(with = "text::Duration"))]
    pub hold: Millis,
}

/// What must not be seen. It prints as `(hidden)`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// What it is, for the only one who is to know.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

const HIDDEN: &str = "(hidden)";

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(HIDDEN)
    }
}

fn default_path() -> String {
    "/v1/view".to_owned()
}

const fn default_wait() -> Millis {
    Millis(1_000)
}

const fn default_timeout() -> Millis {
    Millis(1_000)
}
