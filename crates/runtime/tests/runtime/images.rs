//! Pulling.
