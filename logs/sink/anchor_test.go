//go:build linux

package sink

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
)

// An anchored is a log whose checkpoints are sent on.
type anchored struct {
	*testing.T
	dir, key string
	log      *audit.Log
	anchors  *Anchors

	mu              sync.Mutex
	heard, wellSaid []string
}

func newAnchored(t *testing.T, places ...string) *anchored {
	t.Helper()
	a := &anchored{T: t, dir: filepath.Join(t.TempDir(), "log")}
	a.anchors = NewAnchors(a.dir, testOrigin, func(err error) { a.note(&a.heard, err.Error()) }, func(s string) { a.note(&a.wellSaid, s) })
	a.anchors.backoff, a.anchors.settle = quick, 50*time.Millisecond
	var err error
	if a.log, err = audit.Create(a.dir, audit.Options{Durability: audit.Process, Anchor: a.anchors.Send}); err != nil {
		t.Fatal(err)
	}
	_, a.key = a.log.Origin()
	t.Cleanup(func() {
		a.anchors.Stop(0)
		a.log.Close()
	})
	if err := a.anchors.Apply(places); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *anchored) note(into *[]string, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*into = append(*into, text)
}

func (a *anchored) said() (failures, well int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.heard), len(a.wellSaid)
}

// write appends n records, one by one with a checkpoint.
func (a *anchored) write(n int) {
	a.Helper()
	for range n {
		if _, err := a.log.Append([]byte(`{"kind":"start"}`)); err != nil {
			a.Fatal(err)
		}
		if _, err := a.log.Checkpoint(); err != nil {
			a.Fatal(err)
		}
	}
}

// vouched returns for how many records of the log a file vouches, -1 where it is no
// file for --checkpoint.
func (a *anchored) vouched(given []byte) int64 {
	a.Helper()
	r, err := verify.Log(a.dir, a.key, given)
	if err != nil || r.Code != verify.Good || len(given) == 0 {
		return -1
	}
	return r.Records - r.Unvouched
}

func (a *anchored) until(what string, come func() bool) {
	a.Helper()
	for end := time.Now().Add(30 * time.Second); !come(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			a.Fatalf("%s did not come about; heard %q", what, a.heard)
		}
	}
}

func TestAnchorFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	a := newAnchored(t, "file:"+path)
	a.write(5)
	a.until("the file", func() bool { return a.vouched(read(t, path)) == 5 })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	a.write(3)
	a.anchors.Stop(10 * time.Second) // sends the last one
	if n := a.vouched(read(t, path)); n != 8 {
		t.Errorf("the file vouches for %d records", n)
	}
	if s, err := AnchorStateOf(a.dir, "file:"+path); err != nil || s.Size != 8 || s.Failing {
		t.Errorf("state %+v, %v", s, err)
	}
}

// TestAnchorFileIsMended: what a crash leaves of a checkpoint is taken away, what is
// none is not touched.
func TestAnchorFileIsMended(t *testing.T) {
	whole := string(read(t, filepath.Join("testdata", "kept.txt")))
	second := strings.Index(whole[1:], "egressd/00112233445566778899aabbccddeeff\n2\n") + 1
	for _, c := range []struct {
		what, text string
		kept       int // bytes, or -1 for a file that is not written to
	}{
		{"whole", whole, len(whole)},
		{"cut in the origin", whole[:second+4], second},
		{"cut behind the text", whole[:strings.LastIndex(whole, "—")], second},
		{"cut in the signature", whole[:len(whole)-20], second},
		{"cut before the empty line", whole[:len(whole)-1], second},
		{"zeros at the end", whole + "\x00\x00\x00", len(whole)},
		{"the first one cut", whole[:30], 0},
		{"something else", "root:x:0:0::/root:/bin/sh\n", -1},
		{"something else behind it", whole + "root:x:0:0\n", -1},
	} {
		path := filepath.Join(t.TempDir(), "kept")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		a := newAnchored(t, "file:"+path)
		a.write(1)
		if c.kept < 0 {
			a.until(c.what, func() bool { n, _ := a.said(); return n == 1 })
			if got := read(t, path); string(got) != c.text {
				t.Errorf("%s: it was changed", c.what)
			}
			continue
		}
		a.until(c.what, func() bool { return a.vouched(read(t, path)[min(c.kept, len(read(t, path))):]) == 1 })
		if got := string(read(t, path)); !strings.HasPrefix(got, c.text[:min(c.kept, len(c.text))]+"egressd/") {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}

func TestAnchorFileIsNoLink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	a := newAnchored(t, "file:"+link)
	a.write(1)
	a.until("the refusal", func() bool { n, _ := a.said(); return n == 1 })
	if _, err := os.Stat(target); err == nil {
		t.Error("the link was followed")
	}
}

// TestAnchorOverAnOutage has a receiver come late, go, and come back: nobody waits
// for it, it is said once each, and what it has in the end is the newest.
func TestAnchorOverAnOutage(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		address := filepath.Join(t.TempDir(), "s")
		if network == "tcp" {
			address = keptPort(t)
		}
		place := network + ":" + address
		a := newAnchored(t, place)
		for round, size := range []int64{40, 80} {
			a.write(40) // while nobody is there
			a.until("the failure", func() bool { n, _ := a.said(); return n == round+1 })
			time.Sleep(4 * quick.max) // for more attempts, none of which may lose it
			l := listen(t, network, address)
			got, end := receive(t, l)
			a.until("what it missed", func() bool { return a.vouched(got()) == size })
			if n := bytes.Count(got(), []byte("— egressd/")); n > 2 {
				t.Errorf("%s: %d checkpoints were sent where one was newest", network, n)
			}
			a.until("the all-clear", func() bool { _, n := a.said(); return n == round+1 })
			if s, err := AnchorStateOf(a.dir, place); err != nil || s.Failing {
				t.Errorf("%s: state %+v, %v", network, s, err)
			}
			end()
		}
		if n, well := a.said(); n != 2 || well != 2 {
			t.Errorf("%s: it said %q and %q", network, a.heard, a.wellSaid)
		}
		a.anchors.Stop(0)
	}
}

