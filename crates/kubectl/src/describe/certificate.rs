//! Certificate signing requests, with what they ask for.

use base64::Engine;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::{Writer, joined_labels, time};
use crate::failure::{Failure, Result};
use crate::objects::text;

pub(super) fn describe(csr: &Value, w: &mut Writer) -> Result<()> {
    let (meta, spec) = (&csr["metadata"], &csr["spec"]);
    let failed = |why: String| Failure::message(format!("Error parsing CSR: {why}"));
    let pem =
        base64::engine::general_purpose::STANDARD.decode(text(spec, "/request")).map_err(|e| failed(e.to_string()))?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem)
        .map_err(|_| failed("PEM block type must be CERTIFICATE REQUEST".to_owned()))?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| failed(e.to_string()))?;

    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Labels:\t{}", joined_labels(&meta["labels"])));
    w.line(0, format!("Annotations:\t{}", joined_labels(&meta["annotations"])));
    w.line(0, format!("CreationTimestamp:\t{}", time(&meta["creationTimestamp"])));
    w.line(0, format!("Requesting User:\t{}", text(spec, "/username")));
    if !text(spec, "/signerName").is_empty() {
        w.line(0, format!("Signer:\t{}", text(spec, "/signerName")));
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64() {
        w.line(0, format!("Requested Duration:\t{}", crate::duration::human(seconds)));
    }
    w.line(0, format!("Status:\t{}", status(csr)));
    subject(w, &request.certification_request_info.subject);
    alternative_names(w, &request);
    Ok(())
}

fn status(csr: &Value) -> String {
    let types: Vec<&str> =
        csr["status"]["conditions"].as_array().into_iter().flatten().map(|c| text(c, "/type")).collect();
    let mut status = match (types.contains(&"Denied"), types.contains(&"Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if types.contains(&"Failed") {
        status.push_str(",Failed");
    }
    if !text(csr, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}

fn list(w: &mut Writer, title: &str, values: Vec<String>) {
    for (i, value) in values.iter().enumerate() {
        let head = if i == 0 { format!("{title}:") } else { String::new() };
        w.line(0, format!("\t{head}\t{value}"));
    }
}

fn values<'a>(found: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    found.filter_map(|a| a.as_str().ok()).map(str::to_owned).collect()
}

fn subject(w: &mut Writer, name: &X509Name<'_>) {
    use x509_parser::oid_registry::{OID_X509_POSTAL_CODE, OID_X509_SERIALNUMBER, OID_X509_STREET_ADDRESS};
    w.line(0, "Subject:");
    let first = |found: Vec<String>| found.into_iter().next().unwrap_or_default();
    w.line(0, format!("\tCommon Name:\t{}", first(values(name.iter_common_name()))));
    w.line(0, format!("\tSerial Number:\t{}", first(values(name.iter_by_oid(&OID_X509_SERIALNUMBER)))));
    list(w, "Organization", values(name.iter_organization()));
    list(w, "Organizational Unit", values(name.iter_organizational_unit()));
    list(w, "Country", values(name.iter_country()));
    list(w, "Locality", values(name.iter_locality()));
    list(w, "Province", values(name.iter_state_or_province()));
    list(w, "StreetAddress", values(name.iter_by_oid(&OID_X509_STREET_ADDRESS)));
    list(w, "PostalCode", values(name.iter_by_oid(&OID_X509_POSTAL_CODE)));
}

fn alternative_names(w: &mut Writer, request: &X509CertificationRequest<'_>) {
    let (mut dns, mut mail, mut uris, mut addresses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(n) => dns.push((*n).to_owned()),
                GeneralName::RFC822Name(n) => mail.push((*n).to_owned()),
                GeneralName::URI(n) => uris.push((*n).to_owned()),
                GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                _ => {}
            }
        }
    }
    if dns.len() + mail.len() + uris.len() + addresses.len() == 0 {
        return;
    }
    w.line(0, "Subject Alternative Names:");
    list(w, "DNS Names", dns);
    list(w, "Email Addresses", mail);
    list(w, "URIs", uris);
    list(w, "IP Addresses", addresses);
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(four).to_string());
    }
    Some(std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string())
}
