/* The calls are described in liveness.h, the rules (G1, ...) in "For gateway authors" of the
 * protocol's page. A connection is one struct, allocated by its login: no later call can run
 * out of memory, which is bounded by the connections, however long the sidecar is away. */

#define _DEFAULT_SOURCE
#include "state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- connections ------------------------------------------------------------------------- */
static void forget(struct liveness *l, struct conn *c) {
    note_nothing(l, c);
    take_out(&c->place);
    *place_of(l, c->number) = c->chain;
    free(c);
}

static void close_conn(struct liveness *l, struct conn *c) {
    l->stats.open--;
    c->is_open = false;
    append(&c->place, &l->closed);
    if (c->was_sent) note(l, c, LIVENESS_LOGOUT);
    else forget(l, c);
}

static void declare(struct liveness *l) { /* G29 */
    for (struct node *n = l->open.after; n->conn; n = n->after)
        note(l, n->conn, LIVENESS_LOGIN);
}

/* --- the link's state -------------------------------------------------------------------- */
static void enter(struct liveness *l, enum liveness_state state, const char *why) {
    if (state == l->stats.state && !strcmp(why, l->why)) return;
    l->stats.state = state;
    snprintf(l->why, sizeof l->why, "%s", why);
    for (char *at = l->why; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
    if (l->options.on_state) l->options.on_state(state, l->why, l->options.userdata);
}

/* Like all functions below that may end the link, return whether it goes on. The pause before
 * the next one doubles with each fault in a row, up to `longest`. */
static bool end_link(struct liveness *l, enum liveness_state state, int longest,
                     const char *why) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    bool has_lasted = l->is_linked && now_s() - l->linked_at > LASTING_S;
    if (longest == AT_ONCE || has_lasted) l->faults = 0;
    double pause = fmin(ldexp(1, l->faults++), longest) * (0.3 + 0.7 * erand48(l->random));
    l->retry_at = state == LIVENESS_REPLACED ? INFINITY : now_s() + pause;
    l->is_linked = l->is_pinging = l->is_unpinged = l->in.failed = l->out.failed = false;
    l->in.length = l->out.length = l->written = 0;
    l->scan = (struct mp_scan){0};
    l->acked = 0;
    /* Send again what no pong covered (G28), all logins in the order of opening. */
    for (struct node *n = l->open.after; n->conn; n = n->after) {
        struct conn *c = n->conn;
        bool is_login = c->next == LIVENESS_LOGIN || c->login_ping > l->pongs;
        if (is_login) note_nothing(l, c);
        if (is_login) note(l, c, LIVENESS_LOGIN);
        else if (c->ping > l->pongs) note(l, c, LIVENESS_KEEPALIVE);
    }
    for (struct node *n = l->closed.after; n->conn; n = n->after)
        note(l, n->conn, LIVENESS_LOGOUT);
    if (state == LIVENESS_AWAY && !l->stats.links) state = LIVENESS_CONNECTING;
    enter(l, state, why);
    return false;
}

static bool fault(struct liveness *l, const char *why) {
    return end_link(l, LIVENESS_AWAY, AFTER_FAULT, why);
}
static bool bad_frame(struct liveness *l) { return fault(l, "its bytes are not protocol 1"); }

/* --- frames from the sidecar ------------------------------------------------------------- */
static bool receive_welcome(struct liveness *l, struct mp_in options) {
    char log[sizeof l->log];
    struct mp_item flush = {0};
    mp_text(options, "log", log, sizeof log);
    mp_find(options, "flush", &flush);
    int64_t next = mp_integer(options, "next", 0), most = mp_integer(options, "max_batch", 0);
    int64_t fit = mp_integer(options, "max_frame", 0) / CONN_BYTES - 1;
    if (!*log || next < 1 || most < 1 || fit < 1) return bad_frame(l);
    l->stats.links++;
    /* A log that ends before a record that it has sent is another log. */
    bool is_new_log = strcmp(log, l->log) || next <= l->newest;
    if (is_new_log) l->newest = l->believed_from = 0;
    if (is_new_log || l->was_shut_out || !mp_integer(options, "known", 1)) declare(l);
    if (l->was_shut_out) l->believed_from = next; /* G25 */
    l->was_shut_out = false;
    memcpy(l->log, log, sizeof log);
    l->flush_s = fmin(fmax(flush.number * FLUSH_SHARE, 0.01), MAX_TIMEOUT_S);
    l->max_batch = (size_t)fmin(fmin((double)most, (double)fit), MAX_BATCH);
    l->uses_began = mp_integer(options, "began", 0);
    l->linked_at = l->flush_at = l->idle_at = now_s();
    l->is_linked = true;
    enter(l, LIVENESS_LINKED, "linked to the sidecar");
    return true;
}

