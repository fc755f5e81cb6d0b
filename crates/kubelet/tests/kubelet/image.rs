//! The one image tests run: Debian's busybox, with a page to serve.

use serde_json::json;
use testkit::images::{Compression, Image, Layer, busybox_layer};

/// As pods name it.
pub(crate) const NAME: &str = "localhost/busybox:1";

pub(crate) fn busybox(command: &[&str]) -> Image {
    let mut extra = Layer::new();
    extra.directory("www", 0o755).directory("data", 0o755).file("www/index.html", 0o644, b"hello from busybox\n");
    let config = json!({"Cmd": command, "Env": ["PATH=/bin", "FROM_IMAGE=yes"]});
    Image::new(vec![(busybox_layer(), Compression::None), (extra.finish(), Compression::None)], config)
}
