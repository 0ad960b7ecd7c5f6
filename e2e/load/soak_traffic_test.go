package load

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// A soakTraffic uses a daemon in all ways, one after the other. Each use is of a name or
// an address of its own, so that whatever is kept of one grows.
type soakTraffic struct {
	*world.Daemon
	hello, helloInside []byte
	inspected          *http.Client
	settings           []byte // the file of the configuration

	serial    atomic.Int64
	cuts      atomic.Int64
	failed    atomic.Int64
	lingering sync.WaitGroup // uses that wait for the daemon to end them

	mu    sync.Mutex
	times map[string]int
}

// soakUses is what is done in turn. Most of it is over before it has begun.
var soakUses = []struct {
	name string
	use  func(s *soakTraffic, n int) error
}{
	{"cut short", (*soakTraffic).cutShort}, {"tunnel", (*soakTraffic).tunnel}, {"cut short", (*soakTraffic).cutShort},
	{"question", (*soakTraffic).question}, {"denied question", (*soakTraffic).deniedQuestion}, {"denied tunnel", (*soakTraffic).deniedTunnel},
	{"cut short", (*soakTraffic).cutShort}, {"SOCKS", (*soakTraffic).socks}, {"denied SOCKS", (*soakTraffic).deniedSOCKS},
	{"cut short", (*soakTraffic).cutShort}, {"request", (*soakTraffic).request}, {"denied request", (*soakTraffic).deniedRequest},
	{"cut short", (*soakTraffic).cutShort}, {"captured", (*soakTraffic).captured}, {"denied captured", (*soakTraffic).deniedCaptured},
	{"cut short", (*soakTraffic).cutShort}, {"inspected", (*soakTraffic).inspect}, {"denied inspected", (*soakTraffic).deniedInspect},
	{"cut short", (*soakTraffic).cutShort}, {"reset tunnel", (*soakTraffic).resetTunnel}, {"cut short", (*soakTraffic).cutShort},
	{"idle tunnel", (*soakTraffic).idleTunnel}, {"cut short", (*soakTraffic).cutShort}, {"answered by nobody", (*soakTraffic).silent},
	{"cut short", (*soakTraffic).cutShort}, {"refused upstream", (*soakTraffic).refused}, {"cut short", (*soakTraffic).cutShort},
	{"left answer", (*soakTraffic).leftAnswer}, {"cut short", (*soakTraffic).cutShort}, {"cut by policy", (*soakTraffic).cutByPolicy},
}

func newSoakTraffic(t *testing.T, d *world.Daemon) *soakTraffic {
	t.Helper()
	settings, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &soakTraffic{
		Daemon: d, inspected: d.H2Client(t), settings: settings, times: map[string]int{},
		hello: recordHello(t, soakHost(0)), helloInside: recordHello(t, "allowed.test"),
	}
}

// use does what comes next.
func (s *soakTraffic) use() (name string, err error) {
	n := int(s.serial.Add(1))
	next := &soakUses[n%len(soakUses)]
	s.mu.Lock()
	s.times[next.name]++
	s.mu.Unlock()
	return next.name, next.use(s, n)
}

func (s *soakTraffic) used() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.times)
}

// linger does what takes until the daemon gives something up.
func (s *soakTraffic) linger(use func() error) error {
	s.lingering.Go(func() {
		if use() != nil {
			s.failed.Add(1)
		}
	})
	return nil
}

func soakHost(n int) string { return fmt.Sprintf("n%07d.allowed.test", n) }

func deniedHost(n int) string { return fmt.Sprintf("n%07d.refused.test", n) }

// recordHello is what a program says first to a host.
func recordHello(t *testing.T, host string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go tls.Client(near, &tls.Config{ServerName: host}).Handshake()
	head := make([]byte, 5)
	if _, err := io.ReadFull(far, head); err != nil {
		t.Fatal(err)
	}
	hello := append(head, make([]byte, binary.BigEndian.Uint16(head[3:]))...)
	if _, err := io.ReadFull(far, hello[5:]); err != nil {
		t.Fatal(err)
	}
	return hello
}

// helloTo is the recorded hello with another name, which is as long.
func (s *soakTraffic) helloTo(host string) []byte {
	return bytes.Replace(s.hello, []byte(soakHost(0)), []byte(host), 1)
}

