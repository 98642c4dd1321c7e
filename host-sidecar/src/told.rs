//! What a proxy has taken, so that it need only be told what has changed since.

use std::collections::BTreeMap;

use admission_core::view::{PoolReport, VIEW_VERSION, ViewDocument, changes};

use crate::courier::Stamp;

type Pools = BTreeMap<String, PoolReport>;

/// The last document that one proxy has taken, if it is known to hold one.
#[derive(Debug, Default)]
pub struct Told(Option<(Stamp, Pools)>);

impl Told {
    /// What to send so that the proxy holds `pools`: what has changed, or the whole.
    pub fn document(&self, stamp: Stamp, pools: &Pools) -> ViewDocument {
        let change = self.0.as_ref().filter(|(last, _)| last.epoch == stamp.epoch);
        let change = change.and_then(|(last, before)| Some((last.generation, changes(before, pools)?)));
        let (base, pools) = match change {
            Some((base, change)) => (Some(base), change),
            None => (None, pools.clone()),
        };
        ViewDocument { version: VIEW_VERSION, epoch: stamp.epoch, generation: stamp.generation, base, pools }
    }

    /// The proxy has taken this.
    pub fn taken(&mut self, stamp: Stamp, pools: Pools) {
        self.0 = Some((stamp, pools));
    }

    /// Whether that is what it holds.
    pub fn is_of(&self, stamp: Stamp) -> bool {
        self.0.as_ref().is_some_and(|(last, _)| *last == stamp)
    }

    /// Nobody knows what the proxy holds.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_is_sent_until_something_is_known_to_be_held() {
        let pools = Pools::from([("p".to_owned(), PoolReport::default())]);
        let stamp = |generation| Stamp { epoch: 7, generation };
        let mut told = Told::default();
        let first = told.document(stamp(1), &pools);
        assert_eq!((first.base, first.pools.len()), (None, 1));
        told.taken(stamp(1), pools.clone());
        let next = told.document(stamp(3), &pools);
        assert_eq!((next.base, next.generation, next.pools.len()), (Some(1), 3, 0), "nothing has changed since");
        told.forget();
        assert_eq!(told.document(stamp(4), &pools), ViewDocument { generation: 4, ..first });
    }
}
