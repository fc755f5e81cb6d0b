//! Tokens in Secrets: filled in when someone makes a Secret of that type, removed with their account.
//!
//! Acts as the manager itself: a controller that makes credentials must not need one made by itself.

use std::sync::Arc;

use api::meta::Meta as _;
use client::{Client, DeleteParams, Event, Informer, ListParams};
use futures_util::future::BoxFuture;
use jwt::SigningKey;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};

use super::{ACCOUNT_NAME, ACCOUNT_UID, TOKEN_TYPE, annotation, belongs_to, secret_token};
use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::pods::key;

struct Controller {
    client: Client,
    accounts: Informer<ServiceAccount>,
    secrets: Informer<Secret>,
    root_ca: Option<String>,
    signer: Option<SigningKey>,
}

/// Keys are `secret/<namespace>/<name>`, `account/<namespace>/<name>/<uid>` of a deleted account, and
/// `reference/<namespace>/<account>/<secret>` of a deleted Secret.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let accounts = context.on::<ServiceAccount, _>(|event| match event {
        Event::Deleted(gone) => Some(format!("account/{}/{}", key(&**gone), gone.metadata.uid())),
        _ => None,
    });
    let secrets = context.filtered::<Secret>(ListParams::fields(format!("type={TOKEN_TYPE}")));
    let queue = context.queue.clone();
    let secrets = secrets.wakes(move |event| {
        let secret = event.object();
        let account = annotation(secret, ACCOUNT_NAME);
        let (namespace, name) = (secret.metadata.namespace(), secret.metadata.name.as_deref());
        queue.add(match event {
            Event::Deleted(_) => format!("reference/{namespace}/{account}/{}", name.unwrap_or_default()),
            _ => format!("secret/{}", key(&**secret)),
        });
    });
    let signer = context.config.service_account_key.as_deref().and_then(|pem| {
        SigningKey::from_pem(pem).inspect_err(|error| tracing::error!(%error, "no tokens are put into Secrets")).ok()
    });
    let root_ca = context.config.root_ca.clone();
    Arc::new(Controller { client: context.client.clone(), accounts, secrets, root_ca, signer })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let parts: Vec<&str> = key.split('/').collect();
            match parts.as_slice() {
                ["secret", namespace, name] => self.fill(namespace, name).await?,
                ["account", namespace, name, uid] => self.remove_tokens(namespace, name, uid).await?,
                ["reference", namespace, account, secret] => self.remove_reference(namespace, account, secret).await?,
                _ => {}
            }
            Ok(Requeue::Never)
        })
    }
}

/// What a token's Secret lacks.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    ca: bool,
    namespace: bool,
    token: bool,
}

impl Missing {
    fn of(secret: &Secret, root_ca: Option<&str>) -> Self {
        let field = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[][..], |value| &value.0);
        Self {
            ca: root_ca.is_some_and(|root_ca| field("ca.crt") != root_ca.as_bytes()),
            namespace: field("namespace").is_empty(),
            token: field("token").is_empty(),
        }
    }

    fn is_nothing(&self) -> bool {
        !(self.ca || self.namespace || self.token)
    }
}

