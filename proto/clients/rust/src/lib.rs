//! Reports a gateway's connections to a liveness sidecar, and learns which have ended; README.md
//! shows the use. While there is no link, reports are collected: one for each connection that is
//! open or has ended since. A thread keeps the link and writes, and a second one reads.

#![deny(unsafe_code)] // but for the one call that reads the clock

mod link;
mod msgpack;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{mem, thread};

use link::{now, rounded_age};
use msgpack::{is_text, put_frame, Batch, Event, Value};

const TIMEOUT_S: std::ops::RangeInclusive<f64> = 1.0..=86_400.0;
const MAX_CHANGES: usize = 4_096; // in a write: later ones would have an old age

/// `Connecting`: no link yet. `Away`: it has ended. `Refused`: the sidecar is asked again.
/// `Replaced`: another process has the name; see `resume`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    #[default]
    Connecting,
    Linked,
    Away,
    Refused,
    Replaced,
}

#[derive(Default)]
pub struct Options {
    /// Silence after which users are offline, 1 to 86,400 s. None: the sidecar's setting.
    pub timeout: Option<f64>,
    /// Whether this process has connections that an earlier one had accepted.
    pub adopts: bool,
    /// Called with the state and a line to log, by the thread of the link. None: to stderr.
    pub on_state: Option<Box<dyn Fn(LinkState, &str) + Send + Sync>>,
}

/// A connection that the gateway has to close. `reason` is `silence`, `gateway_lost` or `moved`
/// (the user has a newer connection); later versions may add others. `seq` is of the record.
#[derive(Clone, Debug)]
pub struct End {
    pub uid: String,
    pub conn: u64,
    pub reason: String,
    pub seq: u64,
}

/// A link to the sidecar, for any thread. Calls that report never wait. They return an error
/// of the kind `InvalidInput` if they are wrong by themselves; then nothing was reported.
pub struct Sidecar {
    path: PathBuf,
    name: String,
    options: Options,
    changed: Condvar,
    state: Mutex<State>,
}

#[derive(Default)]
struct Conn {
    uid: String,
    opened: f64,   // CLOCK_MONOTONIC, in seconds
    timeout: f64,  // of its user; 0: the gateway's
    is_open: bool, // false: until its logout is confirmed and its end is handed over
    has_end: bool, // to hand over, unless the gateway logs out first
    next: Event,   // to report
    sent: Event,   // the strongest that was written and that no pong covers
    ping: u64,     // that covers it; 0: nothing was ever written
}

/// The lists are of connections. Entries whose `next` is something else now are skipped.
#[derive(Default)]
struct State {
    conns: HashMap<u64, Conn>,
    logins: VecDeque<u64>,  // in order
    logouts: VecDeque<u64>, // written when no login waits: its user may have a newer connection
    active: VecDeque<u64>,  // `next` is a keepalive or message
    due: usize,             // of `active`, from its front: to write at once
    unconfirmed: Vec<u64>,  // `sent` is something
    next_conn: u64,
    pings: u64, // the number of the latest; and of the latest pong
    pongs: u64,
    wanted_ping: u64,
    is_pinging: bool, // one at a time
    flush: f64,       // this and the next three are of the welcome
    max_batch: usize,
    max_frame: usize,
    uses_began: bool,
    log: Option<String>,
    newest: u64, // seq that has arrived
    acked: u64,
    ends: VecDeque<End>,  // not handled; of a former log with seq 0
    is_handed_over: bool, // the first of them
    was_shut_out: bool,
    believed_from: u64, // offlines below were decided while nobody reported
    link_state: LinkState,
    linked_at: f64,
    is_over: bool, // the link
    is_closed: bool,
    line: String, // to log
    announced: (LinkState, String),
    stats: HashMap<&'static str, u64>,
}

