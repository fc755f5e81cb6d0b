//! What a mode of the proxy must be able to do: turn ports into fragments, and fragments into what the kernel is told.

use std::collections::HashMap;

use crate::error::Result;
use crate::services::ServicePort;
use crate::settings::Settings;

/// The state of the kernel as far as we know it, and the way to change it.
pub(crate) trait Backend: Sized + Send {
    /// What one Service contributes.
    type Fragment: PartialEq + Send;
    type Transaction: Send + Sync;

    fn fragment(ports: &[ServicePort], settings: &Settings) -> Self::Fragment;

    /// The transaction that builds everything from whatever is there.
    fn from_scratch(
        settings: &Settings,
        services: HashMap<String, Self::Fragment>,
    ) -> impl Future<Output = Result<(Self, Self::Transaction)>> + Send;

    /// What a Service contributes now.
    fn present(&self, service: &str) -> Option<&Self::Fragment>;

    /// How many services contribute.
    fn len(&self) -> usize;

    /// Takes over new contributions (`None`: the service is gone) and returns the transaction for them.
    fn update(&mut self, services: Vec<(String, Option<Self::Fragment>)>) -> Self::Transaction;

    /// Carries a transaction out: all of it, or nothing.
    fn apply(transaction: &Self::Transaction) -> impl Future<Output = Result<()>> + Send;

    fn is_empty(transaction: &Self::Transaction) -> bool;

    /// Whether nobody has removed what was programmed, as far as that is seen at once.
    fn is_there() -> impl Future<Output = bool> + Send;
}
