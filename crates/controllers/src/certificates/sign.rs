//! Signer: approved requests get a certificate of the cluster's authority.

use std::sync::Arc;
use std::time::Duration;
use tls::pkcs8;

use client::{Client, Clock, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::error::Error;
use super::request::{parse, refusal};
use super::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN, has_condition, is_issued};
use crate::controller::{Context, Outcome, Reconcile, Requeue};

const MIN_LIFETIME: Duration = Duration::from_secs(600);
/// Clocks of others may be a little behind.
const BACKDATE: Duration = Duration::from_secs(300);

struct Controller {
    client: Client,
    clock: Clock,
    requests: Informer<CertificateSigningRequest>,
    signer: Option<(String, String)>,
    duration: Duration,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let requests = context.on_self::<CertificateSigningRequest>();
    let config = &context.config;
    let (signer, duration) = (config.signer.clone().filter(is_usable), config.signing_duration);
    Arc::new(Controller { clock: config.clock.clone(), client: context.client.clone(), requests, signer, duration })
}

fn key_pair(pem: &str) -> Result<KeyPair, Error> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())?;
    let der = pkcs8(&key).ok_or(Error::KindOfKey)?;
    Ok(KeyPair::try_from(&PrivatePkcs8KeyDer::from(der))?)
}

/// Whether the authority can sign. What is wrong with it is no fault of those who ask.
fn is_usable((authority, key): &(String, String)) -> bool {
    let issuer = key_pair(key).and_then(|key| Ok(Issuer::from_ca_cert_pem(authority, key).map(drop)?));
    issuer.inspect_err(|error| tracing::error!(%error, "no certificates are signed: the authority's files")).is_ok()
}

