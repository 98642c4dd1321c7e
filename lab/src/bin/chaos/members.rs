//! Who counts in a proxy, from state page to state page.

use std::collections::BTreeSet;

use serde_json::Value;

/// The epochs under which VMs count, each taken once.
#[derive(Clone, Debug, Default)]
pub struct Members {
    epochs: BTreeSet<u64>,
    /// How many more may go: VMs that have trapped, or whose build was replaced.
    may_go: u64,
}

impl Members {
    /// So many VMs come to their end.
    pub fn expect(&mut self, vms: u64) {
        self.may_go += vms;
    }

    /// Takes the next page. Says whether somebody is gone who should not be: taken for dead while it lived.
    pub fn look(&mut self, page: &Value) -> bool {
        let listed = page["members"].as_array().into_iter().flatten();
        let epochs: BTreeSet<u64> = listed.filter_map(|member| member["epoch"].as_u64()).collect();
        let gone = self.epochs.difference(&epochs).count() as u64;
        self.epochs = epochs;
        let unexpected = gone > self.may_go;
        self.may_go = self.may_go.saturating_sub(gone);
        unexpected
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_gone_without_a_reason_was_taken_for_dead() {
        let page =
            |epochs: &[u64]| json!({"members": epochs.iter().map(|epoch| json!({"epoch": epoch})).collect::<Value>()});
        let mut members = Members::default();
        assert!(!members.look(&page(&[0, 1])));
        members.expect(1);
        assert!(!members.look(&page(&[1])), "one has trapped");
        assert!(!members.look(&page(&[1, 2])));
        assert!(members.look(&page(&[2, 3])));
        assert!(!members.look(&page(&[2, 3])));
    }
}
