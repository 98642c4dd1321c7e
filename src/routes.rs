//! What differs on the routes of one configuration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use admission_core::policy::{Policy, Route};
use admission_core::route_metadata;
use admission_core::terms::Arrival;
use once_cell::unsync::OnceCell;

use crate::host;
use crate::metrics::Metrics;

/// Namespace of the metadata that is ours.
const METADATA: &str = "sluice";

/// Most contents remembered; more come only where routes are changed over and over, and then all are read anew.
const MOST_CONTENTS: usize = 1_024;

/// Where a request is by the proxy's routes.
#[derive(Clone, Debug, Default)]
pub struct Place {
    metadata: Option<Vec<u8>>,
    route_name: Option<String>,
    virtual_host: Option<String>,
}

/// What was read of each content of routes' metadata; `None` for what could not be.
#[derive(Default)]
pub struct Routes {
    /// Whether the policy speaks of routes by name, so that the proxy is to be asked for the name.
    by_name: OnceCell<bool>,
    read: RefCell<BTreeMap<Vec<u8>, Option<Rc<Route>>>>,
}

impl Routes {
    /// Where the current request is. The proxy must not have been told of any change to its headers yet, since that makes
    /// it forget the route.
    pub fn place(&self, policy: &Policy) -> Place {
        let by_name = *self.by_name.get_or_init(|| policy.names_routes());
        Place {
            metadata: host::route_metadata(METADATA),
            route_name: by_name.then(host::route_name).flatten(),
            virtual_host: by_name.then(host::virtual_host_name).flatten(),
        }
    }

    /// What differs there.
    pub fn of(&self, policy: &Policy, arrival: &Arrival, place: &Place, metrics: &Metrics) -> Route {
        let content = place.metadata.clone();
        let metadata = content.and_then(|content| self.of_metadata(policy, content, metrics));
        let own = metadata.map(|route| Route::clone(&route)).unwrap_or_default();
        policy.route(arrival.place(place.route_name.as_deref(), place.virtual_host.as_deref()), own)
    }

    fn of_metadata(&self, policy: &Policy, content: Vec<u8>, metrics: &Metrics) -> Option<Rc<Route>> {
        let mut contents = self.read.borrow_mut();
        if contents.len() >= MOST_CONTENTS {
            contents.clear();
        }
        let route = contents.entry(content).or_insert_with_key(|content| read(policy, content));
        if route.is_none() {
            metrics.count_bad_route();
        }
        route.clone()
    }
}

/// Says what is wrong, which is once for each content.
fn read(policy: &Policy, content: &[u8]) -> Option<Rc<Route>> {
    match route_metadata::object(content).and_then(|object| policy.route_of_metadata(object)) {
        Ok(route) => Some(Rc::new(route)),
        Err(problems) => {
            for problem in problems {
                log::error!("the metadata `{METADATA}` of a route is left aside: {problem}");
            }
            None
        }
    }
}
