package dns

import (
	"crypto/rand"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
)

const (
	truth = "192.0.2.1"
	lie   = "198.51.100.66"
)

// TestForgeriesArePassedOver sends a reply that is wrong in one way, with an
// address that must not come out, and the true one after it.
func TestForgeriesArePassedOver(t *testing.T) {
	for name, forge := range map[string]func(q *asked, lie []byte) []byte{
		"another ID":         func(_ *asked, b []byte) []byte { b[1] ^= 1; return b },
		"a query":            func(_ *asked, b []byte) []byte { b[2] &^= 0x80; return b },
		"opcode NOTIFY":      func(_ *asked, b []byte) []byte { b[2] |= 4 << 3; return b },
		"no question":        func(_ *asked, b []byte) []byte { b[5] = 0; return b },
		"two questions":      func(_ *asked, b []byte) []byte { b[5] = 2; return b },
		"256 questions more": func(_ *asked, b []byte) []byte { b[4] = 1; return b },
		"another name":       func(_ *asked, b []byte) []byte { b[13]++; return b },
		"another type":       func(q *asked, b []byte) []byte { b[q.end()-3] ^= 2; return b },
		"another class":      func(q *asked, b []byte) []byte { b[q.end()-1] = 3; return b },
		"a longer label":     func(_ *asked, b []byte) []byte { b[12]++; return b },
		"cut in the header":  func(_ *asked, b []byte) []byte { return b[:11] },
		"cut in the question": func(q *asked, b []byte) []byte {
			return b[:q.end()-1]
		},
		"nothing":   func(*asked, []byte) []byte { return nil },
		"noise":     func(_ *asked, b []byte) []byte { rand.Read(b[2:]); b[2] &^= 0x80; return b },
		"the query": func(q *asked, _ []byte) []byte { return q.raw },
	} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, func(q *asked) {
				for range 3 {
					q.send(forge(q, q.reply(miekg.RcodeSuccess, "a.test. 60 IN A "+lie)))
				}
				q.answer("a.test. 60 IN A "+truth, soa)
			})
			wantAddrs(t, forwarder(up), "a.test", truth)
			if got, want := up.queries(), []string{"udp A a.test", "udp AAAA a.test"}; !slices.Equal(got, want) {
				t.Errorf("the upstream was asked %q, want %q", got, want)
			}
		})
	}
}

func (q *asked) end() int { return headerSize + len(q.msg.Question[0].Name) + 1 + 4 }

func TestForgeryFromAnotherSourceDoesNotArrive(t *testing.T) {
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	up := startUpstream(t, func(q *asked) {
		if _, err := other.WriteToUDPAddrPort(q.reply(miekg.RcodeSuccess, "a.test. 60 IN A "+lie), q.client); err != nil {
			t.Error(err)
		}
		q.answer("a.test. 60 IN A "+truth, soa)
	})
	wantAddrs(t, forwarder(up), "a.test", truth)
}

// TestAFloodOfForgeriesIsAnsweredWithTCP has somebody guess the ID of a question until
// it would be right.
func TestAFloodOfForgeriesIsAnsweredWithTCP(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		b := q.reply(miekg.RcodeSuccess, q.msg.Question[0].Name+" 60 IN A "+truth)
		if q.network == "tcp" {
			q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa)
			return
		}
		for range 2 * maxUnfit {
			b[0]++
			if b[0] == q.raw[0] {
				b[0]++
			}
			q.send(b)
		}
	})
	f := forwarder(up)
	f.Timeout = 20 * time.Second // which nobody waits for
	wantAddrs(t, f, "a.test", truth)
}

func TestLateDuplicatesAnswerNothingElse(t *testing.T) {
	got := make(chan []byte, 1)
	up := startUpstream(t, func(q *asked) {
		if q.family() == "A" {
			b := q.reply(miekg.RcodeSuccess, "a.test. 60 IN A "+truth)
			q.send(b)
			q.send(b)
			got <- b
			return
		}
		q.send(<-got) // once more, when only AAAA is waited for
		q.answer("a.test. 60 IN AAAA 2001:db8::1")
	})
	wantAddrs(t, forwarder(up), "a.test", "2001:db8::1", truth)
}