static void receive_record(struct liveness *l, struct mp_in record) {
    char kind[16], gateway[MAX_NAME + 2], reason[64] = "moved";
    int64_t seq = mp_integer(record, "seq", -1);
    l->stats.duplicates += seq <= l->newest;
    if (seq <= l->newest) return; /* G18 */
    l->newest = seq;
    mp_text(record, "kind", kind, sizeof kind);
    bool is_moved = !strcmp(kind, "moved"), is_offline = !strcmp(kind, "offline");
    if (!strcmp(kind, "gap")) declare(l); /* a lost record may have ended a connection */
    if (!is_moved && (!is_offline || seq < l->believed_from)) return;
    mp_text(record, is_moved ? "from" : "gateway", gateway, sizeof gateway);
    struct conn *c = *place_of(l, mp_integer(record, is_moved ? "from_conn" : "conn", -1));
    if (strcmp(gateway, l->name) || !c || !c->is_open) return; /* G16 */
    if (is_offline) mp_text(record, "reason", reason, sizeof reason);
    /* Its logout is sent too: an activity may have crossed the record and opened a session
     * again, which nothing else would end. */
    c->was_sent = true;
    close_conn(l, c);
    struct liveness_end end = {c->uid, c->number, reason, seq, mp_integer(record, "at", 0)};
    if (l->options.on_ended) l->options.on_ended(&end, l->options.userdata);
}

static bool receive_error(struct liveness *l, struct mp_in options) {
    char code[32], message[200];
    mp_text(options, "code", code, sizeof code);
    mp_text(options, "message", message, sizeof message);
    if (!mp_integer(options, "fatal", 1)) { /* G8 */
        l->stats.refused++;
        enter(l, l->stats.state, message);
        return true;
    }
    bool is_taken = !strcmp(code, "replaced"), is_refused = !strcmp(code, "not-allowed") ||
         !strcmp(code, "bad-hello") || !strcmp(code, "unsupported-protocol");
    l->was_shut_out |= is_taken || is_refused || !l->is_linked;
    l->stats.refusals++;
    if (is_taken) return end_link(l, LIVENESS_REPLACED, SLOWLY, message);
    return is_refused ? end_link(l, LIVENESS_REFUSED, SLOWLY, message) : fault(l, message);
}

static bool receive(struct liveness *l, struct mp_in frame) {
    struct mp_item head, item;
    char name[16];
    bool is_array = mp_next(&frame, &head) && head.type == MP_ARRAY && head.count > 0;
    if (!is_array || !mp_next(&frame, &item) || item.type != MP_TEXT) return bad_frame(l);
    mp_copy(&item, name, sizeof name);
    if (!strcmp(name, "welcome")) return receive_welcome(l, frame);
    if (!strcmp(name, "error")) return receive_error(l, frame);
    if (!l->is_linked || !mp_next(&frame, &item)) return true;
    if (!strcmp(name, "pong") && l->is_pinging && item.integer == l->pings) {
        l->is_pinging = false;
        l->pongs = l->pings;
        for (struct conn *c; (c = l->closed.after->conn) && !c->next && c->ping <= l->pongs;)
            forget(l, c);
    }
    if (strcmp(name, "notices") || item.type != MP_ARRAY) return true; /* G7 */
    for (size_t i = 0; i < item.count; i++, mp_skip(&frame)) receive_record(l, frame);
    l->soon_at = fmin(l->soon_at, now_s() + GATHER_S); /* the ack */
    return true;
}

