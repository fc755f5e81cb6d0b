//! CustomResourceDefinitions of the Gateway API's kinds, as far as the gateway reads them, written for it: structural, with the defaults
//! that the API has. A cluster that has definitions of its own keeps them.

use api::sort::CompactCollect as _;
use serde_json::{Map, Value, json};

use super::GROUP;

/// Written into definitions of a group under `k8s.io`, which asks for it.
const APPROVAL: &str = "unapproved, a compact schema of the published API";

/// All of them.
pub fn definitions() -> Vec<Value> {
    let accepted = json!({"name": "Accepted", "type": "string",
        "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"});
    let hostnames = json!({"name": "Hostnames", "type": "string", "jsonPath": ".spec.hostnames"});
    let features = map_list(object(&["name"], [("name", text(0, 128))]), 64, &["name"]);
    vec![
        definition(
            Names { kind: "GatewayClass", plural: "gatewayclasses", short: &["gc"] },
            "Cluster",
            &["v1"],
            object(
                &["controllerName"],
                [
                    ("controllerName", text(1, 253)),
                    ("description", text(0, 64)),
                    ("parametersRef", reference(&[("namespace", text(1, 63))], &["group", "kind", "name"])),
                ],
            ),
            Some(object(&[], [("conditions", conditions()), ("supportedFeatures", features)])),
            vec![json!({"name": "Controller", "type": "string", "jsonPath": ".spec.controllerName"}), accepted],
        ),
        definition(
            Names { kind: "Gateway", plural: "gateways", short: &["gtw"] },
            "Namespaced",
            &["v1"],
            gateway_spec(),
            Some(gateway_status()),
            vec![
                json!({"name": "Class", "type": "string", "jsonPath": ".spec.gatewayClassName"}),
                json!({"name": "Address", "type": "string", "jsonPath": ".status.addresses[*].value"}),
                json!({"name": "Programmed", "type": "string",
                    "jsonPath": ".status.conditions[?(@.type==\"Programmed\")].status"}),
            ],
        ),
        definition(
            Names { kind: "HTTPRoute", plural: "httproutes", short: &[] },
            "Namespaced",
            &["v1"],
            route_spec(http_rule()),
            Some(route_status()),
            vec![hostnames.clone()],
        ),
        definition(
            Names { kind: "GRPCRoute", plural: "grpcroutes", short: &[] },
            "Namespaced",
            &["v1"],
            route_spec(grpc_rule()),
            Some(route_status()),
            vec![hostnames.clone()],
        ),
        definition(
            Names { kind: "TLSRoute", plural: "tlsroutes", short: &[] },
            "Namespaced",
            &["v1", "v1alpha2"],
            route_spec(object(&[], [("name", text(1, 253)), ("backendRefs", list(backend(&[]), 16))])),
            Some(route_status()),
            vec![hostnames],
        ),
        definition(
            Names { kind: "ReferenceGrant", plural: "referencegrants", short: &["refgrant"] },
            "Namespaced",
            &["v1", "v1beta1"],
            object(
                &["from", "to"],
                [
                    (
                        "from",
                        list(
                            object(
                                &["group", "kind", "namespace"],
                                [("group", text(0, 253)), ("kind", text(1, 63)), ("namespace", text(1, 63))],
                            ),
                            16,
                        ),
                    ),
                    (
                        "to",
                        list(
                            object(
                                &["group", "kind"],
                                [("group", text(0, 253)), ("kind", text(1, 63)), ("name", text(1, 253))],
                            ),
                            16,
                        ),
                    ),
                ],
            ),
            None,
            Vec::new(),
        ),
        definition(
            Names { kind: "BackendTLSPolicy", plural: "backendtlspolicies", short: &["btlspolicy"] },
            "Namespaced",
            &["v1"],
            backend_tls_spec(),
            Some(policy_status()),
            Vec::new(),
        ),
    ]
}

