//! Rules of the routes of one configuration: by the policy, and by each route's own metadata.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use once_cell::unsync::OnceCell;

use crate::arrival::Arrival;
use crate::attributes::RequestAttributes;
use crate::policy::{Policy, Route};
use crate::problem::Problem;
use crate::route_metadata;

/// Namespace of the filter's own metadata of a route.
pub const ROUTE_METADATA: &str = "sluice";

/// Most contents remembered; more come only where routes are changed over and over, and then all are read again.
const MOST_CONTENTS: usize = 1_024;

/// Location of a request by the proxy's routes.
#[derive(Clone, Debug, Default)]
pub struct Location {
    metadata: Option<Vec<u8>>,
    route_name: Option<String>,
    virtual_host: Option<String>,
}

/// Readings of the contents that routes' metadata has had; `None` of one that could not be read.
#[derive(Default)]
pub struct Routes {
    /// True where the policy speaks of routes by name, so that the proxy is to be asked for the name.
    by_name: OnceCell<bool>,
    read: RefCell<BTreeMap<Vec<u8>, Option<Rc<Route>>>>,
}

/// Rules found for a request's location.
#[derive(Clone, Debug)]
pub struct Found {
    /// Rules of the route.
    pub route: Route,
    /// True where the route's own metadata could not be read and so says nothing.
    pub is_unread: bool,
    /// Mistakes in that metadata, when it is read for the first time.
    pub problems: Vec<Problem>,
}

impl Routes {
    /// Location of the request whose headers have just come. None of them may have been changed yet, since that makes the
    /// proxy forget the route.
    #[must_use]
    pub fn locate(&self, policy: &Policy, attributes: &dyn RequestAttributes) -> Location {
        let by_name = *self.by_name.get_or_init(|| policy.names_routes());
        Location {
            metadata: attributes.route_metadata(),
            route_name: by_name.then(|| attributes.route_name()).flatten(),
            virtual_host: by_name.then(|| attributes.virtual_host()).flatten(),
        }
    }

    /// Rules that hold at a location.
    #[must_use]
    pub fn find(&self, policy: &Policy, arrival: &Arrival, location: &Location) -> Found {
        let (own, problems) = match &location.metadata {
            Some(content) => self.of_metadata(policy, content),
            None => (Some(Rc::default()), Vec::new()),
        };
        let is_unread = own.is_none();
        let own = own.map(|route| Route::clone(&route)).unwrap_or_default();
        let place = arrival.place(location.route_name.as_deref(), location.virtual_host.as_deref());
        Found { route: policy.route(place, own), is_unread, problems }
    }

    fn of_metadata(&self, policy: &Policy, content: &[u8]) -> (Option<Rc<Route>>, Vec<Problem>) {
        let mut contents = self.read.borrow_mut();
        if let Some(known) = contents.get(content) {
            return (known.clone(), Vec::new());
        }
        if contents.len() >= MOST_CONTENTS {
            contents.clear();
        }
        let read = route_metadata::object(content).and_then(|object| policy.route_of_metadata(object));
        let (route, problems) = match read {
            Ok(route) => (Some(Rc::new(route)), Vec::new()),
            Err(problems) => (None, problems),
        };
        contents.insert(content.to_vec(), route.clone());
        (route, problems)
    }
}
