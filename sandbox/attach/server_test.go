//go:build linux

package attach

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/jail"
)

// A world is a server for tests, which takes whatever is in order.
type world struct {
	path    string
	server  *Server
	taken   chan *Conn
	leave   chan bool // lets one that was taken go
	refused chan string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	h := &world{path: filepath.Join(shortDir(t), "enter.sock"), taken: make(chan *Conn, 64), leave: make(chan bool), refused: make(chan string, 1024)}
	h.server = &Server{Name: "unix:" + h.path,
		Handle: func(a *Conn) {
			if a.Accept(Answer{Sandbox: "web", Policy: "sha256:00"}) == nil {
				h.taken <- a
				<-h.leave
			}
		},
		Refused: func(_ sandbox.Attacher, _ []byte, why error) { h.refused <- why.Error() },
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: h.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- h.server.Serve(l) }()
	t.Cleanup(func() {
		close(h.leave)
		h.server.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return h
}

// shortDir is a folder for sockets, whose paths may have 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "attach")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// capturedJail is the network of a jail.
func capturedJail(t *testing.T) *Network {
	t.Helper()
	j, err := jail.New(jail.Options{IPv4: netip.MustParseAddr("100.127.0.1"), IPv6: netip.MustParseAddr("2d00:6567:7265:7373::1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	c, err := j.Captured()
	if err != nil {
		t.Fatal(err)
	}
	n := OfJail(c.Redirected, c.IPv6, c.FDs)
	t.Cleanup(n.Close)
	return n
}

// send says something to the server, with descriptors, and returns the answer, or nil
// where there is none.
func (h *world) send(t *testing.T, text string, fds ...int) *Answer {
	t.Helper()
	k, err := Dial(h.path)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := unix.Sendmsg(k.conn, []byte(text), unix.UnixRights(fds...), nil, 0); err != nil {
		t.Fatal(err)
	}
	text2, err := receiveAnswer(k.conn)
	if err != nil {
		return nil
	}
	a, err := parseAnswer(text2)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// answers sends something until it is answered: more may not wait of one user, and those
// before may still be being closed.
func (h *world) answers(t *testing.T, text string, fds ...int) *Answer {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if a := h.send(t, text, fds...); a != nil {
			return a
		}
	}
	return nil
}

func requestText(t *testing.T, o Request) string {
	t.Helper()
	o.Version = version
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// sortsOf are descriptors that are no sockets of a jail, and some that nearly are.
func sortsOf(t *testing.T) map[string]int {
	t.Helper()
	sorts := map[string]int{}
	open := func(says string, family, sort, protocol int) int {
		fd, err := unix.Socket(family, sort|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Fatal(says, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		sorts[says] = fd
		return fd
	}
	loopback := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	host := open("a listener of the host", unix.AF_INET, unix.SOCK_STREAM, 0)
	if err := errors.Join(unix.Bind(host, loopback), unix.Listen(host, 1)); err != nil {
		t.Fatal(err)
	}
	udp := open("a socket of the host for datagrams", unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err := unix.Bind(udp, loopback); err != nil {
		t.Fatal(err)
	}
	open("a unix socket", unix.AF_UNIX, unix.SOCK_STREAM, 0)
	open("a socket that does not listen", unix.AF_INET, unix.SOCK_STREAM, 0)
	open("a socket for questions to the kernel", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pipe[0]); unix.Close(pipe[1]) })
	sorts["a pipe"] = pipe[0]
	for says, path := range map[string]string{"a file": "/proc/self/status", "a folder": "/", "a device": "/dev/null"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		sorts[says] = int(f.Fd())
	}
	return sorts
}

func TestAServerTakesANetwork(t *testing.T) {
	h, c := newWorld(t), capturedJail(t)
	k, err := Dial(h.path)
	if err != nil {
		t.Fatal(err)
	}
	attached, err := c.Attach(k, "web")
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	a := <-h.taken
	s, err := a.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Discard()
	if attached.Answer.Sandbox != "web" || a.Attacher.Name != "web" || !a.Attacher.Host || a.PID == 0 || len(s.TCP) == 0 || len(s.DNS) == 0 || len(s.DNSStreams) == 0 || s.Programs == nil {
		t.Errorf("%+v %+v %+v", attached.Answer, a.Attacher, s)
	}
	told := make(chan bool)
	go func() { told <- a.Wait() }()
	go func() { a.Conclude(map[string]int{"n": 7}) }()
	var sum struct{ N int }
	if err := attached.End(&sum); err != nil || sum.N != 7 || !<-told {
		t.Errorf("the end is %+v, %v", sum, err)
	}
	h.leave <- true
}

// TestAServerRefusesDescriptors puts each wrong one in the place of each right one.
func TestAServerRefusesDescriptors(t *testing.T) {
	h, c, sorts := newWorld(t), capturedJail(t), sortsOf(t)
	o := c.Request
	o.Kind = KindEnter
	text, right := requestText(t, o), c.fds[:len(c.fds)-1]
	before := openFiles(t)
	refuse := func(says, text string, fds ...int) {
		t.Helper()
		a := h.answers(t, text, fds...)
		if a == nil {
			t.Errorf("%s: there is no answer", says)
			return
		}
		if a.Problem == "" || a.Hint == "" {
			t.Errorf("%s: answered %+v", says, a)
		}
		<-h.refused
	}
	for says, wrong := range sorts {
		for i := range right {
			fds := slices.Clone(right)
			fds[i] = wrong
			refuse(says+" in the place of "+string(o.kinds()[i]), text, fds...)
		}
	}
	refuse("none", text)
	refuse("one too few", text, right[1:]...)
	refuse("one too many", text, append(slices.Clone(right), right[0])...)
	refuse("as many as one message may have", text, slices.Repeat(right[:1], 253)...)
	swapped := slices.Clone(right)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	refuse("another order", text, swapped...)
	other := capturedJail(t)
	mixed := slices.Clone(right)
	mixed[0] = other.fds[0]
	before += openFilesOf(other)
	refuse("sockets of two networks", text, mixed...)
	o.Kind = KindRun
	refuse("a process that is none", requestText(t, o), append(slices.Clone(right), sorts["a file"])...)
	settled := false
	for end := time.Now().Add(30 * time.Second); !settled && time.Now().Before(end); time.Sleep(time.Millisecond) {
		settled = openFiles(t) <= before
	}
	if !settled {
		t.Errorf("%d descriptors are open, %d before", openFiles(t), before)
	}
	if len(h.taken) > 0 {
		t.Error("something was taken")
	}
}

// openFilesOf is how many descriptors a jail takes here: its control socket, its pipe and the file of its program, too.
func openFilesOf(c *Network) int { return len(c.fds) + 3 }

func TestAServerRefusesMessages(t *testing.T) {
	h, c := newWorld(t), capturedJail(t)
	o := c.Request
	o.Kind = KindEnter
	right := requestText(t, o)
	for says, text := range map[string]string{
		"half a message":         right[:len(right)/2],
		"one byte":               "x",
		"something behind it":    right + "{}",
		"an unknown member":      strings.Replace(right, `"v":1`, `"v":1,"root":true`, 1),
		"another version":        strings.Replace(right, `"v":1`, `"v":2`, 1),
		"another kind":           strings.Replace(right, `"enter"`, `"reload"`, 1),
		"another mode":           strings.Replace(right, `"transparent"`, `"all"`, 1),
		"a name that is none":    strings.Replace(right, `"v":1`, `"v":1,"sandbox":"a b"`, 1),
		"too many notes":         strings.Replace(right, `"v":1`, `"v":1,"notes":["`+strings.Repeat(`x","`, notesMost)+`"]`, 1),
		"a long message":         right + strings.Repeat(" ", requestBytes),
		"a request of something": "GET / HTTP/1.1\r\n\r\n",
		"zeros":                  strings.Repeat("\x00", 100),
	} {
		a := h.answers(t, text, c.fds[:len(c.fds)-1]...)
		if a == nil || a.Problem == "" {
			t.Errorf("%s: answered %+v", says, a)
			continue
		}
		<-h.refused
	}
}

// TestAServerIsNotKeptByTheSilent has clients say nothing, of whom some are turned away,
// and the others closed after a while.
func TestAServerIsNotKeptByTheSilent(t *testing.T) {
	h, c := newWorld(t), capturedJail(t)
	for range 100 {
		k, err := Dial(h.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Close)
	}
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		k, err := Dial(h.path)
		if err != nil {
			t.Fatal(err)
		}
		o := c.Request
		attached, err := k.attach(o, c.fds)
		if last = err; err == nil {
			attached.Close()
			(<-h.taken).Wait()
			h.leave <- true
			return
		}
	}
	t.Errorf("nobody else was seen to: %v", last)
}

// TestAServerDropsWhatIsNotRead sends ten thousand descriptors.
func TestAServerDropsWhatIsNotRead(t *testing.T) {
	h, sorts := newWorld(t), sortsOf(t)
	before := openFiles(t)
	many := unix.UnixRights(slices.Repeat([]int{sorts["a pipe"]}, 250)...)
	for range 10 {
		k, err := Dial(h.path)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 { // what the server has not read stays in the kernel, until it closes
			if err := unix.Sendmsg(k.conn, []byte("{}"), many, nil, unix.MSG_DONTWAIT); err != nil {
				break
			}
		}
		_, _ = receiveAnswer(k.conn)
		k.Close()
	}
	for end := time.Now().Add(30 * time.Second); openFiles(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d before", openFiles(t), before)
		}
	}
}

// TestSocketsThatBlockAreReleased has the client make them block, while this
// process waits at each.
func TestSocketsThatBlockAreReleased(t *testing.T) {
	h, c := newWorld(t), capturedJail(t)
	theirs := make([]int, len(c.fds))
	for i, fd := range c.fds {
		var err error
		if theirs[i], err = unix.Dup(fd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(theirs[i]) })
	}
	k, err := Dial(h.path)
	if err != nil {
		t.Fatal(err)
	}
	attached, err := c.Attach(k, "")
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	s, err := (<-h.taken).Sockets()
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range theirs {
		_ = unix.SetNonblock(fd, false)
	}
	var waiting sync.WaitGroup
	for _, l := range slices.Concat(s.TCP, s.DNSStreams) {
		waiting.Go(func() { l.Accept() })
	}
	for _, c := range s.DNS {
		waiting.Go(func() { c.ReadFrom(make([]byte, 1)) })
	}
	for _, d := range s.UDP {
		waiting.Go(func() { d.Next() })
	}
	time.Sleep(20 * time.Millisecond) // so that most of them do wait
	ended := make(chan bool)
	go func() {
		done := s.Release()
		s.Close()
		waiting.Wait()
		done()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("somebody waits still")
	}
	h.leave <- true
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"kind":"enter","mode":"transparent","ipv6":true}`))
	f.Add([]byte(`{"v":1,"kind":"run","mode":"nat","sandbox":"web","notes":["x"]}`))
	f.Add([]byte(`{"v":1,"kind":"enter","mode":"proxy","names":true}`))
	f.Add([]byte(`{"v":1,"kind":"enter","mode":"transparent"}{}`))
	f.Add([]byte(`{"v":1,"kind":"refused","mode":"","container":{"id":"3a","setting":"HostConfig.Privileged","reason":"x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parseRequest(text)
		if err != nil {
			return
		}
		if n := o.descriptors(); (n == 0) != (o.Kind == KindRefused) || n > descriptorsMost || o.Sandbox != "" && !sandbox.PlainName(o.Sandbox) || len(text) > requestBytes {
			t.Fatalf("%q is %+v with %d descriptors", text, o, n)
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > requestBytes {
			return // what JSON escapes takes more room
		}
		if same, err := parseRequest(again); err != nil || requestText(t, *same) != string(again) {
			t.Fatalf("%q became %q, %v", text, again, err)
		}
	})
}

// TestAServerTellsNetworksApart has sockets that are right in all else come of the wrong
// network, or from somebody who may not attach them.
func TestAServerTellsNetworksApart(t *testing.T) {
	c := capturedJail(t)
	o := c.Request
	plans := o.plans()
	fds := c.fds[:len(plans)]
	network, err := checkSockets(fds, plans, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, err := sandbox.OwnNetwork()
	if err != nil {
		t.Fatal(err)
	}
	refused := []byte(`{"v":1,"kind":"refused","mode":"","container":{"id":"3a","setting":"HostConfig.Privileged","reason":"x"}}`)
	for from, want := range map[uint64]bool{own: true, network: false, 0: false} {
		a := &Conn{Attacher: sandbox.Attacher{UID: 1, Network: from}}
		if err := a.check(refused); (err == nil) != want {
			t.Errorf("a refused container, from the network %d: %v", from, err)
		}
	}
	if _, err := checkSockets(fds, plans, network); err == nil || !strings.Contains(err.Error(), "egressd's own network") {
		t.Errorf("of the daemon's own network: %v", err)
	}
	for says, row := range map[string]struct {
		kind string
		from uint64
		want string
	}{
		"of a network that the client is not in": {KindEnter, network + 1, "a network that the client is not in"},
		"for another process":                    {KindAttach, network, "only root and egressd's own user"},
		"for a program":                          {KindRun, network, "only root and egressd's own user"},
	} {
		o.Kind = row.kind
		a := &Conn{Attacher: sandbox.Attacher{UID: 1, Network: row.from}, fds: slices.Clone(c.fds[:o.descriptors()])}
		if err := a.check([]byte(requestText(t, o))); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
