package proxy

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// retryRequest is the beginning of a HelloRetryRequest (RFC 8446, section 4.1.4).
const retryRequest = "\x16\x03\x03\x00\x30\x02\x00\x00\x2c\x03\x03" +
	"\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c" +
	"\x00\x13\x01\x00\x00\x04\x00\x33\x00\x02"

// TestASecondHelloNamesTheHostToo has a server ask for another hello, which OpenSSL
// follows to whatever server it names.
func TestASecondHelloNamesTheHostToo(t *testing.T) {
	honest, evil := hello(t, "base-allowed"), hello(t, "base-evil")
	const ccs = "\x14\x03\x03\x00\x01\x01"
	for says, row := range map[string]struct {
		answer string // to the first hello
		then   string // what the client sends
		early  bool   // with the first hello
		passes bool
		class  string
	}{
		"the same host":                         {answer: retryRequest, then: honest, passes: true},
		"the same host, behind other records":   {answer: retryRequest + ccs, then: ccs + honest, passes: true},
		"another host":                          {answer: retryRequest, then: evil, class: "name-mismatch"},
		"another host, behind other records":    {answer: retryRequest, then: ccs + "\x17\x03\x03\x00\x02xx" + evil, class: "name-mismatch"},
		"another host, before it is asked":      {then: evil, early: true, class: "name-mismatch"},
		"another host, in small records":        {answer: retryRequest, then: hello(t, "frag-rec-5"), class: "name-mismatch"},
		"no host":                               {answer: retryRequest, then: hello(t, "sni-absent"), class: "no-server-name"},
		"nothing that is a hello":               {answer: retryRequest, then: hello(t, "sni-two-names-AE"), class: "not-tls"},
		"whatever follows an answer":            {answer: strings.Replace(retryRequest, "\xcf\x21", "\xcf\x22", 1), then: evil, passes: true},
		"whatever follows what is no TLS":       {answer: "220 allowed.test\r\n", then: evil, passes: true},
		"what no server of TLS reads on behind": {answer: "", then: strings.Repeat("x", 100) + evil, early: true, passes: true},
		"a record of an unknown type":           {answer: "", then: "\x19\x03\x03\x00\x00" + evil, early: true, passes: true},
		"too many records":                      {answer: "", then: strings.Repeat("\x17\x03\x03\x00\x00", 65<<10), early: true, class: "not-tls"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			sent := honest + row.then
			got := make(chan string, 1)
			o := newOrigin(t, func(c net.Conn) {
				first := make([]byte, len(honest))
				n, _ := io.ReadFull(c, first)
				io.WriteString(c, row.answer)
				rest, _ := io.ReadAll(c)
				got <- string(first[:n]) + string(rest)
			})
			w := newWorld(t, openPolicy, nil)
			c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
			if row.early {
				c.send(sent)
			} else {
				c.send(honest).expect(row.answer).send(row.then)
			}
			c.Conn.(*net.TCPConn).CloseWrite()
			if row.passes {
				c.rest()
				if seen := <-got; seen != sent {
					t.Errorf("the upstream got %d bytes of %d", len(seen), len(sent))
				}
				w.recorded(t, ended("closed"))
				return
			}
			if said := c.rest(); said != string(accessDenied) {
				t.Errorf("the client read %q", said)
			}
			r := w.recorded(t, ended(row.class))
			if r.Decision == nil || string(r.Decision.Class) != row.class {
				t.Errorf("recorded %+v", r)
			}
			if seen := <-got; strings.Contains(seen, evil) || seen == sent {
				t.Errorf("the upstream got the second hello")
			}
		})
	}
}

// TestAnUnfinishedSecondHelloIsNotKeptForLong, though its tunnel may idle for a quarter of an hour.
func TestAnUnfinishedSecondHelloIsNotKeptForLong(t *testing.T) {
	t.Parallel()
	honest := hello(t, "base-allowed")
	o := newOrigin(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(honest)))
		io.WriteString(c, retryRequest)
		io.Copy(io.Discard, c)
	})
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Hello = 2 * time.Second })
	w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(honest).expect(retryRequest).send(honest[:len(honest)-1]).rest()
	w.recorded(t, ended("first-bytes-late"))
}

// TestAHelloThatOnlySomeServersReadReachesNone has hellos that GnuTLS reads, behind changes of
// ciphers, where any port may carry any protocol.
func TestAHelloThatOnlySomeServersReadReachesNone(t *testing.T) {
	for _, ccs := range []string{"\x14\x03\x01\x00\x01\x01", strings.Repeat("\x14\x03\x03\x00\x01\x01", 2)} {
		w, o := newWorld(t, openPolicy, nil), newWitness(t, "")
		c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(ccs + hello(t, "base-evil"))
		c.Conn.(*net.TCPConn).CloseWrite()
		if said := c.rest(); said != string(accessDenied) {
			t.Errorf("behind % x the client read %q", ccs, said)
		}
		if got := o.got(); got != "" {
			t.Errorf("the upstream got %d bytes behind % x", len(got), ccs)
			continue
		}
		if r := w.recorded(t, ended("not-tls")); r.Decision == nil || r.Decision.Class != "not-tls" {
			t.Errorf("recorded %+v", r)
		}
	}
}
