//! The flags of every command.

use super::Flag;

pub(crate) const GLOBAL: &[Flag] = &[
    Flag::string("as", "User to impersonate."),
    Flag::array("as-group", "Group to impersonate; may be repeated."),
    Flag::string("as-uid", "UID to impersonate."),
    Flag::array("as-user-extra", "Extra field (key=value) of the impersonated user; may be repeated."),
    Flag::string("cache-dir", "Directory of the discovery cache; $HOME/.kube/cache unless given."),
    Flag::string("certificate-authority", "File with the certificate authority that signed the server's certificate."),
    Flag::string("client-certificate", "Client certificate file for TLS."),
    Flag::string("client-key", "Client key file for TLS."),
    Flag::string("cluster", "Kubeconfig cluster to use."),
    Flag::string("context", "Kubeconfig context to use."),
    Flag::bool("disable-compression", "Ask for uncompressed answers."),
    Flag::bool(
        "insecure-skip-tls-verify",
        "Do not check the server's certificate. The connection is then open to attack.",
    ),
    Flag::string("kubeconfig", "Kubeconfig file to use."),
    Flag::string("kuberc", "Preferences file to use; $HOME/.kube/kuberc unless given."),
    Flag::duration("log-flush-frequency", "5s", "Longest time between log flushes."),
    Flag::bool("match-server-version", "Require the server to have this client's version."),
    Flag::string("namespace", "Namespace of this request.").short('n'),
    Flag::string("password", "Password for basic authentication."),
    Flag::string("profile", "Profile to capture.").default("none"),
    Flag::string("profile-output", "File of the profile.").default("profile.pprof"),
    Flag::string("request-timeout", "How long one request may take (1s, 2m, 3h); zero means no limit.").default("0"),
    Flag::string("server", "Address and port of the API server.").short('s'),
    Flag::string("tls-server-name", "Name to expect in the server's certificate."),
    Flag::string("token", "Bearer token."),
    Flag::string("user", "Kubeconfig user to use."),
    Flag::string("username", "Name for basic authentication."),
    Flag::int("v", "0", "Verbosity of the trace on stderr, 0 to 10.").short('v'),
    Flag::string("vmodule", "Verbosity per module."),
    Flag::bool("warnings-as-errors", "End with an error when the server sent warnings."),
];
