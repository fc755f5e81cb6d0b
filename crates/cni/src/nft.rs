//! Rules for packets: one transaction at a time, all of it or nothing, told to the kernel by `netlink::nft`.

pub use netlink::nft::{Error, apply};

/// A name for chains and comments that is short and safe whatever the parts contain.
pub fn short_hash(parts: &[&str]) -> String {
    use sha2::Digest;
    let mut hasher = sha2::Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    api::hex::encode(&hasher.finalize()[..8])
}