/// The certificate in PEM, good for `longest` unless less is asked for, or why there is none.
fn sign(
    spec: &CertificateSigningRequestSpec,
    (authority, key): &(String, String),
    longest: Duration,
    now: Timestamp,
) -> Result<String, Error> {
    let request = parse(spec)?;
    if let Some(refusal) = refusal(spec, &request) {
        return Err(Error::Refused(refusal));
    }
    let key = key_pair(key)?;
    let issuer = Issuer::from_ca_cert_pem(authority, &key)?;
    let asked = spec
        .expiration_seconds
        .map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs().into()).max(MIN_LIFETIME));
    let seconds = Duration::from_secs(now.as_second().max(0).unsigned_abs());
    let moment = |since: Duration| rcgen::date_time_ymd(1970, 1, 1) + since;
    // The subject is put in at the end.
    let mut params = CertificateParams::default();
    params.subject_alt_names = request.names;
    let duration = asked.unwrap_or(longest).min(longest);
    // Holders renew late in a life that counts from its beginning: what is good for a short time would be due at once.
    params.not_before = moment(seconds.saturating_sub(BACKDATE.min(duration)));
    params.not_after = moment(seconds + duration);
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    // By itself, rcgen takes the same number for every certificate of a key.
    params.serial_number = Some(rcgen::SerialNumber::from_slice(&rand::random::<u128>().to_be_bytes()));
    params.use_authority_key_identifier_extension = true;
    let usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    let pick = |name: &str| usages.contains(&name);
    params.key_usages = [
        ("digital signature", KeyUsagePurpose::DigitalSignature),
        ("key encipherment", KeyUsagePurpose::KeyEncipherment),
    ]
    .into_iter()
    .filter(|(name, _)| pick(name))
    .map(|(_, usage)| usage)
    .collect();
    params.extended_key_usages =
        [("client auth", ExtendedKeyUsagePurpose::ClientAuth), ("server auth", ExtendedKeyUsagePurpose::ServerAuth)]
            .into_iter()
            .filter(|(name, _)| pick(name))
            .map(|(_, usage)| usage)
            .collect();
    let certificate = params.signed_by(&request.key, &issuer)?;
    request.subject.put_into(certificate.der(), &key)
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some((request, signer)) = self.requests.get(key).zip(self.signer.as_ref()) else {
                return Ok(Requeue::Never);
            };
            let ours =
                [CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN].contains(&request.spec.signer_name.as_str());
            let waits = has_condition(&request, "Approved")
                && !has_condition(&request, "Denied")
                && !has_condition(&request, "Failed")
                && !is_issued(&request);
            if !ours || !waits {
                return Ok(Requeue::Never);
            }
            let mut changed = CertificateSigningRequest::clone(&request);
            let status = changed.status.get_or_insert_default();
            match sign(&request.spec, signer, self.duration, self.clock.now()) {
                Ok(certificate) => status.certificate = Some(ByteString(certificate.into_bytes())),
                // Nobody will ever sign this: say so instead of trying for ever.
                Err(error) => {
                    let now = Some(Time(self.clock.now()));
                    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
                        type_: "Failed".into(),
                        status: "True".into(),
                        reason: Some("SignerValidationFailure".into()),
                        message: Some(error.to_string()),
                        last_update_time: now.clone(),
                        last_transition_time: now,
                    });
                }
            }
            self.client.all::<CertificateSigningRequest>().update_status(&changed).await?;
            Ok(Requeue::Never)
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, DnType, IsCa, SanType};

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn authority() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn request(
        common_name: &str,
        organization: &str,
        names: &[&str],
        signer: &str,
        usages: &[&str],
    ) -> CertificateSigningRequestSpec {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        // Two of a kind: rcgen writes them only under different names.
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, name) in kinds.into_iter().zip(organization.split(',')) {
            params.distinguished_name.push(kind, name);
        }
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: signer.into(),
            usages: Some(usages.iter().map(|usage| (*usage).to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        }
    }

    #[test]
    fn security_what_is_signed_is_what_everybody_saw() {
        let authority = authority();
        let usages = ["digital signature", "server auth"];
        let mut spec = request("system:node:n", "system:nodes", &["n"], KUBELET_SERVING, &usages);
        assert!(sign(&spec, &authority, YEAR, Timestamp::UNIX_EPOCH).is_ok());
        let shown = String::from_utf8(spec.request.0.clone()).unwrap();
        let hidden = request("system:node:n", "system:nodes", &["kubernetes"], KUBELET_SERVING, &usages);
        let hidden = String::from_utf8(hidden.request.0).unwrap();
        spec.request = ByteString(format!("# {}{hidden}", shown.replace("CERTIFICATE REQUEST", "X")).into_bytes());
        let refused = sign(&spec, &authority, YEAR, Timestamp::UNIX_EPOCH);
        assert!(matches!(refused, Err(Error::Block)), "{refused:?}");
    }

    #[test]
    fn each_signer_grants_only_what_is_its_own() {
        let authority = authority();
        let client = ["digital signature", "client auth"];
        let server = ["digital signature", "key encipherment", "server auth"];
        for (spec, granted) in [
            (request("system:node:n1", "system:nodes", &[], KUBELET_CLIENT, &client), true),
            (request("system:node:n1", "system:masters", &[], KUBELET_CLIENT, &client), false),
            (request("ann", "system:nodes", &[], KUBELET_CLIENT, &client), false),
            (request("system:node:n1", "system:nodes", &["n1"], KUBELET_CLIENT, &client), false),
            (request("system:node:n1", "system:nodes", &[], KUBELET_CLIENT, &server), false),
            (request("system:node:n1", "system:nodes", &["n1"], KUBELET_SERVING, &server), true),
            (request("system:node:n1", "system:nodes", &[], KUBELET_SERVING, &server), false),
            (request("ann", "dev", &[], CLIENT, &client), true),
            (request("ann", "dev", &[], CLIENT, &server), false),
            (request("system:node:n1", "system:masters,system:nodes", &[], KUBELET_CLIENT, &client), false),
        ] {
            assert_eq!(
                sign(&spec, &authority, YEAR, Timestamp::now()).is_ok(),
                granted,
                "{} {:?}",
                spec.signer_name,
                spec.usages
            );
        }
    }

    /// As kubeadm writes the key of an authority, with a word before it. Made for this test.
    const RSA: &str = "of nobody
