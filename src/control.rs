//! The control listener's requests.
//!
//! The listener's filter must be configured with `allow_on_headers_stop_iteration`: a view is read while its headers
//! wait, since there is nowhere to send them on to.

use std::cell::RefCell;
use std::rc::Rc;

use admission_core::answer::Answer;
use admission_core::control::{NotTaken, Receiver, STATE_PATH, VIEW_PATH, state};
use admission_core::policy::Control;
use admission_core::view::ViewRefusal;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::host;
use crate::store::SharedData;
use crate::views::{self, Views};
use crate::wakes::Wakes;

/// One configuration of the control listener.
pub struct Desk {
    control: Control,
    receiver: RefCell<Receiver>,
    wakes: Wakes,
    views: Views,
}

impl Desk {
    /// Nothing taken yet.
    pub fn new(control: Control) -> Self {
        let receiver = RefCell::new(Receiver::of(&control));
        Self { control, receiver, wakes: Wakes::default(), views: Views::default() }
    }
}

/// A stream of the control listener.
pub struct ControlStream {
    desk: Rc<Desk>,
    answered: bool,
}

impl ControlStream {
    /// A stream under a configuration.
    pub fn new(desk: Rc<Desk>) -> Self {
        Self { desk, answered: false }
    }

    fn authorized(&self) -> bool {
        let header = host::request_header("authorization").unwrap_or_default();
        let token = header.strip_prefix(b"Bearer ").unwrap_or_default();
        Sha256::digest(token).as_slice().ct_eq(&self.desk.control.token_sha256).into()
    }

    fn answer(&mut self, status: u16, body: &impl Serialize) -> Action {
        let body = serde_json::to_vec(body).unwrap_or_default();
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if status == 401 {
            headers.push(("www-authenticate", "Bearer".to_owned()));
        }
        host::respond(&Answer { status, headers, body });
        self.answered = true;
        Action::Pause
    }

    fn refuse(&mut self, status: u16, error: impl Into<String>) -> Action {
        self.answer(status, &ViewRefusal { error: error.into(), ..ViewRefusal::default() })
    }

    fn too_large(&mut self) -> Action {
        let why = format!("it is larger than {} bytes (max_view)", self.desk.control.max_view);
        self.desk.views.not_taken(views::TOO_LARGE, &why, host::now());
        self.refuse(413, why)
    }

    fn show_state(&mut self) -> Action {
        match state(&SharedData, &self.desk.control.keys, host::now()) {
            Ok(state) => self.answer(200, &state),
            Err(error) => self.refuse(503, error.to_string()),
        }
    }

    fn take(&mut self, body: &[u8]) -> Action {
        let (desk, now) = (Rc::clone(&self.desk), host::now());
        let taken = desk.receiver.borrow_mut().take(&SharedData, body, now);
        match taken {
            Ok(taken) => {
                desk.views.taken();
                desk.wakes.send(&desk.control.keys, &taken.wakes);
                self.answer(200, &taken.answer)
            }
            Err(not_taken) => {
                let (outcome, why) = views::outcome_of(&not_taken);
                desk.views.not_taken(outcome, &why, now);
                match not_taken {
                    NotTaken::Malformed(_) => self.refuse(400, why),
                    NotTaken::Older(refusal) | NotTaken::Baseless(refusal) => self.answer(409, &refusal),
                    NotTaken::Store(_) => self.refuse(503, why),
                }
            }
        }
    }
}

impl Context for ControlStream {}

impl HttpContext for ControlStream {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let header = |name| host::request_header_text(name).unwrap_or_default();
        let (method, path) = (header(":method"), header(":path"));
        let path = path.split('?').next().unwrap_or_default();
        if !self.authorized() {
            let why = "the bearer token is missing or wrong";
            self.desk.views.not_taken(views::UNAUTHORIZED, why, host::now());
            return self.refuse(401, why);
        }
        match (method.as_str(), path) {
            ("GET", STATE_PATH) => self.show_state(),
            ("POST", VIEW_PATH)
                if header("content-length").parse().is_ok_and(|size: u64| size > self.desk.control.max_view) =>
            {
                self.too_large()
            }
            ("POST", VIEW_PATH) if end_of_stream => self.take(&[]),
            ("POST", VIEW_PATH) => Action::Pause,
            (_, STATE_PATH | VIEW_PATH) => self.refuse(405, format!("{STATE_PATH} takes GET, {VIEW_PATH} takes POST")),
            _ => self.refuse(404, format!("only {STATE_PATH} and {VIEW_PATH} are here")),
        }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if self.answered {
            return Action::Pause;
        }
        if size as u64 > self.desk.control.max_view {
            return self.too_large();
        }
        if end_of_stream { self.take(&host::request_body(0, size)) } else { Action::Pause }
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        if self.answered {
            return Action::Pause;
        }
        self.take(&host::request_body(0, usize::MAX))
    }
}