static bool read_link(struct liveness *l) {
    if (!mp_reserve(&l->in, PIECE)) return fault(l, "no memory");
    ssize_t got = recv(l->fd, l->in.data + l->in.length, PIECE, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return end_link(l, LIVENESS_AWAY, AT_ONCE, "the link has ended");
    l->in.length += (size_t)got;
    struct mp_in left = {l->in.data, l->in.data + l->in.length};
    enum mp_result result;
    while ((result = mp_scan(&l->scan, left.at, (size_t)(left.end - left.at))) == MP_WHOLE) {
        struct mp_in frame = {left.at, left.at + l->scan.size};
        l->scan = (struct mp_scan){0};
        if (!receive(l, frame)) return false;
        left.at = frame.end;
    }
    l->in.length = (size_t)(left.end - left.at);
    memmove(l->in.data, left.at, l->in.length);
    return (result == MP_PART && l->in.length <= MAX_FRAME) || bad_frame(l);
}

/* --- frames to the sidecar --------------------------------------------------------------- */
static bool connect_link(struct liveness *l) {
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* A Unix socket is connected at once, or not (EAGAIN: its backlog is full). */
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&l->path, sizeof l->path))
        return end_link(l, LIVENESS_AWAY, AT_ONCE, strerror(errno));
    l->idle_at = now_s() + WELCOME_S;
    struct mp_out *out = &l->out;
    double timeout = l->options.timeout;
    bool is_first = !l->stats.links, has_after = !is_first && l->newest > 0;
    mp_put_array(out, 2), mp_put_text(out, "hello");
    mp_put_map(out, 5u + (timeout > 0) + 2 * has_after);
    mp_put_text(out, "protocol"), mp_put_integer(out, 1);
    mp_put_text(out, "name"), mp_put_text(out, l->name);
    mp_put_text(out, "ping"), mp_put_number(out, l->ping_s);
    mp_put_text(out, "fresh"), mp_put_boolean(out, is_first && !l->options.has_connections);
    mp_put_text(out, "clock"), mp_put_array(out, 2);
    mp_put_number(out, now_s()), mp_put_number(out, clock_s(CLOCK_REALTIME));
    if (timeout > 0) mp_put_text(out, "timeout"), mp_put_number(out, timeout);
    if (has_after) mp_put_text(out, "after"), mp_put_integer(out, l->newest);
    if (has_after) mp_put_text(out, "log"), mp_put_text(out, l->log);
    return true;
}

/* The age of a login, rounded down to a step that grows with it: a million connections that
 * opened over one day take some ten thousand frames. */
static double age_of(const struct liveness *l, const struct conn *c, double now) {
    double age = now - c->opened, step = fmax(ldexp(1, ilogb(fmax(age, 1)) - 13), 0.1);
    /* Logins of this link arrive in their order: the later one is the newer one. */
    return !c->was_sent && c->opened >= l->linked_at ? 0 : fmax(floor(age / step) * step, 0);
}

/* Put one frame of the first connections of a queue: logins of one timeout and age. */
static void put_run(struct liveness *l, struct node *queue, double now) {
    static const char *const names[] = {"", "keepalive", "message", "login", "logout"};
    struct mp_out *out = &l->out;
    struct node *n = queue->after;
    struct conn *c = n->conn;
    enum liveness_event event = c->next;
    bool is_login = event == LIVENESS_LOGIN, has_began = is_login && l->uses_began;
    double age = is_login ? age_of(l, c, now) : 0, timeout = is_login ? c->timeout : 0;
    size_t count = 0, i;
    for (; (c = n->conn) && c->next == event && count < l->max_batch; n = n->after, count++)
        if (is_login && (c->timeout != timeout || age_of(l, c, now) != age)) break;
    mp_put_array(out, 3), mp_put_text(out, names[event]), mp_put_array(out, count);
    for (i = 0, n = queue->after; i < count; i++, n = n->after)
        if (n->conn->uid.text) mp_put_text(out, n->conn->text);
        else mp_put_integer(out, n->conn->uid.number);
    mp_put_map(out, 1u + (age > 0) + (timeout > 0) + has_began);
    if (age > 0) mp_put_text(out, "age"), mp_put_number(out, age);
    if (timeout > 0) mp_put_text(out, "timeout"), mp_put_number(out, timeout);
    mp_put_text(out, "conn"), mp_put_array(out, count);
    for (i = 0, n = queue->after; i < count; i++, n = n->after)
        mp_put_integer(out, n->conn->number);
    if (has_began) mp_put_text(out, "began"), mp_put_array(out, count);
    for (i = 0; i < count; i++) {
        c = queue->after->conn;
        if (has_began) mp_put_number(out, c->opened);
        c->ping = l->pings + 1;
        if (is_login) c->login_ping = c->ping;
        c->was_sent |= is_login;
        note_nothing(l, c);
    }
    l->is_unpinged = true;
}

