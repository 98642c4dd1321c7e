//! What the proxy can do.
//!
//! Header values are bytes: the SDK's string calls panic on a value that is not UTF-8, and a caller may send one. The SDK
//! also panics on a status it does not expect; the host gives those only for maps and buffers outside their callbacks,
//! where nothing here is called but for the body of a request that waits, which the host has as long as that is paused.

use std::time::{Duration, SystemTime};

use admission_core::answer::Answer;
use admission_core::attributes::{AnswerAttributes, RequestAttributes};
use admission_core::headers::Headers;
use admission_core::metrics::Kind;
use admission_core::routes::ROUTE_METADATA;
use admission_core::units::{Millis, Time};
use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, LogLevel, MapType, MetricType, Status};

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    /// The SDK's own call copies every name and value.
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_header_map_pairs(map: u32, data: *const u8, size: usize) -> u32;
}

/// The process's monotonic clock, the same in every VM.
pub fn now() -> Time {
    // SAFETY: the call only writes its result, and the clock and precision are constants the host knows.
    let nanoseconds = unsafe { wasip1::clock_time_get(wasip1::CLOCKID_MONOTONIC, 1_000_000) };
    Time(nanoseconds.unwrap_or_default() / 1_000_000)
}

/// The time of day.
pub fn time_of_day() -> SystemTime {
    // SAFETY: as above.
    let nanoseconds = unsafe { wasip1::clock_time_get(wasip1::CLOCKID_REALTIME, 1_000_000) };
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// Writes a line into the proxy's log at its highest level. What the host says to that is of no use to a program that ends.
pub fn log_critical(line: &str) {
    let _ = hostcalls::log(LogLevel::Critical, line);
}

/// Name of the plugin, which tells plugins of the same code in one VM apart.
pub fn root_id() -> String {
    let id = hostcalls::get_property(vec!["plugin_root_id"]).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&id).into_owned()
}

/// Attributes of the request or answer whose headers the current callback brings.
pub struct Attributes;

impl RequestAttributes for Attributes {
    fn dynamic_metadata(&self, path: &[String]) -> Option<Vec<u8>> {
        let whole = ["metadata", "filter_metadata"].into_iter().chain(path.iter().map(String::as_str)).collect();
        hostcalls::get_property(whole).ok().flatten()
    }

    fn peer_uri(&self) -> Option<String> {
        let uri = hostcalls::get_property(vec!["connection", "uri_san_peer_certificate"]).ok().flatten()?;
        String::from_utf8(uri).ok()
    }

