//! Tokens of a real issuer: discovery, keys, rotation, and everything that can be wrong with a token.

use std::sync::Arc;

use apiserver::OidcConfig;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::Cluster;
use crate::servers::{Answer, Server};

/// A key of the issuer and the name it goes by.
struct Key {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl Key {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self { id, pair: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &random).unwrap() }
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id, "x": encode(x), "y": encode(y)})
    }

    fn sign(&self, header: Value, claims: &Value) -> String {
        let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
        let input = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), input.as_bytes()).unwrap();
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(json!({"alg": "ES256", "kid": self.id}), claims)
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Walk 2.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn id_tokens_are_accepted_and_their_keys_may_rotate() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer_url = format!("https://{}/realm", listener.local_addr().unwrap());
    let url = issuer_url.clone();
    let cluster = Cluster::with_files(move |dir, config| {
        config.oidc = Some(OidcConfig {
            issuer_url: url,
            client_id: "cluster".to_owned(),
            username_claim: "name".to_owned(),
            username_prefix: Some("oidc:".to_owned()),
            groups_claim: Some("roles".to_owned()),
            groups_prefix: "oidc:".to_owned(),
            signing_algorithms: vec!["ES256".to_owned()],
            required_claims: vec![("tenant".to_owned(), "blue".to_owned())],
            ca_file: Some(dir.join("ca.crt")),
        });
    })
    .await;
    let (first, second, stranger) = (Key::new("one"), Key::new("two"), Key::new("one"));
    let keys = Arc::new(Mutex::new(vec![first.jwk()]));
    let (shown, base) = (keys.clone(), issuer_url.clone());
    let server = Server::on(listener, cluster.dir.path(), move |path, _| match path {
        "/realm/.well-known/openid-configuration" => {
            Answer::Json(200, json!({"issuer": base, "jwks_uri": format!("{base}/keys")}))
        }
        "/realm/keys" => Answer::Json(200, json!({"keys": *shown.lock()})),
        _ => Answer::Text(404, "no"),
    });
    let claims = |change: Value| {
        let mut claims = json!({"iss": issuer_url, "aud": "cluster", "exp": now() + 600, "name": "ann",
            "roles": ["dev", "ops"], "tenant": "blue"});
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        claims
    };
    let ask = async |token: String| cluster.whoami(&["-H", &format!("Authorization: Bearer {token}")]).await;

    let user = ask(first.token(&claims(json!({})))).await.unwrap();
    assert_eq!(user["username"], "oidc:ann");
    assert_eq!(user["groups"], json!(["oidc:dev", "oidc:ops", "system:authenticated"]));
    assert_eq!(server.count(), 2, "discovery and keys, once");

    let none = json!({"alg": "none", "kid": "one"});
    for (what, token) in [
        ("expired", first.token(&claims(json!({"exp": now() - 1})))),
        ("without expiry", first.token(&claims(json!({"exp": null})))),
        ("not yet valid", first.token(&claims(json!({"nbf": now() + 3600})))),
        ("for somebody else", first.token(&claims(json!({"aud": "other"})))),
        ("of another issuer", first.token(&claims(json!({"iss": "https://elsewhere"})))),
        ("without a name", first.token(&claims(json!({"name": ""})))),
        ("of another tenant", first.token(&claims(json!({"tenant": "red"})))),
        ("signed by a stranger under a known name", stranger.token(&claims(json!({})))),
        ("alg=none", first.sign(none.clone(), &claims(json!({})))),
        ("alg=none, unsigned", {
            let token = first.sign(none, &claims(json!({})));
            format!("{}.", token.rsplit_once('.').unwrap().0)
        }),
        ("alg=HS256", first.sign(json!({"alg": "HS256", "kid": "one"}), &claims(json!({})))),
        ("with a changed body", {
            let token = first.token(&claims(json!({})));
            let parts: Vec<&str> = token.split('.').collect();
            let forged = URL_SAFE_NO_PAD.encode(claims(json!({"name": "root"})).to_string());
            format!("{}.{forged}.{}", parts[0], parts[2])
        }),
    ] {
        assert_eq!(ask(token).await, Err(401), "a token {what}");
    }
    assert_eq!(server.count(), 2, "none of these is a reason to ask again");

    // A new key is fetched when a token names it; the old one goes when the issuer says so.
    *keys.lock() = vec![second.jwk()];
    assert!(ask(second.token(&claims(json!({})))).await.is_ok());
    assert_eq!(ask(first.token(&claims(json!({})))).await, Err(401));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn issuers_of_a_file_are_accepted_and_the_file_is_followed() {
    let listeners = [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let urls = [0, 1].map(|index: usize| format!("https://{}", listeners[index].local_addr().unwrap()));
    // Each issuer has its own claims; the second describes itself elsewhere, and is told of later.
    let file = |dir: &std::path::Path, count: usize| {
        let ca = std::fs::read_to_string(dir.join("ca.crt")).unwrap().replace('\n', "\n      ");
        let rules = [
            "claimMappings: {username: {claim: name, prefix: 'one:'}, groups: {claim: roles, prefix: ''}}".to_owned(),
            "claimMappings: {username: {expression: \"'two:' + claims.name\"}, uid: {claim: id}}\n  claimValidationRules: \
             [{expression: \"claims.tenant == 'blue'\"}]\n  userValidationRules: [{expression: \"!user.username.contains('root')\"}]"
                .to_owned(),
        ];
        let discovery = [String::new(), format!("    discoveryURL: {}/elsewhere\n", urls[1])];
        let issuer = |index: usize| {
            format!(
                "- issuer:\n    url: {}\n{}    audiences: [cluster, other]\n    audienceMatchPolicy: MatchAny\n    \
                 certificateAuthority: |\n      {ca}\n  {}\n",
                urls[index], discovery[index], rules[index]
            )
        };
        let all: String = (0..count).map(issuer).collect();
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n\
             anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\njwt:\n{all}"
        )
    };
    let cluster = Cluster::with_files(|dir, config| {
        let path = dir.join("authentication.yaml");
        std::fs::write(&path, file(dir, 1)).unwrap();
        config.authentication_config_file = Some(path);
    })
    .await;
    let keys = [Key::new("one"), Key::new("two")];
    let [first, second] = listeners;
    let answer = |index: usize| {
        let (url, jwk) = (urls[index].clone(), keys[index].jwk());
        move |path: &str, _: &Value| match path {
            "/.well-known/openid-configuration" | "/elsewhere" => {
                Answer::Json(200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
            }
            "/keys" => Answer::Json(200, json!({"keys": [jwk]})),
            _ => Answer::Text(404, "no"),
        }
    };
    let dir = cluster.dir.path();
    let _servers = [Server::on(first, dir, answer(0)), Server::on(second, dir, answer(1))];
    let token = |index: usize, change: Value| {
        let mut claims = json!({"iss": urls[index], "aud": "other", "exp": now() + 600, "name": "ann", "roles": ["dev"],
            "tenant": "blue", "id": "7"});
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        format!("Authorization: Bearer {}", keys[index].token(&claims))
    };
    let ask = async |header: String| cluster.whoami(&["-H", &header]).await;

    let user = ask(token(0, json!({}))).await.unwrap();
    assert_eq!((&user["username"], &user["groups"]), (&json!("one:ann"), &json!(["dev", "system:authenticated"])));
    assert_eq!(ask(token(1, json!({}))).await, Err(401));
    crate::harness::replace(&dir.join("authentication.yaml"), &file(dir, 2));
    let user = ask(token(1, json!({}))).await.unwrap();
    assert_eq!((&user["username"], &user["uid"]), (&json!("two:ann"), &json!("7")));
    assert!(ask(token(0, json!({}))).await.is_ok());
    for (what, header) in [
        ("of another tenant", token(1, json!({"tenant": "red"}))),
        ("with a name that is not wanted", token(1, json!({"name": "root"}))),
        ("for somebody else", token(0, json!({"aud": "else"}))),
        ("without a name", token(1, json!({"name": null}))),
        ("of the other's issuer", token(0, json!({"iss": urls[1]}))),
    ] {
        assert_eq!(ask(header).await, Err(401), "a token {what}");
    }
    // A file that is wrong changes nothing.
    crate::harness::replace(&dir.join("authentication.yaml"), "kind: AuthenticationConfiguration\n");
    assert!(ask(token(1, json!({}))).await.is_ok());
    // Who says nothing is let in where the file says so.
    assert_eq!(cluster.curl("/livez", &[]).await.0, 200);
    assert_eq!(cluster.curl("/readyz", &[]).await.0, 401);
}
