//! What subresources do.

/// What a subresource does. The verbs match on this, so a new one must choose its behaviour everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Status,
    Scale,
    Binding,
    Eviction,
    Token,
    Approval,
    Finalize,
    EphemeralContainers,
    Resize,
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
}
