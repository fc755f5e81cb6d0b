//! Front-proxy headers: a proxy with the right certificate says who its client is (`--requestheader-*`).

use api::{Status, UserInfo};
use http::{HeaderMap, HeaderName};

use super::error::AuthnError;
use super::{CertificateAuthority, Peer};

/// Which proxies are believed, and which headers of theirs name the user.
pub(crate) struct FrontProxy {
    pub(crate) authority: CertificateAuthority,
    /// Empty allows every certificate of the authority.
    pub(crate) allowed_names: Vec<String>,
    pub(crate) username_headers: Vec<String>,
    pub(crate) uid_headers: Vec<String>,
    pub(crate) group_headers: Vec<String>,
    pub(crate) extra_prefixes: Vec<String>,
}

impl FrontProxy {
    /// Refuses headers that nobody can read: passed over, they would make another user of the one that was meant.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let mut ours = headers.iter().filter(|(name, _)| self.is_ours(name));
        ours.try_for_each(|(name, value)| crate::request_info::readable(name, value).map(drop))
    }

    fn is_ours(&self, header: &HeaderName) -> bool {
        let mut names = self.username_headers.iter().chain(&self.uid_headers).chain(&self.group_headers);
        names.any(|name| name.eq_ignore_ascii_case(header.as_str())) || self.extra_key(header).is_some()
    }

    /// The user that a trusted proxy names. `Err` is a certificate of somebody who may not do that.
    pub(super) fn user(&self, headers: &HeaderMap, peer: &Peer) -> Result<Option<UserInfo>, AuthnError> {
        let values = |names: &[String]| -> Vec<String> {
            names
                .iter()
                .flat_map(|name| headers.get_all(name.as_str()).iter())
                .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned))
                .collect()
        };
        let first = |names: &[String]| values(names).into_iter().find(|value| !value.is_empty());
        let Some(name) = first(&self.username_headers) else { return Ok(None) };
        let Some(certificates) = &peer.certificates else { return Ok(None) };
        let Ok(proxy) = self.authority.user(certificates) else { return Ok(None) };
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            return Err(AuthnError::FrontProxy(proxy.name));
        }
        let uid = first(&self.uid_headers).unwrap_or_default();
        let mut user = UserInfo { name, uid, groups: values(&self.group_headers), ..Default::default() };
        for (key, value) in headers {
            let Some(key) = self.extra_key(key) else { continue };
            let key = api::percent::decode(key, false).into_owned();
            user.extra.entry(key).or_default().extend(std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned));
        }
        Ok(Some(user))
    }

    fn extra_key<'h>(&self, header: &'h HeaderName) -> Option<&'h str> {
        self.extra_prefixes.iter().find_map(|prefix| header.as_str().strip_prefix(&prefix.to_ascii_lowercase()))
    }

    /// Removes the headers, believed or not: nothing behind this sees them.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        for name in self.username_headers.iter().chain(&self.uid_headers).chain(&self.group_headers) {
            headers.remove(name.as_str());
        }
        let extra: Vec<HeaderName> = headers.keys().filter(|key| self.extra_key(key).is_some()).cloned().collect();
        extra.iter().for_each(|key| drop(headers.remove(key)));
    }
}
