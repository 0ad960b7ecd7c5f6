package run

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestPortsThatArePublished(t *testing.T) {
	got, _, err := parsePublished([]string{"3000", "8080:80", "0:9"})
	if want := []publishedPort{{3000, 3000}, {8080, 80}, {0, 9}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "0", "x", ":80", "80:", "80:0", "65536", "-1", "+80", "080", "1:2:3", "127.0.0.1:80", " 80"} {
		if got, _, err := parsePublished([]string{text}); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestPortsOfTheHost(t *testing.T) {
	got, err := parseHostPorts([]string{"5432", "80"}, []publishedPort{{3000, 3001}})
	if err != nil || !slices.Equal(got, []uint16{5432, 80}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "0", "1", "53", "x", "65536", "3000", "3001"} {
		if got, err := parseHostPorts([]string{text}, []publishedPort{{3000, 3001}}); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// pair is a connection of TCP.
func pair(t *testing.T) (*net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	for _, c := range []net.Conn{near, far} {
		c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return near.(*net.TCPConn), far.(*net.TCPConn)
}

// joined carries between the inner ends of two pairs, and returns the outer ones.
func joined(t *testing.T, forth, back func(int) error) (client, server *net.TCPConn, done chan error) {
	t.Helper()
	client, near := pair(t)
	far, server := pair(t)
	done = make(chan error, 1)
	go func() {
		err := join(near, far, forth, back)
		near.Close()
		far.Close()
		done <- err
	}()
	return client, server, done
}

func TestJoinCarriesEachWayToItsEnd(t *testing.T) {
	var up, down int
	client, server, done := joined(t, func(n int) error { up += n; return nil }, func(n int) error { down += n; return nil })
	io.WriteString(client, "question")
	client.CloseWrite()
	if b, err := io.ReadAll(server); err != nil || string(b) != "question" {
		t.Fatalf("%q, %v", b, err)
	}
	io.WriteString(server, "a long answer")
	server.CloseWrite()
	if b, err := io.ReadAll(client); err != nil || string(b) != "a long answer" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := <-done; err != nil || up != 8 || down != 13 {
		t.Errorf("%d up, %d down, %v", up, down, err)
	}
}

// TestJoinHoldsBackWhatMayNotGo has the second piece refused.
func TestJoinHoldsBackWhatMayNotGo(t *testing.T) {
	enough, pieces := errors.New("enough"), 0
	client, server, done := joined(t, func(int) error {
		if pieces++; pieces > 1 {
			return enough
		}
		return nil
	}, nothing)
	io.WriteString(client, "first")
	if _, err := io.ReadFull(server, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(client, "second")
	if b, err := io.ReadAll(server); !errors.Is(err, syscall.ECONNRESET) || len(b) != 0 {
		t.Errorf("the server read %q, %v", b, err)
	}
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("it ended with %v", err)
	}
}

// TestStoppedPortsKeepNothing has a connection open when they are stopped.
func TestStoppedPortsKeepNothing(t *testing.T) {
	var p ports
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	carried := make(chan bool)
	p.serve(l, func(c *net.TCPConn) {
		carried <- true
		io.Copy(io.Discard, c)
	})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-carried
	p.stop()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection goes on: %v", err)
	}
	if near, far := pair(t); p.keep(near) {
		t.Error("it keeps what comes later")
	} else if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("what comes later goes on: %v", err)
	}
}
