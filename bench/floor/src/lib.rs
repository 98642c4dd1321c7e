//! The floor of the filter benchmark: a filter that waits for the whole body and sets one header, and does nothing else.
//!
//! It holds the headers while the body comes, as whoever decides on a body must, so the proxy has to be configured with
//! `allow_on_headers_stop_iteration`. It asks the proxy for no byte of the body, unless its configuration is `read`: then it
//! has all of it copied to itself once, which nobody who judges a body can do without.
#![allow(missing_docs, reason = "the module exports the host's callbacks, not an API")]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root { reads: false }));
}}

struct Root {
    reads: bool,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        self.reads = self.get_plugin_configuration().is_some_and(|configuration| configuration == b"read");
        true
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Floor { reads: self.reads }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Floor {
    reads: bool,
}

impl Floor {
    fn go_on(&self, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        self.set_http_request_header("x-bench-floor", Some("1"));
        Action::Continue
    }
}

impl Context for Floor {}

impl HttpContext for Floor {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        self.go_on(end_of_stream)
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if end_of_stream && self.reads {
            std::hint::black_box(self.get_http_request_body(0, size));
        }
        self.go_on(end_of_stream)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.go_on(true)
    }
}
