// datagrams sends UDP datagrams at a steady rate. It spins between small sendmmsg calls, because a
// sleeping sender wakes late and then sends a burst: that would measure the sender, not the receiver.
package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	maxBurst = 32
	maxLate  = 5 * time.Millisecond // further behind than this, the schedule moves instead of a burst
)

var sendmmsg = map[string]uintptr{"amd64": 307, "arm64": 269}

type mmsghdr struct {
	header syscall.Msghdr
	length uint32
	_      [4]byte
}

type report struct {
	Sent    int     `json:"sent"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate_per_s"`
	Moved   int     `json:"schedule_moved"` // how often the sender was too late to catch up
}

// socket is one connected sender with a ring of prepared datagrams.
type socket struct {
	fd      int
	headers [maxBurst]mmsghdr
	vectors [maxBurst]syscall.Iovec
	data    [][]byte
}

func newSocket(to syscall.SockaddrInet4, sizeBytes int) *socket {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		log.Fatal("socket: ", err)
	}
	if err := syscall.Connect(fd, &to); err != nil {
		log.Fatal("connect: ", err)
	}
	s := &socket{fd: fd}
	for i := 0; i < maxBurst; i++ {
		datagram := make([]byte, sizeBytes)
		for j := range datagram {
			datagram[j] = 'u'
		}
		s.data = append(s.data, datagram)
		s.vectors[i].Base = &datagram[0]
		s.vectors[i].SetLen(sizeBytes)
		s.headers[i].header.Iov = &s.vectors[i]
		s.headers[i].header.Iovlen = 1
	}
	return s
}

// send numbers the next datagrams from `first` on and sends them; the kernel may take fewer.
func (s *socket) send(first, count int) int {
	for i := 0; i < count; i++ {
		binary.BigEndian.PutUint64(s.data[i], uint64(first+i))
	}
	done, _, errno := syscall.RawSyscall6(sendmmsg[runtime.GOARCH], uintptr(s.fd),
		uintptr(unsafe.Pointer(&s.headers[0])), uintptr(count), 0, 0, 0)
	if errno == syscall.EINTR || errno == syscall.EAGAIN || errno == syscall.ENOBUFS {
		return 0
	}
	if errno != 0 {
		log.Fatal("sendmmsg: ", errno)
	}
	return int(done)
}

func main() {
	addr := flag.String("addr", "", "host:port")
	rate := flag.Float64("rate", 150_000, "datagrams a second")
	seconds := flag.Float64("seconds", 5, "for how long")
	size := flag.Int("size", 200, "bytes of a datagram")
	senders := flag.Int("senders", 4, "source addresses")
	flag.Parse()
	if sendmmsg[runtime.GOARCH] == 0 {
		log.Fatal("no sendmmsg number known for ", runtime.GOARCH)
	}
	resolved, err := net.ResolveUDPAddr("udp4", *addr)
	if err != nil {
		log.Fatal(err)
	}
	to := syscall.SockaddrInet4{Port: resolved.Port}
	copy(to.Addr[:], resolved.IP.To4())
	sockets := make([]*socket, *senders)
	for i := range sockets {
		sockets[i] = newSocket(to, *size)
	}
	runtime.LockOSThread()

	total := int(*rate * *seconds)
	sent, moved, turn := 0, 0, 0
	begun := time.Now()
	base, baseSent := begun, 0 // the schedule: datagram n is due at base + (n - baseSent) / rate
	for giveUp := begun.Add(time.Duration((*seconds + 5) * float64(time.Second))); sent < total; {
		now := time.Now()
		if now.After(giveUp) {
			break
		}
		due := baseSent + int(now.Sub(base).Seconds()**rate) - sent
		if due <= 0 {
			continue
		}
		if float64(due) / *rate > maxLate.Seconds() {
			base, baseSent = now, sent
			moved++
			continue
		}
		if due > maxBurst {
			due = maxBurst
		}
		if due > total-sent {
			due = total - sent
		}
		sent += sockets[turn].send(sent, due)
		turn = (turn + 1) % len(sockets)
	}
	elapsed := time.Since(begun).Seconds()
	json.NewEncoder(os.Stdout).Encode(report{
		Sent: sent, Seconds: elapsed, Rate: float64(sent) / elapsed, Moved: moved,
	})
}