fn backend_tls_spec() -> Value {
    let target = object(
        &["group", "kind", "name"],
        [("group", text(0, 253)), ("kind", text(1, 63)), ("name", text(1, 253)), ("sectionName", text(1, 253))],
    );
    let name =
        object(&["type"], [("type", one_of(&["Hostname", "URI"])), ("hostname", text(1, 253)), ("uri", text(1, 253))]);
    let mut validation = object(
        &["hostname"],
        [
            ("caCertificateRefs", list(reference(&[], &["group", "kind", "name"]), 8)),
            ("wellKnownCACertificates", one_of(&["System"])),
            ("hostname", text(1, 253)),
            ("subjectAltNames", list(name, 5)),
        ],
    );
    validation["x-kubernetes-validations"] = json!([
        {"rule": "!(has(self.caCertificateRefs) && size(self.caCertificateRefs) > 0 && has(self.wellKnownCACertificates))",
            "message": "must not contain both CACertificateRefs and WellKnownCACertificates"},
        {"rule": "(has(self.caCertificateRefs) && size(self.caCertificateRefs) > 0) || has(self.wellKnownCACertificates)",
            "message": "must specify either CACertificateRefs or WellKnownCACertificates"},
    ]);
    object(
        &["targetRefs", "validation"],
        [("targetRefs", list(target, 16)), ("validation", validation), ("options", any())],
    )
}

fn policy_status() -> Value {
    let status = object(
        &["ancestorRef", "controllerName"],
        [("ancestorRef", parent()), ("controllerName", text(1, 253)), ("conditions", conditions())],
    );
    object(&["ancestors"], [("ancestors", list(status, 16))])
}

struct Names {
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
}

/// The first version is the one that is stored.
fn definition(
    names: Names,
    scope: &str,
    versions: &[&str],
    spec: Value,
    status: Option<Value>,
    columns: Vec<Value>,
) -> Value {
    let mut schema = object(&["spec"], [("spec", spec)]);
    for (name, kind) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        schema["properties"][name] = json!({"type": kind});
    }
    let has_status = status.is_some();
    if let Some(status) = status {
        schema["properties"]["status"] = status;
    }
    let mut columns = columns;
    columns.push(json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}));
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(at, version)| {
            let mut version = json!({
                "name": version,
                "served": true,
                "storage": at == 0,
                "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": columns,
            });
            if has_status {
                version["subresources"] = json!({"status": {}});
            }
            version
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", names.plural),
            "annotations": {"api-approved.kubernetes.io": APPROVAL},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": names.kind,
                "listKind": format!("{}List", names.kind),
                "plural": names.plural,
                "singular": names.kind.to_lowercase(),
                "shortNames": names.short,
                "categories": ["gateway-api"],
            },
            "versions": versions,
        },
    })
}

fn object<const N: usize>(required: &[&str], properties: [(&str, Value); N]) -> Value {
    let properties: Map<String, Value> =
        properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).compact_collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn text(shortest: u32, longest: u32) -> Value {
    let mut schema = json!({"type": "string", "maxLength": longest});
    if shortest > 0 {
        schema["minLength"] = json!(shortest);
    }
    schema
}

