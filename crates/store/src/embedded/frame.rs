//! Frames: the unit of writing and of checking. One group commit is one frame.
//!
//! A frame is written only after the one before it is on disk, so a crash can leave at most one
//! unfinished frame, at the end of the last log file: a *torn tail*, which was never acknowledged and
//! is cut. Anything else that does not check out was acknowledged once: damage, which is reported with its place.
//!
//! What tells them apart: a torn frame is short, or a whole disk sector of it was never written and reads
//! as zeros (a frame neither starts nor ends with a zero byte). And nothing valid follows it: the check
//! on a header covers its own offset, so bytes of a stored value cannot pass for a frame.

use crate::{Result, StoreError};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) const VERSION: u32 = 1;
pub(super) const FILE_HEADER: usize = 32;
pub(super) const LOG_MAGIC: [u8; 8] = *b"COXSTLOG";
pub(super) const SNAPSHOT_MAGIC: [u8; 8] = *b"COXSTSNP";

pub(super) const FRAME_HEADER: usize = 24;
const FRAME_MAGIC: [u8; 4] = *b"CXFR";
/// Ends every frame, so that an unwritten last sector cannot look written.
const TRAILER: u8 = 0x5a;
pub(super) const TRAILER_LEN: u64 = 1;
const SECTOR: u64 = 512;
/// Larger than any batch; a longer length is damage.
const MAX_PAYLOAD: u32 = 1 << 30;

/// The first bytes of every file of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileHeader {
    /// The same in all files of one store.
    pub(super) store_id: u64,
    /// Of a log: its first frame's number. Of a snapshot: the first frame's that it does not contain.
    pub(super) sequence: u64,
}

