//! Tests of the built filter in a real Envoy.
