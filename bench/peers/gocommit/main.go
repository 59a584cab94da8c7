// gocommit answers POSTs with 202 once their bodies are on disk: the same promise and the same group
// commit as Penstock's edge, on Go's net/http. One committer writes everything that waits with one
// write and one fdatasync, then answers all of it.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
)

const (
	maxBodyBytes = 8 << 20
	zeroAhead    = 4 << 20 // as Penstock does: fdatasync then need not record a new file size
)

// group is what one fdatasync covers. Closing done wakes everyone who waits for it.
type group struct {
	first   int64
	records []byte
	count   int
	done    chan struct{}
	err     error
}

type committer struct {
	mu   sync.Mutex
	open *group
	wake chan struct{}
}

func newGroup(first int64, reuse []byte) *group {
	return &group{first: first, records: reuse[:0], done: make(chan struct{})}
}

// add copies the body into the open group, and gives back the group and the record's number.
func (c *committer) add(body []byte) (*group, int64) {
	var header [8]byte
	binary.LittleEndian.PutUint32(header[0:], uint32(len(body)))
	binary.LittleEndian.PutUint32(header[4:], crc32.ChecksumIEEE(body))
	c.mu.Lock()
	g := c.open
	number := g.first + int64(g.count)
	g.records = append(append(g.records, header[:]...), body...)
	g.count++
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return g, number
}

func (c *committer) run(file *os.File) {
	var at, zeroed int64
	var spare []byte
	zeros := make([]byte, zeroAhead)
	for range c.wake {
		c.mu.Lock()
		g := c.open
		if g.count == 0 {
			c.mu.Unlock()
			continue
		}
		c.open = newGroup(g.first+int64(g.count), spare)
		c.mu.Unlock()
		for g.err == nil && at+int64(len(g.records)) > zeroed {
			if _, g.err = file.WriteAt(zeros, zeroed); g.err == nil {
				zeroed += zeroAhead
			}
		}
		if g.err == nil {
			_, g.err = file.WriteAt(g.records, at)
		}
		if g.err == nil {
			g.err = syscall.Fdatasync(int(file.Fd()))
		}
		at += int64(len(g.records))
		spare = g.records
		close(g.done)
	}
}

func (c *committer) post(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.ContentLength < 0 || r.ContentLength > maxBodyBytes {
		http.Error(w, "POST with a Content-Length", http.StatusBadRequest)
		return
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	g, number := c.add(body)
	<-g.done
	if g.err != nil {
		http.Error(w, g.err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, `{"id":"go/`+strconv.FormatInt(number, 10)+`"}`)
}

func main() {
	bind := flag.String("bind", "127.0.0.1:0", "address to listen on")
	path := flag.String("file", "", "file to append to")
	flag.Parse()
	file, err := os.OpenFile(*path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *bind)
	if err != nil {
		log.Fatal(err)
	}
	c := &committer{open: newGroup(0, nil), wake: make(chan struct{}, 1)}
	go c.run(file)
	fmt.Println("ready", listener.Addr())
	log.Fatal(http.Serve(listener, http.HandlerFunc(c.post)))
}
