// A chat gateway: one room, and a TCP connection with lines of JSON for each user.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"liveness"
	"log"
	"net"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"
)

var path, name = flag.String("sidecar", "", "its socket"), flag.String("name", "gw-1", "of this gateway")
var port, most = flag.String("port", "0", "0: any free one"), flag.Int("most", 1000, "users at a time")
var printable = regexp.MustCompile(`^[\pL\pM\pN\pP\pS ]{1,32}$`)
var sidecar *liveness.Sidecar
var mu sync.Mutex            // guards what follows
var room = map[int64]*user{} // those who are in, by conn

func serve(tcp net.Conn, conn int64) {
	u := &user{tcp: tcp, out: make(chan line, 128)}
	go u.write()
	u.send(line{"welcome": `log in with {"login": "ada"}; then {"say": "hi"} or {"logout": 1}`})
	in := bufio.NewScanner(tcp)
	for in.Buffer(nil, 4096); in.Scan(); time.Sleep(20 * time.Millisecond) { // nobody floods the room
		var ask struct{ Login, Say, Ping, Logout any } // nil if absent
		json.Unmarshal(in.Bytes(), &ask)
		login, _ := ask.Login.(string)
		sidecar.Keepalive(u.uid, conn) // ignored before the login
		mu.Lock()
		switch {
		case u.uid == "" && printable.MatchString(login) && len(room) < *most:
			u.uid, room[conn] = login, u
			sidecar.Login(u.uid, conn)
			u.send(line{"joined": u.uid, "users": len(room)})
		case u.uid != "" && ask.Say != nil:
			sidecar.Message(u.uid, conn)
			for _, other := range room {
				other.send(line{"uid": u.uid, "say": ask.Say})
			}
		case ask.Ping != nil:
			u.send(line{"pong": 1})
		case ask.Logout != nil:
			go leave(u.uid, conn, "logout")
		}
		mu.Unlock()
	}
	leave(u.uid, conn, "closed, or too long a line")
	u.end("closed, or too long a line") // also if it was never in
}

func leave(uid string, conn int64, reason string) {
	mu.Lock()
	defer mu.Unlock()
	if u, isIn := room[conn]; isIn {
		delete(room, conn)
		sidecar.Logout(uid, conn)
		u.end(reason)
	}
}

func main() {
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:"+*port)
	if err == nil {
		sidecar, err = liveness.Connect(liveness.Options{Path: *path, Name: *name, OnEnd: leave})
	}
	if err != nil {
		log.Fatal(err)
	}
	stop, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	fmt.Println(*name, "listens on", listener.Addr())
	go func() { <-stop.Done(); listener.Close() }()
	for stop.Err() == nil {
		if tcp, err := listener.Accept(); err == nil {
			go serve(tcp, sidecar.NewConn())
		}
	}
	mu.Lock() // for good
	for conn, u := range room {
		sidecar.Logout(u.uid, conn)
	}
	sidecar.Close()
}
