//! Slots into which moments are copied, by a signal handler or in an allocator.
//!
//! A slot is free, being written, or full. Whoever writes claims a free one and gives up if there is none; one thread reads
//! full ones and frees them. Nothing here waits.

#![allow(unsafe_code, reason = "a signal handler and the registers of a thread; every block states why it is sound")]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::cfi::REGISTERS;

/// Of the stack, from the stack pointer up.
const STACK: usize = 48 << 10;
const PAGE: usize = 4096;
const SLOTS: usize = 64;

const FREE: u8 = 0;
const WRITING: u8 = 1;
const FULL: u8 = 2;

/// What was copied of a thread.
pub(crate) struct Sample {
    pub(crate) instruction: u64,
    pub(crate) registers: [u64; REGISTERS],
    pub(crate) thread: i32,
    /// What the writer says besides.
    pub(crate) note: (usize, usize),
    stack: [u8; STACK],
    length: usize,
}

impl Sample {
    pub(crate) fn stack(&self) -> &[u8] {
        &self.stack[..self.length]
    }
}

struct Slot {
    state: AtomicU8,
    sample: UnsafeCell<Sample>,
}

/// Slots, made when a profile begins and freed when it has ended.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    next: AtomicUsize,
    lost: AtomicU64,
}

// SAFETY: a sample is touched only by whoever moved its slot from FREE to WRITING, until it is FULL, and then only by the one
// reader, until it is FREE again; the state's order of memory goes with that.
unsafe impl Sync for Slots {}

impl Slots {
    pub(crate) fn new() -> Box<Self> {
        let empty = || Sample {
            instruction: 0,
            registers: [0; REGISTERS],
            thread: 0,
            note: (0, 0),
            stack: [0; STACK],
            length: 0,
        };
        let slot = || Slot { state: AtomicU8::new(FREE), sample: UnsafeCell::new(empty()) };
        let slots = (0..SLOTS).map(|_| slot()).collect();
        Box::new(Self { slots, next: AtomicUsize::new(0), lost: AtomicU64::new(0) })
    }

