#include "msgpack.h"

#include <stdlib.h>
#include <string.h>

bool mp_reserve(struct mp_out *out, size_t more) {
    if (out->room - out->length >= more) return true;
    size_t room = (out->length + more) * 2;
    unsigned char *data = realloc(out->data, room);
    out->failed |= !data;
    if (!data) return false;
    out->data = data;
    out->room = room;
    return true;
}

void mp_put(struct mp_out *out, const void *bytes, size_t size) {
    if (!mp_reserve(out, size)) return;
    memcpy(out->data + out->length, bytes, size);
    out->length += size;
}

/* A first byte, and behind it the `size` low bytes of `value`, the highest first. */
static void put_head(struct mp_out *out, unsigned first, uint64_t value, unsigned size) {
    unsigned char head[9] = {(unsigned char)first};
    for (unsigned i = 1; i <= size; i++) head[i] = (unsigned char)(value >> (8 * (size - i)));
    mp_put(out, head, 1 + size);
}

void mp_put_array(struct mp_out *out, size_t count) {
    if (count < 16) put_head(out, 0x90 | (unsigned)count, 0, 0);
    else put_head(out, 0xdc, count, 2); /* batches are smaller than 65,536 */
}

void mp_put_map(struct mp_out *out, unsigned count) { put_head(out, 0x80 | count, 0, 0); }

void mp_put_text(struct mp_out *out, const char *text) {
    size_t size = strlen(text);
    if (size < 32) put_head(out, 0xa0 | (unsigned)size, 0, 0);
    else if (size < 256) put_head(out, 0xd9, size, 1);
    else put_head(out, 0xda, size, 2);
    mp_put(out, text, size);
}

void mp_put_integer(struct mp_out *out, int64_t natural) {
    uint64_t value = (uint64_t)natural;
    if (value < 0x80) put_head(out, (unsigned)value, 0, 0);
    else if (value <= UINT8_MAX) put_head(out, 0xcc, value, 1);
    else if (value <= UINT16_MAX) put_head(out, 0xcd, value, 2);
    else if (value <= UINT32_MAX) put_head(out, 0xce, value, 4);
    else put_head(out, 0xcf, value, 8);
}

void mp_put_number(struct mp_out *out, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_head(out, 0xcb, bits, 8);
}

void mp_put_boolean(struct mp_out *out, bool value) { put_head(out, 0xc2u + value, 0, 0); }

