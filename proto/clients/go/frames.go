package liveness

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
	"unsafe"
)

const flushShare = 0.9 // of the sidecar's flush: the rest is for delays

// take returns what to write now: reports, and behind them an ack and a ping. From now on all of
// it counts as sent.
func (s *Sidecar) take() (batches []*batch, others []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isLinked {
		return nil, nil
	}
	now := monotonic()
	isAsked := s.wanted > s.pings
	isDue := isAsked || now >= s.flushAt
	for _, c := range s.takeNext(isDue) {
		if c.next == 0 {
			continue // it was in active twice
		}
		batches = s.welcome.put(batches, c, now)
		if c.next > c.sent || c.ping <= s.pongs {
			c.sent = c.next
		}
		c.next, c.ping, s.hasSent = 0, s.pings+1, true
	}
	if handled := s.handled(); handled > s.acked {
		s.acked = handled
		others = appendValue(others, []any{"ack", handled})
	}
	if isAsked || isDue && s.hasSent || now >= s.idleAt {
		s.pings++
		s.hasSent = false
		others = appendValue(others, []any{"ping", s.pings})
	}
	if isDue {
		s.flushAt = now + s.welcome.flush
	}
	if len(batches)+len(others) > 0 {
		s.idleAt = now + s.ping/3
	}
	return batches, others
}

// takeNext returns the connections with an event to write now: logins in their order, then
// logouts, then activity if it is due. So a user with a newer connection is not offline in
// between, whichever connections came and went before anything was written (G14).
func (s *Sidecar) takeNext(isDue bool) (next []*connection) {
	for c := range s.changes {
		next = append(next, c)
		delete(s.changes, c)
	}
	sort.Slice(next, func(i, j int) bool {
		a, b := next[i], next[j]
		return a.next < b.next || a.next == b.next && a.order < b.order
	})
	if !isDue {
		return next
	}
	for _, e := range [...]event{message, keepalive} {
		for _, c := range s.active {
			if c.next == e {
				next = append(next, c)
			}
		}
	}
	s.active = s.active[:0]
	return next
}

// A welcome is what later frames need of the sidecar's.
type welcome struct {
	log                string
	next               int64
	flush              float64 // seconds
	maxBatch, maxFrame int64
	hasClock           bool    // of this host, so logins say when their connections began
	since              float64 // monotonic(), of its arrival
}

func parseWelcome(options map[string]any) (w welcome, err error) {
	w.log, w.next = get[string](options, "log"), get[int64](options, "next")
	w.flush = get[float64](options, "flush") + float64(get[int64](options, "flush"))
	w.maxBatch, w.maxFrame = get[int64](options, "max_batch"), get[int64](options, "max_frame")
	w.hasClock = get[bool](options, "began")
	isSoundFlush := 0 <= w.flush && w.flush <= 86_400
	if w.log == "" || w.next < 1 || !isSoundFlush || w.maxBatch < 1 || w.maxFrame < 1 {
		return w, errBroken
	}
	w.flush *= flushShare
	w.since = monotonic()
	return w, nil
}

// A batch is events that share a frame.
type batch struct {
	kind  kind
	conns []*connection
	bytes int64 // at most
}

type kind struct {
	event        event
	age, timeout float64 // of logins, in seconds; 0: none
}

// put adds what is next of a connection to the last of the batches, or to a new one.
func (w *welcome) put(batches []*batch, c *connection, now float64) []*batch {
	k := kind{event: c.next}
	if c.next == login {
		// Rounded down, so that logins can share a frame: to 0.1 s, and from a quarter of an hour
		// on to about a ten-thousandth.
		age := now - c.opened
		if c.sent == 0 && c.opened >= w.since {
			age = 0 // first logins of this link arrive in order: the later one is the newer one
		}
		step := math.Max(0.1, math.Exp2(math.Floor(math.Log2(age)))/8192)
		k.age, k.timeout = math.Floor(age/step)*step, c.timeout
	}
	bytes := int64(len(c.uid) + 5 + 9 + 9) // with a conn and a beginning
	var b *batch
	if n := len(batches); n > 0 {
		b = batches[n-1]
	}
	if b == nil || b.kind != k || int64(len(b.conns)) == w.maxBatch || b.bytes+bytes > w.maxFrame {
		b = &batch{kind: k, bytes: 200} // for the names
		batches = append(batches, b)
	}
	b.conns, b.bytes = append(b.conns, c), b.bytes+bytes
	return batches
}

// encode returns the batch as a frame.
func (b *batch) encode(hasClock bool) []byte {
	n := len(b.conns)
	uids, conns, began := appendLength(nil, array, n), appendLength(nil, array, n), appendLength(nil, array, n)
	for _, c := range b.conns {
		uids = append(appendLength(uids, str, len(c.uid)), c.uid...)
		conns = appendNumber(conns, uint64s, uint64(c.conn))
		began = appendNumber(began, float64s, math.Float64bits(c.opened))
	}
	options := map[string]any{"conn": encoded(conns)}
	if b.kind.age > 0 {
		options["age"] = b.kind.age
	}
	if b.kind.timeout > 0 {
		options["timeout"] = b.kind.timeout
	}
	if b.kind.event == login && hasClock {
		options["began"] = encoded(began)
	}
	name := [...]string{keepalive: "keepalive", message: "message", login: "login", logout: "logout"}[b.kind.event]
	return appendValue(nil, []any{name, encoded(uids), options})
}

// readClocks returns CLOCK_MONOTONIC and the wall clock at one moment, in seconds. The process
// may be stopped between the readings, and then reads again (G30).
func readClocks() (reading []any) {
	for try := 0; try < 5; try++ {
		began := monotonic()
		reading = []any{began, float64(time.Now().UnixNano()) / 1e9}
		if monotonic()-began < 0.001 {
			break
		}
	}
	return reading
}

// monotonic returns CLOCK_MONOTONIC in seconds, which all processes of a host share. Package
// time measures by it, but does not show it.
func monotonic() float64 {
	const clockMonotonic = 1
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

func checkReport(uid string, conn int64, owned *connection) error {
	if conn < 0 {
		return fmt.Errorf("conn is %d; it must be 0 or more", conn)
	}
	if owned != nil {
		return fmt.Errorf("conn %d is of %.80q, not of %.80q; see NewConn", conn, owned.uid, uid)
	}
	return checkText("uid", uid, 255)
}

func checkTimeout(timeout time.Duration) error {
	if timeout != 0 && (timeout < time.Second || timeout > 24*time.Hour) {
		return fmt.Errorf("timeout is %v; it must be 1 s to 24 h", timeout)
	}
	return nil
}

func checkText(what, text string, most int) error {
	isControl := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if len(text) < 1 || len(text) > most || !utf8.ValidString(text) ||
		strings.IndexFunc(text, isControl) >= 0 {
		return fmt.Errorf("%s is %.80q; it must have 1 to %d bytes of UTF-8 without control "+
			"characters", what, text, most)
	}
	return nil
}
