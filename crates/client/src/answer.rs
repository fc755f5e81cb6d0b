//! Reading answers, whatever was asked. What passes through the API server may come from a server of others, which says as much and
//! as slowly as it likes.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::BodyExt;

use crate::room::Room;
use crate::{Body, BoxError};

/// Of an answer that is about one thing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of a list: a server that sends nothing for so long has gone.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// No server that we know has larger objects, or more to say of a failure.
pub(crate) const MAX_OBJECT: usize = 64 << 20;
const MAX_FAILURE: usize = 4 << 20;

/// An answer about one object, or some other text.
pub(crate) async fn read_one(body: Body) -> Result<Bytes, BoxError> {
    tokio::time::timeout(ANSWER_TIMEOUT, read(body, MAX_OBJECT, &mut Room::default())).await?
}

/// What is said of a failure.
pub(crate) async fn read_failure(body: Body) -> Result<Bytes, BoxError> {
    tokio::time::timeout(ANSWER_TIMEOUT, read(body, MAX_FAILURE, &mut Room::default())).await?
}

/// A list, which is as long as there are objects; of an aggregated API server, as long as there is room for it.
pub(crate) async fn read_list(body: Body, room: &mut Room) -> Result<Bytes, BoxError> {
    match room.is_bounded() {
        // Upstream's API server passes on no more of an answer after this time.
        true => tokio::time::timeout(ANSWER_TIMEOUT, read(body, usize::MAX, room)).await?,
        false => read(body, usize::MAX, room).await,
    }
}

/// Reads an answer that nobody needs to its end. Dropped before it, its stream is reset under the server, and a connection
/// with many of those is given up.
pub(crate) async fn read_out(response: Response<Body>) {
    let mut body = response.into_body();
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    // One that does not end is dropped all the same.
    let _is_late = tokio::time::timeout(ANSWER_TIMEOUT, reading).await;
}

/// For who knows best how long an answer may be.
pub fn read_at_most(body: Body, most: usize) -> BoxFuture<'static, Result<Bytes, BoxError>> {
    Box::pin(async move { read(body, most, &mut Room::default()).await })
}

/// Nearly every answer is one piece, which is not copied.
async fn read(mut body: Body, most: usize, room: &mut Room) -> Result<Bytes, BoxError> {
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = tokio::time::timeout(PIECE_TIMEOUT, body.frame()).await? {
        let Ok(piece) = frame?.into_data() else { continue };
        if first.len().max(all.len()).saturating_add(piece.len()) > most {
            return Err(too_long(most));
        }
        room.take(piece.len())?;
        if first.is_empty() {
            first = piece;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&piece);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

pub(crate) fn too_long(most: usize) -> BoxError {
    format!("more than {most} bytes").into()
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn pieces(pieces: &[&'static str]) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, BoxError>> + use<> {
        let frame = |piece: &&'static str| Ok(Frame::data(Bytes::from_static(piece.as_bytes())));
        let pieces: Vec<_> = pieces.iter().map(frame).collect();
        stream::iter(pieces)
    }

    #[tokio::test]
    async fn pieces_are_put_together() {
        for (sent, expected) in [(&[][..], ""), (&["a"], "a"), (&["", "a", "", "bc", "d"], "abcd")] {
            let body = || StreamBody::new(pieces(sent)).boxed_unsync();
            assert_eq!(read_one(body()).await.unwrap(), expected.as_bytes(), "{sent:?}");
            assert_eq!(read_list(body(), &mut Room::default()).await.unwrap(), expected.as_bytes(), "{sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_end_is_given_up() {
        let silent = || StreamBody::new(pieces(&["{"]).chain(stream::pending())).boxed_unsync();
        assert!(read_one(silent()).await.is_err() && read_failure(silent()).await.is_err());
        assert!(read_list(silent(), &mut Room::default()).await.is_err());
        read_out(Response::new(silent())).await;
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(b" "))), ()))
        });
        assert!(read_one(StreamBody::new(slow).boxed_unsync()).await.is_err());
    }

    #[tokio::test]
    async fn an_answer_without_end_is_cut_off() {
        let endless = || {
            let piece = Bytes::from(vec![b' '; 1 << 20]);
            let pieces = stream::repeat_with(move || Ok::<_, BoxError>(Frame::data(piece.clone())));
            StreamBody::new(pieces).boxed_unsync()
        };
        for error in [read_one(endless()).await.unwrap_err(), read_failure(endless()).await.unwrap_err()] {
            assert!(error.to_string().starts_with("more than "), "{error}");
        }
    }
}
