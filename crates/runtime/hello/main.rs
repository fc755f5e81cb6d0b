//! The program of the image `cox.local/hello`: a web server that says which pod answered.
//!
//! `build.rs` compiles it into a few kilobytes that need nothing, no libc and no loader, so that a cluster has
//! something to run from its first minute, without a registry. Each request is answered by a process of its own: a slow
//! client delays nobody. Listens on `$PORT`, else on port 80, and ends on SIGTERM although it is PID 1.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "mov rdi, rsp", "and rsp, -16", "call {start}", start = sym start);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x0, sp", "bl {start}", start = sym start);

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const SOCKET: usize = 41;
    pub const BIND: usize = 49;
    pub const LISTEN: usize = 50;
    pub const SETSOCKOPT: usize = 54;
    pub const CLONE: usize = 56;
    pub const UNAME: usize = 63;
    pub const EXIT_GROUP: usize = 231;
    pub const PPOLL: usize = 271;
    pub const ACCEPT4: usize = 288;
    pub const SIGNALFD4: usize = 289;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PPOLL: usize = 73;
    pub const SIGNALFD4: usize = 74;
    pub const EXIT_GROUP: usize = 94;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const UNAME: usize = 160;
    pub const SOCKET: usize = 198;
    pub const BIND: usize = 200;
    pub const LISTEN: usize = 201;
    pub const SETSOCKOPT: usize = 208;
    pub const CLONE: usize = 220;
    pub const ACCEPT4: usize = 242;
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_STREAM: usize = 1;
const SOL_SOCKET: usize = 1;
const SO_REUSEADDR: usize = 2;
const SO_RCVTIMEO: usize = 20;
const SIGINT: usize = 2;
const SIGTERM: usize = 15;
const SIGCHLD: usize = 17;
const SIG_IGN: usize = 1;
const POLLIN: i16 = 1;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT_SECONDS: u64 = 5;

/// # Safety
/// Arguments must be what the kernel expects of that call; memory they point to must outlive it.
unsafe fn syscall(number: usize, arguments: [usize; 5]) -> isize {
    let result: isize;
    let [a, b, c, d, e] = arguments;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; rcx and r11 are what the instruction itself changes.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            out("rcx") _, out("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            options(nostack));
    }
    result
}

fn call(number: usize, arguments: [usize; 5]) -> isize {
    // SAFETY: every pointer given below is to a live value of the size the call expects.
    unsafe { syscall(number, arguments) }
}

fn exit(code: usize) -> ! {
    loop {
        call(number::EXIT_GROUP, [code, 0, 0, 0, 0]);
    }
}

fn fail(message: &str) -> ! {
    call(number::WRITE, [2, message.as_ptr() as usize, message.len(), 0, 0]);
    exit(1)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    exit(101)
}

/// The standard library's code names it for unwinding, which never happens here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// `stack` is what the kernel left there: the number of arguments, the arguments, a null, the environment, a null.
unsafe extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the layout is fixed by the ABI.
    let environment = unsafe { stack.add(1 + *stack + 1) } as *const *const u8;
    // SAFETY: as above.
    let port = unsafe { port_of(environment) }.unwrap_or(80);
    let listener = listen(port);
    let signals = signals();
    serve(listener, signals)
}

/// # Safety
/// `environment` is a list of C strings that ends with a null.
unsafe fn port_of(mut environment: *const *const u8) -> Option<u16> {
    const NAME: &[u8] = b"PORT=";
    // SAFETY: reads stop at the nulls that end the list and each string.
    unsafe {
        while !(*environment).is_null() {
            let text = *environment;
            if NAME.iter().enumerate().all(|(at, byte)| *text.add(at) == *byte) {
                let (mut digits, mut port) = (text.add(NAME.len()), 0_u32);
                while (*digits).is_ascii_digit() && port <= u32::from(u16::MAX) {
                    port = port * 10 + u32::from(*digits - b'0');
                    digits = digits.add(1);
                }
                return match u16::try_from(port) {
                    Ok(port) if port > 0 && *digits == 0 => Some(port),
                    _ => fail("hello: PORT is not a port\n"),
                };
            }
            environment = environment.add(1);
        }
    }
    None
}

