//! What every answer needs, whatever was asked.

use http::Response;
use http_body_util::BodyExt;

use crate::Body;

/// Reads an answer that nobody needs to its end. Dropped before it, its stream is reset under the server, and a connection
/// with many of those is given up.
pub(crate) async fn read_out(response: Response<Body>) {
    let mut body = response.into_body();
    while let Some(Ok(_)) = body.frame().await {}
}
