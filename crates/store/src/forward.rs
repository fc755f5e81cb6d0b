//! For stores that stand before another: what they leave to it is named, and written here once.

/// In an `impl Store`: passes the named calls on to the store in a field.
///
/// ```ignore
/// store::forward!(inner: watch, compact, snapshot);
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:ident: $($method:ident),+) => { $($crate::forward!(@$method $inner);)+ };
    (@range $inner:ident) => { $crate::forward!(@fn $inner range(range: $crate::Range) -> $crate::RangeResult); };
    (@txn $inner:ident) => { $crate::forward!(@fn $inner txn(txn: $crate::Txn) -> $crate::TxnResult); };
    (@watch $inner:ident) => { $crate::forward!(@fn $inner watch(watch: $crate::Watch) -> $crate::WatchStream); };
    (@request_progress $inner:ident) => { $crate::forward!(@fn $inner request_progress() -> ()); };
    (@compact $inner:ident) => { $crate::forward!(@fn $inner compact(revision: $crate::Revision) -> ()); };
    (@current_revision $inner:ident) => { $crate::forward!(@fn $inner current_revision() -> $crate::Revision); };
    (@grant_lease $inner:ident) => {
        $crate::forward!(@fn $inner grant_lease(ttl: std::time::Duration) -> $crate::LeaseId);
    };
    (@keep_alive $inner:ident) => {
        $crate::forward!(@fn $inner keep_alive(lease: $crate::LeaseId) -> std::time::Duration);
    };
    (@revoke_lease $inner:ident) => { $crate::forward!(@fn $inner revoke_lease(lease: $crate::LeaseId) -> ()); };
    (@snapshot $inner:ident) => { $crate::forward!(@fn $inner snapshot() -> $crate::SnapshotStream); };
    (@size $inner:ident) => { $crate::forward!(@fn $inner size() -> Option<u64>); };
    (@fn $inner:ident $method:ident($($argument:ident: $type:ty)?) -> $result:ty) => {
        fn $method(&self $(, $argument: $type)?) -> futures_util::future::BoxFuture<'_, $crate::Result<$result>> {
            self.$inner.$method($($argument)?)
        }
    };
}
