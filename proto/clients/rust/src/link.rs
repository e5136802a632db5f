//! The link: its two threads, what the sidecar sends, and the clock.

use std::collections::{hash_map::RandomState, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader, Error, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{mem, thread};

use crate::msgpack::{broken, put_frame, read_frame, Event, Value};
use crate::LinkState::{Away, Connecting, Linked, Refused, Replaced};
use crate::{End, Sidecar, State};

const WELCOME: Duration = Duration::from_secs(5); // a hello without an answer is logged then
const GATHER: Duration = Duration::from_millis(20); // logins, logouts and acks share a write
const FLUSH_SHARE: f64 = 0.9; // of the flush; the rest is left for delays
const PING_S: (f64, f64) = (0.25, 3.0); // promised: a quarter of the timeout, within this
const RETRY_S: f64 = 0.7; // the longest pause after the end of a link
const ERROR_S: f64 = 10.0; // the same after errors; a link that lasts longer begins anew
const REFUSED_S: f64 = 30.0; // the same after a refusal that only a person can end

type Lock<'a> = MutexGuard<'a, State>;

impl Sidecar {
    /// The state, even after a panic of another thread.
    pub(super) fn lock(&self) -> Lock<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait while a condition holds, but not longer than `most`.
    pub(super) fn wait(&self, most: Duration, is: impl FnMut(&mut State) -> bool) -> Lock<'_> {
        let waited = self.changed.wait_timeout_while(self.lock(), most, is);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn run(&self) {
        let mut failures = 0; // in a row
        while !self.lock().is_closed {
            if let Err(ending) = self.link() {
                self.pause(ending, &mut failures);
            }
        }
    }

    /// Keep one link until it ends; the error says why.
    fn link(&self) -> io::Result<()> {
        let stream = UnixStream::connect(&self.path)?;
        let hello = self.hello();
        let _ = (&stream).write_all(&hello); // if it fails, there may be a refusal to read
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("liveness-read".into());
            let reader = thread.spawn_scoped(scope, || {
                let ending = catch_unwind(AssertUnwindSafe(|| self.read(&stream)));
                self.lock().is_over = true;
                self.changed.notify_all();
                let _ = stream.shutdown(Shutdown::Both); // a write that waits ends too
                ending.unwrap_or_else(|_| Err(broken("a surprise; report this fault")))
            })?;
            let _ = self.write(&stream);
            let _ = stream.shutdown(Shutdown::Both); // what has arrived is still read
            reader.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))
        })
    }

    fn read(&self, stream: &UnixStream) -> io::Result<()> {
        let mut stream = BufReader::with_capacity(65_536, stream);
        loop {
            let frame = read_frame(&mut stream)?;
            self.lock().receive(&self.name, &frame)?;
            self.changed.notify_all();
        }
    }

    /// Write what waits, from the welcome to the end of the link.
    fn write(&self, mut stream: &UnixStream) -> io::Result<()> {
        let is_unwelcome = |state: &mut State| !state.is_over && state.link_state != Linked;
        let mut state = self.wait(WELCOME, is_unwelcome);
        if is_unwelcome(&mut state) {
            state.line = format!("no welcome from {:?}: it hangs, or is no sidecar", self.path);
            drop(state);
            self.announce();
            state = self.wait(Duration::MAX, is_unwelcome);
        }
        drop(state);
        let (mut due_at, mut idle_at) = (0.0, 0.0);
        loop {
            let (mut state, time) = (self.lock(), now());
            if state.is_over {
                return Ok(());
            }
            if time >= due_at {
                due_at = time + (state.flush * FLUSH_SHARE).max(0.01);
                if !state.active.is_empty() || !state.unconfirmed.is_empty() {
                    state.collect();
                }
            }
            let mut piece = state.next_piece(time);
            drop(state);
            if piece.is_empty() && time >= idle_at {
                put_frame(&mut piece, "keepalive", &Value::Array(Vec::new()));
            }
            if !piece.is_empty() {
                stream.write_all(&piece)?;
                idle_at = now() + self.ping() / 3.0;
                continue;
            }
            self.announce();
            let pause = Duration::from_secs_f64((idle_at.min(due_at) - now()).max(0.0));
            let state = self.wait(pause, |state| !state.must_act());
            if state.is_urgent() && !state.must_ping() {
                drop(state);
                thread::sleep(GATHER);
            }
        }
    }

    /// Note why a link has ended, and wait before the next: for a random time, as not all
    /// gateways should come at once.
    fn pause(&self, ending: Error, failures: &mut i32) {
        self.announce();
        let mut state = self.lock();
        let was_linked = state.link_state == Linked;
        let without = if state.log.is_some() { Away } else { Connecting };
        let (link_state, longest, counter) = match ending.kind() {
            ErrorKind::AddrInUse => (Replaced, f64::MAX, "replacements"),
            ErrorKind::Unsupported => (Refused, REFUSED_S, "refusals"),
            ErrorKind::InvalidData => (without, ERROR_S, "refusals"),
            _ => (without, RETRY_S, "lost"),
        };
        if longest == RETRY_S || was_linked && now() - state.linked_at > ERROR_S {
            *failures = 0;
        }
        let most = 2f64.powi(*failures).min(longest);
        *failures += i32::from(longest > RETRY_S);
        // A link that was welcomed has ended just now: its users were reported until then.
        state.was_shut_out |= link_state != without || longest == ERROR_S && !was_linked;
        state.link_lost();
        state.link_state = link_state;
        state.count(counter);
        let reason = match ending.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => "it is not running".into(),
            ErrorKind::UnexpectedEof => "the link has ended".into(),
            _ => ending.to_string(),
        };
        state.line = format!("no link to the sidecar at {:?}: {reason}", self.path);
        drop(state);
        self.announce();
        // The keys of hash maps are random.
        let share = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        let pause = match link_state {
            Replaced => Duration::MAX,
            _ => Duration::from_secs_f64(most * (0.25 + 0.75 * share)),
        };
        drop(self.wait(pause, |state| !state.is_closed && state.link_state == link_state));
    }

    /// Hand over or log what is new; without the lock, as the function may report.
    fn announce(&self) {
        let mut state = self.lock();
        let news = (state.link_state, state.line.clone());
        if mem::replace(&mut state.announced, news.clone()) == news {
            return;
        }
        drop(state);
        let (state, line) = news;
        match &self.options.on_state {
            Some(on_state) => drop(catch_unwind(AssertUnwindSafe(|| on_state(state, &line)))),
            None => drop(writeln!(io::stderr(), "liveness: {}: {state:?}: {line}", self.name)),
        }
    }

    /// The promise: a gateway that is silent for twice as long counts as frozen.
    fn ping(&self) -> f64 {
        let timeout = self.options.timeout.unwrap_or(f64::MAX);
        (timeout / 4.0).clamp(PING_S.0, PING_S.1)
    }

    /// The first frame of a link.
    fn hello(&self) -> Vec<u8> {
        let mut state = self.lock();
        state.is_over = state.is_closed;
        let mut map = vec![("protocol", Value::Natural(1)), ("ping", Value::Float(self.ping()))];
        map.push(("name", Value::Text(self.name.clone())));
        map.extend(self.options.timeout.map(|timeout| ("timeout", Value::Float(timeout))));
        map.extend(host_time().map(|time| ("clock", Value::Array(time.map(Value::Float).into()))));
        match &state.log {
            None => map.push(("fresh", Value::Bool(!self.options.adopts))),
            Some(log) if state.finished() > 0 => {
                map.push(("after", Value::Natural(state.finished())));
                map.push(("log", Value::Text(log.clone())));
            }
            Some(_) => {}
        }
        let items = map.into_iter().flat_map(|(key, value)| [Value::Text(key.into()), value]);
        let mut out = Vec::new();
        put_frame(&mut out, "hello", &Value::Map(items.collect()));
        out
    }
}