impl Sidecar {
    /// Keep a link to the sidecar at `path` until `close`. `name` is the gateway's, of 1 to 64
    /// bytes: no other process has it, and it stays the same over restarts.
    pub fn connect(path: impl AsRef<Path>, name: &str, options: Options) -> io::Result<Arc<Self>> {
        check(is_text(name, 64), "name", "1 to 64 bytes, no control characters")?;
        check(TIMEOUT_S.contains(&options.timeout.unwrap_or(1.0)), "timeout", "1 s to 86,400 s")?;
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // Seconds x 2^20: the next process begins above all conns of this one.
        let next_conn = (since_1970.as_nanos() * (1 << 20) / 1_000_000_000) as u64;
        let state = Mutex::new(State { next_conn, ..State::default() });
        let (path, name, changed) = (path.as_ref().into(), name.into(), Condvar::new());
        let sidecar = Arc::new(Sidecar { path, name, options, changed, state });
        let running = sidecar.clone();
        thread::Builder::new().name("liveness".into()).spawn(move || running.run())?;
        Ok(sidecar)
    }

    /// A conn for a new connection, below 2^53. It never repeats, restarts included.
    pub fn new_conn(&self) -> u64 {
        let mut state = self.lock();
        state.next_conn += 1;
        state.next_conn
    }

    /// Report that a connection was authenticated just now. A uid has 1 to 255 bytes.
    pub fn login(&self, uid: &str, conn: u64) -> io::Result<()> {
        self.login_with(uid, conn, None, 0.0)
    }

    /// As `login`, `age` seconds ago, and with a timeout of this user in seconds.
    pub fn login_with(&self, uid: &str, id: u64, timeout: Option<f64>, age: f64) -> io::Result<()> {
        check(is_text(uid, 255), "uid", "1 to 255 bytes, no control characters")?;
        check(TIMEOUT_S.contains(&timeout.unwrap_or(1.0)), "timeout", "1 s to 86,400 s")?;
        check(id <= i64::MAX as u64, "conn", "at most 2^63-1")?;
        check((0.0..1e9).contains(&age), "age", "0 s to 1e9 s")?;
        let (opened, is_open, mut state) = (now() - age, true, self.lock());
        let new = || Conn { uid: uid.into(), opened, is_open, ..Conn::default() };
        let conn = state.conns.entry(id).or_insert_with(new);
        if conn.uid == uid {
            conn.timeout = timeout.unwrap_or(0.0);
        }
        self.report(&mut state, uid, id, Event::Login)
    }

    /// Report activity; ignored, as by the next two calls, if the connection is not open.
    pub fn keepalive(&self, uid: &str, conn: u64) -> io::Result<()> {
        self.report(&mut self.lock(), uid, conn, Event::Keepalive)
    }

    /// Report a message; it is activity too.
    pub fn message(&self, uid: &str, conn: u64) -> io::Result<()> {
        self.report(&mut self.lock(), uid, conn, Event::Message)
    }

    /// Report that a connection has closed, whoever closed it.
    pub fn logout(&self, uid: &str, conn: u64) -> io::Result<()> {
        self.report(&mut self.lock(), uid, conn, Event::Logout)
    }

    fn report(&self, state: &mut State, uid: &str, id: u64, event: Event) -> io::Result<()> {
        match state.conns.get_mut(&id) {
            Some(conn) if conn.uid != uid => {
                let what = format!("conn {id}, of {:.80?} and not of {uid:.80?},", conn.uid);
                return check(false, &what, "of one connection, see new_conn()");
            }
            Some(conn) if conn.is_open && event == Event::Logout => state.close(id),
            Some(conn) if conn.is_open && event > conn.next => {
                match mem::replace(&mut conn.next, event) {
                    _ if event == Event::Login => state.logins.push_back(id),
                    Event::None => state.active.push_back(id),
                    _ => {} // it is in the list
                }
            }
            Some(conn) if conn.is_open => {}
            conn => {
                let _ = conn.map(|conn| conn.has_end &= event != Event::Logout);
                state.count("ignored"); // the record that ends it may have crossed this
            }
        }
        if state.logins.len() + state.logouts.len() == 1 {
            self.changed.notify_all(); // if there are more, the writing thread is awake
        }
        Ok(())
    }

