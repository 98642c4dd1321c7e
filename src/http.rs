//! One stream: the proxy's callbacks.

use std::cell::RefCell;
use std::rc::Rc;

use admission_core::policy::Policy;
use admission_core::routes::Routes;
use admission_core::stream::StreamId;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::host;
use crate::instance::Instance;
use crate::shared::Shared;
use crate::stream::Stream;

/// A stream of the filter.
pub struct Exchange {
    id: StreamId,
    stream: Rc<RefCell<Stream>>,
    instance: Rc<Instance>,
}

impl Exchange {
    /// A stream that begins under its root's policy.
    pub fn new(id: StreamId, root: u32, policy: Rc<Policy>, routes: Rc<Routes>, instance: Rc<Instance>) -> Self {
        let stream = Rc::new(RefCell::new(Stream::new(id, root, policy, routes)));
        instance.begins(id, &stream);
        Self { id, stream, instance }
    }

    /// Hands on a callback.
    fn with<T>(&self, handle: impl FnOnce(&mut Stream, &mut Shared<'_>) -> T) -> T {
        self.instance.event(|shared| handle(&mut self.stream.borrow_mut(), shared))
    }
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-faults")]
        let _losing = crate::faults::if_commanded();
        let headers = host::request_headers();
        self.with(|stream, shared| stream.request_headers(&headers, &host::Attributes, end_of_stream, shared))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-faults")]
        crate::faults::at_request_body(size);
        self.with(|stream, shared| {
            let bytes = stream.body_read_from().map(|from| host::request_body(from, size.saturating_sub(from)));
            stream.request_body(bytes.unwrap_or_default(), size, end_of_stream, shared)
        })
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.with(Stream::request_trailers)
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.with(|stream, shared| {
            if stream.begin_answer() {
                let mut headers = host::response_headers();
                stream.response_headers(&mut headers, &host::Attributes, shared);
                host::set_response_headers(&headers);
            }
        });
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-faults")]
        crate::faults::at_answer_body(size);
        self.with(|stream, shared| {
            let bytes = stream.answer_read_from().map(|from| host::response_body(from, size.saturating_sub(from)));
            stream.answer_goes_on(&bytes.unwrap_or_default(), size, end_of_stream, shared)
        })
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.with(Stream::answer_has_trailers);
        Action::Continue
    }

    fn on_log(&mut self) {
        self.with(Stream::end);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.with(Stream::end);
        self.instance.has_ended(self.id);
    }
}
