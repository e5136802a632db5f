package liveness;

import java.io.*;
import java.lang.System.Logger.Level;
import java.net.*;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.*;
import java.util.function.Consumer;

/**
 * A gateway's link to the sidecar: reports about connections go out, ends come back. Reports are
 * plain calls, safe from any thread: they note the report, and a thread of this class writes it.
 * Nothing that happens to the link throws or ends anything in the gateway. A uid is a String of 1
 * to 255 bytes without control characters, or a Long from 0. A call that is wrong by itself throws
 * IllegalArgumentException, and reports nothing.
 */
public final class Sidecar implements AutoCloseable {
    /** Whether there is a link, and if not, why; see the README. */
    public enum State { CONNECTING, LINKED, AWAY, REFUSED, REPLACED }

    /** A connection to close: by "silence", "gateway_lost", "moved", or a later reason. */
    public record End(Object uid, long conn, String reason, Map<?, ?> record) {}

    /** Numbers for the gateway's metrics; see the README. All but the first two only grow. */
    public record Stats(int conns, int pending, long links, long ignored, long duplicates,
            long refused, long refusals) {}

    private static final int NONE = 0, KEEPALIVE = 1, MESSAGE = 2, LOGIN = 3, LOGOUT = 4;
    private static final String[] EVENTS = {"", "keepalive", "message", "login", "logout"};
    /** A connection that is open, or whose end the sidecar or the gateway may not know yet. */
    private static final class Conn {
        Long id;
        Object uid;
        final double openedAt = now();
        boolean isOpen; // false also of one that was never logged in
        int next; // the event to report: the strongest since the last that was sent
        int sent; // the strongest event that was sent and that no pong has confirmed
        long ping; // the number of the ping behind it; 0: nothing was ever sent
        long endSeq; // of the record that ended it; 0: of a log that is gone
    }

    private static final System.Logger LOG = System.getLogger("liveness.client");
    private static final double NEVER = Double.POSITIVE_INFINITY;
    private static final double GATHER_S = 0.02; // logins, logouts and acks are collected so long
    private final double pingS; // something is written so often, as hello promises
    private static final Map<String, String> REMEDIES = Map.of( // of refusals that come again
            "not-allowed", "allow this Unix user and name in the sidecar's settings ([access])",
            "bad-hello", "correct the name or the timeout of this gateway",
            "unsupported-protocol", "update the older one of this library and the sidecar",
            "replaced", "end one of the two processes, or give each its own name; then resume()");
    private final UnixDomainSocketAddress path;
    private final String name;
    private final Map<String, Object> hello = new HashMap<>();
    private final Consumer<State> onState;
    private volatile State state = State.CONNECTING;
    private volatile SocketChannel link; // the last one
    private volatile boolean isClosed, isResumed;
    private volatile long refused, refusals;
    private String refusal, logged; // the code of the error that ends the link; the last line
    private int failures; // refusals and faults in a row
    private SocketChannel writing; // to this link, what was taken

    // What follows is guarded by the lock of this object, which is never held during I/O.
    private final Map<Long, Conn> conns = new LinkedHashMap<>(); // in order of their opening
    private final Set<Conn> logins = new LinkedHashSet<>(), logouts = new LinkedHashSet<>();
    private final List<Set<Conn>> queues = List.of( // by `next`
            Set.of(), new LinkedHashSet<>(), new LinkedHashSet<>(), logins, logouts);
    private final Map<Conn, End> ends = new LinkedHashMap<>(); // not handled yet, by `endSeq`
    private Conn inHand; // the first of them, while the gateway handles it
    private boolean isLinked, isPinging, wasShutOut;
    private long pings, pongs, requestedPing; // the last ping sent, answered, waited for
    private long newest, acked, believedFrom; // seqs; offlines below the last end nothing
    private String log; // of the last welcome; null: there was none
    private long nextConn, maxBatch, links, ignored, duplicates;
    private double flushS, linkedAt, writtenAt, dueAt;

