//! What std lacks and the example gateway needs; a real one takes crates for it: the command
//! line, SIGTERM, lines that wait for their connection, and the little JSON of its users.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub const STACK_BYTES: usize = 128 * 1024; // of the two threads of each connection
const MAX_UNSENT_LINES: usize = 128; // of a user that reads too slowly
const LAST_LINES: Duration = Duration::from_secs(1);
const WRITE: Duration = Duration::from_secs(10); // then the user is gone

static TERMINATED: AtomicBool = AtomicBool::new(false);
const SIGTERM: i32 = 15;

/// The value that follows `name` on the command line.
pub fn option(name: &str) -> Result<String, String> {
    let value = std::env::args().skip_while(|arg| arg != name).nth(1);
    value.ok_or_else(|| format!("{} is missing", name))
}

/// Have SIGTERM end `wait_for_sigterm` from now on, instead of the process.
pub fn catch_sigterm() {
    extern "C" fn terminate(_: i32) {
        TERMINATED.store(true, SeqCst);
    }
    extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    // SAFETY: the handler only stores, which a signal handler may.
    unsafe { signal(SIGTERM, terminate) };
}

pub fn wait_for_sigterm() {
    while !TERMINATED.load(SeqCst) {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Lines that a thread writes to a connection. It is closed after the last line, once all
/// clones are dropped.
#[derive(Clone)]
pub struct Lines(SyncSender<String>, Arc<TcpStream>);

impl Lines {
    pub fn to(stream: Arc<TcpStream>) -> Option<Lines> {
        let (outbox, unsent) = sync_channel::<String>(MAX_UNSENT_LINES);
        let writer = stream.clone();
        let write = move || {
            let _ = unsent.iter().try_for_each(|line| (&*writer).write_all(line.as_bytes()));
            let _ = writer.shutdown(Shutdown::Both);
        };
        stream.set_write_timeout(Some(WRITE)).ok()?;
        thread::Builder::new().stack_size(STACK_BYTES).spawn(write).ok()?;
        Some(Lines(outbox, stream))
    }

    /// Send a JSON object: a key, and the JSON that follows it.
    pub fn send(&self, key: &str, json: &str) {
        if self.0.try_send(format!("{{\"{}\": {}}}\n", key, json)).is_err() {
            let _ = self.1.shutdown(Shutdown::Both); // it reads too slowly
        }
    }

    /// Say why, if there is a reason, and close the connection, for a user that may be gone:
    /// what is not written soon is dropped.
    pub fn close(self, bye: Option<&str>) {
        bye.into_iter().for_each(|reason| self.send("bye", &quoted(reason)));
        let Lines(unsent, stream) = self;
        drop(unsent);
        thread::sleep(LAST_LINES);
        let _ = stream.shutdown(Shutdown::Both);
    }

    pub fn stop_reading(&self) {
        let _ = self.1.shutdown(Shutdown::Read);
    }
}

/// The first key of a JSON object, and its value if it is a text.
pub fn member(line: &[u8]) -> Option<(String, Option<String>)> {
    let object = std::str::from_utf8(line).ok()?.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (key, rest) = text(object.trim_start())?;
    let value = text(rest.trim_start().strip_prefix(':')?.trim_start());
    Some((key, value.map(|value| value.0)))
}

/// The JSON text at the beginning, and what follows it.
fn text(json: &str) -> Option<(String, &str)> {
    let (mut units, mut chars) = (Vec::new(), json.strip_prefix('"')?.chars());
    loop {
        match chars.next()? {
            '"' => return Some((String::from_utf16(&units).ok()?, chars.as_str())),
            '\\' => match chars.next()? {
                'u' => {
                    units.push(u16::from_str_radix(chars.as_str().get(..4)?, 16).ok()?);
                    chars = chars.as_str()[4..].chars();
                }
                'n' => units.push(10),
                other => units.push(other as u16), // \" \\ \/; the rest is no use here
            },
            other => units.extend_from_slice(other.encode_utf16(&mut [0; 2])),
        }
    }
}

/// A JSON text, all ASCII: no user can send control codes to a terminal.
pub fn quoted(text: &str) -> String {
    let quoted = text.encode_utf16().map(|unit| match unit as u8 as char {
        ascii @ ' '..='~' if unit < 127 && !r#""\"#.contains(ascii) => ascii.to_string(),
        _ => format!("\\u{:04x}", unit),
    });
    format!("\"{}\"", quoted.collect::<String>())
}

pub fn is_name(name: &str) -> bool {
    (1..=32).contains(&name.chars().count()) && !name.chars().any(char::is_control)
}
