package world

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
)

// Addresses of the hosts in the internet.
const (
	AllowedIPv4 = "93.184.216.34"
	AllowedIPv6 = "2606:2800:220:1::1"
	EvilIPv4    = "151.101.1.69"
	Resolver    = "9.9.9.53:53"
)

// A World is the lab with its hosts and name server.
type World struct {
	*lab.World
	Origin *Origin
	Zone   *Zone
}

// Open returns the world of this process, which it makes at its first call. Its tests run one after
// the other, so that a packet on the wire belongs to the test that runs.
func Open(t *testing.T) *World {
	t.Helper()
	w, err := openWorld()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var openWorld = sync.OnceValues(New)

// New makes a world beside the one that [Open] returns.
func New() (*World, error) {
	made, err := lab.New()
	if err != nil {
		return nil, err
	}
	w := &World{World: made}
	if w.Origin, err = newOrigin(); err != nil {
		return nil, err
	}
	if w.Zone, err = serveZone(made.Internet, Resolver); err != nil {
		return nil, err
	}
	go made.Sink.Serve(w.Origin.handle)
	return w, w.listenOnLoopback()
}

// listenOnLoopback has something answer on the gateway's own loopback, so
// that a proxy that dials there gets through, and is seen.
func (w *World) listenOnLoopback() error {
	for _, address := range []string{"127.0.0.1:8080", "[::1]:8080", "127.0.0.1:80", "127.0.0.1:443"} {
		l, err := w.Gateway.Listen("tcp", address)
		if err != nil {
			return err
		}
		go serve(l, func(c net.Conn) {
			c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nloopback"))
			time.Sleep(100 * time.Millisecond)
		})
	}
	return nil
}

// Serve hands each connection to a listener to a function, until the test ends. The function runs on a goroutine of
// its own; the connection is closed after it.
func Serve(t *testing.T, l net.Listener, handle func(net.Conn)) {
	t.Cleanup(func() { l.Close() })
	go serve(l, handle)
}

func serve(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

// Eventually waits until ok, and reports whether it came about in time.
func Eventually(within time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// noteSources makes a cached test result depend on the program's sources,
// which the go command cannot know of: the test runs a binary.
func noteSources(t *testing.T) {
	t.Helper()
	if err := notedSources(); err != nil {
		t.Fatal(err)
	}
}

var notedSources = sync.OnceValue(func() error {
	return filepath.WalkDir(Source(), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".go" {
			os.Stat(path)
		}
		return err
	})
})
