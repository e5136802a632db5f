// Package liveness is a gateway's client of the liveness sidecar: the gateway reports its
// connections, and learns which of them have ended in silence. A report never waits: it is
// noted in the record of its connection, and written by the goroutine that keeps the link
// (link.go). Numbers such as G28 are rules of the protocol's page.
package liveness

import (
	"fmt"
	"log"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A State says whether there is a link, and why not. All but Replaced end by themselves.
type State string

const (
	Connecting State = "connecting" // no link yet
	Linked     State = "linked"
	Away       State = "away"     // the link has ended, and is made again
	Refused    State = "refused"  // the sidecar has refused this gateway, and is asked again
	Replaced   State = "replaced" // another process has the name, until Resume
)

// Options of Connect. Path and Name are required.
type Options struct {
	Path     string        // of the sidecar's socket
	Name     string        // of this gateway alone, 1 to 64 bytes; the same after a restart
	Timeout  time.Duration // silence after which its users are offline; 0: the sidecar's setting
	TookOver bool          // it has connections of an earlier process, and will log them in
	// OnEnd closes a connection that the sidecar has ended, for a reason such as "silence",
	// "gateway_lost" or "moved" (to a newer connection). The next end comes when it has returned.
	OnEnd   func(uid string, conn int64, reason string)
	OnState func(State)                   // is called with each new state, and must not wait
	Logf    func(format string, a ...any) // nil: log.Printf
}

// Stats are the state of the link, and numbers for the gateway's metrics.
type Stats struct {
	State               State
	Open, Pending       int // connections; reports that were not written yet
	Links, Refusals     int // links begun; links ended by an error of the sidecar
	Ignored, Duplicates int // reports about connections not open; records that came again
	Refused             int // frames; each is a bug of this library
}

// An event is what can be reported, the strongest last. 0 is none.
type event int

const (
	keepalive event = iota + 1
	message
	login
	logout
)

// A connection is kept from its login until it is closed and nothing is to come of it.
type connection struct {
	conn    int64
	uid     string
	opened  float64 // when it was authenticated, by monotonic()
	timeout float64 // of its latest login, in seconds; 0: none
	isOpen  bool
	order   int64  // of its login
	next    event  // to be written
	sent    event  // the strongest that was written and that no pong covers, or the latest
	ping    int64  // the number of the ping that covers it
	reason  string // of its end, until OnEnd has returned; "" if the gateway knows it
	endSeq  int64  // of the record of its end; 0: in a log that no longer exists
}

// A Sidecar is the link to the sidecar. Its methods may be called from any goroutine.
type Sidecar struct {
	options  Options
	ping     float64 // seconds, promised
	nextConn atomic.Int64

	mu       sync.Mutex // guards what follows
	stats    Stats
	logged   string // the latest line
	link     net.Conn
	isLinked bool // from its welcome to its end
	isClosed bool
	resumes  bool // after Resume, until the next link

	conns   map[int64]*connection
	changes map[*connection]bool // those whose next is a login or a logout
	active  []*connection        // those whose next is activity, unless it has changed
	closed  []*connection        // those in conns that are not open
	orders  int64

	welcome         welcome       // the latest
	newest, acked   int64         // seqs, in its log
	ends            []*connection // for OnEnd, in the order of their records
	wasShutOut      bool          // refused or replaced since the latest welcome
	believedFrom    int64         // offlines before this seq were decided meanwhile (G25)
	pings, pongs    int64         // the numbers of the latest ones
	wanted          int64         // the ping that a Flush waits for
	hasSent         bool          // events, since the latest ping
	flushAt, idleAt float64       // when activity is due, and when the promise is; monotonic()
}

// Connect keeps a link to the sidecar until Close. It does not wait for the sidecar: reports
// are collected until there is a link. It returns an error if an option is invalid.
func Connect(options Options) (*Sidecar, error) {
	mostPath := 107 // the kernel's limit
	for _, err := range []error{checkText("Path", options.Path, mostPath),
		checkText("Name", options.Name, 64), checkTimeout(options.Timeout)} {
		if err != nil {
			return nil, err
		}
	}
	if options.Logf == nil {
		options.Logf = log.Printf
	}
	s := &Sidecar{options: options, stats: Stats{State: Connecting}, ping: 3}
	s.conns, s.changes = map[int64]*connection{}, map[*connection]bool{}
	if options.Timeout > 0 { // a frozen gateway should be noticed before its users are due
		s.ping = math.Min(3, math.Max(options.Timeout.Seconds()/4, 0.25))
	}
	s.nextConn.Store(int64(float64(time.Now().UnixNano()) / 1e9 * (1 << 20))) // G10
	go s.run()
	return s, nil
}

// NewConn returns a number for a connection, below 2^53. It never repeats, even after a restart.
func (s *Sidecar) NewConn() int64 { return s.nextConn.Add(1) }

// Login reports that a connection was authenticated just now; again, that it is alive. A uid has
// 1 to 255 bytes. It returns an error if that is invalid, or the connection is another's.
func (s *Sidecar) Login(uid string, conn int64) error { return s.report(login, uid, conn, 0, 0) }

// LoginSince is a Login of a connection that was authenticated so long ago, and of a user with
// a timeout of its own until its next login (0: none).
func (s *Sidecar) LoginSince(uid string, conn int64, age, timeout time.Duration) error {
	if err := checkTimeout(timeout); err != nil {
		return err
	}
	return s.report(login, uid, conn, age, timeout)
}

// Keepalive reports activity; it is ignored, and counted, if the connection is not open.
func (s *Sidecar) Keepalive(uid string, conn int64) error {
	return s.report(keepalive, uid, conn, 0, 0)
}

// Message reports a message, which is activity too.
func (s *Sidecar) Message(uid string, conn int64) error { return s.report(message, uid, conn, 0, 0) }

// Logout reports that a connection has closed. It may be called wherever you close one.
func (s *Sidecar) Logout(uid string, conn int64) error { return s.report(logout, uid, conn, 0, 0) }

// Flush sends what was collected, and waits until everything reported so far is on the
// sidecar's disk; without a link, for a link too. It returns whether that is so in time.
func (s *Sidecar) Flush(timeout time.Duration) bool {
	s.mu.Lock()
	number := s.pings + 1
	s.wanted = number
	s.mu.Unlock()
	return s.wait(timeout, func() bool { return s.pongs >= number })
}

// Close sends the last reports, for at most a second, and ends the link. It returns whether
// they are on the sidecar's disk.
func (s *Sidecar) Close() (isSaved bool) {
	isSaved = s.Flush(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed = true; s.link != nil {
		s.link.Close()
	}
	return isSaved
}

// Resume takes the name over again in the state Replaced, and declares all open connections.
// Make sure first that the other process has ended. In other states it does nothing.
func (s *Sidecar) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumes = s.stats.State == Replaced
}

// Stats returns the state of the link, and numbers for the gateway's metrics.
func (s *Sidecar) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Pending = len(s.changes) + len(s.active)
	return s.stats
}