    /**
     * Starts to connect to the sidecar's socket, `path`, and returns at once.
     * @param name this gateway's, 1 to 64 bytes; the same at every start, and no other has it
     * @param timeout of its users, 1 s to a day; null for the sidecar's
     * @param isFresh whether the process took over no connections of an earlier one
     * @param onEnd closes a connection, in a thread of its own; then the end is acknowledged
     * @param onState gets each new state, in the thread that reads: return soon
     */
    public Sidecar(String path, String name, Duration timeout, boolean isFresh,
            Consumer<End> onEnd, Consumer<State> onState) {
        check(MessagePack.isText(name, 64), "a name is 1 to 64 bytes, none of control", name);
        double timeoutS = timeout == null ? 60 : timeout.toMillis() / 1e3;
        check(1 <= timeoutS && timeoutS <= 86_400, "a timeout is 1 s to a day", timeout);
        this.path = UnixDomainSocketAddress.of(path);
        this.name = name;
        this.onState = onState;
        pingS = Math.min(1, Math.max(timeoutS / 4, 0.25));
        hello.putAll(Map.of("protocol", 1L, "name", name, "ping", pingS, "fresh", isFresh));
        hello.put("kinds", List.of("offline", "moved"));
        if (timeout != null) hello.put("timeout", timeoutS);
        nextConn = (long) (System.currentTimeMillis() * 1048.576); // begins with seconds x 2^20
        for (Task task : List.<Task>of(this::link, () -> onEnd.accept(nextEnd()),
                () -> take().forEach(frame -> MessagePack.write(writing, frame)))) {
            Thread thread = new Thread(() -> { while (!isClosed) attempt(task); }, "liveness");
            thread.setDaemon(true);
            thread.start();
        }
    }

    /** An id for a connection, below 2^53. It never repeats, not even after a restart. */
    public synchronized long newConn() { return nextConn++; }

    /** Reports that a connection was authenticated just now; if it is open, that it is alive. */
    public synchronized void login(Object uid, long id) {
        Conn conn = known(uid, id);
        if (conns.putIfAbsent(conn.id, conn) == null) conn.isOpen = true;
        report(conn, LOGIN);
    }

    /** Reports activity; ignored, and counted, if the connection is not open. */
    public synchronized void keepalive(Object uid, long id) { report(known(uid, id), KEEPALIVE); }

    /** Reports a message, which is activity too. */
    public synchronized void message(Object uid, long id) { report(known(uid, id), MESSAGE); }

    /** Reports that a connection has closed; ignored, and counted, if it is not open any more. */
    public synchronized void logout(Object uid, long id) {
        Conn conn = known(uid, id);
        if (!conn.isOpen) ignored++;
        if (conn.isOpen) close(conn);
        else if (conn != inHand) ends.remove(conn); // withdrawn
    }

    /** Waits until everything reported so far is on the sidecar's disk; false if it is not. */
    public synchronized boolean flush(Duration timeout) throws InterruptedException {
        double until = now() + timeout.toMillis() / 1e3;
        long number = requestedPing = pings + 1; // the last one may have been too early
        dueAt = 0;
        notifyAll();
        while (pongs < number && !isClosed && now() < until) waitUntil(until);
        return pongs >= number;
    }

    /** Whether there is a link now, and if not, why. */
    public State state() { return state; }

    /** When `REPLACED`, takes the name over again. Make sure that the other process has ended. */
    public synchronized void resume() {
        isResumed = true;
        notifyAll();
    }

    /** Numbers for the gateway's metrics. */
    public synchronized Stats stats() {
        int pending = queues.stream().mapToInt(Set::size).sum();
        return new Stats(conns.size(), pending, links, ignored, duplicates, refused, refusals);
    }

    /** Writes the last reports, for at most a second, and ends the link. */
    @Override public void close() {
        attempt(() -> flush(Duration.ofSeconds(1)));
        isClosed = true;
        attempt(() -> link.close()); // which ends the thread that reads
        resume(); // wakes the others
    }

    private Conn known(Object uid, long id) {
        Conn conn = conns.get(id);
        if (conn == null) {
            check(id >= 0, "a conn is from 0 to 2^63-1", id);
            check(uid instanceof Long number && number >= 0 || MessagePack.isText(uid, 255),
                    "a uid is a Long from 0, or 1 to 255 bytes without control characters", uid);
            conn = new Conn();
            conn.id = id;
            conn.uid = uid;
        }
        check(conn.uid.toString().equals(String.valueOf(uid)), "a conn of another user, see newConn()", uid);
        return conn;
    }

    private void report(Conn conn, int event) {
        if (!conn.isOpen) ignored++;
        else if (event > conn.next) setNext(conn, event);
    }
    private void setNext(Conn conn, int event) {
        if (conn.next != NONE) queues.get(conn.next).remove(conn);
        conn.next = event;
        if (event != NONE) queues.get(event).add(conn);
        if (event >= LOGIN && logins.size() + logouts.size() == 1) notifyAll(); // else it knows
    }

    /** Its activity goes too: sent after its end, it would open a session again. */
    private void close(Conn conn) {
        conn.isOpen = false;
        setNext(conn, conn.ping > 0 ? LOGOUT : NONE);
        if (conn.ping == 0) conns.remove(conn.id); // the sidecar has never heard of it
    }
    private void declare() {
        conns.values().forEach(conn -> setNext(conn, conn.isOpen ? LOGIN : conn.next));
    }
    private interface Task { void run() throws Exception; }
    /** Runs a callback, or a part of this: what it throws ends nothing. */
    private void attempt(Task task) {
        try {
            task.run();
        } catch (Exception | Error error) {
            if (!isClosed) LOG.log(Level.ERROR, name + ": a callback or this has failed", error);
        }
    }

