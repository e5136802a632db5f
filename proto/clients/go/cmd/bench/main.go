// Measures the CPU time that this library takes for an event, in one process without users.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"syscall"
	"time"

	"liveness"
)

func main() {
	path := flag.String("sidecar", "", "the sidecar's socket")
	users := flag.Int("users", 1000, "how many are logged in")
	rounds := flag.Int("rounds", 10, "how many keepalives each of them sends")
	flag.Parse()
	sidecar, err := liveness.Connect(liveness.Options{Path: *path, Name: "bench-go"})
	check(err)
	defer sidecar.Close()

	uids, conns := make([]string, *users), make([]int64, *users)
	for i := range uids {
		uids[i], conns[i] = fmt.Sprintf("user-%07d", i+1), sidecar.NewConn()
		check(sidecar.Login(uids[i], conns[i]))
	}
	flush(sidecar)
	began, cpuBegan := time.Now(), cpuSeconds()
	for round := 0; round < *rounds; round++ {
		for i, uid := range uids {
			check(sidecar.Keepalive(uid, conns[i]))
		}
		flush(sidecar)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"events": *users * *rounds,
		"cpu_s":  cpuSeconds() - cpuBegan,
		"wall_s": time.Since(began).Seconds(),
	})
}

func flush(sidecar *liveness.Sidecar) {
	if !sidecar.Flush(time.Minute) {
		log.Fatal("no pong within a minute")
	}
}

// cpuSeconds returns the CPU time of this process, in the kernel too.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
