package liveness

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"net"
	"time"
)

// One goroutine, run, connects, writes, and connects again. While a link lasts, a second one
// reads: so reading goes on while the sidecar takes no more bytes (G5).

const (
	tick        = 20 * time.Millisecond // how often there is a look at what waits to be written
	lastingLink = 10 * time.Second      // after such a link the pauses are short again
	forever     = 1 << 62               // in nanoseconds
)

// What an operator can do about a refusal that would come again.
var remedies = map[string]string{
	"replaced":             "end one of the two, or give it a name of its own; then Resume",
	"not-allowed":          "allow this Unix user and name in the sidecar's settings, [access]",
	"bad-hello":            "correct the Options, or update the sidecar or this library",
	"unsupported-protocol": "update the older one of the sidecar and this library",
}

// A refusal is an error of the sidecar that ends the link.
type refusal struct{ code, message string }

func (r refusal) Error() string { return fmt.Sprintf("%.200s (%.40s)", r.message, r.code) }

// run keeps a link until Close. Its pauses are random: not all gateways come back at once.
func (s *Sidecar) run() {
	random := rand.New(rand.NewSource(time.Now().UnixNano()))
	failures := 0.0 // in a row, by what the sidecar has sent
	for s.wait(0, func() bool { return !s.isClosed }) {
		began := time.Now()
		err := s.keepLink()
		var refused refusal
		if isFailure := errors.As(err, &refused) || errors.Is(err, errBroken); !isFailure ||
			time.Since(began) >= lastingLink {
			failures = 0
		}
		pause, longest := time.Duration(forever), 10.0
		state := s.stateAfter(err, refused.code)
		if state == Refused {
			longest = 30
		}
		if state != Replaced {
			seconds := math.Min(math.Exp2(failures), longest) * (0.5 + 0.4*random.Float64())
			pause = time.Duration(seconds * float64(time.Second))
		}
		s.wait(pause, func() bool { return s.resumes })
		failures++
	}
}

// keepLink makes a link, writes until it ends, and returns why.
func (s *Sidecar) keepLink() error {
	conn, err := net.Dial("unix", s.options.Path)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.Write(s.hello(conn)) // if this fails, there may be a refusal to read
	ended := make(chan error, 1)
	go func() {
		defer conn.Close() // this ends a write that waits
		ended <- s.read(conn)
	}()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for out := bufio.NewWriterSize(conn, pieceBytes); ; {
		batches, others := s.take()
		for _, b := range batches {
			out.Write(b.encode(s.welcome.hasClock)) // an error comes again with Flush
		}
		out.Write(others)
		if out.Flush() != nil {
			conn.SetReadDeadline(time.Now().Add(time.Second)) // there may be a refusal to read
			return <-ended
		}
		select {
		case err := <-ended:
			return err
		case <-ticks.C:
		}
	}
}

func (s *Sidecar) read(conn net.Conn) error {
	for in := newDecoder(conn); ; {
		frame, err := in.frame()
		if err == nil {
			err = s.receive(frame)
		}
		if err != nil {
			return err
		}
		if frame[0] == "welcome" {
			s.setState(Linked, "linked to the sidecar at %s", s.options.Path)
		}
	}
}

func (s *Sidecar) hello(conn net.Conn) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link = conn; s.isClosed {
		conn.Close()
	}
	options := map[string]any{"protocol": int64(1), "name": s.options.Name, "ping": s.ping}
	options["clock"] = readClocks()
	if s.options.Timeout > 0 {
		options["timeout"] = s.options.Timeout.Seconds()
	}
	if s.stats.Links == 0 {
		options["fresh"] = !s.options.TookOver
	} else if handled := s.handled(); handled > 0 {
		options["after"], options["log"] = handled, s.welcome.log
	}
	return appendValue(nil, []any{"hello", options})
}

// stateAfter notes why a link has ended, or was not made, and logs it with what to do.
func (s *Sidecar) stateAfter(err error, code string) State {
	remedy, isLasting := remedies[code]
	state := Refused
	s.mu.Lock()
	if code != "" {
		s.stats.Refusals++
		s.wasShutOut = s.wasShutOut || isLasting || !s.isLinked // possibly for long
	}
	if code == "replaced" {
		state = Replaced
	} else if !isLasting {
		remedy = "look whether it runs, and whether this user may connect; it is tried again"
		if state = Connecting; s.stats.Links > 0 {
			state = Away
		}
	}
	s.linkLost()
	s.mu.Unlock()
	s.setState(state, "no link to the sidecar at %s, so its users are not watched: %v. "+
		"What to do: %s", s.options.Path, err, remedy)
	return state
}

// setState logs a line, but not twice in a row, and hands over a new state; not after Close.
func (s *Sidecar) setState(state State, format string, args ...any) {
	line := s.options.Name + ": " + fmt.Sprintf(format, args...)
	s.mu.Lock()
	isNewState := state != s.stats.State && !s.isClosed
	isNewLine := line != s.logged && !s.isClosed
	s.stats.State, s.logged = state, line
	s.mu.Unlock()
	if isNewLine {
		s.options.Logf("%s", line)
	}
	if isNewState && s.options.OnState != nil {
		s.options.OnState(state)
	}
}

// wait returns whether the condition is true in time; it is checked at each tick.
func (s *Sidecar) wait(timeout time.Duration, condition func() bool) bool {
	for until := time.Now().Add(timeout); ; time.Sleep(tick) {
		s.mu.Lock()
		isTrue, isClosed := condition(), s.isClosed
		s.mu.Unlock()
		if isTrue || isClosed || time.Now().After(until) {
			return isTrue
		}
	}
}