    /// Wait for the next connection that has to be closed; None after `close`. For one thread:
    /// the call says that the end before is handled, and only then is its record acknowledged.
    pub fn next_end(&self) -> Option<End> {
        let mut state = self.lock();
        if mem::take(&mut state.is_handed_over) {
            state.ends.pop_front();
            self.changed.notify_all();
        }
        while !state.is_closed {
            if let Some(end) = state.ends.front().cloned() {
                let conn = state.conns.get_mut(&end.conn);
                state.is_handed_over = conn.map_or(false, |conn| mem::take(&mut conn.has_end));
                state.forget(end.conn);
                if state.is_handed_over {
                    return Some(end);
                }
                state.ends.pop_front();
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        None
    }

    /// Wait until all that was reported is on the sidecar's disk; else the error is `TimedOut`.
    pub fn flush(&self, timeout: Duration) -> io::Result<()> {
        let number = self.lock().collect();
        self.changed.notify_all();
        let is_waiting = |state: &mut State| state.pongs < number && !state.is_closed;
        let is_confirmed = self.wait(timeout, is_waiting).pongs >= number;
        let line = "the sidecar has not confirmed the reports in time";
        is_confirmed.then_some(()).ok_or_else(|| Error::new(ErrorKind::TimedOut, line))
    }

    /// Take the name over again if another process has it. It does not wait.
    pub fn resume(&self) {
        let mut state = self.lock();
        if state.link_state == LinkState::Replaced {
            state.link_state = LinkState::Away;
            self.changed.notify_all();
        }
    }

    pub fn state(&self) -> LinkState {
        self.lock().link_state
    }

    /// Numbers for metrics: connections that are `open`, reports `pending` and `unconfirmed`; and
    /// counts of `links`, their ends (`lost`, `refusals`, `replacements`), reports that were
    /// `ignored`, frames that were `refused`, and records that came again (`duplicates`).
    pub fn stats(&self) -> HashMap<&'static str, u64> {
        let state = self.lock();
        let count = |is: fn(&&Conn) -> bool| state.conns.values().filter(is).count() as u64;
        let mut stats = state.stats.clone();
        stats.insert("open", count(|conn| conn.is_open));
        stats.insert("pending", count(|conn| conn.next != Event::None));
        stats.insert("unconfirmed", state.unconfirmed.len() as u64);
        stats
    }

    /// Write the last reports, for at most a second, and end the link.
    pub fn close(&self) {
        if !matches!(self.state(), LinkState::Refused | LinkState::Replaced) {
            let _ = self.flush(Duration::from_secs(1)); // the sidecar may be away
        }
        let mut state = self.lock();
        (state.is_closed, state.is_over) = (true, true);
        self.changed.notify_all();
    }
}

impl State {
    // --- what was reported ----------------------------------------------------------------

    fn count(&mut self, what: &'static str) {
        *self.stats.entry(what).or_default() += 1;
    }

    /// Close an open connection. A login that was never written needs no logout.
    fn close(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id) {
            let was_written = conn.ping > 0;
            conn.is_open = false;
            conn.next = if was_written { Event::Logout } else { Event::None };
            self.logouts.extend(was_written.then_some(id));
        }
        self.forget(id);
        if self.logins.len() > 4 * self.conns.len() + MAX_CHANGES {
            self.logins.retain(|id| self.conns.contains_key(id)); // for want of a link
        }
    }

    /// Forget a connection of which nothing is left to do.
    fn forget(&mut self, id: u64) {
        let is_confirmed = |conn: &Conn| conn.next == Event::None && conn.sent == Event::None;
        let is_done = |conn: &Conn| !conn.is_open && !conn.has_end && is_confirmed(conn);
        if self.conns.get(&id).map_or(false, is_done) {
            self.conns.remove(&id);
        }
    }