-----BEGIN RSA PRIVATE KEY-----
MIIEpAIBAAKCAQEAy+SI/xozZtqKb+XBvtINj4l4+WUIWymunND6J4S7T9CcoyHx
Hpv/zMPRlNFnpkAdKXzgGn0y5rddV51f5JMMJ8meRYMUiEk1uANLil/qdI1vbD0q
Yfu2jm/OqBy20khB+iXGzErWDnmKtVBZBMDmrvR5C2fjp7/F8z+Xn94I2DcrPWSI
SeMSxCgshVlXJ5kO3/wjlrw1YGAj5RdME6tQNOzfAIVDh2Hup+Z2Fp7hZmbDugHn
gv0AXya3aR7c3JpRA4nOlrW5yDNjLkoIzfZWpGRydK6AIyAsKPukV0Ljg+FI0FDY
XPc+sdtXAYqFGtVv5V26su3whFy1fIwM0Qy3PwIDAQABAoIBAFftffD5dRpRe6sG
27c1cbipUdzHZ8OcpZsl+gMp1/dzIOGvBQMsxjMhbVPuvHKzKoBWRHTX8igSAnSC
vzRc/7x208TpYuTlIX/yF9UcSQkrZ1Y3yHvJ5+/kIqxX+bWUiLNeMC2wxkAmxR0t
Ab6ti63+aubyzfftGWotze8Y+xp2Zev+Lts1j3/dA5O1dHY1c94YujQFZDAL+dJz
oNbvpWkuXYp/q4AE9bJ0HJPPDytioU0tJFnW1jAID0zT3cXLdL6QK/KZciqRODB5
TnjJOwl/XdI0QUsYoUfVuFXkg3TekpK1Egtx8sU0jozTADMgo31APrxy1dZf527Y
X8RDT2UCgYEA/3uNX4LlMELaGLR2VU7LXziBuuu558KmDvwpCk3huoQQuM06aGOy
qer7tZ2ilaexMt05IfYvqAqyY14H2mDUfs0ZCuAwBRicafesNBjlOIfVGclGPFrQ
BaEnFcgqkVP1IcU75vmYHatQpp8ddQrK4mpdklF1BGEJbWyTm52DpLUCgYEAzE48
0WH8xx+mtuN4BJAS0fcZ4n66eMqVuELr+MBe9MA/NG+nENsUwsC2yUJv+HGyKIxm
bMOmmXZTBz8healvry94nh2Ud8RAfrnB5UOtgSmfU4KrI7pPadTWG9f7J+WQykYc
cMwIGAZs8ef5zy8bXPZuV9jdSUwHjekRgSaueKMCgYEAqMPZE6rH8yV2JLOxJ5Ex
Tulo6S0mVS6Du4pfIetonWj4EtufJa4WK6CKPeKvr+RibZMtVn3l5T+Lr5BB58Pn
Gwwo6sJFdlhXmrh9DL0VTk6MOsh2mQ/0MoPN6dmcJPwtBe3gMCfYkGDGmgqpztMe
Soqw3SLqBcaED8CVkUpv17ECgYAVyzbDoy9C0oaHNeaknfXT/gb92UTtA7dK66Ce
bW7zrtpPLqXkr2ociFA3UeX926sElk2Kxqgr8KpUuJBKmR930ZmNTFx9FitHGWus
mDaW86iyUNsOuZ4lDPY2DCkXjW6PlUENa0ZlwbG3cGZ+imjh1svYhSK94eVgZv9e
BpFP/wKBgQDNdTIxAkA7tcs4JQyqHlCCxIqGUeQ9pwvKy0S5RZKvVVZdwP8V1Wlk
424JtMIHuYY4pLs5Ndo3GcjRlbNMPozF5wN31+wPX/o9Y2h9rGiHI4P+6zj87flQ
m/5GCh9kQr2z2K5MYCWpfngii91AdNf4pDyNlBm4nD49ejMDzx5EaQ==
-----END RSA PRIVATE KEY-----
";

    #[test]
    fn authorities_may_have_keys_of_rsa() {
        let key = key_pair(RSA).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = (params.self_signed(&key).unwrap().pem(), RSA.to_owned());
        assert!(is_usable(&authority) && !is_usable(&("nothing".into(), RSA.into())));
        let spec = request("ann", "dev", &[], CLIENT, &["digital signature", "client auth"]);
        sign(&spec, &authority, YEAR, Timestamp::now()).unwrap();
    }

    #[test]
    fn security_names_of_other_kinds_and_extensions_are_in_no_certificate() {
        use rustls_pki_types::CertificateDer;
        use x509_parser::extensions::GeneralName;
        let authority = authority();
        let signed = |names: Vec<SanType>, signer: &str, usage: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "system:node:n");
            params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
            params.subject_alt_names = names;
            params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]));
            let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
            let spec = CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: signer.to_owned(),
                usages: Some(["digital signature", usage].map(str::to_owned).to_vec()),
                ..CertificateSigningRequestSpec::default()
            };
            let pem = sign(&spec, &authority, YEAR, Timestamp::now())?;
            let der = CertificateDer::from_pem_slice(pem.as_bytes())?;
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
            assert!(!certificate.extensions().iter().any(|extension| extension.oid.to_id_string() == "1.2.3.4"));
            let names = certificate.subject_alternative_name().unwrap();
            Ok::<_, Error>(names.map_or(0, |names| {
                let names = &names.value.general_names;
                assert!(!names.iter().any(|name| matches!(name, GeneralName::OtherName(..))));
                names.len()
            }))
        };
        let other = || SanType::OtherName((vec![1, 3, 6, 1, 4, 1, 311, 20, 2, 3], "admin@corp".into()));
        let dns = || SanType::DnsName("n".try_into().unwrap());
        let mail = || SanType::Rfc822Name("a@example.com".try_into().unwrap());
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let address = SanType::IpAddress([10, 0, 0, 1].into());
        assert_eq!(signed(vec![other()], KUBELET_CLIENT, "client auth").unwrap(), 0);
        assert_eq!(signed(vec![other(), dns(), address.clone()], KUBELET_SERVING, "server auth").unwrap(), 2);
        assert_eq!(signed(vec![mail(), uri("spiffe://a/b"), dns(), address], CLIENT, "client auth").unwrap(), 4);
        for (names, signer, usage) in [
            (vec![dns()], KUBELET_CLIENT, "client auth"),
            (vec![other()], KUBELET_SERVING, "server auth"),
            (vec![dns(), mail()], KUBELET_SERVING, "server auth"),
            (vec![dns(), uri("https://n")], KUBELET_SERVING, "server auth"),
            (vec![uri("no uri")], CLIENT, "client auth"),
        ] {
            assert!(signed(names.clone(), signer, usage).is_err(), "{names:?} {signer}");
        }
    }

    #[test]
    fn no_two_certificates_have_the_same_number() {
        use rustls_pki_types::CertificateDer;
        let authority = authority();
        let spec = request("ann", "dev", &[], CLIENT, &["digital signature", "client auth"]);
        let number = || {
            let signed = sign(&spec, &authority, YEAR, Timestamp::now()).unwrap();
            let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
            certificate.raw_serial_as_string()
        };
        assert_ne!(number(), number());
    }

    #[test]
    fn certificates_name_every_group() {
        use rustls_pki_types::CertificateDer;
        let (authority, key) = authority();
        let spec = request("ann", "dev,admins", &[], CLIENT, &["digital signature", "client auth"]);
        let signed = sign(&spec, &(authority.clone(), key), YEAR, Timestamp::now()).unwrap();
        let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
        let groups: Vec<&str> =
            certificate.subject().iter_organization().map(|group| group.as_str().unwrap()).collect();
        assert_eq!(groups, ["dev", "admins"]);
        let issuer = CertificateDer::from_pem_slice(authority.as_bytes()).unwrap();
        let (_, issuer) = x509_parser::parse_x509_certificate(&issuer).unwrap();
        certificate.verify_signature(Some(issuer.public_key())).unwrap();
    }

    #[test]
    fn certificates_last_as_long_as_the_flag_says_or_as_was_asked() {
        use rustls_pki_types::CertificateDer;
        let (authority, now) = (authority(), Timestamp::from_second(1_800_000_000).unwrap());
        let minute = Duration::from_secs(60);
        for (asked, longest, expected) in [
            (None, YEAR, YEAR),
            (None, 2 * minute, 2 * minute),
            (Some(3600), YEAR, 60 * minute),
            (Some(60), YEAR, MIN_LIFETIME),
            (Some(3600), 2 * minute, 2 * minute),
        ] {
            let mut spec = request("ann", "dev", &[], CLIENT, &["digital signature", "client auth"]);
            spec.expiration_seconds = asked;
            let signed = sign(&spec, &authority, longest, now).unwrap();
            let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
            let seconds = certificate.validity().not_after.timestamp() - now.as_second();
            assert_eq!(seconds.unsigned_abs(), expected.as_secs(), "{asked:?} {longest:?}");
            let before = now.as_second() - certificate.validity().not_before.timestamp();
            assert_eq!(before.unsigned_abs(), BACKDATE.min(expected).as_secs(), "{asked:?} {longest:?}");
        }
    }
}
