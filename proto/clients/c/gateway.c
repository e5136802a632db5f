/* A chat gateway with a sidecar: one room, and a TCP connection for each user.
 *     gateway --sidecar PATH --name gw-1 --port 7000 --most 1000
 *     nc 127.0.0.1 7000      as often as you like; then type {"login": "ada"} */
#define _GNU_SOURCE
#include "lines.h"
#include "liveness.h"
#include <signal.h>

#define HOW_TO "{'login': 'ada'}, then {'say': 'hi'}, {'ping': 1} or {'logout': 1}, in JSON"
#define SAID "{\"uid\": %s, \"say\": %s}"
enum { MAX_USERS = 10000, MAX_NAME = 32, LOGIN_S = 60, TICK_MS = 250 };
struct user {
    struct stream stream;
    int64_t conn;
    char name[12 * MAX_NAME + 3]; /* as it is written in JSON */
    bool is_in; /* the room */
} *users[MAX_USERS];
static size_t user_count, in_room;
static struct liveness *sidecar;
static volatile sig_atomic_t is_terminated;
static void terminate(int signal) { is_terminated = signal; }

static void end(struct user *u, const char *reason) {
    if (u->is_in) liveness_logout(sidecar, u->conn);
    in_room -= u->is_in;
    u->is_in = false;
    send_line(&u->stream, "{\"bye\": \"%s\"}", reason);
    end_stream(&u->stream);
}
static void on_ended(const struct liveness_end *ended, void *userdata) {
    for (size_t i = 0; i < user_count; i++)
        if (users[i]->is_in && users[i]->conn == ended->conn) end(users[i], ended->reason);
}
static void on_state(enum liveness_state state, const char *why, void *userdata) {
    fprintf(stderr, "sidecar: %s: %s\n", why, liveness_advice(state));
}
static void take_line(struct user *u, const char *line) {
    static char key[MAX_LINE_BYTES + 1], value[MAX_LINE_BYTES + 1], text[MAX_LINE_BYTES + 1];
    if (u->is_in) liveness_keepalive(sidecar, u->conn);
    if (!read_line(line, key, value, text)) key[0] = 0;
    bool is_name = printable(text) > 0 && printable(text) <= MAX_NAME;
    if (!strcmp(key, "login") && !u->name[0] && is_name &&
        !liveness_login(sidecar, liveness_text(text), u->conn)) {
        strcpy(u->name, value);
        u->is_in = true;
        u->stream.until = 0; /* no limit */
        send_line(&u->stream, "{\"joined\": %s, \"users\": %zu}", value, ++in_room);
    } else if (!strcmp(key, "say") && value[0] == '"' && u->is_in) {
        liveness_message(sidecar, u->conn);
        for (size_t i = 0; i < user_count; i++)
            if (users[i]->is_in) send_line(&users[i]->stream, SAID, u->name, value);
    } else if (!strcmp(key, "ping")) send_line(&u->stream, "{\"pong\": 1}");
    else if (!strcmp(key, "logout")) end(u, "logout");
    else send_line(&u->stream, "{\"error\": \"%s\"}", HOW_TO);
}
static int welcome(int fd, size_t most) {
    struct user *u = fd < 0 || user_count == MAX_USERS ? NULL : calloc(1, sizeof *u);
    if (!u) return close(fd);
    *u = (struct user){.stream = {.fd = fd, .until = time(NULL) + LOGIN_S},
                       .conn = liveness_new_conn(sidecar)};
    users[user_count++] = u;
    if (user_count > most) end(u, "the gateway is full, come back later");
    else send_line(&u->stream, "{\"welcome\": \"%s\"}", HOW_TO);
    return 0;
}
static void forget(size_t i) {
    end(users[i], "closed");
    close(users[i]->stream.fd);
    free(users[i]);
    users[i] = users[--user_count];
}
int main(int argc, char **argv) {
    static struct pollfd fds[MAX_USERS + 2];
    char line[MAX_LINE_BYTES + 1];
    const char *path = flag(argv, "--sidecar", NULL), *name = flag(argv, "--name", "gw-1");
    struct liveness_options options = {path, name, .on_ended = on_ended, .on_state = on_state};
    const char *error;
    int port = atoi(flag(argv, "--port", "0")), listener = listen_on(&port);
    size_t most = strtoul(flag(argv, "--most", "1000"), NULL, 10);
    if (listener < 0) return perror("cannot listen"), 1;
    if (!(sidecar = liveness_open(&options, &error))) return puts(error), 2;
    setlocale(LC_CTYPE, "C.UTF-8");
    signal(SIGTERM, terminate);
    printf("%s listens on 127.0.0.1:%d\n", name, port), fflush(stdout);
    while (!is_terminated) {
        int wait = liveness_run(sidecar, &fds[1]);
        fds[0] = (struct pollfd){listener, POLLIN, 0};
        for (size_t i = 0; i < user_count; i++) fds[i + 2] = wanted(&users[i]->stream);
        poll(fds, user_count + 2, wait > TICK_MS ? TICK_MS : wait);
        for (size_t i = user_count; i--;) {
            serve_stream(&users[i]->stream, fds[i + 2].revents);
            while (next_line(&users[i]->stream, line)) take_line(users[i], line);
            if (users[i]->stream.is_broken) forget(i);
        }
        if (fds[0].revents) welcome(accept4(listener, NULL, NULL, SOCK_NONBLOCK), most);
    }
    while (user_count) forget(0);
    liveness_close(sidecar);
    return 0;
}