impl State {
    /// Whether the writing thread has something to do before the time that it waits for.
    fn must_act(&self) -> bool {
        let has_news = self.announced.0 != self.link_state || self.announced.1 != self.line;
        self.is_over || has_news || self.is_urgent()
    }

    /// Note the end of the link. What no pong has confirmed is sent again: of a closed
    /// connection its logout, of an open one its login, or else activity.
    fn link_lost(&mut self) {
        (self.is_pinging, self.acked, self.due) = (false, 0, 0);
        let mut logins = VecDeque::new();
        for id in mem::take(&mut self.unconfirmed) {
            if let Some(conn) = self.conns.get_mut(&id) {
                let (before, sent) = (conn.next, mem::take(&mut conn.sent));
                conn.next = if conn.is_open { before.max(sent) } else { Event::Logout };
                match conn.next {
                    next if next == before => {} // it is in the list
                    Event::Login => logins.push_back(id),
                    Event::Logout => self.logouts.push_back(id),
                    _ if before == Event::None => self.active.push_back(id),
                    _ => {}
                }
            }
        }
        logins.append(&mut self.logins);
        self.logins = logins;
    }

    /// Act on a frame. An error ends the link.
    fn receive(&mut self, name: &str, frame: &Value) -> io::Result<()> {
        let kind = frame.items().first().and_then(Value::text).unwrap_or("");
        let content = frame.items().get(1).unwrap_or(&Value::Other);
        let taken = match (kind, frame) {
            ("notices", _) => content.items().iter().try_for_each(|next| self.record(name, next)),
            ("welcome", _) => self.welcome(content),
            ("error", _) => return self.error(content),
            ("pong", _) if self.is_pinging && content.natural() == Some(self.pings) => self.pong(),
            (_, Value::Array(_)) => Some(()), // bye, or of a later version
            _ => None,
        };
        taken.ok_or_else(|| broken("content of another form"))
    }

