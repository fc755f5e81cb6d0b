//! Seats and queues: who is served, who waits and who is turned away. Pure decisions; the caller holds the lock and brings
//! the time.
//!
//! Every level has seats of its own. It may lend some that it does not use, and borrow what others lend; a lender gets its
//! seat back at once, so for a moment more may be taken than there are. What finds no seat waits in one of the queues that
//! its flow is dealt, the shortest one, and the queue that was served least goes first.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;

/// What a request is taken to cost until it is known, in microseconds.
const ESTIMATE: u64 = 1_000;

/// A level, by its place in the hall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LevelId(usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Limits {
    /// The seats of its own.
    pub(super) nominal: usize,
    /// How many of them others may use while it does not.
    pub(super) lendable: usize,
    /// How many it may have, borrowed ones included.
    pub(super) upper: usize,
    /// How many queues there are; none if nothing waits.
    pub(super) queues: usize,
    /// How many of them a flow is dealt.
    pub(super) hand: usize,
    /// How many may wait in each.
    pub(super) length: usize,
}

#[derive(Default)]
pub(super) struct QueueSet {
    levels: Vec<Level>,
    waiting: usize,
    tickets: u64,
}

#[derive(Default)]
struct Level {
    name: String,
    /// Its object exists.
    is_wanted: bool,
    limits: Limits,
    /// At least as many as the limits say; more while those that are to go still have waiters.
    queues: Vec<Queue>,
    executing: usize,
    waiting: usize,
    /// How much the queue served last had been served.
    clock: u64,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    executing: usize,
    /// Microseconds of service, with those of queues that were idle skipped.
    served: u64,
}

struct Waiter {
    ticket: u64,
    wake: oneshot::Sender<()>,
}

/// Where a request sits or waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    level: LevelId,
    queue: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Arrival {
    Seated(Place),
    Waits { place: Place, ticket: u64, woken: oneshot::Receiver<()> },
    Refused(&'static str),
}

impl QueueSet {
    /// Makes these the levels there are. What waits or is served at one that is gone is not disturbed.
    pub(super) fn configure(&mut self, wanted: &[(String, Limits)]) -> Vec<LevelId> {
        for level in &mut self.levels {
            level.is_wanted = wanted.iter().any(|(name, _)| *name == level.name);
        }
        let mut ids = Vec::with_capacity(wanted.len());
        for (name, limits) in wanted {
            let is_free = |level: &Level| !level.is_wanted && level.executing + level.waiting == 0;
            let at = self.levels.iter().position(|level| level.name == *name);
            let at = at.or_else(|| self.levels.iter().position(is_free)).unwrap_or_else(|| {
                self.levels.push(Level::default());
                self.levels.len() - 1
            });
            let level = &mut self.levels[at];
            level.name.clone_from(name);
            level.is_wanted = true;
            level.limits = *limits;
            while level.queues.len() > limits.queues && level.queues.last().is_some_and(Queue::is_idle) {
                level.queues.pop();
            }
            let missing = limits.queues.saturating_sub(level.queues.len());
            level.queues.extend((0..missing).map(|_| Queue::default()));
            ids.push(LevelId(at));
        }
        self.fill();
        ids
    }

    /// A request of the flow with this number comes to a level.
    pub(super) fn arrive(&mut self, at: LevelId, flow: u64) -> Arrival {
        let level = &mut self.levels[at.0];
        let queue = level.choose(flow);
        let place = Place { level: at, queue };
        if level.waiting == 0 && self.has_room(at) {
            self.seat(place);
            return Arrival::Seated(place);
        }
        let level = &mut self.levels[at.0];
        let Some(queue) = queue else { return Arrival::Refused("concurrency-limit") };
        let queue = &mut level.queues[queue];
        if queue.waiters.len() >= level.limits.length {
            return Arrival::Refused("queue-full");
        }
        queue.begin(level.clock);
        self.tickets += 1;
        let (wake, woken) = oneshot::channel();
        queue.waiters.push_back(Waiter { ticket: self.tickets, wake });
        level.waiting += 1;
        self.waiting += 1;
        Arrival::Waits { place, ticket: self.tickets, woken }
    }

    /// A request that sat here is done.
    pub(super) fn leave(&mut self, place: Place, took: Duration) {
        let level = &mut self.levels[place.level.0];
        level.executing -= 1;
        if let Some(queue) = place.queue.and_then(|at| level.queues.get_mut(at)) {
            queue.executing -= 1;
            let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            queue.served = queue.served.saturating_add(took).saturating_sub(ESTIMATE);
        }
        self.fill();
    }

    /// A request that waited here does so no longer. Whether it still did: if not, it has a seat.
    pub(super) fn give_up(&mut self, place: Place, ticket: u64) -> bool {
        let level = &mut self.levels[place.level.0];
        let Some(queue) = place.queue.and_then(|at| level.queues.get_mut(at)) else { return false };
        let Some(at) = queue.waiters.iter().position(|waiter| waiter.ticket == ticket) else { return false };
        queue.waiters.remove(at);
        level.waiting -= 1;
        self.waiting -= 1;
        true
    }

    /// Gives free seats to those who wait.
    fn fill(&mut self) {
        if self.waiting == 0 {
            return;
        }
        for at in (0..self.levels.len()).map(LevelId) {
            while self.levels[at.0].waiting > 0 && self.has_room(at) {
                let level = &mut self.levels[at.0];
                let waits = |(_, queue): &(usize, &mut Queue)| !queue.waiters.is_empty();
                let next = level.queues.iter_mut().enumerate().filter(waits).min_by_key(|(_, queue)| queue.served);
                let Some((index, queue)) = next else { break };
                let Some(waiter) = queue.waiters.pop_front() else { break };
                level.clock = level.clock.max(queue.served);
                level.waiting -= 1;
                self.waiting -= 1;
                self.seat(Place { level: at, queue: Some(index) });
                // Whoever has left meanwhile finds that it has a seat, and gives it back.
                let _ = waiter.wake.send(());
            }
        }
    }

    fn seat(&mut self, place: Place) {
        let level = &mut self.levels[place.level.0];
        level.executing += 1;
        if let Some(queue) = place.queue.and_then(|at| level.queues.get_mut(at)) {
            queue.begin(level.clock);
            queue.executing += 1;
            queue.served = queue.served.saturating_add(ESTIMATE);
        }
    }

    fn has_room(&self, at: LevelId) -> bool {
        let level = &self.levels[at.0];
        level.executing < level.limits.nominal || (level.executing < level.limits.upper && self.can_borrow())
    }

    /// Whether somebody lends a seat that nobody has borrowed.
    fn can_borrow(&self) -> bool {
        let lent: usize = self.levels.iter().filter(|level| level.is_wanted).map(Level::lends).sum();
        let borrowed: usize =
            self.levels.iter().map(|level| level.executing.saturating_sub(level.limits.nominal)).sum();
        lent > borrowed
    }

    /// What each level is doing, by name.
    pub(super) fn report(&self) -> impl Iterator<Item = Report<'_>> {
        self.levels.iter().filter(|level| level.is_wanted).map(|level| Report {
            name: &level.name,
            limits: level.limits,
            executing: level.executing,
            waiting: level.waiting,
            queues: level.queues.iter().map(|queue| (queue.waiters.len(), queue.executing, queue.served)).collect(),
        })
    }
}

