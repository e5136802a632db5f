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

type line map[string]any

var path, name = flag.String("sidecar", "", "its socket"), flag.String("name", "gw-1", "of this gateway")
var port, most = flag.String("port", "0", "0: any free one"), flag.Int("most", 1000, "users at a time")
var printable = regexp.MustCompile(`^[\pL\pM\pN\pP\pS ]{1,32}$`)
var sidecar *liveness.Sidecar
var mu sync.Mutex                                         // guards what follows
var room, uids = map[int64]net.Conn{}, map[int64]string{} // of the users who are in, by conn

func serve(tcp net.Conn, conn int64) {
	defer tcp.Close()
	send(tcp, line{"welcome": `log in with {"login": "ada"}; then {"say": "hi"} or {"logout": 1}`})
	uid, in := "", bufio.NewScanner(tcp)
	for in.Buffer(nil, 4096); in.Scan(); time.Sleep(20 * time.Millisecond) { // nobody floods the room
		var ask struct{ Login, Say, Ping, Logout any } // nil if absent
		json.Unmarshal(in.Bytes(), &ask)
		login, _ := ask.Login.(string)
		sidecar.Keepalive(uid, conn) // ignored before the login
		mu.Lock()
		switch {
		case uid == "" && printable.MatchString(login) && len(room) < *most:
			uid, uids[conn], room[conn] = login, login, tcp
			sidecar.Login(uid, conn)
			send(tcp, line{"joined": uid, "users": len(room)})
		case uid != "" && ask.Say != nil:
			sidecar.Message(uid, conn)
			for _, other := range room {
				send(other, line{"uid": uid, "say": ask.Say})
			}
		case ask.Ping != nil:
			send(tcp, line{"pong": 1})
		case ask.Logout != nil:
			go leave(uid, conn, "logout")
		}
		mu.Unlock()
	}
	leave(uid, conn, "closed, or too long a line")
}

func leave(uid string, conn int64, reason string) {
	mu.Lock()
	defer mu.Unlock()
	if tcp, isIn := room[conn]; isIn {
		delete(room, conn)
		delete(uids, conn)
		sidecar.Logout(uid, conn)
		send(tcp, line{"bye": reason})
		tcp.Close()
	}
}

func send(tcp net.Conn, l line) {
	tcp.SetWriteDeadline(time.Now().Add(time.Second)) // who does not read holds the room up once
	if json.NewEncoder(tcp).Encode(l) != nil {
		tcp.Close()
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
	for conn, uid := range uids {
		sidecar.Logout(uid, conn)
	}
	sidecar.Close()
}
