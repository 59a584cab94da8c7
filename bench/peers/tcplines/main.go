// tcplines sends lines of one size over several TCP connections as fast as they are taken. Each is
// a syslog message (RFC 3164), so that a syslog server and Penstock can be sent the very same bytes.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"time"
)

const linesPerWrite = 320 // about 64 KiB of 200-byte lines

type report struct {
	Lines       int   `json:"lines"`
	Bytes       int64 `json:"bytes"`
	BeginUnixNs int64 `json:"begin_unix_ns"` // every connection is open, nothing is sent yet
	SentUnixNs  int64 `json:"sent_unix_ns"`  // the last byte is in a socket buffer
}

func line(number, sizeBytes int) []byte {
	head := fmt.Sprintf("<13>Jan  1 00:00:00 bench sender: %06d ", number)
	pad := bytes.Repeat([]byte("x"), sizeBytes-len(head))
	return append(append([]byte(head), pad...), '\n')
}

func send(conn net.Conn, block []byte, lineBytes, lines int) error {
	defer conn.Close()
	for lines > 0 {
		now := lines
		if now > linesPerWrite {
			now = linesPerWrite
		}
		if _, err := conn.Write(block[:now*lineBytes]); err != nil {
			return err
		}
		lines -= now
	}
	return nil
}

func main() {
	addr := flag.String("addr", "", "host:port")
	conns := flag.Int("conns", 8, "connections")
	count := flag.Int("count", 1_000_000, "lines, over all connections")
	size := flag.Int("size", 200, "bytes of a line, without its newline")
	limit := flag.Duration("limit", time.Minute, "give up after this long")
	flag.Parse()

	var block bytes.Buffer
	for i := 0; i < linesPerWrite; i++ {
		block.Write(line(i, *size))
	}
	deadline := time.Now().Add(*limit)
	open := make([]net.Conn, *conns)
	for i := range open {
		conn, err := net.DialTimeout("tcp", *addr, 5*time.Second)
		if err != nil {
			log.Fatal(err)
		}
		conn.SetDeadline(deadline)
		open[i] = conn
	}
	failed := make(chan error, *conns)
	begin := time.Now()
	for i, conn := range open {
		share := *count / *conns
		if i < *count%*conns {
			share++
		}
		go func(conn net.Conn) { failed <- send(conn, block.Bytes(), *size+1, share) }(conn)
	}
	for range open {
		if err := <-failed; err != nil {
			log.Fatal(err)
		}
	}
	json.NewEncoder(os.Stdout).Encode(report{
		Lines: *count, Bytes: int64(*count) * int64(*size+1),
		BeginUnixNs: begin.UnixNano(), SentUnixNs: time.Now().UnixNano(),
	})
}
