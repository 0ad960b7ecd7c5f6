package world

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
)

// Ways in, as vectors name them. The two of SOCKS differ in the type of address.
const (
	WayConnect = "connect"
	WayHTTP    = "http"
	WaySOCKS   = "socks5"
	WaySOCKSIP = "socks5-address"
	WayRaw     = "raw"
)

// WayCaptured stands for both ways of captured connections among the ways of a vector.
const WayCaptured = "captured"

// The ways in within an inspected tunnel, one for each version of HTTP.
const (
	WayInside   = "inside"
	WayInsideH2 = "inside-h2"
)

// Patience is how long a client waits for anything that has to come, on a machine
// that is busy.
const Patience = 20 * time.Second

// An Exchange is what the client of one case sent and saw.
type Exchange struct {
	Way     string
	Sent    []byte
	Answers []Answer
	Data    string // application data from the far host
	Opened  bool   // a tunnel was established
	first   string // what the client sent into it, where that is to arrive unchanged
	closed  bool   // the proxy ended the connection
	Err     error  // what the client could not do
	Took    time.Duration
}

// An Answer is one reply of the proxy, in the terms of all protocols.
type Answer struct {
	Status int // of HTTP, 0 for SOCKS
	Reply  int // of SOCKS, -1 for HTTP
	phrase string
	Header http.Header
	Body   string
	raw    []byte // of SOCKS
}

// problem is the body of a refusal.
type problem struct {
	Error, Class, ID, Destination, Method, Rule, Message, Reason, Fix string
	Retryable                                                         bool
	AllowedIf                                                         []string `json:"allowed_if"`
}

// Problem decodes the JSON body of a refusal.
func (a *Answer) Problem() (p problem) {
	json.Unmarshal([]byte(a.Body), &p)
	return p
}

// WaysFor returns the ways in that can express a destination.
func WaysFor(v *Vector, to string) []string {
	if v.Ways != nil {
		return slices.DeleteFunc(slices.Clone(v.Ways), func(way string) bool {
			_, expressible := SocksRequest(way, to)
			return way == WayCaptured || way == WaySOCKSIP && !expressible
		})
	}
	ways := []string{WayConnect, WayHTTP}
	if v.First != "" || v.Hello != "" {
		ways = ways[:1] // what follows is for a tunnel
	}
	if _, ok := SocksRequest(WaySOCKS, to); ok {
		ways = append(ways, WaySOCKS)
	}
	if _, ok := SocksRequest(WaySOCKSIP, to); ok {
		ways = append(ways, WaySOCKSIP)
	}
	return ways
}

// SocksRequest returns the SOCKS5 request for a destination as text.
func SocksRequest(way, to string) ([]byte, bool) {
	colon := strings.LastIndexByte(to, ':')
	if colon < 0 {
		return nil, false
	}
	host := to[:colon]
	port, err := strconv.ParseUint(to[colon+1:], 10, 16)
	if err != nil || to[colon+1:] != strconv.FormatUint(port, 10) || len(host) > 255 {
		return nil, false
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && ip.Is6() {
		host = strings.Trim(host, "[]")
	}
	request := []byte{5, 1, 0, 3, byte(len(host))}
	request = append(request, host...)
	if way == WaySOCKSIP {
		ip, err := netip.ParseAddr(host)
		if err != nil || ip.Zone() != "" {
			return nil, false
		}
		kind := byte(1)
		if ip.Is6() {
			kind = 4
		}
		request = append([]byte{5, 1, 0, kind}, ip.AsSlice()...)
	}
	return binary.BigEndian.AppendUint16(request, uint16(port)), true
}

// A client carries one case out.
type client struct {
	net.Conn
	r *bufio.Reader
	*Exchange
}

func (c *client) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *client) send(b []byte) error {
	c.Sent = append(c.Sent, b...)
	_, err := c.Write(b)
	return err
}

// Send carries out a vector through a way in. The exchange holds any error.
func (d *Daemon) Send(t *testing.T, v *Vector, way, to string) (*Exchange, string) {
	t.Helper()
	dial := d.Dial
	if isCaptured(way) {
		dial = func() (net.Conn, error) { return d.DialCaptured(v, to) }
	}
	conn, err := dial()
	if err != nil {
		return &Exchange{Way: way, Err: err}, ""
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(d.within(Patience)))
	c := &client{Conn: conn, r: bufio.NewReader(conn), Exchange: &Exchange{Way: way}}
	began := time.Now()
	switch way {
	case WayConnect:
		c.Err = c.connect(t, v, to)
	case WayHTTP:
		c.Err = c.get("GET http://" + to + "/ HTTP/1.1\r\nHost: " + cmp.Or(v.Claims, strings.TrimSuffix(to, ":80")) + "\r\n\r\n")
	case WaySOCKS, WaySOCKSIP:
		c.Err = c.socks(t, v, to)
	case WayRedirect, WayTProxy:
		c.Err = c.captured(t, v, to)
	case WayInside:
		c.Err = c.inside(t, d, v)
	case WayInsideH2:
		c.Err = c.insideH2(t, d, v)
	default:
		c.Err = c.raw(t, v)
	}
	c.Took = time.Since(began)
	if c.Err != nil {
		c.closed = Gone(c.Err)
	}
	return c.Exchange, conn.LocalAddr().String()
}

// Gone reports whether an error means that the proxy ended the connection.
func Gone(err error) bool { return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) }

func (c *client) connect(t *testing.T, v *Vector, to string) error {
	head := []byte("CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\n")
	if v.Eager {
		head = append(head, bytes.Join(v.FirstBytes(t), nil)...)
	}
	if err := c.send(head); err != nil {
		return err
	}
	if err := c.readHTTP("CONNECT"); err != nil {
		return err
	}
	if c.Answers[0].Status != http.StatusOK {
		return c.readEnd()
	}
	return c.prove(t, v, to)
}

