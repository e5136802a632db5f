package main

import (
	"encoding/json"
	"net"
	"time"
)

type line map[string]any

// A user's connection. Lines wait for it in a channel, so that nobody else does.
type user struct {
	tcp net.Conn
	uid string
	out chan line // nil: the last one
}

func (u *user) send(l line) {
	select {
	case u.out <- l:
	default: // it reads too slowly
		u.tcp.Close()
	}
}

func (u *user) write() {
	defer u.tcp.Close()
	for out := json.NewEncoder(u.tcp); ; {
		if l := <-u.out; l == nil || out.Encode(l) != nil {
			return
		}
	}
}

// Does not wait: later ends would wait, too.
func (u *user) end(reason string) {
	u.send(line{"bye": reason})
	u.send(nil)
	u.tcp.SetWriteDeadline(time.Now().Add(time.Second)) // it may be gone
}
