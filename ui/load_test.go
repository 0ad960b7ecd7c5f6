package ui

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// rawRequest is a request of the browser that has the page open.
func (p *page) rawRequest(target string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nSec-Fetch-Site: same-origin\r\n\r\n", target, p.guard.host, p.cookie)
}

// eventually asks for a view until it is answered: a connection beyond the bound is closed without an answer.
func (p *page) eventually(t *testing.T) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(begin.Add(20 * time.Second))
		_, _ = io.WriteString(c, p.rawRequest("/health"))
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		c.Close()
		if err == nil && answer.StatusCode == 200 {
			return
		}
	}
	t.Error("no view is answered any more")
}

// TestTenThousandStreams opens 10,000 event streams, of which none is read. The page holds a few, and answers once they
// are closed.
func TestTenThousandStreams(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	before := runtime.NumGoroutine()
	var held []net.Conn
	most := 0
	for range 10_000 {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, p.rawRequest(eventsPath)) // it may be closed already
		if held = append(held, c); len(held) == 500 {
			most = max(most, runtime.NumGoroutine()-before)
			held[0].Close()
			held = held[1:]
		}
	}
	if most > 4*connectionsMost {
		t.Errorf("%d goroutines for them", most)
	}
	for _, c := range held {
		c.Close()
	}
	p.eventually(t)
}

// TestAClientThatNeverReads asks for more than the kernel holds, on many connections, and reads none of it.
func TestAClientThatNeverReads(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	var asking sync.WaitGroup
	for range 3 {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.(*net.TCPConn).SetReadBuffer(1); err != nil {
			t.Fatal(err)
		}
		asking.Go(func() {
			_ = c.SetWriteDeadline(time.Now().Add(3 * time.Second))
			for err := error(nil); err == nil; { // until the page reads no more
				_, err = io.WriteString(c, strings.Repeat(p.rawRequest("/"), 100))
			}
		})
	}
	asking.Wait()
	p.eventually(t)
}
