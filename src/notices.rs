//! Notices in the proxy's log: what a view says of a pool that its operator may not expect.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use admission_core::control::view_received;
use admission_core::decide::{kv_notice, view_notice};
use admission_core::policy::Policy;
use admission_core::store::Store;
use admission_core::units::Time;
use admission_core::view::ViewSummary;

use crate::store::SharedData;

/// The last notice of each pool, by the key of its view.
#[derive(Default)]
pub struct Notices(RefCell<BTreeMap<Arc<str>, String>>);

impl Notices {
    /// Logs what has become noteworthy of the pools of a policy since the last look. A pool without a view is left as it was.
    pub fn look(&self, policy: &Policy, now: Time) {
        let came = view_received(&SharedData, &policy.keys);
        for pool in policy.pools() {
            let view = SharedData.read(&pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes));
            let notice = match (view_notice(pool, view.as_ref(), came, now), view.filter(|view| view.live_workers > 0))
            {
                (Some(notice), _) => notice,
                (None, Some(view)) => kv_notice(pool, &view).unwrap_or_default(),
                (None, None) => continue,
            };
            let mut last = self.0.borrow_mut();
            if last.get(&pool.view_key).is_none_or(|last| *last != notice) {
                if !notice.is_empty() {
                    log::warn!("{notice}");
                }
                last.insert(Arc::clone(&pool.view_key), notice);
            }
        }
    }
}
