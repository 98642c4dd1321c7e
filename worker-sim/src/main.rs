//! A GPU inference worker without a GPU.
fn main() {}