impl Controller {
    async fn fill(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let (Some(signer), Some(cached)) = (&self.signer, self.secrets.get(&format!("{namespace}/{name}"))) else {
            return Ok(());
        };
        let Some(account) = self.account_of(&cached).await? else {
            return self.delete(&cached).await;
        };
        let root_ca = self.root_ca.as_deref();
        if Missing::of(&cached, root_ca).is_nothing() {
            return Ok(());
        }
        let api = self.client.namespaced::<Secret>(namespace);
        let Some(mut live) = api.get_opt(name).await? else { return Ok(()) };
        let missing = Missing::of(&live, root_ca);
        if live.metadata.resource_version != cached.metadata.resource_version || missing.is_nothing() {
            return Ok(()); // the event of the newer version is on its way
        }
        let token = if missing.token {
            Some(secret_token::sign(signer, &account, &live).map_err(|error| Error::object(error.to_string()))?)
        } else {
            None
        };
        let data = live.data.get_or_insert_default();
        let mut put = |key: &str, value: &str| data.insert(key.into(), ByteString(value.as_bytes().to_vec()));
        if let Some(root_ca) = root_ca.filter(|_| missing.ca) {
            put("ca.crt", root_ca);
        }
        if missing.namespace {
            put("namespace", namespace);
        }
        if let Some(token) = token {
            put("token", &token);
        }
        let annotations = live.metadata.annotations.get_or_insert_default();
        annotations.insert(ACCOUNT_NAME.into(), account.metadata.name().to_owned());
        annotations.insert(ACCOUNT_UID.into(), account.metadata.uid().to_owned());
        match api.update(&live).await {
            Err(error) if !error.is_conflict() && !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The account a token is for, asked of the server if the cache does not have it (yet).
    async fn account_of(&self, secret: &Secret) -> Result<Option<ServiceAccount>, Error> {
        let namespace = secret.metadata.namespace();
        let name = annotation(secret, ACCOUNT_NAME);
        if let Some(account) =
            self.accounts.get(&format!("{namespace}/{name}")).filter(|found| belongs_to(secret, found))
        {
            return Ok(Some(ServiceAccount::clone(&account)));
        }
        let live = self.client.namespaced::<ServiceAccount>(namespace).get_opt(name).await?;
        Ok(live.filter(|found| belongs_to(secret, found)))
    }

    async fn remove_tokens(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let mut gone = ServiceAccount::default();
        gone.metadata.name = Some(name.into());
        gone.metadata.uid = Some(uid.into());
        for secret in self.secrets.by_namespace(namespace) {
            if belongs_to(&secret, &gone) {
                self.delete(&secret).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, secret: &Secret) -> Result<(), Error> {
        let api = self.client.namespaced::<Secret>(secret.metadata.namespace());
        let params = DeleteParams { uid: secret.metadata.uid.clone(), ..DeleteParams::default() };
        if_unchanged(api.delete(secret.metadata.name(), &params).await).map(drop)
    }

    /// An account that still lists a Secret which is gone forgets it.
    async fn remove_reference(&self, namespace: &str, account: &str, secret: &str) -> Result<(), Error> {
        if account.is_empty() {
            return Ok(());
        }
        let refers = |account: &ServiceAccount| {
            account.secrets.iter().flatten().any(|reference| reference.name.as_deref() == Some(secret))
        };
        // The cache may not show the account yet, or not that it lists the Secret, and nothing would bring the key back.
        let api = self.client.namespaced::<ServiceAccount>(namespace);
        let Some(mut live) = api.get_opt(account).await?.filter(refers) else { return Ok(()) };
        live.secrets.get_or_insert_default().retain(|reference| reference.name.as_deref() != Some(secret));
        match api.update(&live).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use client::Body;
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt, Full};
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn an_account_that_the_cache_does_not_show_forgets_a_secret() {
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = written.clone();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            if request.method() != Method::GET {
                seen.lock().push(String::from_utf8_lossy(request.body()).into_owned());
            }
            let account =
                r#"{"metadata": {"name": "a", "namespace": "n"}, "secrets": [{"name": "gone"}, {"name": "kept"}]}"#;
            let body: Body = Full::new(account.into()).map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Response::new(body) })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let accounts = Informer::new(client.all(), ListParams::default());
        let secrets = Informer::new(client.all(), ListParams::default());
        let controller = Controller { client, accounts, secrets, root_ca: None, signer: None };
        assert!(controller.reconcile("reference/n/a/gone").await.is_ok());
        let written = written.lock();
        assert!(matches!(written.as_slice(), [one] if one.contains("kept") && !one.contains("gone")), "{written:?}");
    }

    #[test]
    fn only_what_is_missing_is_filled_in() {
        let secret = |fields: &[(&str, &str)]| Secret {
            data: Some(
                fields.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect(),
            ),
            ..Secret::default()
        };
        for (fields, root_ca, (ca, namespace, token)) in [
            (&[][..], None, (false, true, true)),
            (&[][..], Some("CA"), (true, true, true)),
            (&[("ca.crt", "old"), ("namespace", "ns"), ("token", "t")], Some("CA"), (true, false, false)),
            (&[("ca.crt", "CA"), ("namespace", "ns"), ("token", "t")], Some("CA"), (false, false, false)),
        ] {
            assert_eq!(Missing::of(&secret(fields), root_ca), Missing { ca, namespace, token }, "{fields:?}");
        }
    }
}
