//! One configuration of one plugin.

use std::cell::Cell;
use std::rc::Rc;

use admission_core::policy::{Plugin, Policy};
use admission_core::routes::Routes;
use admission_core::stream::StreamId;
use admission_core::units::Time;
use admission_core::vm::TICK;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use crate::control::{ControlStream, Desk};
use crate::host::{self, State};
use crate::http::Exchange;
use crate::instance::Instance;
use crate::passes;
use crate::pull::Puller;

/// The root of a plugin; does nothing until it is configured.
pub struct Root {
    context_id: u32,
    role: Role,
}

#[derive(Default)]
enum Role {
    #[default]
    Unconfigured,
    Filter(Filter),
    Control(Rc<Desk>),
}

struct Filter {
    /// Number of the root.
    id: u32,
    policy: Rc<Policy>,
    routes: Rc<Routes>,
    instance: Rc<Instance>,
    /// Those that wait have been told of the policy.
    told: bool,
    /// When its pools were last shown as gauges.
    gauged: Cell<Time>,
    puller: Option<Box<Puller>>,
}

impl Filter {
    /// Asks for the view where the policy says so: the newest configuration does, others still have streams.
    fn pull(&self, context_id: u32) {
        if let (Some(puller), Some(pull)) = (&self.puller, &self.policy.pull)
            && self.instance.is_newest(context_id)
        {
            puller.tick(&self.policy, pull, &self.instance);
        }
    }
}

impl Root {
    /// A root that the proxy knows by this number.
    pub fn new(context_id: u32) -> Self {
        Self { context_id, role: Role::Unconfigured }
    }
}

/// The proxy drops a root when its last stream has ended, which may be after the last tick.
impl Drop for Filter {
    fn drop(&mut self) {
        self.instance.flush();
        self.instance.root_is_gone(self.id);
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, call: u32, _: usize, size: usize, _: usize) {
        if let Role::Filter(Filter { policy, instance, puller: Some(puller), .. }) = &self.role
            && let Some(pull) = &policy.pull
        {
            puller.answered(call, size, policy, pull, instance);
        }
    }
}

impl RootContext for Root {
    /// Depends on the configuration alone and writes nothing: it also runs in VMs that are thrown away, and false there
    /// is what makes the proxy keep the former configuration.
    fn on_configure(&mut self, _: usize) -> bool {
        match Plugin::parse(&self.get_plugin_configuration().unwrap_or_default()) {
            Ok(Plugin::Filter(policy)) => {
                policy.outdated.iter().chain(&policy.unlimited).for_each(|problem| log::warn!("{problem}"));
                log::info!("the policy {} is taken over", policy.fingerprint);
                passes::declare();
                let puller = policy.pull.as_ref().map(|pull| Box::new(Puller::new(&policy, pull)));
                let (policy, routes, gauged) = (Rc::new(*policy), Rc::default(), Cell::default());
                let instance = Instance::of(&policy, host::root_id(), self.context_id);
                host::declare_state(&instance.names.decisions, State::Object);
                self.role =
                    Role::Filter(Filter { id: self.context_id, policy, routes, instance, told: false, gauged, puller });
                host::set_tick_period(TICK);
                true
            }
            Ok(Plugin::Control(control)) => {
                self.role = Role::Control(Rc::new(Desk::new(control)));
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
        if let Role::Filter(filter) = &mut self.role {
            // First, while this root is the one that the proxy acts on.
            filter.pull(self.context_id);
            let Filter { id: _, policy, routes, instance, told, gauged, puller: _ } = filter;
            if !std::mem::replace(told, true) {
                instance.renew(policy, routes);
            }
            instance.tick(self.context_id, policy, gauged);
            instance.pace(self.context_id);
            instance.finish();
        }
    }

    fn on_queue_ready(&mut self, queue: u32) {
        if let Role::Filter(Filter { instance, .. }) = &self.role {
            // Why no change of pace: each starts the period again, so that waits which begin and end between two ticks would put off
            // every tick, and with it the heartbeat.
            instance.woken(queue);
            instance.finish();
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        match &self.role {
            Role::Filter(Filter { policy, routes, instance, .. }) => Some(Box::new(Exchange::new(
                StreamId(id),
                self.context_id,
                Rc::clone(policy),
                Rc::clone(routes),
                Rc::clone(instance),
            ))),
            Role::Control(desk) => Some(Box::new(ControlStream::new(Rc::clone(desk)))),
            Role::Unconfigured => None,
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
