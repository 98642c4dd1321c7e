//! Knowledge of a pool's workers that one VM decides by.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::{Vm, view_of};
use crate::decide::Known;
use crate::policy::Pool;
use crate::store::Store;
use crate::view::{ViewSummary, Workers};

/// The last view of a pool and of its workers.
pub(super) struct Picture {
    view: Option<ViewSummary>,
    workers: Option<Rc<Workers>>,
}

/// Workers of pools as they were last read, by the key of their record.
#[derive(Debug, Default)]
pub(super) struct LastRead(RefCell<BTreeMap<Arc<str>, Rc<Workers>>>);

impl Picture {
    /// Knowledge by which a request is decided that can be steered, or cannot.
    pub(super) fn known(&self, can_be_steered: bool) -> Known<'_> {
        Known { view: self.view.as_ref(), workers: self.workers.as_deref(), can_be_steered }
    }
}

impl Vm {
    /// The last view of a pool, and each of its workers where requests are steered.
    pub(super) fn picture(&self, store: &impl Store, pool: &Pool) -> Picture {
        let view = view_of(store, pool);
        let steered = view.as_ref().filter(|_| pool.pick_endpoint);
        let workers = steered.and_then(|view| self.workers.of(store, pool, view));
        Picture { view, workers }
    }
}

impl LastRead {
    /// The pool's workers as that view lists them, or a later one of the same sidecar, whose summary is about to follow.
    pub(super) fn of(&self, store: &impl Store, pool: &Pool, view: &ViewSummary) -> Option<Rc<Workers>> {
        let mut all = self.0.borrow_mut();
        if all.get(&pool.workers_key).is_none_or(|workers| workers.stamp() != view.stamp()) {
            let read = Workers::decode(&store.read(&pool.workers_key).0?)?;
            let blocks = if pool.pick_endpoint { store.read(&pool.worker_blocks_key).0 } else { None };
            let read = blocks.iter().fold(read, |read, blocks| read.with_takes(blocks));
            all.insert(Arc::clone(&pool.workers_key), Rc::new(read));
        }
        let usable = |workers: &&Rc<Workers>| workers.epoch == view.epoch && workers.generation >= view.generation;
        all.get(&pool.workers_key).filter(usable).cloned()
    }
}
