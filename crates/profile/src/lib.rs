//! Profiles of this process in the format of pprof, as `/debug/pprof` of Go's servers offers them.
//!
//! Flow: a timer of its processor time interrupts a thread (`cpu`), or an allocation is the one to look at ([`heap`]) ->
//! registers and a piece of the stack are copied into a slot (`sampler`) -> a thread of its own finds the callers with the
//! tables that panics unwind by (`unwind`, `cfi`) -> names from the symbol table (`elf`) -> `pprof`.
//! Invariant: what runs in the signal handler takes no lock, allocates nothing and reads the stack through the kernel, which
//! refuses what is not there; everything that could go wrong goes wrong in safe code, later, and ends a stack early.
//! Not here: who may ask. Every server asks that before.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cfi;
mod cpu;
mod elf;
pub mod heap;
mod maps;
mod pages;
mod pprof;
mod refusal;
mod sampler;
mod stacks;
mod threads;
mod unwind;

pub use pages::{Answer, serve};
