//! A chat gateway: `gateway --sidecar PATH --name NAME --port PORT --most N`. Users send a JSON
//! object a line: {"login": "ada"}, then {"say": "hi"}, {"ping": 1} or {"logout": 1}.
use liveness::{Options, Sidecar};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{collections::HashMap, error::Error, thread, time::Duration};
use support::{
    catch_sigterm, is_name, member, option, quoted, wait_for_sigterm, Lines, STACK_BYTES,
};

#[path = "support/mod.rs"]
mod support;

const HOW_TO: &str = r#"{"login": "ada"} first; then {"say": "hi"}, {"ping": 1}, {"logout": 1}"#;
const MAX_LINE_BYTES: u64 = 4_096;
const LINE_PAUSE: Duration = Duration::from_millis(20); // no user can flood the others
const LOGIN: Duration = Duration::from_secs(60);

type Room = Mutex<HashMap<u64, (String, Lines)>>; // users that are logged in, by conn
type Bye = Option<&'static str>; // why the gateway ends a connection

fn main() -> Result<(), Box<dyn Error>> {
    catch_sigterm();
    let (name, most) = (option("--name")?, option("--most")?.parse::<usize>()?);
    let sidecar = Sidecar::connect(option("--sidecar")?, &name, Options::default())?;
    let listener = TcpListener::bind(("127.0.0.1", option("--port")?.parse()?))?;
    println!("{} listens on {}", name, listener.local_addr()?);
    let room = Arc::new(Room::default());
    let (ended, users) = (sidecar.clone(), room.clone());
    thread::spawn(move || {
        while let Some(end) = ended.next_end() {
            if let Some((_, lines)) = users.lock().unwrap().remove(&end.conn) {
                lines.send("bye", &quoted(&end.reason));
                lines.stop_reading(); // `talk` returns
            }
        }
    });
    let (reports, users) = (sidecar.clone(), room.clone());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (reports, users) = (reports.clone(), users.clone()); // counts the connections
            let is_full = Arc::strong_count(&users) > most + 3;
            let serve = move || serve(&reports, &users, &Arc::new(stream), is_full);
            let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
        }
    });
    wait_for_sigterm();
    room.lock().unwrap().iter().try_for_each(|(conn, user)| sidecar.logout(&user.0, *conn))?;
    sidecar.close(); // writes the logouts
    Ok(())
}

/// Serve a connection until either side ends it.
fn serve(sidecar: &Sidecar, room: &Room, stream: &Arc<TcpStream>, is_full: bool) -> Option<()> {
    let (lines, conn) = (Lines::to(stream.clone())?, sidecar.new_conn());
    let full = is_full.then_some("the gateway is full");
    let bye = full.or_else(|| talk(sidecar, room, stream, &lines, conn));
    if let Some((uid, _)) = room.lock().unwrap().remove(&conn) {
        sidecar.logout(&uid, conn).ok()?;
    }
    Some(lines.close(bye))
}

/// Do what the lines of a user ask for, until its connection ends.
fn talk(sidecar: &Sidecar, room: &Room, stream: &TcpStream, lines: &Lines, conn: u64) -> Bye {
    let (mut reader, mut uid) = (BufReader::new(stream), String::new());
    stream.set_read_timeout(Some(LOGIN)).ok()?;
    lines.send("welcome", &quoted(HOW_TO));
    loop {
        let mut line = Vec::new();
        (&mut reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line).ok()?;
        if line.is_empty() || line.len() as u64 > MAX_LINE_BYTES {
            return (!line.is_empty()).then_some("a line has at most 4,096 bytes");
        }
        let is_in = room.lock().unwrap().contains_key(&conn);
        if is_in {
            sidecar.keepalive(&uid, conn).ok()?; // any line is activity
        }
        match member(&line).as_ref().map(|(key, text)| (key.as_str(), text)) {
            Some(("login", Some(name))) if uid.is_empty() && is_name(name) => {
                stream.set_read_timeout(None).ok()?;
                uid = name.clone();
                let mut users = room.lock().unwrap();
                users.insert(conn, (uid.clone(), lines.clone()));
                sidecar.login(&uid, conn).ok()?;
                lines.send("joined", &format!(r#"{}, "users": {}"#, quoted(name), users.len()));
            }
            Some(("say", Some(text))) if is_in => {
                sidecar.message(&uid, conn).ok()?;
                let said = format!(r#"{}, "say": {}"#, quoted(&uid), quoted(text));
                room.lock().unwrap().values().for_each(|(_, other)| other.send("uid", &said));
            }
            Some(("ping", _)) => lines.send("pong", "1"),
            Some(("logout", _)) => return Some("logout"),
            _ => lines.send("error", &quoted(HOW_TO)),
        }
        thread::sleep(LINE_PAUSE);
    }
}
