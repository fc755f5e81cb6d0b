//! Traffic shaping: a token bucket on a link, and the redirection of what arrives on one link to another.

use std::io;

use crate::Socket;
use crate::message::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request, attributes, read_string, read_u32};

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;

const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const TC_INGRESS_HANDLE: u32 = 0xffff_0000;
const TC_ACT_STOLEN: u32 = 4;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_U32_TERMINAL: u8 = 1;
const ETH_P_ALL: u16 = 3;

/// A rate limit, with the latency that bounds how much waits in line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    pub bytes_per_second: u64,
    pub burst_bytes: u32,
    pub latency_ms: u32,
}

impl Socket {
    pub fn set_token_bucket(&self, index: u32, bucket: TokenBucket) -> io::Result<()> {
        // Ticks of the packet scheduler are 64 ns; the fixed fields are 32 bits and superseded by the wide ones.
        let rate = u32::try_from(bucket.bytes_per_second).unwrap_or(u32::MAX);
        let queued = bucket.bytes_per_second.saturating_mul(u64::from(bucket.latency_ms)) / 1000;
        let limit = u32::try_from(queued.saturating_add(u64::from(bucket.burst_bytes))).unwrap_or(u32::MAX);
        let nanos = u64::from(bucket.burst_bytes).saturating_mul(1_000_000_000) / bucket.bytes_per_second.max(1);
        let ticks = u32::try_from(nanos >> 6).unwrap_or(u32::MAX);
        let mut parms = [0; 36];
        parms[1] = 1; // link layer: Ethernet
        parms[8..12].copy_from_slice(&rate.to_ne_bytes());
        parms[24..28].copy_from_slice(&limit.to_ne_bytes());
        parms[28..32].copy_from_slice(&ticks.to_ne_bytes());
        let request = qdisc(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, index, 0x0001_0000, TC_H_ROOT)
            .attr_str(TCA_KIND, "tbf")
            .nest(TCA_OPTIONS, |options| {
                let options = options.attr(TCA_TBF_PARMS, &parms).attr_u32(TCA_TBF_BURST, bucket.burst_bytes);
                match bucket.bytes_per_second >= u64::from(u32::MAX) {
                    true => options.attr(TCA_TBF_RATE64, &bucket.bytes_per_second.to_ne_bytes()),
                    false => options,
                }
            });
        self.change(request)
    }

    /// Sends all that arrives on `from` through `to` first: shaping works on what leaves a link only.
    pub fn redirect_ingress(&self, from: u32, to: u32) -> io::Result<()> {
        let ingress = qdisc(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, from, TC_INGRESS_HANDLE, TC_H_INGRESS)
            .attr_str(TCA_KIND, "ingress");
        match self.change(ingress) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut mirred = [0; 28]; // tc_gen (20 bytes), eaction, ifindex
        mirred[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
        mirred[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
        mirred[24..28].copy_from_slice(&to.to_ne_bytes());
        let mut selector = [0; 32]; // one key that matches everything
        selector[0] = TC_U32_TERMINAL;
        selector[2] = 1;
        let mut body = tcmsg(from, 0, TC_INGRESS_HANDLE);
        let priority_and_protocol = 1u32 << 16 | u32::from(ETH_P_ALL.to_be());
        body[16..20].copy_from_slice(&priority_and_protocol.to_ne_bytes());
        let request = Request::new(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL)
            .body(&body)
            .attr_str(TCA_KIND, "u32")
            .nest(TCA_OPTIONS, |options| {
                options.attr(TCA_U32_SEL, &selector).nest(TCA_U32_ACT, |actions| {
                    actions.nest(1, |action| {
                        action
                            .attr_str(TCA_ACT_KIND, "mirred")
                            .nest(TCA_ACT_OPTIONS, |options| options.attr(TCA_MIRRED_PARMS, &mirred))
                    })
                })
            });
        self.change(request)
    }

    /// The kinds of queueing discipline on a link.
    pub fn qdiscs(&self, index: u32) -> io::Result<Vec<String>> {
        let answers = self.dump(|| Request::new(RTM_GETQDISC, 0).body(&[0; 20]))?;
        let of_link = answers.iter().filter(|answer| read_u32(answer, 4) == Some(index));
        Ok(of_link
            .filter_map(|answer| attributes(answer.get(20..)?).find(|(kind, _)| *kind == TCA_KIND))
            .map(|(_, value)| read_string(value))
            .collect())
    }
}

fn tcmsg(index: u32, handle: u32, parent: u32) -> [u8; 20] {
    let mut body = [0; 20];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&handle.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    body
}

fn qdisc(kind: u16, flags: u16, index: u32, handle: u32, parent: u32) -> Request {
    Request::new(kind, flags).body(&tcmsg(index, handle, parent))
}