// soakAddress spreads what is left over so many addresses that local ports do not run out.
func soakAddress(n int) string { return fmt.Sprintf("203.0.%d.%d:443", n>>8%100, n&255) }

// cutShort leaves in the middle of a handshake, one byte later each time, with a reset or
// without.
func (s *soakTraffic) cutShort(int) error {
	n := int(s.cuts.Add(1))
	kinds := []func(at string) (where, text string){s.cutConnect, s.cutSOCKS, s.cutRequest, s.cutChunked, s.cutCaptured, s.cutQuestion, s.cutInspected, s.cutInspected}
	where, text := kinds[n%len(kinds)](soakAddress(n))
	n /= len(kinds)
	length := n % (len(text) + 1)
	c, err := s.reach(where)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(world.Patience))
	io.WriteString(c, text[:length])
	if n&1 == 0 {
		world.Abandon(c)
		return nil
	}
	return c.Close()
}

// reach connects to a listener, or to an address that is captured.
func (s *soakTraffic) reach(where string) (net.Conn, error) {
	if at := net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)); where == at {
		return s.World.Sandbox.Dial("tcp", at)
	}
	if where == s.Address() {
		return s.Dial()
	}
	return s.DialCaptured(&world.Vector{}, where)
}

func (s *soakTraffic) cutConnect(at string) (where, text string) {
	return s.Address(), "CONNECT " + at + " HTTP/1.1\r\nHost: " + at + "\r\n\r\n" + string(s.hello)
}

func (s *soakTraffic) cutSOCKS(at string) (where, text string) {
	request, _ := world.SocksRequest(world.WaySOCKSIP, at)
	return s.Address(), "\x05\x01\x00" + string(request) + string(s.hello)
}

func (s *soakTraffic) cutRequest(string) (where, text string) {
	return s.Address(), "GET http://a.allowed.test/ HTTP/1.1\r\nHost: a.allowed.test\r\n\r\n"
}

func (s *soakTraffic) cutChunked(string) (where, text string) {
	return s.Address(), "POST http://a.allowed.test/count HTTP/1.1\r\nHost: a.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
}

func (s *soakTraffic) cutCaptured(at string) (where, text string) { return at, string(s.hello) }

func (s *soakTraffic) cutQuestion(string) (where, text string) {
	return net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)), "\x00\x1e\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07allowed\x04test\x00\x00\x01\x00\x01"
}

func (s *soakTraffic) cutInspected(string) (where, text string) {
	return s.Address(), "CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n" + string(s.helloInside)
}

// carrying opens a tunnel that carries something.
func (s *soakTraffic) carrying(host string) (*world.Tunnel, error) {
	c, status, err := s.OpenTunnel(host+":443", "")
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %w", status, err)
	}
	if _, err = c.Write(s.helloTo(host)); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		c.Close()
	}
	return c, err
}

func (s *soakTraffic) tunnel(n int) error {
	c, err := s.carrying(soakHost(n))
	if err != nil {
		return err
	}
	return c.Close()
}

func (s *soakTraffic) resetTunnel(n int) error {
	c, err := s.carrying(soakHost(n))
	if err != nil {
		return err
	}
	world.Abandon(c.Conn)
	return nil
}

// ended waits until the daemon ends a tunnel.
func (s *soakTraffic) ended(c *world.Tunnel) error {
	defer c.Close()
	if !c.EndsWithin(world.Patience) {
		return errors.New("it did not end")
	}
	return nil
}

func (s *soakTraffic) idleTunnel(n int) error {
	return s.linger(func() error {
		c, err := s.carrying(soakHost(n))
		if err != nil {
			return err
		}
		return s.ended(c)
	})
}