    fn route_metadata(&self) -> Option<Vec<u8>> {
        match hostcalls::get_property(vec!["xds", "route_metadata", "filter_metadata", ROUTE_METADATA]) {
            Ok(pairs) => pairs,
            // The proxy cannot put a null into pairs.
            Err(Status::SerializationFailure) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    fn route_name(&self) -> Option<String> {
        text_property(&["xds", "route_name"])
    }

    fn virtual_host(&self) -> Option<String> {
        text_property(&["xds", "virtual_host_name"])
    }

    fn filter_state(&self, name: &str) -> Option<String> {
        text_property(&[name])
    }
}

impl AnswerAttributes for Attributes {
    fn worker(&self) -> Option<String> {
        text_property(&["upstream", "address"])
    }

    fn detail(&self) -> String {
        text_property(&["response", "code_details"]).unwrap_or_default()
    }
}

fn text_property(path: &[&str]) -> Option<String> {
    let value = hostcalls::get_property(path.to_vec()).ok().flatten()?;
    String::from_utf8(value).ok().filter(|text| !text.is_empty())
}

/// All request headers. Only while they have not gone on.
pub fn request_headers() -> Headers {
    Headers::new(headers(MapType::HttpRequestHeaders))
}

fn headers(map: MapType) -> Vec<u8> {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the host writes where it has put the pairs, in memory that it has had this module allocate for them.
    let status = unsafe { proxy_get_header_map_pairs(map as u32, &raw mut data, &raw mut size) };
    if status != Status::Ok as u32 || data.is_null() {
        return Vec::new();
    }
    // SAFETY: as above; it is all that was allocated, and nobody else has it.
    unsafe { Vec::from_raw_parts(data, size, size) }
}

/// A request header, its copies joined by commas.
pub fn request_header(name: &str) -> Option<Vec<u8>> {
    hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
}

/// A request header that is UTF-8; one that is not counts as absent.
pub fn request_header_text(name: &str) -> Option<String> {
    request_header(name).and_then(|value| String::from_utf8(value).ok())
}

/// Sets a request header. Only while the headers have not gone on.
pub fn set_request_header(name: &str, value: &str) {
    report(
        "set a request header",
        hostcalls::set_map_value_bytes(MapType::HttpRequestHeaders, name, Some(value.as_bytes())),
    );
}

/// Removes every copy of a request header. Only while the headers have not gone on.
pub fn remove_request_header(name: &str) {
    report("remove a request header", hostcalls::remove_map_value(MapType::HttpRequestHeaders, name));
}

/// Bytes of the request body that the proxy holds, from an offset.
pub fn request_body(start: usize, length: usize) -> Vec<u8> {
    body(BufferType::HttpRequestBody, start, length)
}

/// Puts bytes in place of the first `held` that the proxy holds of a request body. That number is the last callback's, or 0 to put
/// the bytes in front.
pub fn replace_request_body(held: usize, bytes: &[u8]) {
    report("replace a request body", hostcalls::set_buffer(BufferType::HttpRequestBody, 0, held, bytes));
}

fn body(buffer: BufferType, start: usize, length: usize) -> Vec<u8> {
    if length == 0 {
        return Vec::new();
    }
    hostcalls::get_buffer(buffer, start, length).ok().flatten().unwrap_or_default()
}

/// All response headers. Only while they have not gone on.
pub fn response_headers() -> Headers {
    Headers::new(headers(MapType::HttpResponseHeaders))
}

/// Makes these the response headers; not where they could not be read before. Only while they have not gone on.
pub fn set_response_headers(headers: &Headers) {
    if headers.get(":status").is_none() {
        return;
    }
    let headers = headers.laid_out();
    // SAFETY: the pointer and the length are those of the slice, of which the host makes a copy.
    let status =
        unsafe { proxy_set_header_map_pairs(MapType::HttpResponseHeaders as u32, headers.as_ptr(), headers.len()) };
    if status != Status::Ok as u32 {
        log::warn!("the proxy refused to set the response headers: {status}");
    }
}

/// Puts other bytes in place of all that a callback brings of a response body, which it told the number of.
pub fn replace_response_body(size: usize, bytes: &[u8]) {
    report("replace a response body", hostcalls::set_buffer(BufferType::HttpResponseBody, 0, size, bytes));
}

/// Bytes of the response body that the proxy holds and this callback brings, from an offset.
pub fn response_body(start: usize, length: usize) -> Vec<u8> {
    body(BufferType::HttpResponseBody, start, length)
}

/// Sets a value that access logs find in the filter state under `wasm.` and this name.
pub fn set_filter_state(name: &str, value: &[u8]) {
    report("set filter state", hostcalls::set_property(vec![name], Some(value)));
}

/// A kind of value in filter states; values of no kind are bytes, and last as long as their stream.
#[derive(Clone, Copy)]
pub enum State {
    /// Text that lasts as long as the request, over redirects within the proxy.
    OfRequest,
    /// A `google.protobuf.Struct`, which access logs print as an object.
    Object,
}

/// Makes values of a name in filter states this kind of value. For the root that is being configured; only its streams' values are
/// meant.
pub fn declare_state(name: &str, state: State) {
    const OBJECT: &str = "type.googleapis.com/google.protobuf.Struct";
    // DeclarePropertyArguments: 1 is the name, 3 the type (1 is text, 3 is protobuf), 4 the type's name, 5 the span (1 is the request).
    let mut arguments = vec![];
    let mut text = |field: u8, text: &str| {
        arguments.push(field << 3 | 2);
        // A number of the format: seven bits a byte, the lowest first, each byte but the last marked.
        let mut length = text.len();
        while length > 0x7f {
            arguments.push(length as u8 | 0x80);
            length >>= 7;
        }
        arguments.push(length as u8);
        arguments.extend_from_slice(text.as_bytes());
    };
    text(1, name);
    match state {
        State::OfRequest => arguments.extend_from_slice(&[0x18, 1, 0x28, 1]),
        State::Object => {
            text(4, OBJECT);
            arguments.extend_from_slice(&[0x18, 3]);
        }
    }
    report("declare a property", hostcalls::call_foreign_function("declare_property", Some(&arguments)).map(drop));
}

/// Makes a stream, or a root, the one that the next calls act on; false when it is gone.
pub fn act_on(context_id: u32) -> bool {
    hostcalls::set_effective_context(context_id).is_ok()
}

/// Sets how often the current root, or that of the current stream, is called. The period begins again.
pub fn set_tick_period(period: Millis) {
    report("set a tick period", hostcalls::set_tick_period(Duration::from_millis(period.0)));
}

/// Lets the request of the current stream go on.
pub fn resume_request() {
    report("resume a request", hostcalls::resume_http_request());
}

/// Makes the current root the one that is told of messages in a queue, until another one does.
pub fn register_queue(name: &str) -> bool {
    hostcalls::register_shared_queue(name).is_ok()
}

/// The queue of a name; `None` while nobody has registered it.
pub fn resolve_queue(name: &str) -> Option<u32> {
    let vm_id = text_property(&["plugin_vm_id"]).unwrap_or_default();
    hostcalls::resolve_shared_queue(&vm_id, name).ok().flatten()
}

/// Puts a message into a queue; false when it is gone.
pub fn enqueue(queue: u32, message: &[u8]) -> bool {
    hostcalls::enqueue_shared_queue(queue, Some(message)).is_ok()
}

/// Takes a message out of a queue.
pub fn dequeue(queue: u32) -> Option<Vec<u8>> {
    hostcalls::dequeue_shared_queue(queue).ok().flatten()
}

/// Ends the request of the current callback with an answer of our own.
pub fn respond(answer: &Answer) {
    let headers = answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    report("answer a request", hostcalls::send_http_response(u32::from(answer.status), headers, Some(&answer.body)));
}

/// Sends a request from the current root; its answer comes to that root, under the number returned. The error is a sentence.
pub fn call(cluster: &str, headers: Vec<(&str, &str)>, body: &[u8], timeout: Millis) -> Result<u32, String> {
    let timeout = Duration::from_millis(timeout.0);
    hostcalls::dispatch_http_call(cluster, headers, Some(body), Vec::new(), timeout).map_err(|status| match status {
        Status::BadArgument => format!("the proxy has no cluster {cluster:?}"),
        status => format!("the proxy cannot send to the cluster {cluster:?}: {status:?}"),
    })
}

/// Status of the answer that the current callback brings; `None` where none came.
pub fn call_status() -> Option<u16> {
    let status = hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, ":status").ok().flatten()?;
    str::from_utf8(&status).ok()?.parse().ok()
}

/// Body of the answer that the current callback brings.
pub fn call_body(size: usize) -> Vec<u8> {
    body(BufferType::HttpCallResponseBody, 0, size)
}

/// A random number that callers cannot guess.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the pointer and the length are those of the array.
    let filled = unsafe { wasip1::random_get(bytes.as_mut_ptr(), bytes.len()) };
    filled.map_or(0, |()| u64::from_le_bytes(bytes))
}

/// Defines a metric; `None` where the host will not.
pub fn define_metric(kind: Kind, name: &str) -> Option<u32> {
    let kind = match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    hostcalls::define_metric(kind, name).ok()
}

/// Adds to a counter, which the host does for no less than one.
pub fn increment(counter: u32, count: u64) {
    report("count", hostcalls::increment_metric(counter, i64::try_from(count).unwrap_or(i64::MAX)));
}

/// Sets a gauge, or records in a histogram.
pub fn record(gauge: u32, value: u64) {
    report("record a metric", hostcalls::record_metric(gauge, value));
}

/// Bytes of linear memory that this VM has; none where there is no such memory.
pub fn memory_bytes() -> u64 {
    #[cfg(target_arch = "wasm32")]
    const PAGE: u64 = 65_536;
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size::<0>() as u64 * PAGE;
    #[cfg(not(target_arch = "wasm32"))]
    return 0;
}

fn report(what: &str, result: Result<(), Status>) {
    if let Err(status) = result {
        log::warn!("the proxy refused to {what}: {status:?}");
    }
}
