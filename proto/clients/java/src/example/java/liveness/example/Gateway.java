package liveness.example;

import static java.nio.charset.StandardCharsets.UTF_8;
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.regex.*;
import liveness.Sidecar;

/** A chat room: `--sidecar PATH --name NAME --port PORT --most N`. Two threads a connection. */
public final class Gateway {
    private static final int MAX_LINE = 4096, MAX_UNSENT = 1024, LOGIN_MS = 60_000, LAST_MS = 1000;
    private static final String ESCAPE = "\\\\[\"\\\\/bfnrt]|\\\\u\\p{XDigit}{4}";
    private static final Pattern REQUEST = Pattern.compile("\\{\\s*\"(login|say|ping|logout)\"\\s*"
            + ":\\s*(?:\"((?:[^\"\\\\\\p{Cc}]|" + ESCAPE + ")*+)\"|[^\"{}]+)\\s*\\}");
    private static final Map<Long, User> ROOM = new ConcurrentHashMap<>(); // by conn
    private static final Set<User> OPEN = ConcurrentHashMap.newKeySet();
    private static Sidecar sidecar;

    public static void main(String[] args) throws IOException {
        var flags = new HashMap<>(Map.of("--name", "gw-1", "--port", "0", "--most", "1000"));
        for (int i = 0; i + 1 < args.length; i += 2) flags.put(args[i], args[i + 1]);
        String name = flags.get("--name");
        int port = Integer.parseInt(flags.get("--port"));
        sidecar = new Sidecar(flags.get("--sidecar"), name, null, true, end -> Optional.ofNullable(
                ROOM.get(end.conn())).ifPresent(user -> user.end(end.reason())), state -> { });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { // at SIGTERM
            ROOM.values().forEach(User::leave);
            sidecar.close();
            Runtime.getRuntime().halt(0);
        }));
        ServerSocket listener = new ServerSocket(port, 1000, InetAddress.getByName("127.0.0.1"));
        System.out.println(name + " listens on 127.0.0.1:" + listener.getLocalPort());
        while (true) {
            User user = new User(listener.accept());
            user.send("{\"welcome\": \"log in, then say, ping or logout\"}");
            boolean isFull = OPEN.size() > Integer.parseInt(flags.get("--most"));
            if (isFull) user.end("the gateway is full, come back later");
            for (Runnable run : List.<Runnable>of(user::read, user::write)) new Thread(run).start();
        }
    }

    private static final class User {
        final Socket socket;
        final long conn = sidecar.newConn();
        final BlockingQueue<String> out = new LinkedBlockingQueue<>(MAX_UNSENT);
        String uid; // null before the login
        User(Socket socket) { this.socket = socket; OPEN.add(this); }
        void read() {
            try (socket) {
                socket.setSoTimeout(LOGIN_MS);
                InputStream in = new BufferedInputStream(socket.getInputStream());
                byte[] line = new byte[MAX_LINE];
                for (int next, size = 0; (next = in.read()) >= 0;) {
                    if (next != '\n' && size == MAX_LINE) break;
                    if (next != '\n') line[size++] = (byte) next;
                    else { take(new String(line, 0, size, UTF_8)); size = 0; }
                }
            } catch (IOException error) { } // connections end that way
            leave();
            OPEN.remove(this);
            send(""); // ends `write`; if there is no room, that fails as the socket is closed
        }
        void write() {
            try (socket) {
                for (String line; !(line = out.take()).isEmpty();)
                    socket.getOutputStream().write((line + "\n").getBytes(UTF_8));
            } catch (IOException | InterruptedException error) { } // `read` ends too
        }
        void take(String line) throws IOException {
            if (ROOM.containsKey(conn)) sidecar.keepalive(uid, conn);
            Matcher request = REQUEST.matcher(line.strip());
            String what = request.matches() ? request.group(1) : "";
            String text = what.isEmpty() ? "" : Objects.requireNonNullElse(request.group(2), "");
            if (what.equals("login") && uid == null && text.matches("[^\\\\\\p{C}]{1,32}")) {
                uid = text;
                socket.setSoTimeout(0);
                sidecar.login(uid, conn);
                ROOM.put(conn, this);
                send("{\"joined\": \"" + uid + "\", \"users\": " + ROOM.size() + "}");
            } else if (what.equals("say") && ROOM.containsKey(conn)) {
                sidecar.message(uid, conn);
                String said = "{\"uid\": \"" + uid + "\", \"say\": \"" + text + "\"}";
                ROOM.values().forEach(user -> user.send(said));
            } else if (what.equals("ping")) send("{\"pong\": 1}");
            else if (what.equals("logout")) end("logout");
            else send("{\"error\": \"log in, then say, ping or logout\"}");
        }
        void send(String line) { if (!out.offer(line)) close(); } // it reads too slowly
        void end(String reason) {
            leave();
            send("{\"bye\": \"" + reason + "\"}");
            send(""); // behind it `write` closes the socket
            CompletableFuture.delayedExecutor(LAST_MS, TimeUnit.MILLISECONDS).execute(this::close);
        }
        void leave() { if (ROOM.remove(conn) != null) sidecar.logout(uid, conn); }
        void close() { try { socket.close(); } catch (IOException error) { } } // it is closed
    }
}
