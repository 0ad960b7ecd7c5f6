package proxy

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
)

// breakSync puts a pipe in the place of the segment that the world's log has open:
// a write succeeds, and a sync fails with EINVAL.
func (w *world) breakSync(t *testing.T) {
	t.Helper()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	defer pipe.Close()
	w.replaceSegment(t, pipe)
}

// replaceSegment puts f in the place of the segment that the world's log has open.
func (w *world) replaceSegment(t *testing.T, f *os.File) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, _ := os.Readlink(link); to == filepath.Join(w.log, "00000001.log") {
			fd, err := strconv.Atoi(filepath.Base(link))
			if err := errors.Join(err, syscall.Dup3(int(f.Fd()), fd, syscall.O_CLOEXEC)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("nobody has the log open")
}

// silent returns the port of a listener that answers no connection: its queue is full.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(name.(*syscall.SockaddrInet4).Port)
	for {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, 200*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { c.Close() })
	}
}

// TestAClientWhoseRecordFailsIsTold has the sync of a record fail while its upstream is
// still being connected.
func TestAClientWhoseRecordFailsIsTold(t *testing.T) {
	t.Run("CONNECT", func(t *testing.T) {
		w := newWorld(t, openPolicy, nil)
		port := silent(t)
		w.breakSync(t)
		got := w.dial(t).send("CONNECT allowed.test:" + port + " HTTP/1.1\r\nHost: allowed.test:" + port + "\r\n\r\n").rest()
		if !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, `"class":"audit-unavailable"`) {
			t.Errorf("the answer is %q", got)
		}
	})
	t.Run("SOCKS5", func(t *testing.T) {
		w := newWorld(t, openPolicy, nil)
		port, err := strconv.Atoi(silent(t))
		if err != nil {
			t.Fatal(err)
		}
		w.breakSync(t)
		c := w.dial(t).send("\x05\x01\x00").expect("\x05\x00")
		c.send("\x05\x01\x00\x03\x0callowed.test" + string([]byte{byte(port >> 8), byte(port)}))
		if got, want := c.rest(), string(socksReply(answer.SOCKSFailure)); got != want {
			t.Errorf("the answer is %q, want %q", got, want)
		}
	})
}

// TestAnIdleLoopPassesNothingUnrecorded has syncs fail on a disk that is quick enough for the loop to sync by itself.
func TestAnIdleLoopPassesNothingUnrecorded(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		t.Setenv("TMPDIR", "/dev/shm")
	}
	w, o, first := newWorld(t, openPolicy, nil), newWitness(t, "answer"), hello(t, "base-allowed")
	const before = 60
	for range before {
		w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first).expect("answer").Close()
	}
	w.breakSync(t)
	for range 3 {
		c := w.dial(t).send(connectTo("allowed.test", o.port) + first)
		if got := strings.TrimPrefix(c.rest(), established); got != "" && !strings.HasPrefix(got, "HTTP/1.1 503 ") {
			t.Errorf("the answer is %q", got)
		}
	}
	if got, want := o.got(), strings.Repeat(first, before); got != want {
		t.Errorf("%d bytes have passed, want %d", len(got), len(want))
	}
}

// TestANameWhoseRecordFailsIsNotLookedUp: a question to a name server can carry data as well as a connection.
func TestANameWhoseRecordFailsIsNotLookedUp(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	w.breakSync(t)
	answered := make(chan string, 1)
	c := w.dial(t).send(connectTo("slow.test", "443"))
	go func() { answered <- c.rest() }()
	select {
	case w.answer <- struct{}{}:
		t.Error("the name was looked up")
	case got := <-answered:
		if !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, `"class":"audit-unavailable"`) {
			t.Errorf("the answer is %q", got)
		}
	}
}

// TestAnEndThatTheLogDidNotTakeIsWrittenLater has a tunnel end while the disk is full.
func TestAnEndThatTheLogDidNotTakeIsWrittenLater(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := echo(t)
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(opaque).expect(opaque)
	id := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindOpen }).Flow
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	w.replaceSegment(t, full)
	c.Close()
	for begin := time.Now(); w.Gate.Flows.Count() > 0 && time.Since(begin) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	for answer := ""; !strings.HasPrefix(answer, "HTTP/1.1 200 "); time.Sleep(50 * time.Millisecond) { // the log goes on
		next := w.dial(t).send(connectTo("allowed.test", o.port))
		answer, _ = next.in.ReadString('\n')
		next.Close()
	}
	end := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose && r.Flow == id })
	if end.Bytes.Up != int64(len(opaque)) || end.Bytes.Down != int64(len(opaque)) || end.Outcome != record.OutcomeClosed {
		t.Errorf("%+v", end)
	}
}
