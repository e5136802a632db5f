package liveness;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.*;
import java.net.ProtocolException;
import java.nio.*;
import java.nio.channels.SocketChannel;
import java.nio.charset.CharacterCodingException;
import java.util.*;

/** Frames in the part of msgpack that the protocol uses: everything but extension types. */
final class MessagePack {
    private static final int MAX_FRAME_BYTES = 16 << 20;
    private static final int MAX_DEPTH = 32;
    private static final int MAX_VALUES = 1 << 20; // in a frame: some 100 MB of memory at most

    private ByteBuffer buffer = ByteBuffer.allocate(1 << 12); // of a frame that is encoded

    /** Whether a value is a string of 1 to `most` bytes, without control characters. */
    static boolean isText(Object value, int most) {
        return value instanceof String text && text.matches("[^\\x00-\\x1f\\x7f\\p{Cs}]+")
                && text.getBytes(UTF_8).length <= most;
    }

    /** Writes a frame of Strings, Longs, Doubles, Booleans, nulls, Lists and Maps by String. */
    static void write(SocketChannel channel, List<?> frame) {
        MessagePack encoder = new MessagePack();
        encoder.put(frame);
        ByteBuffer bytes = encoder.buffer.flip();
        try {
            while (bytes.hasRemaining()) channel.write(bytes);
        } catch (IOException error) {
            // Whoever reads learns why the link has ended: the sidecar may have said it.
        }
    }

    private void put(Object value) {
        reserve(9);
        if (value instanceof String text) {
            byte[] utf8 = text.getBytes(UTF_8);
            putLength(utf8.length, 0xa0, 32, 0xda);
            reserve(utf8.length);
            buffer.put(utf8);
        } else if (value instanceof List<?> list) {
            putLength(list.size(), 0x90, 16, 0xdc);
            list.forEach(this::put);
        } else if (value instanceof Map<?, ?> map) {
            putLength(map.size(), 0x80, 16, 0xde);
            map.forEach((key, item) -> {
                put(key);
                put(item);
            });
        } else if (value instanceof Long number) {
            if (number >>> 7 == 0) buffer.put(number.byteValue());
            else buffer.put((byte) 0xd3).putLong(number);
        } else if (value instanceof Double number) {
            buffer.put((byte) 0xcb).putDouble(number);
        } else {
            buffer.put((byte) (value == null ? 0xc0 : (Boolean) value ? 0xc3 : 0xc2));
        }
    }

    /** A length: within the first byte, or behind `large` in 2, or `large` + 1 in 4 bytes. */
    private void putLength(int length, int small, int smallEnd, int large) {
        if (length < smallEnd) buffer.put((byte) (small | length));
        else if (length < 0x1_0000) buffer.put((byte) large).putShort((short) length);
        else buffer.put((byte) (large + 1)).putInt(length);
    }

    private void reserve(int bytes) {
        if (buffer.remaining() >= bytes) return;
        int size = Math.max(2 * buffer.capacity(), buffer.position() + bytes);
        buffer = ByteBuffer.allocate(size).put(buffer.flip());
    }

    /** The frames that arrive. After an exception the rest is lost. */
    static final class Reader {
        private final SocketChannel channel;
        private ByteBuffer buffer = ByteBuffer.allocate(1 << 16).limit(0); // not decoded yet
        private long values; // of the frame that is being decoded

        Reader(SocketChannel channel) { this.channel = channel; }

        /** The next frame; one that comes in pieces is decoded again as it grows. */
        List<?> next() throws IOException {
            while (true) {
                int start = buffer.position();
                values = 0;
                try {
                    if (decode(0) instanceof List<?> frame) return frame;
                    throw new ProtocolException("a value that is no frame: this is no sidecar");
                } catch (BufferUnderflowException incomplete) {
                    fill(start);
                }
            }
        }

        private void fill(int start) throws IOException {
            buffer.position(start).compact();
            check(buffer.position() < MAX_FRAME_BYTES, "a frame that is too large");
            boolean isFull = !buffer.hasRemaining();
            if (isFull) buffer = ByteBuffer.allocate(2 * buffer.capacity()).put(buffer.flip());
            if (channel.read(buffer) < 0) throw new EOFException("the link has ended");
            buffer.flip();
        }

        private Object decode(int depth) throws IOException {
            check(depth <= MAX_DEPTH, "a frame that is nested too deeply");
            int head = buffer.get() & 0xff;
            if (head < 0x80 || head >= 0xe0) return (long) (byte) head;
            return switch (head) {
                case 0xc0 -> null;
                case 0xc2, 0xc3 -> head == 0xc3;
                case 0xc4, 0xc5, 0xc6 -> bytes(unsigned(1 << head - 0xc4));
                case 0xca -> (double) buffer.getFloat();
                case 0xcb -> buffer.getDouble();
                case 0xcc, 0xcd, 0xce, 0xcf -> unsigned(1 << head - 0xcc);
                case 0xd0 -> (long) buffer.get();
                case 0xd1 -> (long) buffer.getShort();
                case 0xd2 -> (long) buffer.getInt();
                case 0xd3 -> buffer.getLong();
                case 0xd9, 0xda, 0xdb -> text(unsigned(1 << head - 0xd9));
                case 0xdc, 0xdd -> array(unsigned(2 << head - 0xdc), depth);
                case 0xde, 0xdf -> map(unsigned(2 << head - 0xde), depth);
                default -> {
                    check(head < 0xc0, "no msgpack, or an extension type");
                    yield head < 0x90 ? map(head & 15, depth)
                            : head < 0xa0 ? array(head & 15, depth) : text(head & 31);
                }
            };
        }

        /** An integer of so many bytes. The protocol has none above 2^63-1. */
        private long unsigned(int width) {
            long number = 0;
            for (int i = 0; i < width; i++) number = number << 8 | buffer.get() & 0xff;
            return number;
        }

        private byte[] bytes(long length) {
            if (length > buffer.remaining()) throw new BufferUnderflowException();
            byte[] bytes = new byte[(int) length];
            buffer.get(bytes);
            return bytes;
        }

        private String text(long length) throws IOException {
            try {
                return UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes(length))).toString();
            } catch (CharacterCodingException error) {
                throw new ProtocolException("broken UTF-8");
            }
        }

        private List<Object> array(long length, int depth) throws IOException {
            values += length; // counted before memory is taken for them
            check(values <= MAX_VALUES, "a frame of too many values");
            List<Object> items = new ArrayList<>((int) length);
            for (int i = 0; i < length; i++) items.add(decode(depth + 1));
            return items;
        }

        private Map<Object, Object> map(long length, int depth) throws IOException {
            Map<Object, Object> items = new HashMap<>();
            Iterator<Object> left = array(2 * length, depth).iterator();
            while (left.hasNext()) items.put(left.next(), left.next());
            return items;
        }

        private static void check(boolean isValid, String error) throws ProtocolException {
            if (!isValid) throw new ProtocolException(error);
        }
    }
}