func TestCaseThatIsNotKeptIsAskedAgainOverTCP(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		address := lie
		if q.network == "tcp" {
			address = truth
		}
		name := q.msg.Question[0].Name
		q.msg.Question[0].Name = strings.ToLower(name)
		if strings.ToLower(name) == name { // one lookup in 2^30
			q.msg.Question[0].Name = strings.ToUpper(name)
		}
		q.answer("many-letters-make-a-long-name.test. 60 IN A "+address, soa)
	})
	const name = "many-letters-make-a-long-name.test"
	wantAddrs(t, forwarder(up), name, truth)
	want := []string{"tcp A " + name, "tcp AAAA " + name, "udp A " + name, "udp AAAA " + name}
	if got := up.queries(); !slices.Equal(got, want) {
		t.Errorf("the upstream was asked %q, want %q", got, want)
	}
}

func TestTruncatedAnswerIsAskedAgainOverTCP(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		if q.network == "tcp" {
			q.answer("a.test. 60 IN A 10.0.0.5", soa)
			return
		}
		b := q.reply(miekg.RcodeSuccess, q.fitting([]string{"a.test. 60 IN A " + lie, "a.test. 60 IN AAAA 2001:db8::bad"})...)
		b[2] |= flagTruncated
		q.send(b)
	})
	wantAddrs(t, forwarder(up), "a.test", "10.0.0.5") // and the gate judges it
}

func TestTCPRepliesAreCheckedToo(t *testing.T) {
	for name, spoil := range map[string]func(b []byte) []byte{
		"another ID":      func(b []byte) []byte { b[0] ^= 1; return b },
		"another name":    func(b []byte) []byte { b[13]++; return b },
		"still truncated": func(b []byte) []byte { b[2] |= flagTruncated; return b },
		"empty":           func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, func(q *asked) {
				b := q.reply(miekg.RcodeSuccess, "a.test. 60 IN A "+lie)
				if q.network == "udp" {
					b[2] |= flagTruncated
				} else {
					b = spoil(b)
				}
				q.send(b)
			})
			wantKind(t, forwarder(up), "a.test", Malformed)
		})
	}
}

func TestTCPThatStallsOrEnds(t *testing.T) {
	for name, row := range map[string]struct {
		stalls bool
		want   Kind
	}{
		"a message that ends too soon": {false, ServerFailure},
		"a message that never ends":    {true, Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			up := truncatingUpstream(t, func(conn net.Conn) {
				conn.Write([]byte{0xff, 0xff, 1, 2, 3})
				if row.stalls {
					<-over
				}
			})
			f := &Forwarder{Upstreams: []netip.AddrPort{up}, Timeout: time.Minute, TotalTimeout: time.Hour}
			if row.stalls {
				f.Timeout = 50 * time.Millisecond
			}
			wantKind(t, f, "a.test", row.want)
			close(over)
		})
	}
}

// truncatingUpstream answers every packet with TC and gives every connection
// to serve after it has read the query.
func truncatingUpstream(t *testing.T, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	packets, listener := listenBoth(t)
	up := &upstream{script: func(q *asked) {
		b := q.reply(miekg.RcodeSuccess)
		b[2] |= flagTruncated
		q.send(b)
	}}
	up.done.Go(func() { up.servePackets(t, packets) })
	up.done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			up.done.Go(func() {
				defer conn.Close()
				conn.Read(make([]byte, 512))
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		packets.Close()
		listener.Close()
		up.done.Wait()
	})
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestNextUpstreamIsAsked(t *testing.T) {
	for name, first := range map[string]func(*asked){
		"after silence":         silent,
		"after SERVFAIL":        failing(miekg.RcodeServerFailure),
		"after REFUSED":         failing(miekg.RcodeRefused),
		"after FORMERR":         failing(miekg.RcodeFormatError),
		"after a broken answer": func(q *asked) { b := q.reply(miekg.RcodeSuccess); b[7] = 1; q.send(b[:q.end()]) },
	} {
		t.Run(name, func(t *testing.T) {
			one, two := startUpstream(t, first), startUpstream(t, answering("a.test. 60 IN A "+truth, soa))
			f := forwarder(one, two)
			if name == "after silence" {
				f.Timeout = time.Second
			}
			wantAddrs(t, f, "a.test", truth)
		})
	}
}

func TestNextUpstreamIsAskedAfterOneThatIsDown(t *testing.T) {
	packets, listener := listenBoth(t)
	packets.Close()
	listener.Close()
	two := startUpstream(t, answering("a.test. 60 IN A "+truth, soa))
	f := forwarder(two)
	f.Upstreams = slices.Insert(f.Upstreams, 0, packets.LocalAddr().(*net.UDPAddr).AddrPort())
	wantAddrs(t, f, "a.test", truth)
}

func TestAnswerOfTheFirstUpstreamStands(t *testing.T) {
	for name, row := range map[string]struct {
		first func(*asked)
		kind  Kind
	}{
		"addresses": {answering("a.test. 60 IN A "+truth, soa), 0},
		"NODATA":    {answering(soa), NotFound},
		"NXDOMAIN":  {failing(miekg.RcodeNameError), NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := startUpstream(t, row.first), startUpstream(t, answering("a.test. 60 IN A "+lie, soa))
			f := forwarder(one, two)
			if row.kind == 0 {
				wantAddrs(t, f, "a.test", truth)
			} else {
				wantKind(t, f, "a.test", row.kind)
			}
			if log := two.queries(); len(log) != 0 {
				t.Errorf("the second upstream was asked %q", log)
			}
		})
	}
}

