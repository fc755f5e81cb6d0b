//! An S3 endpoint for tests, in Python, which shares no code with ours: it works out the signature of every request by itself
//! and refuses whoever signs otherwise. It has objects in memory, uploads in parts, and lists in pages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub const ACCESS_KEY: &str = "AKIATESTKITEXAMPLE";
pub const SECRET_KEY: &str = "testkit/secret+key/of/forty/characters/x";
pub const BUCKET: &str = "copies";
pub const REGION: &str = "eu-test-7";

const SERVER: &str = r#"
import hashlib, hmac, http.server, ssl, sys, urllib.parse
access, secret, bucket, region, page = sys.argv[1:6]
objects, uploads = {}, {}

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers={}):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code, message=""):
        self.answer(status, ("<Error><Code>%s</Code><Message>%s</Message></Error>" % (code, message)).encode())

    def is_signed(self, payload):
        said = self.headers.get("Authorization", "")
        if not said.startswith("AWS4-HMAC-SHA256 "):
            return False
        fields = dict(part.strip().split("=", 1) for part in said[17:].split(","))
        key, day, where, service, end = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        if (key, where, service, end) != (access, region, "s3", "aws4_request"):
            return False
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
            return False
        digest = hashlib.sha256(payload).hexdigest()
        if self.headers["x-amz-content-sha256"] != digest or not self.headers["x-amz-date"].startswith(day):
            return False
        path, _, query = self.path.partition("?")
        pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        quote = lambda text: urllib.parse.quote(text, safe="-_.~")
        query = "&".join("%s=%s" % (quote(n), quote(v)) for n, v in pairs)
        path = urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~")
        headers = "".join("%s:%s\n" % (n, self.headers[n].strip()) for n in names)
        request = "\n".join([self.command, path, query, headers, ";".join(names), digest])
        scope = "/".join([day, region, "s3", "aws4_request"])
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, hashlib.sha256(request.encode()).hexdigest()])
        mac = ("AWS4" + secret).encode()
        for part in [day, region, "s3", "aws4_request"]:
            mac = hmac.new(mac, part.encode(), hashlib.sha256).digest()
        return hmac.new(mac, text.encode(), hashlib.sha256).hexdigest() == fields["Signature"]

    def handle_request(self):
        payload = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.is_signed(payload):
            return self.refuse(403, "SignatureDoesNotMatch", "the signature is another")
        path, _, query = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        start = "/%s/" % bucket
        if not path.startswith(start):
            return self.refuse(404, "NoSuchBucket")
        key = urllib.parse.unquote(path[len(start):])
        tag = '"%s"' % hashlib.md5(payload).hexdigest()
        if self.command == "GET" and not key:
            names = sorted(name for name in objects if name.startswith(query["prefix"]) and name > query.get("continuation-token", ""))
            shown, rest = names[:int(page)], names[int(page):]
            more = "<NextContinuationToken>%s</NextContinuationToken>" % shown[-1].replace("&", "&amp;") if rest else ""
            keys = "".join("<Contents><Key>%s</Key></Contents>" % name.replace("&", "&amp;") for name in shown)
            return self.answer(200, ("<ListBucketResult>%s%s</ListBucketResult>" % (keys, more)).encode())
        if self.command == "GET" and key.endswith("cut-short"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(objects[key]) + 10))
            self.end_headers()
            self.wfile.write(objects[key])
            self.close_connection = True
            return
        if self.command == "GET":
            return self.answer(200, objects[key]) if key in objects else self.refuse(404, "NoSuchKey")
        if self.command == "POST" and "uploads" in query:
            uploads[key + "-1"] = {}
            return self.answer(200, ("<X><UploadId>%s-1</UploadId></X>" % key.replace("&", "&amp;")).encode())
        if self.command == "PUT" and "uploadId" in query:
            if b"no part of this" in payload:
                return self.refuse(500, "InternalError")
            uploads[query["uploadId"]][int(query["partNumber"])] = (tag, payload)
            return self.answer(200, b"", {"ETag": tag})
        if self.command == "POST":
            parts = uploads.pop(query["uploadId"])
            if any(tag not in payload.decode() for tag, _ in parts.values()):
                return self.answer(200, b"<Error><Code>InvalidPart</Code></Error>")
            objects[key] = b"".join(parts[number][1] for number in sorted(parts))
            return self.answer(200, b"<CompleteMultipartUploadResult/>")
        if self.command == "PUT":
            objects[key] = payload
            return self.answer(200, b"", {"ETag": tag})
        if "uploadId" in query:
            uploads.pop(query["uploadId"])
        else:
            objects.pop(key, None)
        self.answer(204)

    do_GET = do_PUT = do_POST = do_DELETE = handle_request

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) > 6:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[6], sys.argv[7])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Ends with its value.
pub struct S3 {
    process: Child,
    pub port: u16,
}

impl S3 {
    /// With lists in pages of so many names; with a certificate and its key, by TLS.
    pub fn start(page: usize, certificate: Option<(&std::path::Path, &std::path::Path)>) -> S3 {
        let mut command = Command::new("python3");
        command.args(["-c", SERVER, ACCESS_KEY, SECRET_KEY, BUCKET, REGION, &page.to_string()]);
        if let Some((certificate, key)) = certificate {
            command.arg(certificate).arg(key);
        }
        let mut process = command.stdout(Stdio::piped()).spawn().expect("apt-get install python3");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("the server says its port");
        S3 { port: line.trim().parse().expect("a port"), process }
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}
