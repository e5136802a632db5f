package liveness.example;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Locale;
import liveness.Sidecar;

/** What an event costs: `--sidecar PATH --users N --rounds R`; see the README. */
public final class Bench {
    private static final Duration LONG = Duration.ofMinutes(1);

    private Bench() {}

    /** Logs users in, then reports a keepalive of each in every round, and waits for the disk. */
    public static void main(String[] arguments) throws InterruptedException {
        String path = arguments[1];
        int users = Integer.parseInt(arguments[3]);
        int rounds = Integer.parseInt(arguments[5]);
        try (Sidecar sidecar = new Sidecar(path, "bench", null, true, end -> { }, state -> { })) {
            String[] uids = new String[users];
            long[] conns = new long[users];
            for (int i = 0; i < users; i++) {
                uids[i] = "user-%07d".formatted(i + 1);
                conns[i] = sidecar.newConn();
                sidecar.login(uids[i], conns[i]);
            }
            flush(sidecar);
            var process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpu = process.getProcessCpuTime();
            long wall = System.nanoTime();
            for (int round = 0; round < rounds; round++) {
                for (int i = 0; i < users; i++) {
                    sidecar.keepalive(uids[i], conns[i]);
                }
                flush(sidecar);
            }
            System.out.printf(Locale.ROOT, "{\"events\": %d, \"cpu_s\": %.3f, \"wall_s\": %.3f}%n",
                    (long) users * rounds, (process.getProcessCpuTime() - cpu) / 1e9,
                    (System.nanoTime() - wall) / 1e9);
        }
    }

    private static void flush(Sidecar sidecar) throws InterruptedException {
        if (!sidecar.flush(LONG)) {
            throw new IllegalStateException("no answer within a minute: " + sidecar.state());
        }
    }
}
