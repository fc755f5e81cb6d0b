//! The tokens that Secrets hold: without an end, valid as long as their Secret exists.

use api::meta::Meta as _;
use jwt::SigningKey;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use serde_json::json;

/// The token of `account` that lives in `secret`.
pub(super) fn sign(key: &SigningKey, account: &ServiceAccount, secret: &Secret) -> Result<String, jwt::KeyError> {
    let namespace = secret.metadata.namespace();
    let name = account.metadata.name();
    key.token(&json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_account_and_secret() {
        let key = SigningKey::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let (mut account, mut secret) = (ServiceAccount::default(), Secret::default());
        account.metadata.name = Some("robot".into());
        account.metadata.uid = Some("u".into());
        secret.metadata.namespace = Some("ns".into());
        secret.metadata.name = Some("robot-token".into());
        let token = sign(&key, &account, &secret).unwrap();
        let token = jwt::Token::parse(&token).unwrap();
        assert_eq!(token.text("sub"), "system:serviceaccount:ns:robot");
        assert_eq!(token.text("kubernetes.io/serviceaccount/secret.name"), "robot-token");
        assert!(!token.key_id.is_empty());
    }
}
