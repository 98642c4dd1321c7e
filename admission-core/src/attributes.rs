//! Facts that the proxy knows of a request and of its answer, beside headers and bodies.

/// Attributes that the proxy has of the request whose headers have just come. Each
/// costs a call to the proxy, made when it is asked for.
pub trait RequestAttributes {
    /// Value in the request's dynamic metadata: the namespace of the filter that set it, then keys.
    fn dynamic_metadata(&self, path: &[String]) -> Option<Vec<u8>>;
    /// First URI among the names in the certificate of the caller's connection.
    fn peer_uri(&self) -> Option<String>;
    /// Metadata of the route for this filter, as pairs; empty where the proxy cannot put it into pairs.
    fn route_metadata(&self) -> Option<Vec<u8>>;
    /// Name of the route.
    fn route_name(&self) -> Option<String>;
    /// Name of the virtual host.
    fn virtual_host(&self) -> Option<String>;
    /// Text of the stream's filter state that a filter of ours has set, in this stream or before a redirect within the proxy.
    fn filter_state(&self, name: &str) -> Option<String>;
}

/// Attributes that the proxy has of the answer whose headers have just come, at the same price.
pub trait AnswerAttributes {
    /// Address of the worker that the request was sent to last, or was to be, as `ip:port`.
    fn worker(&self) -> Option<String>;
    /// Word of the proxy for where the answer has come from, such as `via_upstream` or `response_timeout`.
    fn detail(&self) -> String;
}
