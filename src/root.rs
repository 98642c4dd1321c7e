//! One configuration of one plugin.

use std::rc::Rc;

use admission_core::policy::{Control, Plugin, Policy};
use admission_core::vm::TICK;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use std::time::Duration;

use crate::control::ControlStream;
use crate::host;
use crate::http::Exchange;
use crate::instance::Instance;
use crate::routes::Routes;

/// The root of a plugin; does nothing until it is configured.
#[derive(Default)]
pub struct Root {
    role: Role,
}

#[derive(Default)]
enum Role {
    #[default]
    Unconfigured,
    Filter(Rc<Policy>, Rc<Routes>, Rc<Instance>),
    Control(Rc<Control>),
}

impl Context for Root {}

impl RootContext for Root {
    /// Depends on the configuration alone and writes nothing: it also runs in VMs that are thrown away, and false there
    /// is what makes the proxy keep the former configuration.
    fn on_configure(&mut self, _: usize) -> bool {
        match Plugin::parse(&self.get_plugin_configuration().unwrap_or_default()) {
            Ok(Plugin::Filter(policy)) => {
                let instance = Instance::of(&policy, host::root_id());
                self.role = Role::Filter(Rc::new(*policy), Rc::default(), instance);
                self.set_tick_period(Duration::from_millis(TICK.0));
                true
            }
            Ok(Plugin::Control(control)) => {
                self.role = Role::Control(Rc::new(control));
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
        if let Role::Filter(policy, _, instance) = &self.role {
            instance.tick(policy);
        }
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        match &self.role {
            Role::Filter(policy, routes, instance) => {
                Some(Box::new(Exchange::new(Rc::clone(policy), Rc::clone(routes), Rc::clone(instance))))
            }
            Role::Control(control) => Some(Box::new(ControlStream::new(Rc::clone(control)))),
            Role::Unconfigured => None,
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
