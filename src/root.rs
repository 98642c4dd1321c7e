//! One configuration of one plugin.

use std::cell::Cell;
use std::rc::Rc;

use admission_core::policy::{Control, Plugin, Policy};
use admission_core::units::{Millis, Time};
use admission_core::vm::TICK;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use std::time::Duration;

use crate::control::ControlStream;
use crate::host;
use crate::http::Exchange;
use crate::instance::Instance;
use crate::routes::Routes;
use crate::wakes::Wakes;

/// The root of a plugin; does nothing until it is configured.
pub struct Root {
    context_id: u32,
    role: Role,
    /// How often it is called.
    pace: Millis,
}

#[derive(Default)]
enum Role {
    #[default]
    Unconfigured,
    Filter(Filter),
    Control(Rc<Control>, Rc<Wakes>),
}

struct Filter {
    policy: Rc<Policy>,
    routes: Rc<Routes>,
    instance: Rc<Instance>,
    /// Those that wait have been told of the policy.
    told: bool,
    /// When its pools were last shown as gauges.
    gauged: Cell<Time>,
}

impl Root {
    /// A root that the proxy knows by this number.
    pub fn new(context_id: u32) -> Self {
        Self { context_id, role: Role::Unconfigured, pace: TICK }
    }

    /// Has itself called as often as those that wait here need.
    fn set_pace(&mut self) {
        let Role::Filter(filter) = &self.role else { return };
        let pace = filter.instance.pace(self.context_id);
        // Streams may have been acted on since.
        if pace != self.pace && host::act_on(self.context_id) {
            self.pace = pace;
            self.set_tick_period(Duration::from_millis(pace.0));
        }
    }
}

impl Context for Root {}

impl RootContext for Root {
    /// Depends on the configuration alone and writes nothing: it also runs in VMs that are thrown away, and false there
    /// is what makes the proxy keep the former configuration.
    fn on_configure(&mut self, _: usize) -> bool {
        match Plugin::parse(&self.get_plugin_configuration().unwrap_or_default()) {
            Ok(Plugin::Filter(policy)) => {
                let instance = Instance::of(&policy, host::root_id(), self.context_id);
                let (policy, routes) = (Rc::new(*policy), Rc::default());
                self.role = Role::Filter(Filter { policy, routes, instance, told: false, gauged: Cell::default() });
                self.set_tick_period(Duration::from_millis(TICK.0));
                true
            }
            Ok(Plugin::Control(control)) => {
                self.role = Role::Control(Rc::new(control), Rc::default());
                true
            }
            Err(problems) => {
                for problem in &problems {
                    log::error!("the configuration is refused: {problem}");
                }
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Role::Filter(Filter { policy, routes, instance, told, gauged }) = &mut self.role {
            if !std::mem::replace(told, true) {
                instance.renew(policy, routes);
            }
            instance.tick(self.context_id, policy, gauged);
            self.set_pace();
        }
    }

    fn on_queue_ready(&mut self, queue: u32) {
        if let Role::Filter(Filter { instance, .. }) = &self.role {
            instance.woken(queue);
            self.set_pace();
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        match &self.role {
            Role::Filter(Filter { policy, routes, instance, .. }) => {
                Some(Box::new(Exchange::new(id, Rc::clone(policy), Rc::clone(routes), Rc::clone(instance))))
            }
            Role::Control(control, wakes) => Some(Box::new(ControlStream::new(Rc::clone(control), Rc::clone(wakes)))),
            Role::Unconfigured => None,
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
