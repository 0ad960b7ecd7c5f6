package e2e

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
)

// Addresses of the hosts in the internet.
const (
	allowedIPv4 = "93.184.216.34"
	allowedIPv6 = "2606:2800:220:1::1"
	evilIPv4    = "151.101.1.69"
	resolver    = "9.9.9.53:53"
)

// A world is the lab with its hosts and name server.
type world struct {
	*lab.World
	origin *origin
	zone   *zone
}

// theWorld is made once: all tests that use it run one after the other, so
// that whatever is seen in it belongs to one of them.
func theWorld(t *testing.T) *world {
	t.Helper()
	w, err := openWorld()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var openWorld = sync.OnceValues(makeWorld)

func makeWorld() (*world, error) {
	made, err := lab.New()
	if err != nil {
		return nil, err
	}
	w := &world{World: made}
	if w.origin, err = newOrigin(); err != nil {
		return nil, err
	}
	if w.zone, err = serveZone(made.Internet, resolver); err != nil {
		return nil, err
	}
	go made.Sink.Serve(w.origin.handle)
	return w, w.listenOnLoopback()
}

// listenOnLoopback has something answer on the gateway's own loopback, so
// that a proxy that dials there gets through, and is seen.
func (w *world) listenOnLoopback() error {
	for _, address := range []string{"127.0.0.1:8080", "[::1]:8080", "127.0.0.1:80", "127.0.0.1:443"} {
		l, err := w.Gateway.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nloopback"))
					time.Sleep(100 * time.Millisecond)
				}()
			}
		}()
	}
	return nil
}

// eventually waits until ok, and reports whether it came about in time.
func eventually(within time.Duration, ok func() bool) bool {
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
