//! Whatever a client of a WebSocket sends, nobody gets more than was sent.
#![no_main]

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

static TOKIO: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| TOKIO.block_on(runtime::fuzz::websocket(data)));
