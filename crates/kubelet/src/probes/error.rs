//! Why a call to a pod could not be made, in upstream's words.

use std::io;

use crate::exchange::ExchangeError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("couldn't find port: {0:?}")]
    UnknownPort(String),
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    #[error("dial tcp {address}: connect: {}", plain(.source))]
    Connect { address: String, source: io::Error },
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("Get \"{url}\": {source}")]
    Get { url: String, source: Box<ProbeError> },
}

/// The kernel's words without Rust's "(os error N)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string().to_lowercase();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_upstreams() {
        let refused = || ProbeError::Connect {
            address: "[::1]:80".into(),
            source: io::Error::from_raw_os_error(nix::libc::ECONNREFUSED),
        };
        let get = ProbeError::Get { url: "http://[::1]:80/".into(), source: Box::new(refused()) };
        for (error, expected) in [
            (ProbeError::UnknownPort("web".into()), r#"couldn't find port: "web""#),
            (ProbeError::InvalidPort(0), "invalid port number: 0"),
            (refused(), "dial tcp [::1]:80: connect: connection refused"),
            (get, r#"Get "http://[::1]:80/": dial tcp [::1]:80: connect: connection refused"#),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
