//! State that outlives configurations.
//!
//! A new configuration makes a new root in the same VM, beside the old one and its streams; a second plugin of the same
//! code shares the VM. So a VM's part in the count hangs on neither, but on the pair of namespace and plugin name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use admission_core::directory::Directory;
use admission_core::policy::Policy;
use admission_core::vm::Vm;

use crate::host;
use crate::metrics::Metrics;
use crate::store::SharedData;

/// One plugin in this VM.
pub struct Instance {
    /// Its part in the shared count.
    pub vm: RefCell<Vm>,
    /// Its counters and gauges.
    pub metrics: Metrics,
    last_trouble: RefCell<String>,
}

type Name = (String, String);

thread_local! {
    static INSTANCES: RefCell<BTreeMap<Name, Rc<Instance>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Instance {
    /// The instance of a namespace and plugin name, told about the names in the policy.
    pub fn of(policy: &Policy, root_id: String) -> Rc<Self> {
        let instance = INSTANCES.with_borrow_mut(|instances| {
            let name = (policy.namespace.clone(), root_id);
            Rc::clone(instances.entry(name).or_insert_with(|| Rc::new(Self::new(policy))))
        });
        instance.vm.borrow_mut().announce(&Directory::of(policy));
        instance
    }

    fn new(policy: &Policy) -> Self {
        Self {
            vm: RefCell::new(Vm::new(policy.keys.clone())),
            metrics: Metrics::default(),
            last_trouble: RefCell::default(),
        }
    }

    /// What is due ten times a second, however many roots ask for it.
    pub fn tick(&self, policy: &Policy) {
        let now = host::now();
        let result = self.vm.borrow_mut().tick(&SharedData, now);
        self.report(result.err().map(|error| error.to_string()).unwrap_or_default());
        self.metrics.record_pools(policy, self.vm.borrow().members(), now);
    }

    /// Says once what is wrong, not ten times a second.
    fn report(&self, trouble: String) {
        let mut last = self.last_trouble.borrow_mut();
        if *last != trouble {
            if !trouble.is_empty() {
                log::warn!("{trouble}");
            }
            *last = trouble;
        }
    }
}