fn one_of(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

fn number(least: u32, most: u32) -> Value {
    json!({"type": "integer", "format": "int32", "minimum": least, "maximum": most})
}

fn list(items: Value, most: u32) -> Value {
    json!({"type": "array", "items": items, "maxItems": most})
}

/// Entries that are told apart by some of their members.
fn map_list(items: Value, most: u32, keys: &[&str]) -> Value {
    let mut schema = list(items, most);
    schema["x-kubernetes-list-type"] = json!("map");
    schema["x-kubernetes-list-map-keys"] = json!(keys);
    schema
}

fn any() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn or(mut schema: Value, default: Value) -> Value {
    schema["default"] = default;
    schema
}

fn hostname() -> Value {
    let mut schema = text(1, 253);
    schema["pattern"] = json!("^(\\*\\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$");
    schema
}

fn conditions() -> Value {
    let condition = object(
        &["lastTransitionTime", "message", "reason", "status", "type"],
        [
            ("lastTransitionTime", json!({"type": "string", "format": "date-time"})),
            ("message", text(0, 32768)),
            ("observedGeneration", json!({"type": "integer", "format": "int64", "minimum": 0})),
            ("reason", text(1, 1024)),
            ("status", one_of(&["True", "False", "Unknown"])),
            ("type", text(1, 316)),
        ],
    );
    map_list(condition, 8, &["type"])
}

fn reference(more: &[(&str, Value)], required: &[&str]) -> Value {
    let mut schema = object(required, [("group", text(0, 253)), ("kind", text(1, 63)), ("name", text(1, 253))]);
    for (name, of) in more {
        schema["properties"][*name] = of.clone();
    }
    schema
}

fn gateway_spec() -> Value {
    let certificate = object(
        &["name"],
        [
            ("group", or(text(0, 253), json!(""))),
            ("kind", or(text(1, 63), json!("Secret"))),
            ("name", text(1, 253)),
            ("namespace", text(1, 63)),
        ],
    );
    let tls = object(
        &[],
        [
            ("mode", or(one_of(&["Terminate", "Passthrough"]), json!("Terminate"))),
            ("certificateRefs", list(certificate, 64)),
            ("options", json!({"type": "object", "additionalProperties": {"type": "string"}})),
            // Refused with a condition, which takes that it is not dropped unread.
            ("frontendValidation", any()),
        ],
    );
    let route_kind = object(&["kind"], [("group", or(text(0, 253), json!(GROUP))), ("kind", text(1, 63))]);
    let selector = object(
        &[],
        [
            ("matchLabels", json!({"type": "object", "additionalProperties": {"type": "string"}})),
            (
                "matchExpressions",
                list(
                    object(
                        &["key", "operator"],
                        [
                            ("key", json!({"type": "string"})),
                            ("operator", json!({"type": "string"})),
                            ("values", json!({"type": "array", "items": {"type": "string"}})),
                        ],
                    ),
                    64,
                ),
            ),
        ],
    );
    let namespaces = object(
        &[],
        [("from", or(one_of(&["All", "Selector", "Same", "None"]), json!("Same"))), ("selector", selector)],
    );
    let allowed =
        object(&[], [("namespaces", or(namespaces, json!({"from": "Same"}))), ("kinds", list(route_kind, 8))]);
    let listener = object(
        &["name", "port", "protocol"],
        [
            ("name", text(1, 253)),
            ("hostname", hostname()),
            ("port", number(1, 65535)),
            ("protocol", text(1, 255)),
            ("tls", tls),
            ("allowedRoutes", or(allowed, json!({"namespaces": {"from": "Same"}}))),
        ],
    );
    let address = object(&[], [("type", or(text(1, 253), json!("IPAddress"))), ("value", text(0, 253))]);
    object(
        &["gatewayClassName", "listeners"],
        [
            ("gatewayClassName", text(1, 253)),
            ("listeners", {
                let mut listeners = map_list(listener, 64, &["name"]);
                listeners["minItems"] = json!(1);
                listeners
            }),
            ("addresses", list(address, 16)),
            ("infrastructure", any()),
            ("tls", any()),
        ],
    )
}

fn gateway_status() -> Value {
    let address = object(&["value"], [("type", text(1, 253)), ("value", text(1, 253))]);
    let kind = object(&["kind"], [("group", text(0, 253)), ("kind", text(1, 63))]);
    let listener = object(
        &["name", "attachedRoutes", "conditions"],
        [
            ("name", text(1, 253)),
            ("supportedKinds", list(kind, 8)),
            ("attachedRoutes", json!({"type": "integer", "format": "int32"})),
            ("conditions", conditions()),
        ],
    );
    object(
        &[],
        [
            ("addresses", list(address, 16)),
            ("conditions", conditions()),
            ("listeners", map_list(listener, 64, &["name"])),
        ],
    )
}

fn parent() -> Value {
    object(
        &["name"],
        [
            ("group", or(text(0, 253), json!(GROUP))),
            ("kind", or(text(1, 63), json!("Gateway"))),
            ("namespace", text(1, 63)),
            ("name", text(1, 253)),
            ("sectionName", text(1, 253)),
            ("port", number(1, 65535)),
        ],
    )
}

fn route_spec(rule: Value) -> Value {
    object(&[], [("parentRefs", list(parent(), 32)), ("hostnames", list(hostname(), 16)), ("rules", list(rule, 16))])
}

fn route_status() -> Value {
    let status = object(
        &["parentRef", "controllerName"],
        [("parentRef", parent()), ("controllerName", text(1, 253)), ("conditions", conditions())],
    );
    object(&["parents"], [("parents", list(status, 32))])
}

fn backend(more: &[(&str, Value)]) -> Value {
    let mut schema = object(
        &["name"],
        [
            ("group", or(text(0, 253), json!(""))),
            ("kind", or(text(1, 63), json!("Service"))),
            ("name", text(1, 253)),
            ("namespace", text(1, 63)),
            ("port", number(1, 65535)),
            ("weight", or(number(0, 1_000_000), json!(1))),
        ],
    );
    for (name, of) in more {
        schema["properties"][*name] = of.clone();
    }
    schema
}

fn named_match() -> Value {
    let kinds = one_of(&["Exact", "RegularExpression"]);
    let matcher = object(
        &["name", "value"],
        [("type", or(kinds, json!("Exact"))), ("name", text(1, 256)), ("value", text(1, 4096))],
    );
    map_list(matcher, 16, &["name"])
}

fn filter(kinds: &[&str]) -> Value {
    let header = object(&["name", "value"], [("name", text(1, 256)), ("value", text(1, 4096))]);
    let headers = || {
        object(
            &[],
            [
                ("set", map_list(header.clone(), 16, &["name"])),
                ("add", map_list(header.clone(), 16, &["name"])),
                ("remove", list(json!({"type": "string"}), 16)),
            ],
        )
    };
    let path = || {
        object(
            &["type"],
            [
                ("type", one_of(&["ReplaceFullPath", "ReplacePrefixMatch"])),
                ("replaceFullPath", text(0, 1024)),
                ("replacePrefixMatch", text(0, 1024)),
            ],
        )
    };
    let code = json!({"type": "integer", "enum": [301, 302, 303, 307, 308], "default": 302});
    let redirect = object(
        &[],
        [
            ("scheme", one_of(&["http", "https"])),
            ("hostname", hostname()),
            ("path", path()),
            ("port", number(1, 65535)),
            ("statusCode", code),
        ],
    );
    let mut target = backend(&[]);
    if let Some(properties) = target["properties"].as_object_mut() {
        properties.remove("weight");
    }
    let fraction = object(
        &["numerator"],
        [("numerator", number(0, i32::MAX as u32)), ("denominator", or(number(1, i32::MAX as u32), json!(100)))],
    );
    let mirror = object(&["backendRef"], [("backendRef", target), ("percent", number(0, 100)), ("fraction", fraction)]);
    let words = |longest: u32, most: u32| {
        let mut schema = list(text(1, longest), most);
        schema["x-kubernetes-list-type"] = json!("set");
        schema
    };
    let cors = object(
        &[],
        [
            ("allowOrigins", words(253, 64)),
            ("allowCredentials", json!({"type": "boolean"})),
            ("allowMethods", words(16, 9)),
            ("allowHeaders", words(256, 64)),
            ("exposeHeaders", words(256, 64)),
            ("maxAge", or(number(1, i32::MAX as u32), json!(5))),
        ],
    );
    object(
        &["type"],
        [
            ("type", one_of(kinds)),
            ("requestHeaderModifier", headers()),
            ("responseHeaderModifier", headers()),
            ("requestRedirect", redirect),
            ("urlRewrite", object(&[], [("hostname", hostname()), ("path", path())])),
            ("requestMirror", mirror),
            ("cors", cors),
            ("extensionRef", reference(&[], &["group", "kind", "name"])),
        ],
    )
}

fn http_rule() -> Value {
    const FILTERS: [&str; 7] = [
        "CORS",
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestMirror",
        "RequestRedirect",
        "URLRewrite",
        "ExtensionRef",
    ];
    let path = object(
        &[],
        [
            ("type", or(one_of(&["Exact", "PathPrefix", "RegularExpression"]), json!("PathPrefix"))),
            ("value", or(text(0, 1024), json!("/"))),
        ],
    );
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let everything = json!({"type": "PathPrefix", "value": "/"});
    let matcher = object(
        &[],
        [
            ("path", or(path, everything.clone())),
            ("headers", named_match()),
            ("queryParams", named_match()),
            ("method", one_of(&methods)),
        ],
    );
    let duration = || json!({"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"});
    let timeouts = object(&[], [("request", duration()), ("backendRequest", duration())]);
    object(
        &[],
        [
            ("name", text(1, 253)),
            ("matches", or(list(matcher, 64), json!([{"path": everything}]))),
            ("filters", list(filter(&FILTERS), 16)),
            ("backendRefs", list(backend(&[("filters", list(filter(&FILTERS), 16))]), 16)),
            ("timeouts", timeouts),
        ],
    )
}

fn grpc_rule() -> Value {
    const FILTERS: [&str; 4] = ["RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef"];
    let method = object(
        &[],
        [
            ("type", or(one_of(&["Exact", "RegularExpression"]), json!("Exact"))),
            ("service", text(0, 1024)),
            ("method", text(0, 1024)),
        ],
    );
    let matcher = object(&[], [("method", method), ("headers", named_match())]);
    object(
        &[],
        [
            ("name", text(1, 253)),
            ("matches", list(matcher, 64)),
            ("filters", list(filter(&FILTERS), 16)),
            ("backendRefs", list(backend(&[("filters", list(filter(&FILTERS), 16))]), 16)),
        ],
    )
}
