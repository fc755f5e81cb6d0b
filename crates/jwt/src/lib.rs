//! JSON web tokens: signing and verifying them, and the keys for both, from PEM files and key sets.
//!
//! Not here: what a token means, whom it is for and whether its time has come. That is for authenticators.
//! Ours rather than a crate: key ids must be upstream's, a key and an algorithm must fit each other whatever a token's header
//! says, and `ring` does all that is left.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod keys;
mod pem;
mod token;

pub use keys::{KeyError, SigningKey, load_public};
pub use token::{Key, Material, Token, signing_input};
