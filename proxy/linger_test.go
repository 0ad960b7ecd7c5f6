package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// unreadable is refused with more behind it than is read.
var unreadable = "GET / HTTP/1.1\r\nno field\r\n\r\n" + strings.Repeat("x", 100)

// TestWhoWasAnsweredAndStaysHasAPlace has clients stay that were told that they cannot be
// understood: their descriptors are not free, and so their places are not.
func TestWhoWasAnsweredAndStaysHasAPlace(t *testing.T) {
	w, at := sharedWorld(t)
	var all []*testClient
	for range 4 {
		all = append(all, dialAt(t, at["first"]).send(unreadable).expect("HTTP/1.1 400 "))
	}
	dialAt(t, at["first"]).expect("HTTP/1.1 429 ")
	for _, c := range all {
		c.Close()
	}
	for w.connections.Count() > 0 {
		time.Sleep(time.Millisecond)
	}
	dialAt(t, at["first"]).send(unreadable).expect("HTTP/1.1 400 ")
}

// TestWhoWasAnsweredGivesWay has the oldest of them go for others from the same address.
func TestWhoWasAnsweredGivesWay(t *testing.T) {
	w, at := sharedWorld(t)
	var all []*testClient
	for range 6 {
		all = append(all, dialAt(t, at["shared"]).send(unreadable).expect("HTTP/1.1 400 "))
	}
	for i, c := range all[:2] {
		if _, err := c.in.Discard(1 << 20); err == nil || isTimeout(err) {
			t.Errorf("client %d is still there: %v", i, err)
		}
	}
	if held := w.connections.Held("", w.Sandboxes.Holder(&sandbox.Peer{Addr: netip.AddrPortFrom(loopback, 1), Listener: "shared"})); held > 4 {
		t.Errorf("one address has %d of 8 connections", held)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// TestWhatNobodyReadsTakesNoResponseAway has clients send more behind their last request, as some do behind a body. Unread
// bytes would make the end of the connection a reset, and that drops what the client has not read yet.
func TestWhatNobodyReadsTakesNoResponseAway(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	goOn := make(chan struct{})
	serve := func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
			<-goOn
			io.WriteString(c, "b")
		}
	}
	eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
		c := dial()
		c.send(c.request("GET", "/public/x", "Connection: close")).expect("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\na")
		c.send("\r\n")
		goOn <- struct{}{}
		w.settled(t)
		if rest, err := io.ReadAll(c.in); string(rest) != "b" || err != nil {
			t.Errorf("read %q, %v", rest, err)
		}
	})
}
