// bulkpost posts the same NDJSON body again and again over several connections and reports when the
// last one was accepted. The request is built once; a connection sends its next only after an answer.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

type report struct {
	Bodies    int64   `json:"bodies"`
	Messages  int64   `json:"messages"`
	Bytes     int64   `json:"payload_bytes"`
	Refused   int64   `json:"refused"` // 503: sent again after a pause
	Seconds   float64 `json:"seconds"`
	P50Millis float64 `json:"p50_ms"`
	P99Millis float64 `json:"p99_ms"`
}

func line(number, sizeBytes int) []byte {
	head := fmt.Sprintf(`{"n":%d,"pad":"`, number)
	tail := `"}`
	pad := make([]byte, sizeBytes-len(head)-len(tail))
	for i := range pad {
		pad[i] = "abcdefghijklmnopqrstuvwxyz012345"[(i*7+number*13)%32]
	}
	return append(append([]byte(head), pad...), tail...)
}

func request(host, path string, lines, sizeBytes int) []byte {
	var body bytes.Buffer
	for i := 0; i < lines; i++ {
		body.Write(line(i, sizeBytes))
		body.WriteByte('\n')
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-ndjson\r\n"+
		"Content-Length: %d\r\n\r\n", path, host, body.Len())
	return append([]byte(head), body.Bytes()...)
}

type poster struct {
	blob      []byte
	left      atomic.Int64
	refused   atomic.Int64
	deadline  time.Time
	mu        sync.Mutex
	latencies []time.Duration
}

// post takes turns from the common count until none is left. A refused body keeps its turn.
func (p *poster) post(conn net.Conn) error {
	defer conn.Close()
	conn.SetDeadline(p.deadline)
	answers := bufio.NewReader(conn)
	var mine []time.Duration
	for p.left.Add(-1) >= 0 {
		for {
			begun := time.Now()
			if _, err := conn.Write(p.blob); err != nil {
				return err
			}
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				return err
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				return err
			}
			if answer.StatusCode == http.StatusAccepted || answer.StatusCode == http.StatusOK {
				mine = append(mine, time.Since(begun))
				break
			}
			if answer.StatusCode != http.StatusServiceUnavailable {
				return fmt.Errorf("answered %s: %.200s", answer.Status, text)
			}
			p.refused.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
	}
	p.mu.Lock()
	p.latencies = append(p.latencies, mine...)
	p.mu.Unlock()
	return nil
}

func main() {
	addr := flag.String("addr", "", "host:port")
	path := flag.String("path", "/", "where to post")
	conns := flag.Int("conns", 8, "connections")
	bodies := flag.Int64("bodies", 1000, "bodies to get accepted, over all connections")
	lines := flag.Int("lines", 1000, "messages in a body")
	size := flag.Int("size", 200, "bytes of a message, without its newline")
	limit := flag.Duration("limit", time.Minute, "give up after this long")
	flag.Parse()

	p := &poster{blob: request(*addr, *path, *lines, *size), deadline: time.Now().Add(*limit)}
	p.left.Store(*bodies)
	open := make([]net.Conn, *conns)
	for i := range open {
		conn, err := net.DialTimeout("tcp", *addr, 5*time.Second)
		if err != nil {
			log.Fatal(err)
		}
		open[i] = conn
	}
	failed := make(chan error, *conns)
	begun := time.Now()
	for _, conn := range open {
		go func(conn net.Conn) { failed <- p.post(conn) }(conn)
	}
	for range open {
		if err := <-failed; err != nil {
			log.Fatal(err)
		}
	}
	seconds := time.Since(begun).Seconds()
	sort.Slice(p.latencies, func(a, b int) bool { return p.latencies[a] < p.latencies[b] })
	at := func(share float64) float64 {
		return p.latencies[int(share*float64(len(p.latencies)-1))].Seconds() * 1e3
	}
	json.NewEncoder(os.Stdout).Encode(report{
		Bodies: *bodies, Messages: *bodies * int64(*lines), Bytes: *bodies * int64(*lines**size),
		Refused: p.refused.Load(), Seconds: seconds, P50Millis: at(0.5), P99Millis: at(0.99),
	})
}
