//! The kinds of the Gateway API, with the fields that decide something.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

/// Declares kinds with metadata, a spec and a status.
macro_rules! kinds {
    ($($kind:ident { $spec:ty, $status:ty } $plural:literal,)*) => {$(
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $kind {
            #[serde(deserialize_with = "api::read::by_table")]
            pub metadata: ObjectMeta,
            pub spec: $spec,
            pub status: $status,
        }

        impl $kind {
            pub const PLURAL: &'static str = $plural;
        }

        api::read_by_serde!($kind);

        impl client::Object for $kind {
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
            fn kind() -> &'static str {
                stringify!($kind)
            }
        }
    )*};
}

kinds! {
    GatewayClass { GatewayClassSpec, ClassStatus } "gatewayclasses",
    Gateway { GatewaySpec, GatewayStatus } "gateways",
    HTTPRoute { HttpRouteSpec, RouteStatus } "httproutes",
    GRPCRoute { GrpcRouteSpec, RouteStatus } "grpcroutes",
    TLSRoute { TlsRouteSpec, RouteStatus } "tlsroutes",
    ReferenceGrant { ReferenceGrantSpec, Nothing } "referencegrants",
    BackendTLSPolicy { BackendTlsPolicySpec, PolicyStatus } "backendtlspolicies",
}

/// Declares parts of them: all fields may be absent.
macro_rules! parts {
    ($($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {$(
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$attribute])* #[serde(skip_serializing_if = "is_default")] pub $field: $type,)*
        }
    )*};
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