func (s *Sidecar) report(e event, uid string, conn int64, age, timeout time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[conn]
	if c == nil || c.uid != uid {
		if err := checkReport(uid, conn, c); err != nil {
			return err
		}
	}
	if c == nil && e == login {
		s.orders++
		opened := math.Max(0, monotonic()-math.Max(0, age.Seconds()))
		c = &connection{conn: conn, uid: uid, opened: opened, isOpen: true, order: s.orders}
		s.conns[conn] = c
		s.stats.Open++
	}
	switch {
	case c == nil || !c.isOpen: // what has ended stays closed
		s.stats.Ignored++
		if c != nil && e == logout {
			c.reason = "" // withdraw the end
		}
	case e == logout:
		s.end(c)
	case e == login:
		c.timeout = timeout.Seconds()
		s.note(c, login)
	default:
		s.note(c, e)
	}
	return nil
}

// note has an event written, unless a stronger one of the connection waits.
func (s *Sidecar) note(c *connection, e event) {
	if e >= login {
		s.changes[c] = true
	} else if c.next == 0 {
		s.active = append(s.active, c)
	}
	if e > c.next {
		c.next = e
	}
}

// end closes a connection. If its login was never written, it needs no logout.
func (s *Sidecar) end(c *connection) {
	c.isOpen = false
	s.stats.Open--
	if c.sent == 0 {
		delete(s.changes, c)
		delete(s.conns, c.conn)
		return
	}
	s.closed = append(s.closed, c)
	s.note(c, logout)
}

