//! Generic netlink: parts of the kernel that are found by name instead of a number of their own.

use std::io;

use crate::Socket;
use crate::message::{Request, attributes, read_u16};

/// The controller, which knows the others' numbers.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Command, version, and two bytes that mean nothing.
pub(crate) const GENERIC_HEADER: usize = 4;

/// A request to a family.
pub(crate) fn request(family: u16, command: u8, version: u8) -> Request {
    Request::new(family, 0).body(&[command, version, 0, 0])
}

impl Socket {
    /// The number of a family, on a socket of generic netlink. `Ok(None)` when this kernel has no such family.
    pub(crate) fn family(&self, name: &str) -> io::Result<Option<u16>> {
        let asked = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1).attr_str(CTRL_ATTR_FAMILY_NAME, name);
        match self.get(asked) {
            Ok(answer) => match parse(&answer) {
                Some(family) => Ok(Some(family)),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the family {name} has no number"))),
            },
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn parse(answer: &[u8]) -> Option<u16> {
    let mut attributes = attributes(answer.get(GENERIC_HEADER..)?);
    attributes.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID).and_then(|(_, value)| read_u16(value, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_numbers() {
        let socket = Socket::open_generic().unwrap();
        assert_eq!(socket.family("nlctrl").unwrap(), Some(GENL_ID_CTRL));
        assert_eq!(socket.family("no-such-family").unwrap(), None);
    }
}
