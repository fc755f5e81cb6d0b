//! Who records what follows from the watches of a connection.

use std::sync::Arc;

use tokio::task::JoinHandle;
use trace::Recorder;

pub(crate) struct Traced {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) actor: Arc<str>,
    /// Sends what is recorded to the server, as long as anybody has the connection.
    pub(crate) sender: Option<JoinHandle<()>>,
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(sender) = &self.sender {
            sender.abort();
        }
    }
}
