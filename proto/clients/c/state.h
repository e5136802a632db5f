/* Internal: the data of liveness.c, and what keeps it consistent. */

#ifndef LIVENESS_STATE_H
#define LIVENESS_STATE_H

#include "liveness.h"
#include "msgpack.h"

#include <math.h>
#include <sys/un.h>
#include <time.h>

enum { MAX_NAME = 64, MAX_UID = 255, MAX_LOG = 255, MAX_WHY = 255 }; /* bytes */
enum { PIECE = 64 << 10, MAX_FRAME = 16 << 20 }; /* bytes to read; the sidecar sends 2 MiB */
enum { CONN_BYTES = 282 }; /* at most, of each conn in a frame, and of all else in it */
enum { MAX_BATCH = 4096, BUCKETS = 1 << 17, MAX_WAIT_MS = 60000, MAX_TIMEOUT_S = 86400 };
#define GATHER_S 0.02   /* logins, logouts and acks are collected for this long */
#define FLUSH_SHARE 0.9 /* of welcome.flush; the rest is for delays of the event loop */
#define WELCOME_S 5     /* a link without a welcome ends after this */
#define LASTING_S 10    /* a link that lasted so long begins the back-off anew */
enum { AT_ONCE = 1, AFTER_FAULT = 10, SLOWLY = 30 }; /* seconds between links, at most */

struct node { /* of a ring; its head has no conn */
    struct node *before, *after;
    struct conn *conn;
};

struct conn {
    struct conn *chain;        /* in its hash bucket */
    struct node place, queued; /* among the open or closed; among those with a `next` */
    enum liveness_event next;  /* to report; a stronger event stands for the weaker ones */
    int64_t number, ping, login_ping; /* the first ping behind what was sent, and the login */
    double opened, timeout;
    bool is_open, was_sent; /* its login was, on some link */
    liveness_uid uid;
    char text[];
};

struct liveness {
    struct liveness_options options;
    struct liveness_stats stats;
    char name[MAX_NAME + 1], log[MAX_LOG + 1], why[MAX_WHY + 1];
    struct sockaddr_un path;
    struct conn *buckets[BUCKETS];
    struct node open, closed, queues[LIVENESS_LOGOUT + 1]; /* by `next` */
    bool is_linked, is_pinging, is_unpinged, was_shut_out, uses_began;
    int fd, faults; /* in a row */
    unsigned short random[3];
    size_t written, max_batch;
    struct mp_out out, in;
    struct mp_scan scan;
    double ping_s, flush_s, linked_at, retry_at, soon_at, flush_at, idle_at;
    int64_t next_conn, pings, pongs, newest, acked; /* the last two are seqs of records */
    int64_t believed_from; /* offlines below were decided while this gateway was shut out */
};

static inline double clock_s(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

static inline void take_out(struct node *n) {
    n->before->after = n->after;
    n->after->before = n->before;
    n->before = n->after = n;
}

static inline void make_lists(struct liveness *l) {
    l->open.before = l->open.after = &l->open;
    l->closed.before = l->closed.after = &l->closed;
    for (struct node *head = l->queues; head <= &l->queues[LIVENESS_LOGOUT]; head++)
        head->before = head->after = head;
}

static inline void append(struct node *n, struct node *head) {
    take_out(n);
    n->before = head->before;
    n->after = head;
    n->before->after = head->before = n;
}

/* The pointer to a connection, or the NULL where it would be. */
static inline struct conn **place_of(struct liveness *l, int64_t number) {
    uint64_t hash = (uint64_t)number * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio */
    struct conn **place = &l->buckets[(hash >> 32) % BUCKETS];
    while (*place && (*place)->number != number) place = &(*place)->chain;
    return place;
}

/* Note what to report next, unless a stronger event is noted. */
static inline void note(struct liveness *l, struct conn *c, enum liveness_event event) {
    if (event <= c->next) return;
    l->stats.pending += !c->next;
    c->next = event;
    append(&c->queued, &l->queues[event]);
    if (event >= LIVENESS_LOGIN) l->soon_at = fmin(l->soon_at, now_s() + GATHER_S);
}

static inline void note_nothing(struct liveness *l, struct conn *c) {
    l->stats.pending -= c->next > 0;
    c->next = LIVENESS_NOTHING;
    take_out(&c->queued);
}

#endif
