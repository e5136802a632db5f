/* The CPU time of an event: bench --sidecar PATH --users N --rounds R */
#define _DEFAULT_SOURCE
#include "liveness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double seconds(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static double wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void check(const char *error) {
    if (!error) return;
    fprintf(stderr, "bench: %s\n", error);
    exit(1);
}

int main(int argc, char **argv) {
    struct liveness_options options = {.name = "bench-c"};
    long users = 1000, rounds = 10;
    const char *error;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--sidecar")) options.path = argv[i + 1];
        else if (!strcmp(argv[i], "--users")) users = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--rounds")) rounds = atol(argv[i + 1]);
    }
    struct liveness *l = liveness_open(&options, &error);
    check(error);
    char(*uids)[32] = calloc((size_t)users, sizeof *uids);
    int64_t first = liveness_new_conn(l);
    for (long i = 0; uids && i < users; i++) {
        snprintf(uids[i], sizeof uids[i], "user-%07ld", i + 1);
        check(liveness_login(l, liveness_text(uids[i]), i ? liveness_new_conn(l) : first));
    }
    check(liveness_flush(l, 60) ? NULL : "the flush takes more than 60 s");
    double cpu = cpu_s(), wall = wall_s();
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < users; i++)
            liveness_keepalive(l, first + i);
        check(liveness_flush(l, 60) ? NULL : "the flush takes more than 60 s");
    }
    printf("{\"events\": %ld, \"cpu_s\": %.6f, \"wall_s\": %.6f}\n", users * rounds,
           cpu_s() - cpu, wall_s() - wall);
    liveness_close(l);
    free(uids);
    return 0;
}