    /// Takes a moment. Safe in a signal handler: no locks, no memory.
    fn take(&self, instruction: u64, registers: &[u64; REGISTERS], note: (usize, usize)) -> bool {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for offset in 0..SLOTS {
            let slot = &self.slots[first.wrapping_add(offset) % SLOTS];
            if slot.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: the slot was FREE and is ours until it is FULL.
            let sample = unsafe { &mut *slot.sample.get() };
            sample.instruction = instruction;
            sample.registers = *registers;
            sample.note = note;
            // SAFETY: a call of the kernel without arguments.
            sample.thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            sample.length = copy_stack(registers[crate::cfi::STACK_POINTER], &mut sample.stack);
            slot.state.store(FULL, Ordering::Release);
            return true;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Hands every full slot to `read`. For one thread at a time.
    pub(crate) fn drain(&self, mut read: impl FnMut(&Sample)) {
        for slot in &self.slots {
            if slot.state.load(Ordering::Acquire) == FULL {
                // SAFETY: nobody writes to a slot that is FULL, and this is the one reader.
                read(unsafe { &*slot.sample.get() });
                slot.state.store(FREE, Ordering::Release);
            }
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Copies what lies above the stack pointer, as far as there is something. The kernel reads: it refuses what is not mapped.
fn copy_stack(from: u64, into: &mut [u8; STACK]) -> usize {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut pieces = [nothing; STACK / PAGE + 1];
    let (mut at, mut left, mut count) = (from as usize, STACK, 0);
    while left > 0 && count < pieces.len() {
        // To the end of the page: what is refused is refused by the piece.
        let length = (PAGE - at % PAGE).min(left);
        pieces[count] = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: length };
        let Some(next) = at.checked_add(length) else { break };
        (at, left, count) = (next, left - length, count + 1);
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: STACK };
    // SAFETY: the kernel writes at most STACK bytes to `into`, which has as many; what it reads it checks itself.
    let copied = unsafe {
        let own = libc::c_long::from(libc::getpid());
        // Words: what is passed beyond the registers is read as such.
        libc::syscall(libc::SYS_process_vm_readv, own, &raw const local, 1_usize, pieces.as_ptr(), count, 0_usize)
    };
    usize::try_from(copied).unwrap_or(0).min(STACK)
}

/// Whether the kernel lets this process read its own stack, which filters of calls may forbid.
pub(crate) fn can_copy() -> bool {
    let here = 0_u8;
    let mut into = Box::new([0; STACK]);
    copy_stack(&raw const here as u64, &mut into) > 0
}

/// Slots that writers may be using: taken away first, then waited for.
pub(crate) struct Current {
    slots: AtomicPtr<Slots>,
    inside: AtomicUsize,
}

impl Current {
    pub(crate) const fn none() -> Self {
        Self { slots: AtomicPtr::new(std::ptr::null_mut()), inside: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.slots.load(Ordering::Relaxed).is_null()
    }

    fn take(&self, instruction: u64, registers: &[u64; REGISTERS], note: (usize, usize)) -> bool {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let slots = self.slots.load(Ordering::SeqCst);
        // SAFETY: `end` frees the slots only when nobody is inside after it took them away, so they live until we leave.
        let taken = !slots.is_null() && unsafe { &*slots }.take(instruction, registers, note);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    /// Gives writers slots for as long as the value lives.
    pub(crate) fn begin(&'static self) -> Lent {
        let slots = Box::into_raw(Slots::new());
        self.slots.store(slots, Ordering::SeqCst);
        Lent { current: self, slots }
    }
}

/// Slots in use.
pub(crate) struct Lent {
    current: &'static Current,
    slots: *mut Slots,
}

impl Lent {
    pub(crate) fn slots(&self) -> &Slots {
        // SAFETY: they are freed when this is dropped.
        unsafe { &*self.slots }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.current.slots.store(std::ptr::null_mut(), Ordering::SeqCst);
        while self.current.inside.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        // SAFETY: made by `begin` from a box; writers have left, and nobody finds them any more.
        drop(unsafe { Box::from_raw(self.slots) });
    }
}

/// Takes the moment of a thread that was interrupted.
///
/// # Safety
/// `context` is what the kernel gave a signal handler.
unsafe fn take_interrupted(current: &Current, context: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let mut registers = [0; REGISTERS];
    #[cfg(target_arch = "x86_64")]
    let instruction = {
        let of = |at: libc::c_int| context.uc_mcontext.gregs[at as usize] as u64;
        // By their numbers in DWARF.
        for (number, at) in [
            (0, libc::REG_RAX),
            (1, libc::REG_RDX),
            (2, libc::REG_RCX),
            (3, libc::REG_RBX),
            (4, libc::REG_RSI),
            (5, libc::REG_RDI),
            (6, libc::REG_RBP),
            (7, libc::REG_RSP),
            (8, libc::REG_R8),
            (9, libc::REG_R9),
            (10, libc::REG_R10),
            (11, libc::REG_R11),
            (12, libc::REG_R12),
            (13, libc::REG_R13),
            (14, libc::REG_R14),
            (15, libc::REG_R15),
        ] {
            registers[number] = of(at);
        }
        of(libc::REG_RIP)
    };
    #[cfg(target_arch = "aarch64")]
    let instruction = {
        registers[..31].copy_from_slice(&context.uc_mcontext.regs);
        registers[31] = context.uc_mcontext.sp;
        context.uc_mcontext.pc
    };
    current.take(instruction, &registers, (0, 0));
}

/// Takes the moment of the present thread.
#[inline(never)]
pub(crate) fn take_here(current: &Current, note: (usize, usize)) -> bool {
    let mut registers = [0_u64; REGISTERS];
    let instruction: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies registers into memory of ours and changes nothing else.
    unsafe {
        std::arch::asm!(
            "mov [{to} + 24], rbx", "mov [{to} + 48], rbp", "mov [{to} + 56], rsp", "mov [{to} + 96], r12",
            "mov [{to} + 104], r13", "mov [{to} + 112], r14", "mov [{to} + 120], r15", "lea {ip}, [rip]",
            to = in(reg) registers.as_mut_ptr(), ip = out(reg) instruction, options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "stp x19, x20, [{to}, 152]", "stp x21, x22, [{to}, 168]", "stp x23, x24, [{to}, 184]",
            "stp x25, x26, [{to}, 200]", "stp x27, x28, [{to}, 216]", "stp x29, x30, [{to}, 232]",
            "mov {ip}, sp", "str {ip}, [{to}, 248]", "adr {ip}, .",
            to = in(reg) registers.as_mut_ptr(), ip = out(reg) instruction, options(nostack, preserves_flags),
        );
    }
    current.take(instruction, &registers, note)
}

/// Lets one in, and the next when that one has left, in whatever way.
pub(crate) struct OneAtATime(AtomicBool);

pub(crate) struct Inside<'a>(&'a AtomicBool);

impl OneAtATime {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        (!self.0.swap(true, Ordering::Acquire)).then_some(Inside(&self.0))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What the timers of processor time fill.
pub(crate) static INTERRUPTED: Current = Current::none();

extern "C" fn interrupted(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the thread's own; whoever was interrupted may be about to read it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: the kernel gave it to this handler.
    unsafe { take_interrupted(&INTERRUPTED, context) };
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Installs the handler, for good: a signal that comes late must not end the process.
pub(crate) fn install() -> std::io::Result<()> {
    // SAFETY: all zero is a value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = interrupted as *const () as usize;
    // Calls of the kernel go on, and threads with a stack for signals use it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the structure is complete, and the handler does only what handlers may.
    let installed = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) };
    if installed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Interrupts every thread once in so much of its own processor time, for as long as it lives. One timer for the whole process
/// would do with less, but the kernel then interrupts whom it likes, mostly the first thread.
pub(crate) struct Timers {
    period: libc::timespec,
    /// By thread, the kernel's names for them.
    timers: HashMap<i32, libc::c_int>,
}

impl Timers {
    pub(crate) fn new(microseconds: i64) -> Self {
        let period = libc::timespec { tv_sec: 0, tv_nsec: microseconds * 1000 };
        Self { period, timers: HashMap::new() }
    }

    /// Gives a timer to each of `threads` that has none, and takes away those of others, which have ended. The present
    /// thread has none.
    pub(crate) fn cover(&mut self, threads: &[i32]) -> std::io::Result<()> {
        // SAFETY: a call of the kernel without arguments.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        self.timers.retain(|thread, timer| {
            let is_there = threads.contains(thread);
            if !is_there {
                delete(*timer);
            }
            is_there
        });
        let mut last = Ok(());
        for thread in threads.iter().filter(|thread| **thread != own) {
            if !self.timers.contains_key(thread) {
                match start(*thread, self.period) {
                    Ok(timer) => {
                        self.timers.insert(*thread, timer);
                    }
                    // It may have ended meanwhile.
                    Err(error) => last = Err(error),
                }
            }
        }
        if self.timers.is_empty() { last } else { Ok(()) }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.timers.values().copied().for_each(delete);
    }
}

/// A timer of a thread's processor time, which interrupts that thread.
fn start(thread: i32, period: libc::timespec) -> std::io::Result<libc::c_int> {
    // The kernel's name for the clock: the thread, and which of its clocks (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED).
    let clock = libc::c_long::from((!thread << 3) | 6);
    // SAFETY: all zero is a value of this plain structure.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_signo = libc::SIGPROF;
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = thread;
    let mut timer: libc::c_int = 0;
    // SAFETY: the kernel reads the event and writes the timer's name.
    let made = unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut timer) };
    if made != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let every = libc::itimerspec { it_interval: period, it_value: period };
    let nowhere = std::ptr::null_mut::<libc::itimerspec>();
    let name = libc::c_long::from(timer);
    // SAFETY: the kernel reads the interval.
    let set = unsafe { libc::syscall(libc::SYS_timer_settime, name, 0_usize, &raw const every, nowhere) };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        delete(timer);
        return Err(error);
    }
    Ok(timer)
}

fn delete(timer: libc::c_int) {
    // SAFETY: a name that the kernel gave us; it goes with the process in any case.
    unsafe { libc::syscall(libc::SYS_timer_delete, libc::c_long::from(timer)) };
}

/// Keeps the timer's signal from the present thread.
pub(crate) fn leave_alone() {
    // SAFETY: all zero is a value of this plain structure, and each call gets what it asks for.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPROF);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}