    /** Waits until something has to be written, and takes it; it then counts as sent. */
    private synchronized List<List<?>> take() throws InterruptedException {
        while (!isClosed && now() < nextWrite()) waitUntil(nextWrite());
        if (isClosed) return List.of();
        List<List<?>> frames = new ArrayList<>();
        writing = link;
        writtenAt = now();
        boolean isDue = writtenAt >= dueAt;
        // Logins before logouts, whose users may have a newer connection.
        for (int event : List.of(LOGIN, LOGOUT, MESSAGE, KEEPALIVE))
            if (isDue || event >= LOGIN) takeEvents(queues.get(event), frames);
        if (isDue) dueAt = writtenAt + flushS;
        if (handled() > acked) frames.add(List.of("ack", acked = handled()));
        if (isDue && !isPinging) frames.add(List.of("ping", ++pings));
        if (isDue && frames.isEmpty()) frames.add(List.of("keepalive", List.of()));
        isPinging |= isDue;
        return frames;
    }
    private double nextWrite() {
        boolean isUrgent = logins.size() + logouts.size() > 0 || handled() > acked;
        return !isLinked ? NEVER : isUrgent ? Math.min(writtenAt + GATHER_S, dueAt) : dueAt;
    }

    /** The seq up to which everything is handled: it may be acknowledged. */
    private synchronized long handled() {
        return ends.isEmpty() ? newest : Math.max(ends.keySet().iterator().next().endSeq - 1, 0);
    }

    /** Takes a queue in its order: one frame for each run of the same event and age. */
    private void takeEvents(Set<Conn> queue, List<List<?>> frames) {
        int event = NONE;
        double age = 0;
        List<Object> uids = List.of(), ids = List.of(), began = List.of();
        for (Conn conn : queue) {
            boolean hasAge = conn.next == LOGIN && (conn.ping > 0 || conn.openedAt < linkedAt);
            double tenths = hasAge ? Math.floor((writtenAt - conn.openedAt) * 10) : 0;
            if (conn.next != event || tenths / 10 != age || uids.size() >= maxBatch) {
                event = conn.next;
                age = tenths / 10;
                uids = new ArrayList<>();
                ids = new ArrayList<>();
                began = new ArrayList<>();
                frames.add(List.of(EVENTS[event], uids, event != LOGIN ? Map.of("conn", ids)
                        : Map.of("conn", ids, "age", age, "began", began)));
            }
            uids.add(conn.uid);
            ids.add(conn.id);
            if (event == LOGIN) began.add(conn.openedAt);
            conn.sent = Math.max(conn.sent, event);
            conn.next = NONE;
            conn.ping = pings + 1;
        }
        queue.clear();
    }

    private void link() throws InterruptedException {
        refusal = "";
        try (SocketChannel channel = SocketChannel.open(path)) {
            link = channel;
            hello.put("clock", List.of(now(), System.currentTimeMillis() / 1e3));
            if (handled() > 0) hello.putAll(Map.of("after", handled(), "log", log));
            MessagePack.write(channel, List.of("hello", hello));
            for (var reader = new MessagePack.Reader(channel); !isClosed;) receive(reader.next());
        } catch (IOException | RuntimeException | Error error) {
            if (!isClosed) linkEnded(error); // whatever it is: nothing ends the gateway
        }
    }

    /** Reports what may be lost on the next link, logs the end of this, and waits. */
    private void linkEnded(Throwable reason) throws InterruptedException {
        boolean isFinal = REMEDIES.containsKey(refusal);
        boolean isAbsent = reason instanceof IOException && !(reason instanceof ProtocolException);
        synchronized (this) {
            wasShutOut |= isFinal || !refusal.isEmpty() && !isLinked;
            isLinked = isPinging = isResumed = false;
            acked = 0;
            for (Conn conn : conns.values()) {
                setNext(conn, Math.max(conn.next, conn.sent)); // of the closed, their logout
                conn.sent = NONE;
            }
        }
        if (!refusal.isEmpty()) refusals++;
        failures = isAbsent ? 0 : Math.min(failures + 1, 6);
        int longest = Math.min(1 << Math.max(failures - 1, 0), isFinal ? 30 : 10);
        double pause = longest * (isFinal ? 0.5 + Math.random() / 2 : Math.random());
        State away = log == null ? State.CONNECTING : State.AWAY;
        State next = refusal.equals("replaced") ? State.REPLACED : isFinal ? State.REFUSED : away;
        double until = next == State.REPLACED ? NEVER : now() + pause;
        become(next, "no link at " + path + ", so its users are not watched: " + reason
                + ". What to do: " + REMEDIES.getOrDefault(refusal, "see that it runs there"));
        synchronized (this) {
            while (now() < until && !isClosed && !isResumed) waitUntil(until);
        }
    }

