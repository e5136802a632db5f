/* A gateway's link to the liveness sidecar.
 *
 * The library has no thread and never waits (except in liveness_flush and liveness_close,
 * which say so). The gateway's event loop drives it:
 *
 *     struct pollfd link;
 *     int wait = liveness_run(l, &link);
 *     poll(&link, 1, wait);
 *
 * Reports (login, keepalive, message, logout) only note what happened. liveness_run sends
 * them, and makes the link again whenever it ends. All calls on a handle must come from one
 * thread at a time. Callbacks run within liveness_run, liveness_flush and liveness_close.
 * They may report, but not run, flush or close. */

#ifndef LIVENESS_H
#define LIVENESS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define LIVENESS_VERSION "0.1.0"

struct liveness; /* the handle */

/* A user: a text, or an integer if `text` is NULL. 7 and "7" are one user. */
typedef struct {
    const char *text; /* 1 to 255 bytes of UTF-8 without control characters */
    int64_t number;   /* from 0 */
} liveness_uid;

static inline liveness_uid liveness_text(const char *text) {
    liveness_uid uid = {text, 0};
    return uid;
}
static inline liveness_uid liveness_number(int64_t number) {
    liveness_uid uid = {NULL, number};
    return uid;
}

enum liveness_state {
    LIVENESS_CONNECTING, /* no link yet since the start */
    LIVENESS_LINKED,
    LIVENESS_AWAY,    /* the link has ended, and is made again */
    LIVENESS_REFUSED, /* the sidecar has refused this gateway, and is asked again */
    LIVENESS_REPLACED /* another process has the name; only liveness_resume connects again */
};

/* What the state means, and what to do. */
static inline const char *liveness_advice(enum liveness_state state) {
    static const char *const texts[] = {
        "no sidecar yet; see that it runs at that path, and that this user may connect",
        "linked to the sidecar",
        "the link is made again by itself; meanwhile reports are kept",
        "the sidecar refuses this gateway, and its users are not watched; correct the reason",
        "another process has this name, and the users of this one are not watched; end one of "
        "the two, or give each its own name"};
    return texts[state];
}

/* A connection of this gateway that has ended, and that the gateway has to close. */
struct liveness_end {
    liveness_uid uid; /* its text is valid until the callback returns */
    int64_t conn;
    const char *reason; /* "silence", "gateway_lost" or "moved"; later versions may add some */
    int64_t seq, at;    /* of the record; `at` in milliseconds since 1970, 0 if unknown */
};

/* Zero it, then set what you need. Path and name are copied. */
struct liveness_options {
    const char *path; /* of the sidecar's socket */
    const char *name; /* of the gateway: 1 to 64 bytes, the same at every start */
    double timeout;   /* silence timeout of its users: 1 to 86,400 s; 0: the sidecar's */
    bool has_connections; /* it took over connections of an earlier process: no `fresh` */
    void *userdata;       /* for the callbacks; each of them may be NULL */

    /* Called once for each ended connection: close it. Reports about it are ignored from now
     * on. Its record is acknowledged after the callback has returned. */
    void (*on_ended)(const struct liveness_end *end, void *userdata);

    /* The state, or the reason for it, has changed, or the sidecar has refused a frame. `why`
     * is for the log, with liveness_advice(state). */
    void (*on_state)(enum liveness_state state, const char *why, void *userdata);
};

/* Return NULL, and a sentence in `error`, only for wrong options or without memory: the
 * sidecar need not run. The first liveness_run connects. */
struct liveness *liveness_open(const struct liveness_options *options, const char **error);

/* Send the last reports, for at most 1 s, and free the handle. Does not log users out. */
void liveness_close(struct liveness *l);

/* --- the event loop ---------------------------------------------------------------------- */

/* Do what is due, without waiting: connect, read, write, call back. Then set the descriptor to
 * wait on, level-triggered (-1 between two links), and its events, and return for how long to
 * wait at most, in milliseconds. Call it when either comes, and after reports. */
int liveness_run(struct liveness *l, struct pollfd *link);

/* --- reports: never wait, and do no I/O -------------------------------------------------- */

enum liveness_event { /* a stronger one stands for the weaker ones before it */
    LIVENESS_NOTHING,
    LIVENESS_KEEPALIVE,
    LIVENESS_MESSAGE,
    LIVENESS_LOGIN,
    LIVENESS_LOGOUT
};

/* A conn that no process of this name has used: below 2^53, above those of earlier ones. */
int64_t liveness_new_conn(struct liveness *l);

/* Open a connection, whose user was authenticated `age` seconds ago; of an open one, an
 * activity. `timeout` (1 to 86,400 s; 0: the gateway's) holds for this user until the next
 * login. Return NULL, or a sentence on what is wrong with the call, or that there is no
 * memory; then nothing was noted. */
const char *liveness_login_with(struct liveness *l, liveness_uid uid, int64_t conn,
                                double timeout, double age);

static inline const char *liveness_login(struct liveness *l, liveness_uid uid, int64_t conn) {
    return liveness_login_with(l, uid, conn, 0, 0);
}

/* Report a keepalive, message or logout of a connection. If it is not open the report is
 * ignored and counted: a user may send while the record that ends its connection is under
 * way. */
void liveness_report(struct liveness *l, int64_t conn, enum liveness_event event);

static inline void liveness_keepalive(struct liveness *l, int64_t conn) {
    liveness_report(l, conn, LIVENESS_KEEPALIVE);
}
static inline void liveness_message(struct liveness *l, int64_t conn) {
    liveness_report(l, conn, LIVENESS_MESSAGE);
}
static inline void liveness_logout(struct liveness *l, int64_t conn) {
    liveness_report(l, conn, LIVENESS_LOGOUT);
}

/* --- the rest ---------------------------------------------------------------------------- */

/* Wait until everything reported so far is on the sidecar's disk; false after `timeout`
 * seconds. */
bool liveness_flush(struct liveness *l, double timeout);

/* If another process has the name, take it over again. */
void liveness_resume(struct liveness *l);

struct liveness_stats {
    enum liveness_state state;
    bool is_confirmed;   /* all that was reported is on the sidecar's disk */
    size_t open;         /* connections */
    size_t pending;      /* connections with something to send */
    uint64_t links;      /* welcomes */
    uint64_t ignored;    /* reports about connections that are not open */
    uint64_t duplicates; /* records that came again */
    uint64_t refused;    /* frames; each one is a bug of this library, or a full sidecar */
    uint64_t refusals;   /* links that the sidecar refused or ended with an error */
};
struct liveness_stats liveness_stats_of(const struct liveness *l);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