    /// Send the logins of all open connections again, the oldest first and before newer ones.
    fn declare(&mut self) {
        let mut logins = Vec::new();
        for (id, conn) in &mut self.conns {
            if conn.is_open && mem::replace(&mut conn.next, Event::Login) != Event::Login {
                logins.push((conn.opened, *id));
            }
        }
        logins.sort_by(|a, b| a.0.total_cmp(&b.0));
        let logins = logins.into_iter().map(|(_, id)| id);
        self.logins = logins.chain(mem::take(&mut self.logins)).collect();
    }

    // --- what is written ------------------------------------------------------------------

    /// Have all activity written, and then a ping whose pong confirms all until now.
    fn collect(&mut self) -> u64 {
        self.due = self.active.len();
        self.wanted_ping = self.pings + 1;
        self.wanted_ping
    }

    fn must_ping(&self) -> bool {
        self.wanted_ping > self.pongs && !self.is_pinging
    }

    /// Whether something should be written before the collected activity is due.
    fn is_urgent(&self) -> bool {
        let has_reports = self.logins.len() + self.logouts.len() + self.due > 0;
        has_reports || self.finished() > self.acked || self.must_ping()
    }

    /// The seq up to which every record was handled.
    fn finished(&self) -> u64 {
        let first = self.ends.iter().find(|end| end.seq > 0);
        first.map_or(self.newest, |end| end.seq - 1)
    }

    /// The next frames to write, which count as sent; empty if there is nothing.
    fn next_piece(&mut self, now: f64) -> Vec<u8> {
        let mut out = Vec::new();
        while out.is_empty() && self.logins.len() + self.logouts.len() > 0 {
            let (list, event) = match self.logins.is_empty() {
                false => (&mut self.logins, Event::Login),
                true => (&mut self.logouts, Event::Logout),
            };
            let ids: Vec<u64> = list.drain(..list.len().min(MAX_CHANGES)).collect();
            self.put_reports(&mut out, &ids, event, now);
        }
        while out.is_empty() && self.due > 0 {
            let most = self.due.min(self.max_batch);
            let ids: Vec<u64> = self.active.drain(..most).collect();
            self.due -= most;
            self.put_reports(&mut out, &ids, Event::Message, now);
            self.put_reports(&mut out, &ids, Event::Keepalive, now);
        }
        if out.is_empty() && self.finished() > self.acked {
            self.acked = self.finished();
            put_frame(&mut out, "ack", &Value::Natural(self.acked));
        }
        if out.is_empty() && self.must_ping() {
            self.pings += 1;
            self.is_pinging = true;
            put_frame(&mut out, "ping", &Value::Natural(self.pings));
        }
        out
    }

    /// Append those reports that are of this event: neighbours of one kind share a frame.
    fn put_reports(&mut self, out: &mut Vec<u8>, ids: &[u64], event: Event, now: f64) {
        let mut batch = Batch::default();
        for id in ids {
            let conn = match self.conns.get_mut(id) {
                Some(conn) if conn.next == event => conn,
                _ => continue,
            };
            let (mut kind, mut began) = ((conn.next, 0.0, 0.0), None);
            if conn.next == Event::Login {
                // First logins arrive in order: the later one is newer whenever they are read.
                let has_age = conn.ping > 0 || conn.opened < self.linked_at;
                let age = if has_age { rounded_age(now - conn.opened) } else { 0.0 };
                kind = (conn.next, conn.timeout, age);
                began = self.uses_began.then_some(conn.opened.max(0.0));
            }
            if kind != batch.kind || batch.is_full(self.max_batch, self.max_frame) {
                batch.put(out);
                batch.kind = kind;
            }
            batch.add(&conn.uid, *id, began);
            if conn.sent == Event::None {
                self.unconfirmed.push(*id);
            }
            conn.sent = conn.sent.max(conn.next);
            (conn.next, conn.ping) = (Event::None, self.pings + 1);
        }
        batch.put(out);
    }
}

fn check(is_right: bool, what: &str, rule: &str) -> io::Result<()> {
    let line = || format!("{what} is wrong; it has to be {rule}");
    is_right.then_some(()).ok_or_else(|| Error::new(ErrorKind::InvalidInput, line()))
}
