//! What a request or connection shows to prove who is asking.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use tokio::time::Instant;

use super::exec::ExecPlugin;
use super::header_value;
use super::service_account::TokenSource;
use crate::Error;
use crate::kubeconfig::AuthInfo;

/// A token file is read again after this: bound tokens are rotated by the kubelet.
const TOKEN_FILE_TTL: Duration = Duration::from_secs(10);

/// The `Authorization` header of one user. Client certificates are shown by TLS instead.
pub(super) enum Auth {
    None,
    Fixed(HeaderValue),
    TokenFile { path: PathBuf, cached: parking_lot::Mutex<Option<(Instant, HeaderValue)>> },
    Exec(Box<ExecPlugin>),
    ServiceAccount(Box<TokenSource>),
}

impl Auth {
    /// In client-go's order: token file, token, OIDC id token, basic. A plug-in is run for who has nothing else to show.
    pub(super) fn new(user: &AuthInfo, server: &str) -> Result<Self, Error> {
        if let Some(exec) = user.exec.as_ref().filter(|_| !has_credentials(user)) {
            return Ok(Auth::Exec(Box::new(ExecPlugin::new(exec.clone(), server))));
        }
        if let Some(path) = &user.token_file {
            return Ok(Auth::TokenFile { path: path.into(), cached: parking_lot::Mutex::new(None) });
        }
        let id_token = user.auth_provider.as_ref().and_then(|provider| provider.config.get("id-token"));
        if let Some(token) = user.token.as_ref().or(id_token) {
            return Ok(Auth::Fixed(bearer(token)?));
        }
        if let Some(name) = &user.username {
            let pair = format!("{name}:{}", user.password.as_deref().unwrap_or_default());
            return Ok(Auth::Fixed(sensitive(header_value(&format!("Basic {}", STANDARD.encode(pair)))?)));
        }
        Ok(Auth::None)
    }

    pub(super) async fn header(&self) -> Result<Option<HeaderValue>, Error> {
        match self {
            Auth::None => Ok(None),
            Auth::Fixed(value) => Ok(Some(value.clone())),
            Auth::TokenFile { path, cached } => {
                if let Some((read, value)) = &*cached.lock()
                    && read.elapsed() < TOKEN_FILE_TTL
                {
                    return Ok(Some(value.clone()));
                }
                let text = tokio::fs::read_to_string(path)
                    .await
                    .map_err(|error| Error::config(format!("reading token file {}: {error}", path.display())))?;
                let value = bearer(text.trim())?;
                *cached.lock() = Some((Instant::now(), value.clone()));
                Ok(Some(value))
            }
            Auth::Exec(plugin) => match plugin.credential().await?.token.as_deref() {
                Some(token) => bearer(token).map(Some),
                None => Ok(None),
            },
            // Boxed: asking for a token is itself a request.
            Auth::ServiceAccount(source) => Box::pin(source.header()).await.map(Some),
        }
    }

    /// The server refused: forget what was cached. True if asking again can give something else.
    pub(super) async fn refused(&self) -> bool {
        match self {
            Auth::None | Auth::Fixed(_) => false,
            Auth::TokenFile { cached, .. } => cached.lock().take().is_some(),
            Auth::Exec(plugin) => plugin.forget().await,
            Auth::ServiceAccount(source) => source.forget().await,
        }
    }
}

/// An empty text is none, as in client-go.
fn has_credentials(user: &AuthInfo) -> bool {
    let any =
        |fields: &[&Option<String>]| fields.iter().any(|field| field.as_ref().is_some_and(|text| !text.is_empty()));
    any(&[&user.token, &user.token_file, &user.username])
        || (any(&[&user.client_certificate, &user.client_certificate_data])
            && any(&[&user.client_key, &user.client_key_data]))
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, Error> {
    Ok(sensitive(
        HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::config("the bearer token is not a valid header value"))?,
    ))
}

fn sensitive(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plug_in_is_run_for_who_has_nothing_else() {
        let shows = |fields: &str| {
            let user = format!("{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: x}}, {fields}}}");
            matches!(Auth::new(&yaml_serde::from_str(&user).unwrap(), "https://a").unwrap(), Auth::Exec(_))
        };
        for (fields, expected) in [
            ("", true),
            ("client-certificate: c", true),
            ("client-certificate: c, client-key: k", false),
            ("client-certificate-data: Yw==, client-key-data: aw==", false),
            ("token: t", false),
            ("tokenFile: f", false),
            ("username: u", false),
            ("token: '', username: ''", true),
        ] {
            assert_eq!(shows(fields), expected, "{fields}");
        }
    }
}
