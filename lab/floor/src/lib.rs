//! The floor of the filter benchmark: filters that decide nothing.
//!
//! They hold the headers while the body comes, as whoever decides on a body must, so the proxy has to be configured with
//! `allow_on_headers_stop_iteration`. The configuration says what else they do, see `Does`.
#![allow(missing_docs, reason = "the module exports the host's callbacks, not an API")]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

mod calls;

use calls::Metrics;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root { does: Does::Wait }));
}}

/// What a filter does with a request, beside setting one header.
#[derive(Clone, Copy)]
enum Does {
    /// It waits, and asks the proxy for no byte of the body.
    Wait,
    /// `read`: it has the whole body copied to itself once, which nobody who judges a body can do without.
    Read,
    /// `calls`: that, and it makes every call to the proxy that counting a request in shared data and telling about it takes.
    Calls(Metrics),
}

struct Root {
    does: Does,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        self.does = match self.get_plugin_configuration().as_deref() {
            Some(b"read") => Does::Read,
            Some(b"calls") => Does::Calls(Metrics::define()),
            _ => Does::Wait,
        };
        true
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Floor { does: self.does }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Floor {
    does: Does,
}

impl Floor {
    fn go_on(&self, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        if let Does::Calls(_) = self.does {
            calls::admit();
        }
        self.set_http_request_header("x-bench-mark", Some("1"));
        Action::Continue
    }
}

impl Context for Floor {}

impl HttpContext for Floor {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        if let Does::Calls(_) = self.does {
            calls::arrive();
        }
        self.go_on(end_of_stream)
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if end_of_stream && !matches!(self.does, Does::Wait) {
            std::hint::black_box(self.get_http_request_body(0, size));
        }
        self.go_on(end_of_stream)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.go_on(true)
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        if let Does::Calls(_) = self.does {
            calls::answer();
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, _: bool) -> Action {
        if let (Does::Calls(_), true) = (self.does, size > 0) {
            std::hint::black_box(self.get_http_response_body(0, size));
        }
        Action::Continue
    }

    fn on_log(&mut self) {
        if let Does::Calls(metrics) = self.does {
            calls::settle(metrics);
        }
    }
}