/// What one level is doing.
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    pub(super) limits: Limits,
    pub(super) executing: usize,
    pub(super) waiting: usize,
    /// Of each queue: how many wait, how many are served, and how much was served.
    pub(super) queues: Vec<(usize, usize, u64)>,
}

impl Level {
    fn lends(&self) -> usize {
        self.limits.lendable.min(self.limits.nominal.saturating_sub(self.executing))
    }

    /// The queue with the fewest requests among those that a flow is dealt.
    fn choose(&self, flow: u64) -> Option<usize> {
        let hand = deal(flow, self.limits.queues, self.limits.hand);
        hand.into_iter().min_by_key(|at| {
            let queue = &self.queues[*at];
            (queue.waiters.len(), queue.executing)
        })
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.executing == 0
    }

    /// Time in which nothing was asked for is no credit.
    fn begin(&mut self, clock: u64) {
        if self.is_idle() {
            self.served = self.served.max(clock);
        }
    }
}

/// Deals `hand` different cards out of `deck`, the same to the same number.
fn deal(mut number: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut dealt: Vec<usize> = Vec::with_capacity(hand);
    for left in (1..=deck).rev().take(hand) {
        let mut card = (number % left as u64) as usize;
        number /= left as u64;
        // The card is counted among those that are left.
        for earlier in &dealt {
            card += usize::from(card >= *earlier);
        }
        let at = dealt.partition_point(|earlier| *earlier < card);
        dealt.insert(at, card);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(ESTIMATE);

    fn limits(nominal: usize, lendable: usize, upper: usize) -> Limits {
        Limits { nominal, lendable, upper, queues: 8, hand: 2, length: 3 }
    }

    fn queue_set(levels: &[(&str, Limits)]) -> (QueueSet, Vec<LevelId>) {
        let mut queue_set = QueueSet::default();
        let levels: Vec<_> = levels.iter().map(|(name, limits)| ((*name).to_owned(), *limits)).collect();
        let ids = queue_set.configure(&levels);
        (queue_set, ids)
    }

    fn seated(arrival: Arrival) -> Place {
        let Arrival::Seated(place) = arrival else { panic!("no seat: {arrival:?}") };
        place
    }

    fn waiting(arrival: Arrival) -> (Place, u64, oneshot::Receiver<()>) {
        let Arrival::Waits { place, ticket, woken } = arrival else { panic!("does not wait: {arrival:?}") };
        (place, ticket, woken)
    }

    #[test]
    fn a_hand_has_different_cards() {
        for number in 0..2_000_u64 {
            let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hand = deal(number, 64, 6);
            assert!(hand.windows(2).all(|pair| pair[0] < pair[1]) && hand.len() == 6 && hand[5] < 64, "{hand:?}");
        }
        assert_eq!(deal(7, 3, 5), [0, 1, 2]);
        assert!(deal(7, 0, 0).is_empty());
    }

    #[test]
    fn who_finds_no_seat_waits_and_who_finds_no_queue_is_refused() {
        let (mut queue_set, ids) =
            queue_set(&[("a", limits(1, 0, 1)), ("b", Limits { queues: 0, hand: 0, ..limits(1, 0, 1) })]);
        let place = seated(queue_set.arrive(ids[0], 7));
        let mut waiters: Vec<_> = (0..6).map(|_| waiting(queue_set.arrive(ids[0], 7))).collect();
        assert!(matches!(queue_set.arrive(ids[0], 7), Arrival::Refused("queue-full")));
        // Somebody leaves the queue, somebody is served.
        let (gone, ticket, _) = waiters.remove(0);
        assert!(queue_set.give_up(gone, ticket));
        queue_set.leave(place, QUICK);
        let served = waiters.iter_mut().filter_map(|(_, _, woken)| woken.try_recv().ok()).count();
        assert_eq!((served, queue_set.waiting), (1, 4));
        // The other level has no queue.
        let _place = seated(queue_set.arrive(ids[1], 7));
        assert!(matches!(queue_set.arrive(ids[1], 7), Arrival::Refused("concurrency-limit")));
    }

    #[test]
    fn who_left_with_a_seat_gives_it_back() {
        let (mut queue_set, ids) = queue_set(&[("a", limits(1, 0, 1))]);
        let place = seated(queue_set.arrive(ids[0], 7));
        let (waits, ticket, woken) = waiting(queue_set.arrive(ids[0], 7));
        drop(woken);
        queue_set.leave(place, QUICK);
        assert!(!queue_set.give_up(waits, ticket), "it has a seat");
        queue_set.leave(waits, QUICK);
        assert_eq!((queue_set.levels[0].executing, queue_set.waiting), (0, 0));
    }

    #[test]
    fn unused_seats_are_lent_and_come_back_at_once() {
        let (mut queue_set, ids) = queue_set(&[("lender", limits(4, 2, 4)), ("borrower", limits(1, 0, 4))]);
        let borrowed: Vec<_> = (0..3).map(|_| seated(queue_set.arrive(ids[1], 7))).collect();
        let (_, _, mut woken) = waiting(queue_set.arrive(ids[1], 7));
        // Four of its own are the lender's at any time.
        let own: Vec<_> = (0..4).map(|_| seated(queue_set.arrive(ids[0], 9))).collect();
        waiting(queue_set.arrive(ids[0], 9));
        // While all are in use nothing is lent anew.
        queue_set.leave(borrowed[0], QUICK);
        assert!(woken.try_recv().is_err());
        queue_set.leave(borrowed[1], QUICK);
        queue_set.leave(borrowed[2], QUICK);
        assert!(woken.try_recv().is_ok(), "a seat of its own is free");
        drop(own);
    }

    #[test]
    fn a_busy_flow_does_not_keep_a_quiet_one_waiting() {
        let many = Limits { queues: 64, hand: 1, length: 100, ..limits(1, 0, 1) };
        let (mut queue_set, ids) = queue_set(&[("a", many)]);
        let mut place = seated(queue_set.arrive(ids[0], 1));
        let mut busy: VecDeque<_> = (0..50).map(|_| waiting(queue_set.arrive(ids[0], 1))).collect();
        // Slow requests of the busy flow: it has had more than its share.
        for _ in 0..3 {
            queue_set.leave(place, Duration::from_millis(20));
            let (next, _, mut woken) = busy.pop_front().unwrap();
            woken.try_recv().unwrap();
            place = next;
        }
        let (_, _, mut quiet) = waiting(queue_set.arrive(ids[0], 2));
        queue_set.leave(place, QUICK);
        assert!(quiet.try_recv().is_ok(), "one who asks for little goes first");
    }

    #[test]
    fn levels_come_and_go_while_requests_are_served() {
        let (mut queue_set, ids) = queue_set(&[("a", limits(1, 0, 1))]);
        let place = seated(queue_set.arrive(ids[0], 7));
        let (_, _, mut woken) = waiting(queue_set.arrive(ids[0], 7));
        let fewer = Limits { queues: 1, hand: 1, ..limits(3, 0, 3) };
        let ids = queue_set.configure(&[("b".to_owned(), limits(1, 0, 1)), ("a".to_owned(), fewer)]);
        assert!(woken.try_recv().is_ok(), "more seats than before");
        seated(queue_set.arrive(ids[0], 7));
        seated(queue_set.arrive(ids[1], 7));
        queue_set.leave(place, QUICK);
        assert_eq!(
            queue_set.report().map(|level| (level.name, level.executing)).collect::<Vec<_>>(),
            [("a", 2), ("b", 1)]
        );
    }
}
