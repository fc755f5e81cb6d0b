//! `extension-apiserver-authentication`: what servers behind this one need to believe the clients and the proxy of it.
//!
//! Servers that share a store may have different authorities: each adds its own and takes away nobody's, except what has
//! expired. The object is put right when somebody changes or deletes it, and when a file behind it changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::Method;
use serde_json::{Map, Value, json};

use crate::authn::not_after;
use crate::config::Config;
use crate::stamp::now;
use crate::state::State;

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "kube-system/extension-apiserver-authentication";
const BUNDLES: [&str; 2] = ["client-ca-file", "requestheader-client-ca-file"];
/// Files are looked at again after this long.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Clocks differ a little.
const GRACE: i64 = 300;

type Data = Map<String, Value>;

/// Brings the object in line.
pub(crate) async fn ensure(state: &Arc<State>) -> anyhow::Result<()> {
    let ours = ours(&state.config).await?;
    let found = state.caches.get("configmaps").and_then(|cache| cache.get(KEY));
    let Some(found) = found else {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": NAME, "namespace": "kube-system"}, "data": combined(&Data::new(), &ours)});
        return write(state, Method::POST, MAPS, &object).await;
    };
    let mut object: Value = found.decode()?;
    let before = object["data"].as_object().cloned().unwrap_or_default();
    let after = combined(&before, &ours);
    if after == before {
        return Ok(());
    }
    object["data"] = after.into();
    write(state, Method::PUT, &format!("{MAPS}/{NAME}"), &object).await
}

/// Keeps it in line until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let Some(cache) = state.caches.get("configmaps") else { return };
    let mut changes = cache.subscribe();
    let revision = || cache.get(KEY).map(|entry| entry.revision);
    loop {
        let known = revision();
        if let Err(error) = ensure(&state).await {
            tracing::warn!("{NAME}: {error:#}");
        }
        let again = tokio::time::sleep(RECHECK_INTERVAL);
        let changed = async {
            while revision() == known {
                if changes.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            () = state.stop.cancelled() => return,
            () = changed => {}
            () = again => {}
        }
    }
}

/// Writes an object that others may write as well.
pub(crate) async fn write(state: &Arc<State>, method: Method, url: &str, object: &Value) -> anyhow::Result<()> {
    let (code, answer) = crate::loopback::send(state, method, url, object).await?;
    // Made, changed or deleted in between: the cache will say.
    anyhow::ensure!(code < 300 || code == 409 || code == 404, "{url}: {}", answer["message"]);
    Ok(())
}

/// What the flags of this server say.
async fn ours(config: &Config) -> anyhow::Result<Data> {
    let mut data = Data::new();
    for (key, file) in BUNDLES.into_iter().zip([&config.client_ca_file, &config.requestheader_client_ca_file]) {
        if let Some(file) = file {
            let text = tokio::fs::read_to_string(file).await.with_context(|| file.display().to_string())?;
            data.insert(key.to_owned(), text.into());
        }
    }
    if config.requestheader_client_ca_file.is_some() {
        for (key, list) in [
            ("requestheader-allowed-names", &config.requestheader_allowed_names),
            ("requestheader-username-headers", &config.requestheader_username_headers),
            ("requestheader-uid-headers", &config.requestheader_uid_headers),
            ("requestheader-group-headers", &config.requestheader_group_headers),
            ("requestheader-extra-headers-prefix", &config.requestheader_extra_headers_prefix),
        ] {
            data.insert(key.to_owned(), json!(list).to_string().into());
        }
    }
    Ok(data)
}

/// Both together: certificates that have not expired and words, each once.
fn combined(found: &Data, ours: &Data) -> Data {
    let text = |data: &Data, key: &str| data.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut all = found.clone();
    for key in ours.keys() {
        let both = [text(found, key), text(ours, key)];
        let value = if BUNDLES.contains(&key.as_str()) { bundle(&both) } else { words(&both) };
        all.insert(key.clone(), value.into());
    }
    all
}

fn bundle(texts: &[String]) -> String {
    let oldest = now().as_second() - GRACE;
    let mut kept: Vec<&str> = Vec::new();
    for block in texts.iter().flat_map(|text| blocks(text)) {
        let certificate = tls::certificates(block.as_bytes()).unwrap_or_default();
        let is_valid = certificate.first().and_then(|der| not_after(der)).is_some_and(|until| until > oldest);
        if is_valid && !kept.contains(&block) {
            kept.push(block);
        }
    }
    kept.iter().map(|block| format!("{block}\n")).collect()
}

/// The certificates in a text, without what stands between them.
fn blocks(text: &str) -> Vec<&str> {
    const END: &str = "-----END CERTIFICATE-----";
    let begins = text.match_indices("-----BEGIN CERTIFICATE-----").map(|(at, _)| &text[at..]);
    begins.filter_map(|rest| rest.find(END).map(|end| &rest[..end + END.len()])).collect()
}

fn words(lists: &[String]) -> String {
    let mut kept: Vec<String> = Vec::new();
    for word in lists.iter().flat_map(|list| serde_json::from_str::<Vec<String>>(list).unwrap_or_default()) {
        if !kept.contains(&word) {
            kept.push(word);
        }
    }
    json!(kept).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(year: i32) -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).unwrap().pem().replace("\r\n", "\n")
    }

    #[test]
    fn every_server_adds_its_own() {
        let (theirs, ours, old) = (certificate(2100), certificate(2100), certificate(2001));
        let data = |ca: String, names: &[&str]| -> Data {
            let pairs = [("client-ca-file", ca), ("requestheader-allowed-names", json!(names).to_string())];
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
        };
        let mut found = data(format!("{old}# theirs\n{theirs}"), &["a", "b"]);
        found.insert("more".to_owned(), "kept".into());
        let all = combined(&found, &data(ours.clone(), &["b", "c"]));
        assert_eq!(all["client-ca-file"], format!("{theirs}{ours}"));
        assert_eq!(all["requestheader-allowed-names"], r#"["a","b","c"]"#);
        assert_eq!(all["more"], "kept");
        assert_eq!(combined(&all, &data(ours, &["b", "c"])), all);
    }
}