static void put_due(struct liveness *l, double now) {
    struct node *queues = l->queues;
    struct mp_out *out = &l->out;
    /* Logins first: no logout takes a user offline who has a newer connection (G14). */
    for (int event = LIVENESS_LOGIN; event <= LIVENESS_LOGOUT; event++)
        while (queues[event].after->conn) put_run(l, &queues[event], now);
    l->soon_at = INFINITY;
    if (l->newest > l->acked)
        mp_put_array(out, 2), mp_put_text(out, "ack"), mp_put_integer(out, l->newest);
    l->acked = l->newest;
    if (now >= l->flush_at) {
        for (int event = LIVENESS_MESSAGE; event >= LIVENESS_KEEPALIVE; event--)
            while (queues[event].after->conn) put_run(l, &queues[event], now);
        if (l->is_unpinged && !l->is_pinging) { /* G27 */
            mp_put_array(out, 2), mp_put_text(out, "ping"), mp_put_integer(out, ++l->pings);
            l->is_pinging = true;
            l->is_unpinged = false;
        }
        l->flush_at = now + l->flush_s;
    }
    if (!out->length && now >= l->idle_at) /* keeps the promise (G31) */
        mp_put_array(out, 2), mp_put_text(out, "keepalive"), mp_put_array(out, 0);
    if (out->length) l->idle_at = now + l->ping_s / 3;
}

static double next_write(const struct liveness *l) {
    bool is_waiting = l->stats.pending || (l->is_unpinged && !l->is_pinging);
    return fmin(fmin(l->idle_at, l->soon_at), is_waiting ? l->flush_at : INFINITY);
}

static bool write_link(struct liveness *l) {
    if (l->written == l->out.length) {
        l->written = l->out.length = 0;
        if (l->is_linked && now_s() >= next_write(l)) put_due(l, now_s());
    }
    if (l->out.failed) return fault(l, "no memory");
    size_t left = l->out.length - l->written;
    ssize_t sent = left ? send(l->fd, l->out.data + l->written, left, MSG_NOSIGNAL) : 0;
    if (sent >= 0) l->written += (size_t)sent;
    else if (errno != EAGAIN && errno != EINTR)
        l->written = l->out.length = 0; /* what is read next says why, or is the end */
    return true;
}

/* --- the calls --------------------------------------------------------------------------- */
static bool is_timeout(double s) { return s == 0 || (s >= 1 && s <= MAX_TIMEOUT_S); }
struct liveness *liveness_open(const struct liveness_options *options, const char **error) {
    size_t size = options->path ? strlen(options->path) : 0;
    struct liveness *l = calloc(1, sizeof *l);
    *error = NULL;
    if (!l) *error = "no memory";
    else if (!mp_is_plain(options->name, MAX_NAME)) *error = "name: not 1 to 64 bytes of UTF-8";
    else if (!size || size >= sizeof l->path.sun_path) *error = "path: missing, or too long";
    else if (!is_timeout(options->timeout)) *error = "timeout: 1 to 86400 s, or 0";
    if (*error) return free(l), NULL;
    l->options = *options;
    l->path.sun_family = AF_UNIX;
    strcpy(l->name, options->name);
    strcpy(l->path.sun_path, options->path);
    make_lists(l);
    l->ping_s = options->timeout > 0 ? fmin(3, fmax(options->timeout / 4, 0.25)) : 3; /* G31 */
    l->fd = -1;
    l->soon_at = INFINITY;
    l->next_conn = (int64_t)(clock_s(CLOCK_REALTIME) * (1 << 20)); /* G10 */
    memcpy(l->random, &l->next_conn, sizeof l->random);
    return l;
}