    private void receive(List<?> frame) throws IOException {
        Object content = frame.size() > 1 ? frame.get(1) : null;
        switch ((String) frame.get(0)) {
            case "welcome" -> welcome((Map<?, ?>) content);
            case "notices" -> ((List<?>) content).forEach(record -> notice((Map<?, ?>) record));
            case "pong" -> pong((Long) content);
            case "error" -> error((Map<?, ?>) content);
            default -> { } // "bye", behind which the link ends, or one of a later version
        }
        if (isLinked) become(State.LINKED, "linked to the sidecar at " + path);
    }

    private synchronized void welcome(Map<?, ?> welcome) {
        String id = Objects.requireNonNull((String) welcome.get("log"));
        long next = (Long) welcome.get("next");
        double flushMs = 900 * ((Number) welcome.get("flush")).doubleValue(); // there are delays
        flushS = Math.max(20, Math.min((long) flushMs, (long) (900 * pingS))) / 1e3;
        long most = (Long) welcome.get("max_frame") / 300; // connections with the longest uids
        maxBatch = Math.min((Long) welcome.get("max_batch"), most);
        // A log that ends before a record that it has sent is another log.
        boolean isNewLog = log != null && (!log.equals(id) || next <= newest);
        if (isNewLog) newest = 0;
        if (isNewLog) ends.keySet().forEach(conn -> conn.endSeq = 0);
        if (isNewLog || wasShutOut || Boolean.FALSE.equals(welcome.get("known"))) declare();
        believedFrom = wasShutOut ? next : isNewLog ? 0 : believedFrom;
        log = id;
        hello.keySet().removeAll(List.of("fresh", "after", "log"));
        wasShutOut = false;
        isLinked = true;
        links++;
        linkedAt = dueAt = now();
        notifyAll();
    }

    private synchronized void notice(Map<?, ?> record) {
        long seq = (Long) record.get("seq");
        if (seq <= newest) duplicates++;
        if (seq <= newest) return;
        newest = seq;
        notifyAll(); // it has to be handed over, or acknowledged
        if ("gap".equals(record.get("kind"))) declare();
        boolean isMoved = "moved".equals(record.get("kind")) && name.equals(record.get("from"));
        boolean isOffline = "offline".equals(record.get("kind"))
                && name.equals(record.get("gateway")) && seq >= believedFrom;
        Conn conn = conns.get(record.get(isMoved ? "from_conn" : "conn"));
        boolean isOpen = conn != null && conn.isOpen;
        if (isOpen && (isMoved || isOffline)) {
            Object reason = isMoved ? "moved" : record.get("reason");
            ends.put(conn, new End(conn.uid, conn.id, String.valueOf(reason), record));
            conn.endSeq = seq;
            close(conn);
        }
    }

    private synchronized void pong(long number) {
        if (!isPinging || number != pings) return;
        pongs = number;
        isPinging = false;
        if (now() - linkedAt > 10) failures = 0;
        if (requestedPing > pongs) dueAt = 0;
        conns.values().removeIf(conn -> {
            if (conn.ping <= number) conn.sent = NONE;
            return !conn.isOpen && conn.next + conn.sent == NONE && !ends.containsKey(conn);
        });
        notifyAll();
    }

    private void error(Map<?, ?> error) throws ProtocolException {
        boolean isFatal = !Boolean.FALSE.equals(error.get("fatal"));
        refusal = isFatal ? String.valueOf(error.get("code")) : "";
        if (isFatal) throw new ProtocolException(error.get("message") + ", " + error);
        refused++;
        LOG.log(Level.WARNING, name + ": the sidecar refused a frame: " + error);
    }

    /** Notes that the last end is handled, and waits for the next. */
    private synchronized End nextEnd() throws InterruptedException {
        if (ends.remove(inHand) != null) notifyAll(); // it may be acknowledged
        while (ends.isEmpty() && !isClosed) waitUntil(NEVER);
        inHand = ends.keySet().iterator().next(); // after `close` it may fail
        return ends.get(inHand);
    }

    private void become(State next, String line) {
        Level level = next == State.LINKED ? Level.INFO : Level.WARNING;
        if (!line.equals(logged)) LOG.log(level, name + ": " + line);
        logged = line;
        if (next != state) attempt(() -> onState.accept(state = next));
    }

    private void waitUntil(double until) throws InterruptedException {
        wait((long) Math.max(1, Math.min((until - now()) * 1000 + 1, 60_000)));
    }
    private static double now() { return System.nanoTime() / 1e9; }
    private static void check(boolean isValid, String rule, Object value) {
        if (!isValid) throw new IllegalArgumentException("%s: %.80s".formatted(rule, value));
    }
}
