//! Measures the CPU time of this library for each event.
//!
//!     bench --sidecar PATH --users N --rounds R
//!
//! Logs N users in, then reports one keepalive of each in every round and waits until they are
//! on the sidecar's disk. Prints a line of JSON: the events, and the seconds of CPU and of
//! wall clock that the rounds took.

use std::error::Error;
use std::time::{Duration, Instant};

use liveness::{Options, Sidecar};

const FLUSH: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let place = args.iter().position(|arg| arg == name);
        place.and_then(|place| args.get(place + 1)).ok_or(format!("{} is missing", name))
    };
    let (users, rounds): (usize, u32) = (option("--users")?.parse()?, option("--rounds")?.parse()?);
    let sidecar = Sidecar::connect(option("--sidecar")?, "bench", Options::default())?;
    let name = |number| format!("user-{:07}", number);
    let users: Vec<_> = (1..=users).map(|number| (name(number), sidecar.new_conn())).collect();
    for (uid, conn) in &users {
        sidecar.login(uid, *conn)?;
    }
    sidecar.flush(FLUSH)?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..rounds {
        for (uid, conn) in &users {
            sidecar.keepalive(uid, *conn)?;
        }
        sidecar.flush(FLUSH)?;
    }
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let events = users.len() * rounds as usize;
    println!(r#"{{"events": {}, "cpu_s": {:.6}, "wall_s": {:.6}}}"#, events, cpu, wall);
    Ok(())
}

/// User and system time of this process; std has no getrusage.
fn cpu_seconds() -> f64 {
    extern "C" {
        fn getrusage(who: i32, usage: *mut [i64; 18]) -> i32;
    }
    let mut usage = [0; 18];
    // SAFETY: on 64-bit Linux a struct rusage is 18 longs: two timevals come first.
    unsafe { getrusage(0, &mut usage) };
    (usage[0] + usage[2]) as f64 + (usage[1] + usage[3]) as f64 / 1e6
}
