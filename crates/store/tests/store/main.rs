//! The store's tests on real files, real processes and a real etcd. One binary: it links once.

#![allow(clippy::unwrap_used, reason = "tests")]

mod suite;