static bool is_utf8(const char *text, size_t size) {
    const unsigned char *at = (const unsigned char *)text, *end = at + size;
    while (at < end) {
        unsigned first = *at++;
        unsigned more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc2 ? 1 : 0;
        if (first < 0x80) continue;
        if (!more || first > 0xf4 || (size_t)(end - at) < more) return false;
        unsigned second = *at; /* shorter forms, surrogates, and above U+10FFFF */
        if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
            (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
            return false;
        while (more--)
            if ((*at++ & 0xc0) != 0x80) return false;
    }
    return true;
}

static void set_integer(struct mp_item *item, int64_t integer) {
    *item = (struct mp_item){.type = MP_INTEGER, .integer = integer, .number = (double)integer};
}

static void set_number(struct mp_item *item, double number) {
    *item = (struct mp_item){.type = MP_NUMBER, .number = number};
}

/* Read the head of an item, and the whole of one that contains no others. Return the size
 * of what was read, 0 if there is not enough, or -1 if it is broken or of an extension. */
static ptrdiff_t read_item(const unsigned char *at, size_t have, struct mp_item *item) {
    /* By 0xc0 to 0xdf: the bytes of a value or length behind the first; 9 is broken. */
    static const unsigned char behind[] = {0, 9, 0, 0, 1, 2, 4, 9, 9, 9, 4, 8, 1, 2, 4, 8,
                                           1, 2, 4, 8, 9, 9, 9, 9, 9, 1, 2, 4, 2, 4, 2, 4};
    if (!have) return 0;
    *item = (struct mp_item){.type = MP_NIL};
    unsigned first = at[0];
    size_t body = 0, size = first >= 0xc0 && first <= 0xdf ? behind[first - 0xc0] : 0;
    if (size == 9) return -1;
    if (have <= size) return 0;
    uint64_t value = 0;
    for (size_t i = 1; i <= size; i++) value = value << 8 | at[i];
    uint32_t narrow = (uint32_t)value;
    float single;
    double number;
    memcpy(&single, &narrow, sizeof single);
    memcpy(&number, &value, sizeof number);
    if (first < 0x80) set_integer(item, (int64_t)first);
    else if (first < 0x90) item->type = MP_MAP, item->count = first & 0x0f;
    else if (first < 0xa0) item->type = MP_ARRAY, item->count = first & 0x0f;
    else if (first < 0xc0) item->type = MP_TEXT, body = first & 0x1f;
    else if (first >= 0xe0) set_integer(item, (int64_t)first - 256);
    else if (first == 0xc2 || first == 0xc3) set_integer(item, first & 1);
    else if (first >= 0xc4 && first <= 0xc6) item->type = MP_BYTES, body = value;
    else if (first == 0xca) set_number(item, (double)single);
    else if (first == 0xcb) set_number(item, number);
    else if (first == 0xcf && value > INT64_MAX) set_number(item, (double)value);
    else if (first >= 0xcc && first <= 0xcf) set_integer(item, (int64_t)value);
    else if (first == 0xd0) set_integer(item, (int8_t)value);
    else if (first == 0xd1) set_integer(item, (int16_t)value);
    else if (first == 0xd2) set_integer(item, (int32_t)value);
    else if (first == 0xd3) set_integer(item, (int64_t)value);
    else if (first >= 0xd9 && first <= 0xdb) item->type = MP_TEXT, body = value;
    else if (first >= 0xdc) item->type = first <= 0xdd ? MP_ARRAY : MP_MAP, item->count = value;
    if (have - 1 - size < body) return 0;
    if (item->type == MP_TEXT) item->text = (const char *)at + 1 + size, item->count = body;
    if (item->text && !is_utf8(item->text, body)) return -1;
    return (ptrdiff_t)(1 + size + body);
}

enum mp_result mp_scan(struct mp_scan *scan, const unsigned char *data, size_t size) {
    do {
        struct mp_item item;
        ptrdiff_t read = read_item(data + scan->size, size - scan->size, &item);
        if (read <= 0) return read ? MP_BROKEN : MP_PART;
        scan->size += (size_t)read;
        if (scan->depth) scan->left[scan->depth - 1]--;
        if (item.type == MP_ARRAY || item.type == MP_MAP) {
            if (scan->depth == MP_DEPTH) return MP_BROKEN;
            scan->left[scan->depth++] = (uint64_t)item.count << (item.type == MP_MAP);
        }
        while (scan->depth && !scan->left[scan->depth - 1]) scan->depth--;
    } while (scan->depth);
    return MP_WHOLE;
}

bool mp_next(struct mp_in *in, struct mp_item *item) {
    ptrdiff_t read = read_item(in->at, (size_t)(in->end - in->at), item);
    if (read > 0) in->at += read;
    return read > 0;
}

void mp_skip(struct mp_in *in) {
    struct mp_scan scan = {0};
    size_t left = (size_t)(in->end - in->at);
    in->at = mp_scan(&scan, in->at, left) == MP_WHOLE ? in->at + scan.size : in->end;
}

bool mp_find(struct mp_in map, const char *key, struct mp_item *value) {
    struct mp_item head, found;
    if (!mp_next(&map, &head) || head.type != MP_MAP) return false;
    for (size_t i = 0; i < head.count && map.at < map.end; i++) {
        struct mp_in pair = map;
        bool is_text = mp_next(&pair, &found) && found.type == MP_TEXT;
        if (is_text && found.count == strlen(key) && !memcmp(found.text, key, found.count))
            return mp_next(&pair, value);
        mp_skip(&map);
        mp_skip(&map);
    }
    return false;
}

int64_t mp_integer(struct mp_in map, const char *key, int64_t otherwise) {
    struct mp_item item;
    return mp_find(map, key, &item) && item.type == MP_INTEGER ? item.integer : otherwise;
}

void mp_copy(const struct mp_item *item, char *text, size_t size) {
    size_t count = item->type == MP_TEXT ? item->count : 0;
    if (count >= size) count = size - 1;
    if (count) memcpy(text, item->text, count);
    text[count] = 0;
}

void mp_text(struct mp_in map, const char *key, char *text, size_t size) {
    struct mp_item item = {.type = MP_NIL};
    mp_find(map, key, &item);
    mp_copy(&item, text, size);
}

bool mp_is_plain(const char *text, size_t most) {
    size_t size = text ? strlen(text) : 0;
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
    return size && size <= most && is_utf8(text, size);
}
