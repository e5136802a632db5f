/* The part of msgpack that the protocol needs: a writer, and a reader without a tree. The
 * reader takes bytes of any origin, and allocates nothing. */

#ifndef LIVENESS_MSGPACK_H
#define LIVENESS_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mp_out {
    unsigned char *data;
    size_t length, room;
    bool failed; /* no memory: what was put since is missing */
};

bool mp_reserve(struct mp_out *out, size_t more); /* room for `more` bytes; else `failed` */
void mp_put(struct mp_out *out, const void *bytes, size_t size); /* encoded already */
void mp_put_array(struct mp_out *out, size_t count);
void mp_put_map(struct mp_out *out, unsigned count); /* up to 15 pairs */
void mp_put_text(struct mp_out *out, const char *text); /* up to 65,535 bytes */
void mp_put_integer(struct mp_out *out, int64_t natural); /* from 0 */
void mp_put_number(struct mp_out *out, double number);
void mp_put_boolean(struct mp_out *out, bool value);

enum mp_type { MP_NIL, MP_INTEGER, MP_NUMBER, MP_TEXT, MP_BYTES, MP_ARRAY, MP_MAP };

struct mp_item {
    enum mp_type type;
    size_t count;     /* bytes of a text, elements of an array, pairs of a map */
    const char *text; /* not terminated */
    int64_t integer;  /* also of booleans; what does not fit 63 bits is an MP_NUMBER */
    double number;    /* of an integer too */
};

struct mp_in {
    const unsigned char *at, *end;
};

enum { MP_DEPTH = 32 }; /* nested arrays and maps; the protocol needs 5 */

struct mp_scan { /* how far a value was scanned; zero it for a new one */
    size_t size;
    unsigned depth;
    uint64_t left[MP_DEPTH]; /* items, by depth */
};

enum mp_result { MP_WHOLE, MP_PART, MP_BROKEN };

/* Find the end of the value at `data`. After MP_PART call it again with more bytes. */
enum mp_result mp_scan(struct mp_scan *scan, const unsigned char *data, size_t size);

bool mp_next(struct mp_in *in, struct mp_item *item); /* of an array or map only its head */
void mp_skip(struct mp_in *in);                       /* an item with all that it contains */

/* The value of a key of a map; false, `otherwise` or "" without it. Texts are cut to `size`. */
bool mp_find(struct mp_in map, const char *key, struct mp_item *value);
int64_t mp_integer(struct mp_in map, const char *key, int64_t otherwise);
void mp_text(struct mp_in map, const char *key, char *text, size_t size);

void mp_copy(const struct mp_item *item, char *text, size_t size);

bool mp_is_plain(const char *text, size_t most); /* 1 to `most` bytes, no control characters */

#endif