// declare has the logins of all open connections written again (G29).
func (s *Sidecar) declare() {
	for _, c := range s.conns {
		if c.isOpen {
			s.note(c, login)
		}
	}
}

// linkLost has written again what no pong has confirmed (G28).
func (s *Sidecar) linkLost() {
	for _, c := range s.conns {
		if c.ping > s.pongs && c.isOpen {
			s.note(c, c.sent)
		} else if c.ping > s.pongs {
			s.note(c, logout)
		}
		c.ping = 0
	}
	s.isLinked, s.resumes, s.acked, s.pings = false, false, 0, s.pongs
}

// handleEnds calls OnEnd with one end after the other, until there are no more.
func (s *Sidecar) handleEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ends) > 0 && !s.isClosed {
		c := s.ends[0]
		if reason := c.reason; reason != "" && s.options.OnEnd != nil {
			s.mu.Unlock()
			s.options.OnEnd(c.uid, c.conn, reason)
			s.mu.Lock()
		}
		c.reason, s.ends = "", s.ends[1:]
	}
}

// handled returns the seq up to which the gateway has handled all records.
func (s *Sidecar) handled() int64 {
	if len(s.ends) > 0 {
		return s.ends[0].endSeq - 1
	}
	return s.newest
}

// receive acts on a frame. An error ends the link.
func (s *Sidecar) receive(frame []any) error {
	content := append(frame, nil)[1]
	options, _ := content.(map[string]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch frame[0] {
	case "welcome":
		return s.receiveWelcome(options)
	case "notices":
		records, _ := content.([]any)
		for _, each := range records {
			record, _ := each.(map[string]any)
			s.receiveRecord(record)
		}
	case "pong":
		if number, _ := content.(int64); s.pongs < number && number <= s.pings {
			s.receivePong(number)
		}
	case "error":
		code, message := get[string](options, "code"), get[string](options, "message")
		if pid := get[int64](options, "pid"); pid > 0 {
			message += fmt.Sprintf(" (process %d)", pid)
		}
		if options["fatal"] != false {
			return refusal{code, message}
		}
		s.stats.Refused++
		go s.options.Logf("%s: the sidecar refused a frame: %.200s", s.options.Name, message)
	}
	return nil
}

func (s *Sidecar) receiveWelcome(options map[string]any) error {
	w, err := parseWelcome(options)
	if err != nil || s.isLinked {
		return errBroken
	}
	isNewLog := s.welcome.log != w.log || w.next <= s.newest
	if isNewLog {
		s.newest, s.believedFrom = 0, 0
		for _, c := range s.ends {
			c.endSeq = 0
		}
	}
	if s.stats.Links > 0 && (isNewLog || s.wasShutOut || options["known"] == false) {
		s.declare()
	}
	if s.wasShutOut {
		s.wasShutOut, s.believedFrom = false, w.next
	}
	s.welcome, s.isLinked, s.flushAt, s.idleAt = w, true, 0, 0
	s.stats.Links++
	return nil
}

// receivePong forgets the closed connections of which nothing is to come.
func (s *Sidecar) receivePong(number int64) {
	kept := s.closed[:0]
	s.pongs = number
	for _, c := range s.closed {
		if c.next == 0 && c.ping <= s.pongs && c.reason == "" {
			delete(s.conns, c.conn)
		} else {
			kept = append(kept, c)
		}
	}
	s.closed = kept
}

func (s *Sidecar) receiveRecord(record map[string]any) {
	seq := get[int64](record, "seq")
	if seq <= s.newest {
		s.stats.Duplicates++
		return
	}
	s.newest = seq
	gateway, number, reason := record["gateway"], record["conn"], get[string](record, "reason")
	switch kind := record["kind"]; {
	case kind == "gap": // a lost record may have ended a connection
		s.declare()
		return
	case kind == "moved":
		gateway, number, reason = record["from"], record["from_conn"], "moved"
	case kind != "offline" || seq < s.believedFrom:
		return
	}
	conn, isNumber := number.(int64)
	c := s.conns[conn]
	if !isNumber || c == nil || !c.isOpen || gateway != s.options.Name { // G16
		return
	}
	s.end(c) // with a logout: activity that crossed the record may have opened a session
	c.reason, c.endSeq = reason, seq
	if s.ends = append(s.ends, c); len(s.ends) == 1 {
		go s.handleEnds()
	}
}