/// On all addresses of both families; on IPv4 alone where the kernel has no IPv6.
fn listen(port: u16) -> usize {
    let mut address = [0_u8; 28];
    let (mut family, mut length) = (AF_INET6, 28);
    let mut socket = call(number::SOCKET, [family.into(), SOCK_STREAM, 0, 0, 0]);
    if socket < 0 {
        (family, length) = (AF_INET, 16);
        socket = call(number::SOCKET, [family.into(), SOCK_STREAM, 0, 0, 0]);
    }
    if socket < 0 {
        fail("hello: no socket\n");
    }
    let (socket, yes) = (socket as usize, 1_i32);
    address[..2].copy_from_slice(&family.to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    call(number::SETSOCKOPT, [socket, SOL_SOCKET, SO_REUSEADDR, &raw const yes as usize, 4]);
    if call(number::BIND, [socket, address.as_ptr() as usize, length, 0, 0]) < 0 {
        fail("hello: the port cannot be used\n");
    }
    if call(number::LISTEN, [socket, 128, 0, 0, 0]) < 0 {
        fail("hello: cannot listen\n");
    }
    socket
}

/// A descriptor that becomes readable when this process should end. Children are reaped by the kernel.
fn signals() -> usize {
    let ignore = [SIG_IGN, 0, 0, 0];
    call(number::RT_SIGACTION, [SIGCHLD, ignore.as_ptr() as usize, 0, 8, 0]);
    let mask: u64 = 1 << (SIGTERM - 1) | 1 << (SIGINT - 1);
    call(number::RT_SIGPROCMASK, [0, &raw const mask as usize, 0, 8, 0]);
    let signals = call(number::SIGNALFD4, [usize::MAX, &raw const mask as usize, 8, 0, 0]);
    if signals < 0 {
        fail("hello: no signal descriptor\n");
    }
    signals as usize
}

#[repr(C)]
struct Poll {
    descriptor: i32,
    events: i16,
    happened: i16,
}

fn serve(listener: usize, signals: usize) -> ! {
    loop {
        let wait = |descriptor: usize| Poll { descriptor: descriptor as i32, events: POLLIN, happened: 0 };
        let mut polls = [wait(listener), wait(signals)];
        call(number::PPOLL, [polls.as_mut_ptr() as usize, polls.len(), 0, 0, 8]);
        if polls[1].happened != 0 {
            exit(0);
        }
        if polls[0].happened == 0 {
            continue;
        }
        let client = call(number::ACCEPT4, [listener, 0, 0, 0, 0]);
        if client < 0 {
            continue;
        }
        let client = client as usize;
        if call(number::CLONE, [SIGCHLD, 0, 0, 0, 0]) == 0 {
            answer(client);
            exit(0);
        }
        call(number::CLOSE, [client, 0, 0, 0, 0]);
    }
}

fn answer(client: usize) {
    let timeout = [REQUEST_TIMEOUT_SECONDS, 0];
    call(number::SETSOCKOPT, [client, SOL_SOCKET, SO_RCVTIMEO, timeout.as_ptr() as usize, 16]);
    let mut request = [0_u8; 4096];
    let mut length = 0;
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        let Some(room) = request.get_mut(length..).filter(|room| !room.is_empty()) else { return };
        let n = call(number::READ, [client, room.as_mut_ptr() as usize, room.len(), 0, 0]);
        if n <= 0 {
            return;
        }
        length += n as usize;
    }
    // Six fields of 65 bytes; the second is the host's name, which is the pod's.
    let mut names = [0_u8; 6 * 65];
    call(number::UNAME, [names.as_mut_ptr() as usize, 0, 0, 0, 0]);
    let name = names[65..130].split(|byte| *byte == 0).next().unwrap_or_default();
    let mut text = Text { bytes: [0; 512], length: 0 };
    text.add(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: ");
    text.add_number(b"Hello from ".len() + name.len() + 1);
    text.add(b"\r\n\r\n");
    if !request.starts_with(b"HEAD ") {
        text.add(b"Hello from ");
        text.add(name);
        text.add(b"\n");
    }
    let mut rest = &text.bytes[..text.length];
    while !rest.is_empty() {
        let n = call(number::WRITE, [client, rest.as_ptr() as usize, rest.len(), 0, 0]);
        if n <= 0 {
            return;
        }
        rest = rest.get(n as usize..).unwrap_or_default();
    }
}

/// A short text, cut where it would not fit.
struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl Text {
    fn add(&mut self, more: &[u8]) {
        for byte in more {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }

    fn add_number(&mut self, number: usize) {
        if number >= 10 {
            self.add_number(number / 10);
        }
        self.add(&[b'0' + (number % 10) as u8]);
    }
}

/// What the compiler calls to copy, fill and compare; volatile, or it would turn the loops into calls of themselves.
mod memory {
    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, length: usize) -> *mut u8 {
        for at in 0..length {
            // SAFETY: the caller's promise.
            unsafe { target.add(at).write_volatile(source.add(at).read_volatile()) };
        }
        target
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(target: *mut u8, byte: i32, length: usize) -> *mut u8 {
        for at in 0..length {
            // SAFETY: the caller's promise.
            unsafe { target.add(at).write_volatile(byte as u8) };
        }
        target
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
        for at in 0..length {
            // SAFETY: the caller's promise.
            let (l, r) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
            if l != r {
                return i32::from(l) - i32::from(r);
            }
        }
        0
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { memcmp(left, right, length) }
    }
}
