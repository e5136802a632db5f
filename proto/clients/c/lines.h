/* For the example: lines on a TCP connection, and a JSON object of one key a line. */

#ifndef LINES_H
#define LINES_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

enum { MAX_LINE_BYTES = 4096, UNSENT_BYTES = 64 << 10 /* for a user that reads slowly */ };
enum { LAST_LINES_S = 1 };

struct stream { /* non-blocking */
    int fd;
    bool is_ending, is_broken; /* to be closed: after its last lines, or now */
    time_t until;              /* then it is broken; 0: no limit */
    size_t in_size, out_size;
    char in[MAX_LINE_BYTES + 1], out[UNSENT_BYTES];
};

/* Listen on a port of 127.0.0.1 (0: any free one, which is set); -1: see errno. */
static inline int listen_on(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || fcntl(listener, F_SETFL, O_NONBLOCK) ||
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(listener, (struct sockaddr *)&at, size) || listen(listener, SOMAXCONN) ||
        getsockname(listener, (struct sockaddr *)&at, &size))
        return -1;
    *port = ntohs(at.sin_port);
    return listener;
}

/* The value of a flag of the command line. */
static inline const char *flag(char **argv, const char *name, const char *otherwise) {
    for (argv++; *argv && argv[1]; argv += 2)
        if (!strcmp(*argv, name)) return argv[1];
    return otherwise;
}

static inline struct pollfd wanted(const struct stream *s) {
    return (struct pollfd){s->fd, s->out_size ? POLLIN | POLLOUT : POLLIN, 0};
}

static inline void write_stream(struct stream *s) {
    ssize_t sent = s->out_size ? send(s->fd, s->out, s->out_size, MSG_NOSIGNAL) : 0;
    if (sent < 0) s->is_broken |= errno != EAGAIN;
    else memmove(s->out, s->out + sent, s->out_size -= (size_t)sent);
}

/* Queue a line, and send what the socket takes. */
__attribute__((format(printf, 2, 3)))
static inline void send_line(struct stream *s, const char *format, ...) {
    size_t room = sizeof s->out - s->out_size;
    va_list values;
    va_start(values, format);
    int size = vsnprintf(s->out + s->out_size, room, format, values);
    va_end(values);
    s->is_broken |= (size_t)size + 1 >= room; /* it reads too slowly */
    if (s->is_broken) return;
    s->out_size += (size_t)size;
    s->out[s->out_size++] = '\n';
    write_stream(s);
}

/* Read no more; write what is queued, for a short time only: the user may be gone. */
static inline void end_stream(struct stream *s) {
    s->is_ending = true;
    s->until = time(NULL) + LAST_LINES_S;
}

/* Read and write after a poll. */
static inline void serve_stream(struct stream *s, int events) {
    if (events & POLLOUT) write_stream(s);
    if (events & ~POLLOUT) {
        ssize_t got = recv(s->fd, s->in + s->in_size, sizeof s->in - s->in_size, 0);
        if (got > 0) s->in_size += (size_t)got;
        else s->is_broken |= !got || errno != EAGAIN;
    }
    if (s->is_ending) s->in_size = 0;
    if (s->is_ending && !s->out_size) shutdown(s->fd, SHUT_WR);
    s->is_broken |= s->until && time(NULL) > s->until;
}

/* Take the next line that was read, if it is there; `line` has room for the longest. */
static inline bool next_line(struct stream *s, char *line) {
    char *end = s->is_ending ? NULL : memchr(s->in, '\n', s->in_size);
    s->is_broken |= !end && s->in_size == sizeof s->in; /* a line that is too long */
    if (!end) return false;
    size_t size = (size_t)(end - s->in);
    memcpy(line, s->in, size);
    line[size] = 0;
    line[strcspn(line, "\r")] = 0;
    memmove(s->in, end + 1, s->in_size -= size + 1);
    return true;
}

/* How many characters of UTF-8 a text has, all of them printable; -1 if one is not: no user
 * can send control codes to a terminal. */
static inline int printable(const char *text) {
    static wchar_t wide[MAX_LINE_BYTES + 1];
    size_t count = mbstowcs(wide, text, MAX_LINE_BYTES);
    for (size_t i = 0; count != (size_t)-1 && i < count; i++)
        if (!iswprint((wint_t)wide[i])) return -1;
    return (int)count;
}

/* Read uXXXX; 0 if it is another thing. */
static inline unsigned read_hex(const char *at) {
    unsigned point = 0;
    bool is_hex = *at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") >= 4;
    return is_hex && sscanf(at + 1, "%4x", &point) == 1 ? point : 0;
}

/* Read a string at its quote into `text`; return its end, or NULL if it is none. */
static inline const char *read_string(const char *at, char *text) {
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    while (*++at != '"') {
        unsigned point, low = 0;
        const char *escape;
        if (!*at) return NULL;
        if (*at != '\\') {
            *text++ = *at;
            continue;
        }
        if (*++at && (escape = strchr(escapes, *at))) {
            *text++ = meant[escape - escapes];
            continue;
        }
        point = read_hex(at);
        at += point ? 4 : 0;
        if (point >> 10 == 0x36 && at[1] == '\\') low = read_hex(at + 2);
        if (low >> 10 == 0x37) {
            point = 0x10000 + ((point & 0x3ff) << 10) + (low & 0x3ff);
            at += 6;
        }
        int size = point ? wctomb(text, (wchar_t)point) : -1;
        if (size < 0) return NULL;
        text += size;
    }
    *text = 0;
    return at + 1;
}

/* Read the object of a line, such as {"say": "hi"}: its key, and its value as it is written
 * and, if it is a string, as a text. Each has the room of a line. */
static inline bool read_line(const char *line, char *key, char *value, char *text) {
    int start = 0;
    *text = 0;
    sscanf(line, " { \"%15[a-z]\" : %n", key, &start);
    if (!start || printable(line) < 0) return false;
    const char *first = line + start, *end = first + strcspn(first, "\"} ");
    if (*first == '"' && !(end = read_string(first, text))) return false;
    snprintf(value, MAX_LINE_BYTES + 1, "%.*s", (int)(end - first), first);
    end += strspn(end, " ");
    return *end == '}' && !end[1 + strspn(end + 1, " \r")];
}

#endif
