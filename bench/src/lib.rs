//! Open-loop load client.