void liveness_close(struct liveness *l) {
    if (l->is_linked || l->stats.state < LIVENESS_REFUSED) liveness_flush(l, 1);
    if (l->fd >= 0) close(l->fd);
    while (l->open.after->conn) forget(l, l->open.after->conn);
    while (l->closed.after->conn) forget(l, l->closed.after->conn);
    free(l->out.data);
    free(l->in.data);
    free(l);
}

int liveness_run(struct liveness *l, struct pollfd *link) {
    bool has_link = l->fd >= 0 ? read_link(l) : now_s() >= l->retry_at && connect_link(l);
    if (has_link) write_link(l);
    /* The link stays: a sidecar that hangs reads the hello later, and would see two links. */
    if (has_link && l->fd >= 0 && !l->is_linked && now_s() >= l->idle_at)
        enter(l, l->stats.state, "no welcome comes: is it a sidecar?"), l->idle_at = INFINITY;
    bool is_blocked = l->written < l->out.length;
    double next = l->fd < 0 ? l->retry_at : l->is_linked ? next_write(l) : l->idle_at;
    *link = (struct pollfd){l->fd, is_blocked ? POLLIN | POLLOUT : POLLIN, 0};
    if (is_blocked && l->is_linked) next = INFINITY;
    return (int)ceil(fmin(fmax(next - now_s(), 0) * 1000, MAX_WAIT_MS));
}

int64_t liveness_new_conn(struct liveness *l) { return l->next_conn++; }
const char *liveness_login_with(struct liveness *l, liveness_uid uid, int64_t conn,
                                double timeout, double age) {
    bool is_uid = uid.text ? mp_is_plain(uid.text, MAX_UID) : uid.number >= 0;
    const char *text = uid.text ? uid.text : "";
    struct conn **place = place_of(l, conn), *c = *place;
    if (!is_uid) return "uid: 1 to 255 bytes of plain UTF-8, or an integer from 0";
    if (conn < 0 || !is_timeout(timeout) || !(age >= 0 && age < INFINITY))
        return "conn and age: from 0; timeout: 1 to 86400 s, or 0 for the default";
    if (c && (strcmp(c->text, text) || (!uid.text && c->uid.number != uid.number)))
        return "conn: it belongs to another user";
    if (!c) {
        if (!(*place = c = calloc(1, sizeof *c + strlen(text) + 1))) return "no memory";
        strcpy(c->text, text);
        c->uid = (liveness_uid){uid.text ? c->text : NULL, uid.number};
        c->place = (struct node){&c->place, &c->place, c};
        c->queued = (struct node){&c->queued, &c->queued, c};
        c->number = conn;
        c->opened = fmax(now_s() - age, 0);
        c->is_open = true;
        append(&c->place, &l->open);
        l->stats.open++;
    }
    l->stats.ignored += !c->is_open;
    c->timeout = timeout;
    note(l, c, c->is_open ? LIVENESS_LOGIN : LIVENESS_NOTHING);
    return NULL;
}

void liveness_report(struct liveness *l, int64_t conn, enum liveness_event event) {
    struct conn *c = *place_of(l, conn);
    if (!c || !c->is_open) l->stats.ignored++;
    else if (event < LIVENESS_LOGOUT) note(l, c, event);
    else close_conn(l, c);
}

struct liveness_stats liveness_stats_of(const struct liveness *l) {
    struct liveness_stats stats = l->stats;
    stats.is_confirmed = !stats.pending && !l->is_unpinged && !l->is_pinging;
    return stats;
}

bool liveness_flush(struct liveness *l, double timeout) {
    double end = now_s() + timeout;
    struct pollfd link;
    for (;;) {
        l->flush_at = 0;
        int wait = liveness_run(l, &link);
        double left = end - now_s();
        if (liveness_stats_of(l).is_confirmed) return true;
        if (left <= 0) return false;
        poll(&link, 1, (int)ceil(fmin(wait, left * 1000)));
    }
}

void liveness_resume(struct liveness *l) {
    if (l->stats.state == LIVENESS_REPLACED) l->retry_at = 0;
}