// get sends a request with the method GET, and reads the answer.
func (c *client) get(request string) error {
	if err := c.send([]byte(request)); err != nil {
		return err
	}
	if err := c.readHTTP("GET"); err != nil {
		return err
	}
	if c.Answers[0].Status != http.StatusOK {
		return c.readEnd()
	}
	c.Data = c.Answers[0].Body
	return nil
}

func (c *client) socks(t *testing.T, v *Vector, to string) error {
	request, _ := SocksRequest(c.Way, to)
	greeting := []byte{5, 1, 0}
	if v.Eager {
		greeting = append(append(greeting, request...), bytes.Join(v.FirstBytes(t), nil)...)
	}
	if err := c.send(greeting); err != nil {
		return err
	}
	var method [2]byte
	if _, err := io.ReadFull(c, method[:]); err != nil || method != [2]byte{5, 0} {
		return fmt.Errorf("the proxy answered the greeting with %x: %w", method, err)
	}
	if !v.Eager {
		if err := c.send(request); err != nil {
			return err
		}
	}
	reply := make([]byte, 10)
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	c.Answers = append(c.Answers, Answer{Reply: int(reply[1]), raw: reply})
	if reply[1] != 0 {
		return c.readEnd()
	}
	return c.prove(t, v, to)
}

// prove has the far host send something through the tunnel, or sends the
// vector's first bytes and waits for what becomes of them.
func (c *client) prove(t *testing.T, v *Vector, to string) error {
	c.Opened = true
	if v.First != "" || v.Hello != "" {
		return c.sendFirst(t, v)
	}
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return err
	}
	if port == "80" {
		return c.proveOver(c, cmp.Or(v.Claims, strings.TrimSuffix(to, ":80")))
	}
	roots, err := openWorld()
	if err != nil {
		return err
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		name = cmp.Or(v.Claims, ip.Unmap().String())
	}
	return c.proveOver(tls.Client(c, &tls.Config{ServerName: name, RootCAs: roots.Origin.Ca.pool()}), to)
}

func (c *client) proveOver(rw io.ReadWriter, host string) error {
	if _, err := fmt.Fprintf(rw, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return err
	}
	a, err := ReadAnswer(bufio.NewReader(rw), "GET")
	c.Data = a.Body
	return err
}

// sendFirst sends the first bytes and reads until the far host or the proxy
// has said something final.
func (c *client) sendFirst(t *testing.T, v *Vector) error {
	c.first = string(bytes.Join(v.FirstBytes(t), nil))
	if !v.Eager {
		for i, piece := range v.FirstBytes(t) {
			if i > 0 {
				time.Sleep(5 * time.Millisecond) // the network's, to make segments of the pieces
			}
			if err := c.send(piece); err != nil {
				return err
			}
		}
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	c.Data = string(b[:n])
	if err != nil || RefusedBy(c.Data) {
		c.closed = true
		return c.readEnd()
	}
	return nil
}

// RefusedBy reports whether what came through a tunnel is the proxy's own
// farewell: the alert access_denied, its page, or its word to ssh.
func RefusedBy(data string) bool {
	if strings.HasPrefix(data, "SSH-2.0-egressd\r\n") {
		return true
	}
	return len(data) == 7 && data[0] == 0x15 && data[6] == 49 || strings.Contains(data, "X-Egressd-Id: ")
}

// raw sends each part when the answer to the one before was read.
func (c *client) raw(t *testing.T, v *Vector) error {
	for i, part := range v.parts(t) {
		if err := c.send(part); err != nil {
			return err
		}
		if v.Expect.Reply != nil {
			continue
		}
		method, _, _ := strings.Cut(string(part), " ")
		answers := 1
		if i == len(v.Send)-1 {
			answers = len(v.Expect.Status) - i
		}
		for range answers {
			if err := c.readHTTP(method); err != nil {
				return err
			}
		}
	}
	if v.Expect.Reply != nil || !v.Expect.Stays {
		return c.readEnd()
	}
	return nil
}

// readHTTP reads one final response.
func (c *client) readHTTP(method string) error {
	a, err := ReadAnswer(c.r, method)
	if err != nil {
		return err
	}
	c.Answers = append(c.Answers, a)
	return nil
}

// ReadAnswer reads a final HTTP response, with its body unless it opens a tunnel.
func ReadAnswer(r *bufio.Reader, method string) (Answer, error) {
	for {
		response, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return Answer{}, err
		}
		var body []byte
		if method != "CONNECT" || response.StatusCode >= 300 { // else what follows is the tunnel
			if body, err = io.ReadAll(response.Body); err != nil {
				return Answer{}, err
			}
		}
		if response.StatusCode >= 200 {
			_, phrase, _ := strings.Cut(response.Status, " ")
			return Answer{Status: response.StatusCode, Reply: -1, phrase: phrase, Header: response.Header, Body: string(body)}, nil
		}
	}
}

// readEnd reads what is left until the proxy closes.
func (c *client) readEnd() error {
	rest, err := io.ReadAll(c.r)
	c.Data += string(rest)
	c.closed = err == nil || Gone(err)
	return nil
}

// Neighbour is the second sandbox of the lab, which is made once.
var Neighbour = sync.OnceValues(func() (*lab.Net, error) {
	w, err := openWorld()
	if err != nil {
		return nil, err
	}
	return w.Neighbour()
})

// Authorization is the header of a client that authenticates to the proxy.
func Authorization(user, token string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token)) + "\r\n"
}