parts! {
    Nothing {}
    GatewayClassSpec {
        controller_name: String,
        parameters_ref: Option<serde_json::Value>,
    }
    ClassStatus {
        conditions: Vec<Condition>,
        // Objects with a name; older versions of the API have the names themselves.
        supported_features: Vec<serde_json::Value>,
    }
    GatewaySpec {
        gateway_class_name: String,
        listeners: Vec<ListenerSpec>,
        addresses: Vec<GatewayAddress>,
        infrastructure: Option<Infrastructure>,
        tls: Option<GatewayTls>,
    }
    Infrastructure {
        parameters_ref: Option<serde_json::Value>,
    }
    GatewayTls {
        frontend: Option<serde_json::Value>,
        backend: Option<serde_json::Value>,
    }
    GatewayAddress {
        r#type: Option<String>,
        value: String,
    }
    ListenerSpec {
        name: String,
        hostname: Option<String>,
        port: u16,
        protocol: String,
        tls: Option<ListenerTls>,
        allowed_routes: AllowedRoutes,
    }
    ListenerTls {
        mode: Option<String>,
        certificate_refs: Vec<Reference>,
        frontend_validation: Option<serde_json::Value>,
    }
    AllowedRoutes {
        namespaces: RouteNamespaces,
        kinds: Vec<RouteKind>,
    }
    RouteNamespaces {
        from: Option<String>,
        selector: Option<LabelSelector>,
    }
    RouteKind {
        group: Option<String>,
        kind: String,
    }
    GatewayStatus {
        addresses: Vec<GatewayAddress>,
        conditions: Vec<Condition>,
        listeners: Vec<ListenerStatus>,
    }
    RouteStatus {
        parents: Vec<RouteParentStatus>,
    }
    RouteParentStatus {
        parent_ref: ParentRef,
        controller_name: String,
        conditions: Vec<Condition>,
    }
    ParentRef {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
        section_name: Option<String>,
        port: Option<u16>,
    }
    Reference {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
    }
    BackendRef {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
        port: Option<i32>,
        weight: Option<u32>,
        filters: Vec<RouteFilter>,
    }
    HttpRouteSpec {
        parent_refs: Vec<ParentRef>,
        hostnames: Vec<String>,
        rules: Vec<HttpRule>,
    }
    HttpRule {
        matches: Vec<HttpMatch>,
        filters: Vec<RouteFilter>,
        backend_refs: Vec<BackendRef>,
        timeouts: RuleTimeouts,
        retry: Option<serde_json::Value>,
        session_persistence: Option<serde_json::Value>,
    }
    RuleTimeouts {
        request: Option<String>,
        backend_request: Option<String>,
    }
    HttpMatch {
        path: Option<ValueMatch>,
        headers: Vec<NamedMatch>,
        query_params: Vec<NamedMatch>,
        method: Option<String>,
    }
    ValueMatch {
        r#type: Option<String>,
        value: Option<String>,
    }
    NamedMatch {
        r#type: Option<String>,
        name: String,
        value: String,
    }
    RouteFilter {
        r#type: String,
        request_header_modifier: Option<HeaderModifier>,
        response_header_modifier: Option<HeaderModifier>,
        request_redirect: Option<RequestRedirect>,
        url_rewrite: Option<UrlRewrite>,
        request_mirror: Option<RequestMirror>,
        cors: Option<CorsFilter>,
    }
    CorsFilter {
        allow_origins: Vec<String>,
        allow_credentials: Option<bool>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<u32>,
    }
    HeaderModifier {
        set: Vec<NamedValue>,
        add: Vec<NamedValue>,
        remove: Vec<String>,
    }
    NamedValue {
        name: String,
        value: String,
    }
    RequestRedirect {
        scheme: Option<String>,
        hostname: Option<String>,
        path: Option<PathModifier>,
        port: Option<u16>,
        status_code: Option<u16>,
    }
    PathModifier {
        r#type: String,
        replace_full_path: Option<String>,
        replace_prefix_match: Option<String>,
    }
    UrlRewrite {
        hostname: Option<String>,
        path: Option<PathModifier>,
    }
    RequestMirror {
        backend_ref: BackendRef,
        percent: Option<u32>,
        fraction: Option<Fraction>,
    }
    Fraction {
        numerator: u32,
        denominator: Option<u32>,
    }
    GrpcRouteSpec {
        parent_refs: Vec<ParentRef>,
        hostnames: Vec<String>,
        rules: Vec<GrpcRule>,
    }
    GrpcRule {
        matches: Vec<GrpcMatch>,
        filters: Vec<RouteFilter>,
        backend_refs: Vec<BackendRef>,
        session_persistence: Option<serde_json::Value>,
    }
    GrpcMatch {
        method: Option<GrpcMethod>,
        headers: Vec<NamedMatch>,
    }
    GrpcMethod {
        r#type: Option<String>,
        service: Option<String>,
        method: Option<String>,
    }
    TlsRouteSpec {
        parent_refs: Vec<ParentRef>,
        hostnames: Vec<String>,
        rules: Vec<TlsRule>,
    }
    TlsRule {
        backend_refs: Vec<BackendRef>,
    }
    ReferenceGrantSpec {
        from: Vec<GrantFrom>,
        to: Vec<GrantTo>,
    }
    GrantFrom {
        group: String,
        kind: String,
        namespace: String,
    }
    BackendTlsPolicySpec {
        target_refs: Vec<PolicyTarget>,
        validation: BackendValidation,
    }
    PolicyTarget {
        group: String,
        kind: String,
        name: String,
        section_name: Option<String>,
    }
    BackendValidation {
        ca_certificate_refs: Vec<Reference>,
        #[serde(rename = "wellKnownCACertificates")] well_known_ca_certificates: Option<String>,
        hostname: String,
        subject_alt_names: Vec<SubjectAltName>,
    }
    SubjectAltName {
        r#type: String,
        hostname: Option<String>,
        uri: Option<String>,
    }
    PolicyStatus {
        ancestors: Vec<AncestorStatus>,
    }
    AncestorStatus {
        ancestor_ref: ParentRef,
        controller_name: String,
        conditions: Vec<Condition>,
    }
    GrantTo {
        group: String,
        kind: String,
        name: Option<String>,
    }
}

/// Counts and lists stand in it even when there is nothing in them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerStatus {
    pub name: String,
    pub supported_kinds: Vec<RouteKind>,
    pub attached_routes: u32,
    pub conditions: Vec<Condition>,
}

/// Labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;
