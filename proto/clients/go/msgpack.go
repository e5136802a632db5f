package liveness

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

// The part of msgpack that the protocol uses: no extension types, and only strings as keys of
// maps. A frame beyond these bounds ends the link, whatever its bytes.
const (
	pieceBytes     = 1 << 16
	maxFrameBytes  = 16 << 20
	maxFrameValues = 1 << 20 // at all levels: a value of 1 byte may take 48 bytes of memory
	maxFrameDepth  = 32
)

var errBroken = errors.New("the sidecar has sent bytes that are not of protocol 1")

// A decoder reads values: nil, bool, int64 (uint64 from 2^63 on), float64, string, []byte, []any
// and map[string]any. After an error it reads only zeros.
type decoder struct {
	in                    *bufio.Reader
	err                   error
	bytesLeft, valuesLeft int // of the bounds of this frame
}

func newDecoder(in io.Reader) *decoder { return &decoder{in: bufio.NewReaderSize(in, pieceBytes)} }

// frame waits for the next frame, which has a name at least.
func (d *decoder) frame() ([]any, error) {
	d.bytesLeft, d.valuesLeft = maxFrameBytes, maxFrameValues
	frame, _ := d.value(maxFrameDepth).([]any)
	if d.err == nil && len(frame) == 0 {
		d.err = errBroken
	}
	return frame, d.err
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(d.bytesLeft) {
		d.err = errBroken
	}
	if d.err != nil {
		return nil
	}
	d.bytesLeft -= int(n)
	taken := make([]byte, n)
	_, d.err = io.ReadFull(d.in, taken)
	return taken
}

func (d *decoder) number(bytes uint64) (n uint64) {
	for ; bytes > 0 && d.err == nil; bytes-- {
		if d.bytesLeft--; d.bytesLeft < 0 {
			d.err = errBroken
			return 0
		}
		var b byte
		b, d.err = d.in.ReadByte()
		n = n<<8 | uint64(b)
	}
	return n
}

func (d *decoder) value(depth int) any {
	if d.valuesLeft--; d.valuesLeft < 0 || depth == 0 {
		d.err = errBroken
	}
	switch first := d.number(1); {
	case d.err != nil, first == 0xc0:
		return nil
	case first <= 0x7f, first >= 0xe0:
		return int64(int8(first))
	case first <= 0x8f:
		return d.object(first-0x80, depth)
	case first <= 0x9f:
		return d.array(first-0x90, depth)
	case first <= 0xbf:
		return d.text(first - 0xa0)
	case first == 0xc2, first == 0xc3:
		return first == 0xc3
	case 0xc4 <= first && first <= 0xc6:
		return d.take(d.number(1 << (first - 0xc4)))
	case first == 0xca:
		return float64(math.Float32frombits(uint32(d.number(4))))
	case first == 0xcb:
		return math.Float64frombits(d.number(8))
	case 0xcc <= first && first <= 0xcf:
		n := d.number(1 << (first - 0xcc))
		if n > math.MaxInt64 {
			return n
		}
		return int64(n)
	case 0xd0 <= first && first <= 0xd3:
		bytes := uint64(1) << (first - 0xd0)
		unused := 64 - 8*bytes
		return int64(d.number(bytes)<<unused) >> unused // this copies the sign
	case 0xd9 <= first && first <= 0xdb:
		return d.text(d.number(1 << (first - 0xd9)))
	case first == 0xdc, first == 0xdd:
		return d.array(d.number(2<<(first-0xdc)), depth)
	case first == 0xde, first == 0xdf:
		return d.object(d.number(2<<(first-0xde)), depth)
	}
	d.err = errBroken
	return nil
}

func (d *decoder) text(n uint64) string {
	text := d.take(n)
	if !utf8.Valid(text) {
		d.err = errBroken
	}
	return string(text)
}

func (d *decoder) array(n uint64, depth int) []any {
	values := []any{} // it grows with what arrives, whatever was announced
	for ; n > 0 && d.err == nil; n-- {
		values = append(values, d.value(depth-1))
	}
	return values
}

func (d *decoder) object(n uint64, depth int) map[string]any {
	object := map[string]any{}
	for ; n > 0 && d.err == nil; n-- {
		key, isText := d.value(depth - 1).(string)
		if !isText && d.err == nil {
			d.err = errBroken
		}
		object[key] = d.value(depth - 1)
	}
	return object
}

// get returns the value of a key, or zero if it is of another type or absent.
func get[T any](object map[string]any, key string) T {
	value, _ := object[key].(T)
	return value
}

// The first bytes of the values that are encoded.
const (
	float64s, uint64s  = 0xcb, 0xcf
	str, array, object = 0xdb, 0xdd, 0xdf
)

type encoded []byte // some value

// appendValue encodes what frames to the sidecar have. Integers are 0 or more.
func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case encoded:
		return append(b, v...)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int64:
		return appendNumber(b, uint64s, uint64(v))
	case float64:
		return appendNumber(b, float64s, math.Float64bits(v))
	case string:
		return append(appendLength(b, str, len(v)), v...)
	case []any:
		b = appendLength(b, array, len(v))
		for _, each := range v {
			b = appendValue(b, each)
		}
		return b
	case map[string]any:
		b = appendLength(b, object, len(v))
		for key, each := range v {
			b = appendValue(appendValue(b, key), each)
		}
		return b
	}
	panic(fmt.Sprintf("no encoding for %T", value))
}

func appendNumber(b []byte, first byte, bits uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, first), bits)
}

func appendLength(b []byte, first byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(b, first), uint32(length))
}