// cutByPolicy has a tunnel that is never idle until a policy refuses it.
func (s *soakTraffic) cutByPolicy(int) error {
	return s.linger(func() error {
		c, status, err := s.OpenTunnel("cut.more.test:4444", "")
		for ; err == nil && status == http.StatusForbidden; time.Sleep(50 * time.Millisecond) {
			c, status, err = s.OpenTunnel("cut.more.test:4444", "")
		}
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("status %d: %w", status, err)
		}
		defer c.Close()
		for err == nil {
			if _, err = io.WriteString(c, "echo"); err == nil {
				_, err = c.Read(make([]byte, 64))
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !world.Gone(err) {
			return err
		}
		return nil
	})
}

func (s *soakTraffic) answers(to string, want int) error {
	c, status, err := s.OpenTunnel(to, "")
	if err != nil {
		return err
	}
	defer c.Close()
	if status != want {
		return fmt.Errorf("status %d, want %d", status, want)
	}
	return nil
}

func (s *soakTraffic) deniedTunnel(n int) error {
	return s.answers(deniedHost(n)+":443", http.StatusForbidden)
}

func (s *soakTraffic) silent(int) error {
	return s.linger(func() error { return s.answers("silent.allowed.test:443", http.StatusGatewayTimeout) })
}

func (s *soakTraffic) refused(int) error {
	return s.answers("refuses.allowed.test:443", http.StatusBadGateway)
}

func (s *soakTraffic) mixed(ask func(*world.Mix, string, bool) (bool, error), n int, deny bool) error {
	m := &world.Mix{Daemon: s.Daemon, H2: s.inspected}
	defer m.Close()
	for range 2 { // a connection that can be is used twice
		if allowed, err := ask(m, "n"+strconv.Itoa(n), deny); err != nil || allowed == deny {
			return fmt.Errorf("allowed %v, to be denied %v: %w", allowed, deny, err)
		}
	}
	return nil
}

func (s *soakTraffic) question(n int) error { return s.mixed((*world.Mix).Question, n, false) }

func (s *soakTraffic) deniedQuestion(n int) error { return s.mixed((*world.Mix).Question, n, true) }

func (s *soakTraffic) socks(n int) error { return s.mixed((*world.Mix).Socks, n, false) }

func (s *soakTraffic) deniedSOCKS(n int) error { return s.mixed((*world.Mix).Socks, n, true) }

func (s *soakTraffic) request(n int) error { return s.mixed((*world.Mix).Clear, n, false) }

func (s *soakTraffic) deniedRequest(n int) error { return s.mixed((*world.Mix).Clear, n, true) }

// leftAnswer goes away in the middle of an answer that has no end.
func (s *soakTraffic) leftAnswer(int) error {
	c, err := s.Dial()
	if err != nil {
		return err
	}
	defer world.Abandon(c)
	c.SetDeadline(time.Now().Add(world.Patience))
	io.WriteString(c, "GET http://a.allowed.test/slow HTTP/1.1\r\nHost: a.allowed.test\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%v: %w", response, err)
	}
	_, err = io.ReadFull(response.Body, make([]byte, len("first")))
	return err
}

// captured says to an address which host is meant, as a program that knows of no proxy.
func (s *soakTraffic) captured(n int) error {
	c, err := s.reach(world.AllowedIPv4 + ":443")
	if err != nil {
		return err
	}
	defer world.Abandon(c)
	c.SetDeadline(time.Now().Add(world.Patience))
	if _, err = c.Write(s.helloTo(soakHost(n))); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return err
}

// deniedCaptured goes away when it is told so in TLS, by a page that it does not read.
func (s *soakTraffic) deniedCaptured(n int) error {
	c, err := s.reach(world.AllowedIPv4 + ":443")
	if err != nil {
		return err
	}
	defer world.Abandon(c)
	c.SetDeadline(time.Now().Add(world.Patience))
	c.Write(s.helloTo(deniedHost(n)))
	if _, err = c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

func (s *soakTraffic) inspect(n int) error { return s.inside("open/"+strconv.Itoa(n), http.StatusOK) }

func (s *soakTraffic) deniedInspect(n int) error {
	return s.inside("x/"+strconv.Itoa(n), http.StatusForbidden)
}

// inside makes a request in a tunnel that is looked into, and every eighth time in one of
// its own.
func (s *soakTraffic) inside(path string, want int) error {
	if s.serial.Load()%8 == 0 {
		defer s.inspected.CloseIdleConnections()
	}
	response, err := s.inspected.Get("https://allowed.test/" + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("%s %s", response.Proto, strings.TrimSpace(response.Status))
	}
	return nil
}