impl FileHeader {
    pub(super) fn encode(&self, magic: [u8; 8]) -> [u8; FILE_HEADER] {
        let mut out = [0; FILE_HEADER];
        out[..8].copy_from_slice(&magic);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..20].copy_from_slice(&self.store_id.to_le_bytes());
        out[20..28].copy_from_slice(&self.sequence.to_le_bytes());
        let crc = crc32fast::hash(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(path: &Path, bytes: &[u8; FILE_HEADER], magic: [u8; 8]) -> Result<FileHeader> {
        if bytes[..8] != magic {
            return Err(StoreError::Foreign { file: path.into() });
        }
        // The version comes before the checksum: a later format may check differently.
        let found = le_u32(&bytes[8..12]);
        let crc_is_right = crc32fast::hash(&bytes[..28]) == le_u32(&bytes[28..32]);
        if found > VERSION && (crc_is_right || found < 1000) {
            return Err(StoreError::NewerFormat { file: path.into(), found, supported: VERSION });
        }
        if !crc_is_right || found == 0 {
            return Err(damaged(path, 0, "the file header does not match its checksum"));
        }
        Ok(FileHeader { store_id: le_u64(&bytes[12..20]), sequence: le_u64(&bytes[20..28]) })
    }
}

/// Completes a frame: `frame` is [`FRAME_HEADER`] unused bytes and the payload.
pub(super) fn seal(frame: &mut Vec<u8>, store_id: u64, offset: u64, sequence: u64) {
    frame.push(TRAILER);
    let (header, rest) = frame.split_at_mut(FRAME_HEADER);
    let payload_len = (rest.len() - 1) as u32;
    header[..4].copy_from_slice(&FRAME_MAGIC);
    header[4..8].copy_from_slice(&payload_len.to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..20].copy_from_slice(&crc32fast::hash(rest).to_le_bytes());
    let crc = header_crc(header, store_id, offset);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(header: &[u8], store_id: u64, offset: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&store_id.to_le_bytes());
    crc.update(&offset.to_le_bytes());
    crc.update(&header[..20]);
    crc.finalize()
}

/// Reads a file's frames in order.
pub(super) struct FrameReader {
    pub(super) path: PathBuf,
    pub(super) header: FileHeader,
    /// Of the next frame; at the end, where a writer goes on.
    pub(super) offset: u64,
    file: BufReader<File>,
    len: u64,
    /// What was read last: a header, and the payload with its trailer.
    frame_header: [u8; FRAME_HEADER],
    buffer: Vec<u8>,
}

/// What stands at a frame's place.
enum Found {
    Frame { sequence: u64 },
    End,
    Torn,
    Damaged { reason: &'static str },
}

pub(super) enum Next<'a> {
    Frame {
        sequence: u64,
        offset: u64,
        payload: &'a [u8],
    },
    End,
    /// The bytes from `offset` on were never acknowledged (if this is the last file of the log).
    Torn {
        offset: u64,
    },
    Damaged {
        offset: u64,
        reason: String,
    },
}

impl FrameReader {
    pub(super) fn open(path: &Path, magic: [u8; 8]) -> Result<FrameReader> {
        let io = |error: std::io::Error| StoreError::io(path, &error);
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(StoreError::Foreign { file: path.into() });
        }
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; FILE_HEADER];
        if metadata.len() < FILE_HEADER as u64 {
            // Files get their name only once their header is on disk, so this is no torn write.
            let mut start = Vec::new();
            file.read_to_end(&mut start).map_err(io)?;
            let ours = !start.is_empty() && start.starts_with(&magic[..start.len().min(8)]);
            return Err(match ours {
                true => damaged(path, metadata.len(), "the file ends within its header"),
                false => StoreError::Foreign { file: path.into() },
            });
        }
        file.read_exact(&mut header).map_err(io)?;
        let header = FileHeader::decode(path, &header, magic)?;
        Ok(FrameReader {
            path: path.into(),
            header,
            offset: FILE_HEADER as u64,
            file,
            len: metadata.len(),
            frame_header: [0; FRAME_HEADER],
            buffer: Vec::new(),
        })
    }

    pub(super) fn next(&mut self) -> Result<Next<'_>> {
        let offset = self.offset;
        loop {
            let reason = match self.examine()? {
                Found::Frame { sequence } => {
                    self.offset += (FRAME_HEADER + self.buffer.len()) as u64;
                    let payload = &self.buffer[..self.buffer.len() - 1];
                    return Ok(Next::Frame { sequence, offset, payload });
                }
                Found::End => return Ok(Next::End),
                Found::Torn => return Ok(Next::Torn { offset }),
                Found::Damaged { reason } => reason.to_owned(),
            };
            let seen = [&self.frame_header[..], &self.buffer].concat();
            if self.read_at(offset, seen.len() as u64)? == seen {
                return Ok(Next::Damaged { offset, reason });
            }
            // The store is in use, and this was written while it was read.
            self.seek(offset)?;
        }
    }

    /// Reads what stands at the next frame's place into `frame_header` and, if that is valid, into `buffer`.
    fn examine(&mut self) -> Result<Found> {
        let offset = self.offset;
        self.buffer.clear();
        if offset == self.len {
            return Ok(Found::End);
        }
        let left = self.len - offset;
        let mut header = [0; FRAME_HEADER];
        if left < FRAME_HEADER as u64 || !self.read(&mut header)? {
            return Ok(Found::Torn);
        }
        self.frame_header = header;
        if !self.is_header(&header, offset) {
            return self.judge(offset, FRAME_HEADER as u64, "the frame header does not match its checksum");
        }
        let body = u64::from(le_u32(&header[4..8])) + 1;
        if left < FRAME_HEADER as u64 + body {
            return Ok(Found::Torn);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(body as usize, 0);
        let whole = self.read(&mut buffer)?;
        self.buffer = buffer;
        if !whole {
            return Ok(Found::Torn);
        }
        if crc32fast::hash(&self.buffer) != le_u32(&header[16..20]) {
            return self.judge(offset, FRAME_HEADER as u64 + body, "the frame does not match its checksum");
        }
        Ok(Found::Frame { sequence: le_u64(&header[8..16]) })
    }

    /// Goes on at the next valid frame after the damage, if there is one.
    pub(super) fn skip_damage(&mut self) -> Result<bool> {
        let Some(found) = self.find_frame(self.offset + 1)? else { return Ok(false) };
        self.offset = found;
        self.seek(found)?;
        Ok(true)
    }

    fn seek(&mut self, offset: u64) -> Result<()> {
        self.file.seek(SeekFrom::Start(offset)).map_err(|error| StoreError::io(&self.path, &error))?;
        Ok(())
    }

    /// False if the file has become shorter: its writer has cut what was prepared, or what it could not finish.
    fn read(&mut self, into: &mut [u8]) -> Result<bool> {
        match self.file.read_exact(into) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(StoreError::io(&self.path, &error)),
        }
    }

    fn is_header(&self, header: &[u8], offset: u64) -> bool {
        header[..4] == FRAME_MAGIC
            && le_u32(&header[4..8]) <= MAX_PAYLOAD
            && header_crc(header, self.header.store_id, offset) == le_u32(&header[20..24])
    }

    fn judge(&self, offset: u64, len: u64, reason: &'static str) -> Result<Found> {
        let torn = self.has_unwritten_sector(offset, len)? && self.find_frame(offset + 1)?.is_none();
        Ok(if torn { Found::Torn } else { Found::Damaged { reason } })
    }

    /// Whether the part of some sector that lies in the frame is all zeros.
    fn has_unwritten_sector(&self, offset: u64, len: u64) -> Result<bool> {
        let bytes = self.read_at(offset, len)?;
        let first = (SECTOR - offset % SECTOR).min(len) as usize;
        let (head, tail) = bytes.split_at(first.min(bytes.len()));
        Ok(std::iter::once(head).chain(tail.chunks(SECTOR as usize)).any(|part| part.iter().all(|byte| *byte == 0)))
    }

    fn find_frame(&self, from: u64) -> Result<Option<u64>> {
        let bytes = self.read_at(from, self.len.saturating_sub(from))?;
        let found = bytes
            .windows(FRAME_HEADER)
            .enumerate()
            .find(|(index, window)| window[0] == FRAME_MAGIC[0] && self.is_header(window, from + *index as u64));
        Ok(found.map(|(index, _)| from + index as u64))
    }

    /// As many bytes as there are.
    fn read_at(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.get_ref().read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StoreError::io(&self.path, &error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

pub(super) fn damaged(file: &Path, offset: u64, reason: impl Into<String>) -> StoreError {
    StoreError::Corrupt { file: file.into(), offset, reason: reason.into() }
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes: the caller's range is constant"))
}

fn le_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes: the caller's range is constant"))
}
