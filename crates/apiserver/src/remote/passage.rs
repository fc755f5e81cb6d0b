//! Passing requests on to servers behind this one: what of a request goes there, and what of the answer comes back.
//!
//! An upgrade (SPDY or WebSocket) is tunnelled byte for byte, but only after the other side answered 101: otherwise a
//! client could keep a raw connection to a server that never agreed to one (CVE-2018-1002105).

use futures_util::FutureExt;
use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::body::Body;

/// Headers that belong to one connection, or that tell the backend who the client was to us.
const DROPPED: [&str; 4] = ["authorization", "host", "content-length", "transfer-encoding"];

/// The headers of a request that is passed on.
pub(crate) fn headers(client: &HeaderMap, is_upgrade: bool) -> HeaderMap {
    let mut headers = client.clone();
    DROPPED.iter().for_each(|name| drop(headers.remove(*name)));
    if !is_upgrade {
        for name in [header::CONNECTION, header::UPGRADE] {
            headers.remove(name);
        }
    }
    headers
}

/// Takes out of an answer what belongs to the connection to the backend.
pub(crate) fn came_back(response: &mut Response<Incoming>) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    *response.version_mut() = http::Version::HTTP_11;
}

/// Joins the two connections of an upgrade that the backend agreed to, until either side ends or the server stops.
pub(crate) fn tunnel(mut response: Response<Incoming>, client: OnUpgrade, stop: CancellationToken) -> Response<Body> {
    let backend = hyper::upgrade::on(&mut response);
    tokio::spawn(FutureExt::boxed(async move {
        let Ok((client, backend)) = tokio::try_join!(client, backend) else { return };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut backend) => {}
            () = stop.cancelled() => {}
        }
    }));
    let mut answer = Response::new(crate::body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    answer
}