func TestKindsOfFailure(t *testing.T) {
	for name, row := range map[string]struct {
		script func(*asked)
		want   Kind
	}{
		"SERVFAIL":               {failing(miekg.RcodeServerFailure), ServerFailure},
		"REFUSED":                {failing(miekg.RcodeRefused), Refused},
		"NOTIMP":                 {failing(miekg.RcodeNotImplemented), ServerFailure},
		"silence":                {silent, Timeout},
		"BADVERS":                {func(q *asked) { q.send(q.badVersion()) }, ServerFailure},
		"NODATA":                 {answering(soa), NotFound},
		"NXDOMAIN":               {failing(miekg.RcodeNameError), NotFound},
		"cut short":              {func(q *asked) { b := q.reply(0, "a.test. 1 IN A "+lie, "a.test. 1 IN AAAA ::1"); q.send(b[:len(b)-1]) }, Malformed},
		"A fails, AAAA has none": {failingFor("A"), ServerFailure},
		"AAAA fails, A has none": {failingFor("AAAA"), ServerFailure},
	} {
		t.Run(name, func(t *testing.T) {
			f := forwarder(startUpstream(t, row.script))
			if row.want == Timeout {
				f.Timeout = 100 * time.Millisecond
			}
			wantKind(t, f, "a.test", row.want)
			var zero time.Time
			if e := f.landed(t, "a.test"); row.want != NotFound && e.expires != zero {
				t.Error("a failure is kept")
			}
		})
	}
}

// failingFor fails for one family and has no address in the other.
func failingFor(family string) func(*asked) {
	return func(q *asked) {
		if q.family() == family {
			q.send(q.reply(miekg.RcodeServerFailure))
			return
		}
		q.answer(soa)
	}
}

// badVersion is NOERROR by the four bits in the header, and BADVERS with the
// eight in the OPT record.
func (q *asked) badVersion() []byte {
	m := new(miekg.Msg)
	m.SetReply(q.msg)
	m.SetEdns0(1232, false)
	m.Rcode = miekg.RcodeBadVers
	b, err := m.Pack()
	if err != nil {
		q.t.Error(err)
	}
	return b
}

func (f *Forwarder) landed(t *testing.T, name string) entry {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	e, _ := f.fresh(name)
	return e
}

func TestHalfAnAnswerIsUsed(t *testing.T) {
	for name, other := range map[string]func(*asked){
		"the other is silent":   silent,
		"the other is SERVFAIL": failing(miekg.RcodeServerFailure),
		"the other is REFUSED":  failing(miekg.RcodeRefused),
		"the other is broken":   func(q *asked) { b := q.reply(miekg.RcodeSuccess); b[7] = 1; q.send(b[:q.end()]) },
	} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, func(q *asked) {
				if q.family() == "AAAA" {
					other(q)
					return
				}
				q.answer("a.test. 60 IN A " + truth)
			})
			f := forwarder(up)
			start := time.Now()
			wantAddrs(t, f, "a.test", truth)
			if took := time.Since(start); took > defaultTimeout {
				t.Errorf("waited %v for the other half", took)
			}
			if n := len(up.queries()); n != 2 {
				t.Errorf("asked %q", up.queries())
			}
		})
	}
}

func TestLostPacketIsSentAgain(t *testing.T) {
	lost := make(chan struct{}, 2)
	lost <- struct{}{}
	lost <- struct{}{}
	up := startUpstream(t, func(q *asked) {
		select {
		case <-lost:
		default:
			q.answer("a.test. 60 IN A "+truth, soa)
		}
	})
	f := forwarder(up)
	f.Timeout = time.Second
	wantAddrs(t, f, "a.test", truth)
}

func TestLookupEndsInTime(t *testing.T) {
	f := forwarder(startUpstream(t, silent), startUpstream(t, silent), startUpstream(t, silent))
	f.Timeout, f.TotalTimeout = time.Minute, 100*time.Millisecond
	start := time.Now()
	wantKind(t, f, "a.test", Timeout)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}
