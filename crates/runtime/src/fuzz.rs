//! What images, registries, clients and files may bring, given to what reads it first. The targets in `fuzz/` run these
//! for hours, the tests here for a moment with inputs that somebody damaged.

use std::path::Path;

use crate::{image, seccomp, streaming, unpack};

/// A layer's tarball, in a directory that is empty.
pub fn layer(data: &[u8], directory: &Path) {
    unpack::fuzz_layer(data, directory);
}

/// What a registry says of who may ask it.
pub fn challenge(text: &str) {
    image::fuzz_challenge(text);
}

/// A file with a seccomp profile.
pub fn seccomp_profile(text: &str) {
    seccomp::fuzz_profile(text);
}

/// All that a client of a SPDY connection sends.
pub async fn spdy(data: &[u8]) {
    streaming::fuzz_spdy(data).await;
}

/// All that a client of a WebSocket sends before it leaves: nobody gets more than was sent.
pub async fn websocket(data: &[u8]) {
    use websocket::{Channels, Message, Piece, Reader, Received, Side};
    let (mut reader, mut channels) = (Reader::new(Side::Server, data), Channels::new(Side::Server, data));
    let mut length = 0;
    while let Ok(Some(message)) = reader.next().await {
        let (Message::Ping(data) | Message::Data(Piece { data, .. })) = message;
        length += data.len();
    }
    assert!(length <= data.len());
    let mut length = 0;
    while let Ok(Some(received)) = channels.next().await {
        let (Received::Ping(data) | Received::Data { data, .. }) = received;
        length += data.len();
    }
    assert!(length <= data.len());
}

#[cfg(test)]
mod tests {
    use testkit::mutate;

    use super::*;

    #[test]
    fn security_damaged_layers_leave_nothing_outside() {
        use tar::EntryType::{Directory, GNULongName, Link, Regular, Symlink, XHeader};
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, link, content) in [
            (Directory, "d", "", &b""[..]),
            (Regular, "d/f", "", b"abc"),
            (GNULongName, "long", "", b"../../x\0"),
            (Regular, "g", "", b"x"),
            (XHeader, "x", "", b"18 path=../../etc\n"),
            (Regular, ".wh.f", "", b""),
            (Symlink, "l", "../..", b""),
            (Regular, "l/blob", "", b"x"),
            (Link, "h", "d/f", b""),
            (Link, "i", "l/blob", b""),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_path(name).unwrap();
            header.set_link_name_literal(link).unwrap();
            header.set_size(content.len() as u64);
            header.set_mode(0o755);
            header.set_cksum();
            builder.append(&header, content).unwrap();
        }
        let good = builder.into_inner().unwrap();
        for input in mutate::inputs(&[&good], 300) {
            let directory = tempfile::tempdir().unwrap();
            layer(&input, directory.path());
        }
    }

    #[test]
    fn security_damaged_challenges_lead_no_secret_away() {
        let corpus = [
            "realm=\"https://a/token\",service=\"r, x\",scope=\"repository:a/b:pull\"",
            "realm=\"http://127.0.0.1:5000/token?x=y\"",
            "realm=x , error=\"",
            "=,=\"\"=",
        ];
        mutate::texts(&corpus, 20_000).iter().for_each(|text| challenge(text));
    }

    #[test]
    fn security_damaged_profiles_become_no_program_that_fails() {
        let corpus = [
            r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":1,"archMap":[{"architecture":"SCMP_ARCH_X86_64"}],"syscalls":[{"names":["read","write"],"action":"SCMP_ACT_ALLOW"},{"names":["clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"}],"excludes":{"caps":["CAP_SYS_ADMIN"]}}]}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"mount","action":"SCMP_ACT_KILL","args":[{"index":5,"value":18446744073709551615,"op":"SCMP_CMP_GE"}]}]}"#,
        ];
        mutate::texts(&corpus, 5_000).iter().for_each(|text| seccomp_profile(text));
    }

    #[tokio::test]
    async fn security_damaged_spdy_frames_do_no_harm() {
        let control = |kind: u8, body: &[u8]| [&[0x80, 3, 0, kind, 0, 0, 0, body.len() as u8], body].concat();
        let plain =
            [&1u32.to_be_bytes()[..], &10u32.to_be_bytes(), b"streamtype", &5u32.to_be_bytes(), b"error"].concat();
        let length = plain.len() as u16;
        let block =
            [&[0x78, 0xbb, 0, 0, 0, 0, 0][..], &length.to_le_bytes(), &(!length).to_le_bytes(), &plain].concat();
        let opening = control(1, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], &block[..]].concat());
        let data = [&[0, 0, 0, 1, 0, 0, 0, 5][..], b"hello", &[0, 0, 0, 1, 1, 0, 0, 0]].concat();
        let session = [opening, data].concat();
        let other = [control(6, &[0, 0, 0, 7]), control(3, &[0, 0, 0, 1, 0, 0, 0, 5]), control(8, &[0; 12])].concat();
        for input in mutate::inputs(&[&session, &other], 3_000) {
            spdy(&input).await;
        }
    }

    #[tokio::test]
    async fn security_damaged_websocket_frames_do_no_harm() {
        let mut bytes = vec![0x02, 0x83, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3];
        bytes.extend([0x80, 0x81, 0, 0, 0, 0, b'd', 0x89, 0x80, 0, 0, 0, 0, 0x88, 0x80, 0, 0, 0, 0]);
        let long = [&[0x82, 0xfe, 0x01, 0x00, 0, 0, 0, 0][..], &[7; 256]].concat();
        let longest = [&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0][..], &[7; 256]].concat();
        for input in mutate::inputs(&[&bytes, &long, &longest], 5_000) {
            websocket(&input).await;
        }
    }
}