// TestAnchorThatHangs: a receiver that reads nothing stops neither the log nor the end.
func TestAnchorThatHangs(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	listen(t, "unix", address) // takes no connection
	a := newAnchored(t, "unix:"+address)
	a.write(600)
	ended := make(chan struct{})
	go func() {
		a.anchors.Stop(20 * time.Millisecond)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("Stop waits for it")
	}
}

func TestAnchorSyslog(t *testing.T) {
	address := filepath.Join(t.TempDir(), "log")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newAnchored(t, "syslog:unix:"+address)
	a.write(2)
	buffer := make([]byte, 64<<10)
	for vouched := int64(-1); vouched != 2; {
		l.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := l.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		message := string(buffer[:n])
		i := strings.Index(message, "] {")
		if i < 0 || strings.ContainsFunc(message, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q", message)
		}
		var msg struct{ Checkpoint string }
		if err := json.Unmarshal([]byte(message[i+2:]), &msg); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(msg.Checkpoint, "\n")
		want := fmt.Sprintf(`[egressd origin="%s" size="%s" root="%s"]`, lines[0], lines[1], lines[2])
		if !strings.HasPrefix(message, "<110>1 ") || !strings.Contains(message, " checkpoint [meta ") || !strings.Contains(message, want) {
			t.Errorf("%q", message)
		}
		vouched = a.vouched([]byte(msg.Checkpoint))
	}
}

// TestAnchorsChange: a place that is new gets the newest checkpoint at once, one that
// is gone no more.
func TestAnchorsChange(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	a := newAnchored(t, "file:"+one)
	a.write(2)
	a.until("one", func() bool { return a.vouched(read(t, one)) == 2 })
	if err := a.anchors.Apply([]string{"file:" + two}); err != nil {
		t.Fatal(err)
	}
	a.until("two", func() bool { return a.vouched(read(t, two)) == 2 })
	a.write(1)
	a.until("more", func() bool { return a.vouched(read(t, two)) == 3 })
	if n := a.vouched(read(t, one)); n != 2 {
		t.Errorf("the one that was left out has %d", n)
	}
	if err := a.anchors.Apply([]string{"file:relative"}); err == nil {
		t.Error("it took a relative path")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return text
}

// keptPort is a port of loopback where nobody listens, and nobody else can: those who
// are to do so may.
func keptPort(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	at, err := boundTo(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

func boundTo(fd int) (syscall.Sockaddr, error) {
	err := errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), // as net.Listen does
		syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	if err != nil {
		return nil, err
	}
	return syscall.Getsockname(fd)
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// receive takes one connection, and everything that comes over it, until it is ended.
func receive(t *testing.T, l net.Listener) (got func() []byte, end func()) {
	t.Helper()
	var mu sync.Mutex
	var text []byte
	var conn net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		mu.Lock()
		conn = c
		mu.Unlock()
		for from := bufio.NewReader(c); ; {
			b, err := from.ReadByte()
			if err != nil {
				return
			}
			mu.Lock()
			text = append(text, b)
			mu.Unlock()
		}
	}()
	got = func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(text)
	}
	return got, func() {
		mu.Lock()
		conn.Close()
		mu.Unlock()
		<-done
	}
}
