//! Names of the shared records.
//!
//! Keys never go away while a proxy runs, so they come from the configuration alone: callers cannot add one. The format
//! number changes when an older module would misread a record.

use crate::hash;

/// Tenants that no configuration names share this many records.
pub const SHARED_TENANT_SLOTS: u64 = 1_024;

const FORMAT: u32 = 1;

/// Makes keys within one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// For a plugin's namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { prefix: format!("{namespace}/{FORMAT}") }
    }

    /// Who is alive.
    #[must_use]
    pub fn members(&self) -> String {
        format!("{}/members", self.prefix)
    }

    /// Which pools and tenants have records.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}/directory", self.prefix)
    }

    /// The whole view, as posted.
    #[must_use]
    pub fn view(&self) -> String {
        format!("{}/view", self.prefix)
    }

    /// Which of the proxy's VMs asks for the view.
    #[must_use]
    pub fn asker(&self) -> String {
        format!("{}/asker", self.prefix)
    }

    /// What the proxy's process is called.
    #[must_use]
    pub fn process(&self) -> String {
        format!("{}/process", self.prefix)
    }

    /// A pool's summary of the view.
    #[must_use]
    pub fn view_of(&self, pool: &str) -> String {
        format!("{}/view/{pool}", self.prefix)
    }

    /// A pool's workers, as the view has them.
    #[must_use]
    pub fn workers_of(&self, pool: &str) -> String {
        format!("{}/workers/{pool}", self.prefix)
    }

    /// KV blocks that each of a pool's workers can take, as the view has them.
    #[must_use]
    pub fn worker_blocks_of(&self, pool: &str) -> String {
        format!("{}/worker-blocks/{pool}", self.prefix)
    }

    /// What is held in a pool.
    #[must_use]
    pub fn pool(&self, name: &str) -> String {
        format!("{}/pool/{name}", self.prefix)
    }

    /// What is known of a pool's models that fit one of its patterns; both names as configured.
    #[must_use]
    pub fn model(&self, pool: &str, pattern: &str) -> String {
        format!("{}/model/{pool}/{pattern}", self.prefix)
    }

    /// The queue of messages to the VM in a slot.
    #[must_use]
    pub fn wakes(&self, slot: u16) -> String {
        format!("{}/wakes/{slot}", self.prefix)
    }

    /// What a configured tenant holds.
    #[must_use]
    pub fn tenant(&self, name: &str) -> String {
        format!("{}/tenant/{name}", self.prefix)
    }

    /// What the tenants of one shared slot hold together.
    #[must_use]
    pub fn shared_tenant(&self, slot: u64) -> String {
        format!("{}/tenants/{slot}", self.prefix)
    }
}

/// The slot that a tenant without a configuration of its own shares with others.
#[must_use]
pub fn shared_slot(tenant: &[u8]) -> u64 {
    hash::stable(tenant) % SHARED_TENANT_SLOTS
}