    /// Take a welcome; None if it is broken.
    fn welcome(&mut self, welcome: &Value) -> Option<()> {
        let limit = |key: &str| usize::try_from(welcome.get(key).natural()?).ok();
        self.flush = match welcome.get("flush") {
            Value::Float(flush) => Some(*flush).filter(|flush| (0.0..=3_600.0).contains(flush))?,
            flush => flush.natural()?.min(3_600) as f64,
        };
        self.max_batch = limit("max_batch").filter(|limit| *limit > 0)?;
        self.max_frame = limit("max_frame")?;
        self.uses_began = matches!(welcome.get("began"), Value::Bool(true));
        let (log, next) = (welcome.get("log").text()?.to_string(), welcome.get("next").natural()?);
        let is_forgotten = matches!(welcome.get("known"), Value::Bool(false));
        if let Some(before) = &self.log {
            // A log that ends before a record that it has sent is another log.
            if *before != log || next <= self.newest {
                (self.newest, self.believed_from) = (0, 0);
                self.ends.iter_mut().for_each(|end| end.seq = 0);
                self.declare();
            } else if self.was_shut_out || is_forgotten {
                self.declare(); // a lost record may have ended a connection
            }
        }
        if mem::take(&mut self.was_shut_out) {
            self.believed_from = next;
        }
        (self.log, self.linked_at, self.link_state) = (Some(log), now(), Linked);
        self.line = "linked to the sidecar".into();
        self.count("links");
        self.collect();
        Some(())
    }

    /// Take the answer to the latest ping: all that was written before it is on disk.
    fn pong(&mut self) -> Option<()> {
        (self.pongs, self.is_pinging) = (self.pings, false);
        for id in mem::take(&mut self.unconfirmed) {
            match self.conns.get_mut(&id) {
                Some(conn) if conn.ping <= self.pongs => {
                    conn.sent = Event::None;
                    self.forget(id);
                }
                _ => self.unconfirmed.push(id), // written since
            }
        }
        Some(())
    }

    /// Return an error whose kind tells `pause` what to do, unless the link goes on.
    fn error(&mut self, error: &Value) -> io::Result<()> {
        let text = |key| error.get(key).text().unwrap_or("unknown");
        let what = format!("{:.500} ({:.50})", text("message"), text("code"));
        if matches!(error.get("fatal"), Value::Bool(false)) {
            self.count("refused");
            self.line = format!("the sidecar refused a frame: {what}");
            return Ok(());
        }
        let (kind, remedy) = match text("code") {
            "replaced" => (ErrorKind::AddrInUse, "end one of the two processes, or rename it"),
            "not-allowed" => (ErrorKind::Unsupported, "change [access] in its settings"),
            "bad-hello" => (ErrorKind::Unsupported, "correct the arguments of connect"),
            "unsupported-protocol" => (ErrorKind::Unsupported, "update the older of the two"),
            _ => (ErrorKind::InvalidData, "report it, if it comes again and again"),
        };
        Err(Error::new(kind, format!("{what}. What to do: {remedy}. Users are not watched")))
    }

    /// Act on a record; None if it is broken.
    fn record(&mut self, name: &str, record: &Value) -> Option<()> {
        let seq = record.get("seq").natural()?;
        if seq <= self.newest {
            self.count("duplicates");
            return Some(());
        }
        self.newest = seq;
        let is_own = |key| record.get(key).text() == Some(name);
        let key = match record.get("kind").text() {
            Some("offline") if is_own("gateway") && seq >= self.believed_from => "conn",
            Some("moved") if is_own("from") => "from_conn",
            Some("gap") => return Some(self.declare()), // it may have ended a connection
            _ => return Some(()),
        };
        let reason = record.get(if key == "conn" { "reason" } else { "kind" });
        let reason = reason.text().unwrap_or("").to_string();
        let id = record.get(key).natural().unwrap_or(u64::MAX); // above all conns
        if let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.is_open) {
            conn.has_end = true;
            self.ends.push_back(End { uid: conn.uid.clone(), conn: id, reason, seq });
            self.close(id); // and log out: activity that crossed it may have logged in
        }
        Some(())
    }
}

/// CLOCK_MONOTONIC and the wall clock, read at one moment: the process may be stopped between
/// the two, so there are some tries.
fn host_time() -> Option<[f64; 2]> {
    (0..5).find_map(|_| {
        let before = now();
        let unix = SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs_f64();
        (now() - before < 0.001).then_some([before, unix])
    })
}

/// Ages are rounded down, so that logins can share frames: to a tenth of a second, and from a
/// quarter of an hour on to between an 8,192nd and a 16,384th of the age.
pub fn rounded_age(age: f64) -> f64 {
    let step = (age.max(1.0).log2().floor().exp2() / 8_192.0).max(0.1);
    ((age / step).floor() * step * 1000.0).round().max(0.0) / 1000.0
}

/// CLOCK_MONOTONIC in seconds, as the sidecar reads it. `Instant` does not reveal its value,
/// and /proc/uptime is another clock; so it comes from the C library that std links anyway.
#[allow(unsafe_code)]
pub fn now() -> f64 {
    extern "C" {
        fn clock_gettime(clock: i32, time: *mut [std::os::raw::c_long; 4]) -> i32;
    }
    let mut time = [0; 4];
    // SAFETY: a struct timespec is two longs, or on a few 32-bit systems up to four, and the
    // call keeps no pointer to it. Linux numbers CLOCK_MONOTONIC 1.
    unsafe { clock_gettime(1, &mut time) };
    time[0] as f64 + time[1] as f64 / 1e9
}
