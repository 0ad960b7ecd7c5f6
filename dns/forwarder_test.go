package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	miekg "github.com/miekg/dns"
)

const soa = "ns:test. 60 IN SOA ns.test. root.test. 1 2 3 4 20"

func TestLookupReturnsBothFamiliesInterleaved(t *testing.T) {
	up := startUpstream(t, answering(
		"a.test. 60 IN A 192.0.2.1", "a.test. 60 IN A 192.0.2.2", "a.test. 60 IN A 192.0.2.1",
		"a.test. 60 IN AAAA 2001:db8::1", "a.test. 60 IN AAAA ::ffff:192.0.2.2",
	))
	aliases := wantAddrs(t, forwarder(up), "a.test", "2001:db8::1", "192.0.2.1", "192.0.2.2")
	if len(aliases) != 0 {
		t.Errorf("aliases %v of a name without any", aliases)
	}
}

func TestQueryIsBuiltFromScratch(t *testing.T) {
	var mu sync.Mutex
	ids, names, ports := map[uint16]bool{}, map[string]bool{}, map[uint16]bool{}
	up := startUpstream(t, func(q *asked) {
		opt := q.msg.IsEdns0()
		if opt == nil || opt.UDPSize() != 1232 || opt.Do() || len(opt.Option) != 0 {
			t.Errorf("EDNS0 is %v", opt)
		}
		if h := q.msg.MsgHdr; !h.RecursionDesired || h.CheckingDisabled || h.AuthenticatedData || h.Opcode != 0 {
			t.Errorf("header is %v", h)
		}
		mu.Lock()
		ids[q.msg.Id], names[q.msg.Question[0].Name], ports[q.client.Port()] = true, true, true
		mu.Unlock()
		q.answer("a-rather-long-name.test. 0 IN A 192.0.2.1", soa)
	})
	f := forwarder(up)
	const lookups = 20
	for range lookups {
		wantAddrs(t, f, "a-rather-long-name.test", "192.0.2.1")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) < lookups || len(names) < lookups || len(ports) < lookups*9/10 { // the kernel may choose one twice
		t.Errorf("%d lookups had %d IDs, %d ways to write the name and %d ports", lookups, len(ids), len(names), len(ports))
	}
}

func TestLookupRefusesWhatIsNotCanonical(t *testing.T) {
	up := startUpstream(t, answering())
	f := forwarder(up)
	for _, name := range []string{
		"", ".", "a.test.", "A.test", "a..test", ".a.test", `x\.a.test`, "a b.test", "a\x00.test", "bücher.test",
		"127.0.0.1", "127.1", "a.0x7f", "2130706433", "::1", "[::1]", "a.test:80", "a.test%lo", "*.test", "a/b.test",
		strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 125) + "test",
	} {
		wantKind(t, f, name, Malformed)
		if _, _, ok := f.Cached(name); ok {
			t.Errorf("Cached(%q) is ok", name)
		}
	}
	if log := up.queries(); len(log) != 0 {
		t.Errorf("the upstream was asked: %q", log)
	}
}

func TestCachedSendsNothing(t *testing.T) {
	up := startUpstream(t, answering("a.test. 60 IN A 192.0.2.1", soa))
	f := forwarder(up)
	if _, _, ok := f.Cached("a.test"); ok {
		t.Fatal("an empty cache holds a.test")
	}
	wantAddrs(t, f, "a.test", "192.0.2.1")
	addrs, _, ok := f.Cached("a.test")
	if !ok || !slices.Equal(texts(addrs), []string{"192.0.2.1"}) {
		t.Fatalf("Cached = %v, %v", addrs, ok)
	}
	wantAddrs(t, f, "a.test", "192.0.2.1")
	if got, want := up.queries(), []string{"udp A a.test", "udp AAAA a.test"}; !slices.Equal(got, want) {
		t.Errorf("the upstream was asked %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { f.Cached("a.test") }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}

func TestZeroTTLServesOneLookup(t *testing.T) {
	for _, records := range [][]string{
		{"a.test. 0 IN A 192.0.2.1", soa},
		{"a.test. 0 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1", soa},
		{"a.test. 0 IN CNAME b.test.", "a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1", soa},
		{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1", "b.test. 0 IN A 192.0.2.1", soa},
	} {
		up := startUpstream(t, answering(records...))
		f := forwarder(up)
		f.MinTTL = time.Minute
		for range 3 {
			wantAddrs(t, f, "a.test", "192.0.2.1")
			if _, _, ok := f.Cached("a.test"); ok {
				t.Errorf("%q was kept", records)
			}
		}
		if n := len(up.queries()); n != 6 {
			t.Errorf("%d queries for three lookups of %q", n, records)
		}
	}
}

// TestTimeToLive reads real messages but fills the cache by hand: sockets do
// not work on a synthetic clock.
func TestTimeToLive(t *testing.T) {
	const hour = time.Hour
	none := "a.test. 60 IN TXT none"
	lasting := "ns:test. 86400 IN SOA ns.test. root.test. 1 2 3 4 86400"
	for _, row := range []struct {
		name     string
		min, max time.Duration
		v6, v4   string // records, "" for none and a SOA, "-" for a failure
		want     time.Duration
	}{
		{"the TTL", 0, 0, "", "a.test. 7 IN A 192.0.2.1", 7 * time.Second},
		{"the smaller TTL of two families", 0, 0, "a.test. 9 IN AAAA 2001:db8::1", "a.test. 7 IN A 192.0.2.1", 7 * time.Second},
		{"never longer than MaxTTL", 0, hour, "", "a.test. 86400 IN A 192.0.2.1", hour},
		{"never longer than 300 s by default", 0, 0, "", "a.test. 86400 IN A 192.0.2.1", 300 * time.Second},
		{"a TTL of 2^31 is long, not negative", 0, 0, "", "a.test. 2147483648 IN A 192.0.2.1", 300 * time.Second},
		{"a TTL of 2^32-1", 0, 0, "", "a.test. 4294967295 IN A 192.0.2.1", 300 * time.Second},
		{"raised to MinTTL", 20 * time.Second, 0, "", "a.test. 7 IN A 192.0.2.1", 20 * time.Second},
		{"MaxTTL beats MinTTL", hour, 40 * time.Second, "", "a.test. 7 IN A 192.0.2.1", 40 * time.Second},
		{"half an answer", 0, 0, "-", "a.test. 86400 IN A 192.0.2.1", 30 * time.Second},
		{"half an answer, short-lived", 0, 0, "-", "a.test. 7 IN A 192.0.2.1", 7 * time.Second},
		{"half an answer is not raised above 30 s", hour, hour, "-", "a.test. 7 IN A 192.0.2.1", 30 * time.Second},
		{"a negative answer", 0, 0, "", "", 20 * time.Second},
		{"a negative answer with a small SOA TTL", 0, 0, "ns:test. 5 IN SOA ns.test. root.test. 1 2 3 4 20", "", 5 * time.Second},
		{"a negative answer that would last", hour, hour, lasting, lasting, 30 * time.Second},
		{"a negative answer behind an alias", 0, 0, "", "a.test. 3 IN CNAME b.test.\n" + soa, 3 * time.Second},
		{"a failure", hour, 0, "-", "", 0},
		{"no SOA", hour, 0, none, none, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &Forwarder{MinTTL: row.min, MaxTTL: row.max}
				e := f.merge(replyOf(t, typeAAAA, row.v6), replyOf(t, typeA, row.v4))
				f.keep("a.test", e)
				if row.want == 0 {
					if _, ok := f.fresh("a.test"); ok {
						t.Fatal("kept")
					}
					return
				}
				time.Sleep(row.want - 1)
				if _, ok := f.fresh("a.test"); !ok {
					t.Errorf("gone before %v", row.want)
				}
				time.Sleep(time.Nanosecond)
				if _, ok := f.fresh("a.test"); ok {
					t.Errorf("there after %v", row.want)
				}
			})
		})
	}
}

func replyOf(t *testing.T, family uint16, text string) reply {
	t.Helper()
	r := &reply{rtype: family}
	q := queryFor(t, "a.test", r)
	a := &asked{t: t, msg: new(miekg.Msg)}
	if err := a.msg.Unpack(q.wire); err != nil {
		t.Fatal(err)
	}
	switch text {
	case "-":
		r.read(a.reply(miekg.RcodeServerFailure), q.end, "a.test")
	case "":
		r.read(a.reply(miekg.RcodeSuccess, soa), q.end, "a.test")
	default:
		r.read(a.reply(miekg.RcodeSuccess, strings.Split(text, "\n")...), q.end, "a.test")
	}
	return *r
}

func TestNegativeAnswersAreKept(t *testing.T) {
	for _, rcode := range []int{miekg.RcodeSuccess, miekg.RcodeNameError} {
		up := startUpstream(t, func(q *asked) { q.send(q.reply(rcode, soa)) })
		f := forwarder(up)
		for range 3 {
			wantKind(t, f, "none.test", NotFound)
		}
		if _, _, ok := f.Cached("none.test"); ok {
			t.Error("Cached is ok without an address")
		}
		if n := len(up.queries()); n != 2 {
			t.Errorf("rcode %d: %d queries for three lookups", rcode, n)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	up := startUpstream(t, func(q *asked) { q.answer(q.msg.Question[0].Name+" 60 IN A 192.0.2.1", soa) })
	f := forwarder(up)
	f.MaxEntries = 2
	for _, name := range []string{"a.test", "b.test", "c.test"} {
		wantAddrs(t, f, name, "192.0.2.1")
	}
	for name, want := range map[string]bool{"a.test": false, "b.test": true, "c.test": true} {
		if _, _, ok := f.Cached(name); ok != want {
			t.Errorf("Cached(%s) = %v, want %v", name, ok, want)
		}
	}
	f.keep("zero.test", entry{})
	if _, _, ok := f.Cached("b.test"); !ok {
		t.Error("what is not kept takes the place of what is")
	}
	f.cache, f.kept = nil, 0
	f.MaxEntries = -1
	wantAddrs(t, f, "a.test", "192.0.2.1")
	if _, _, ok := f.Cached("a.test"); ok {
		t.Error("a cache of negative size keeps names")
	}
}

func TestConcurrentLookupsShareOneExchange(t *testing.T) {
	release := make(chan struct{})
	up := startUpstream(t, func(q *asked) {
		<-release
		q.answer("a.test. 60 IN A 192.0.2.1", soa)
	})
	f := forwarder(up)
	const askers = 50
	errs := make(chan error, askers)
	for range askers {
		go func() {
			_, _, err := f.Lookup(t.Context(), "a.test")
			errs <- err
		}()
	}
	waitForFlight(t, f, "a.test")
	close(release)
	for range askers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := len(up.queries()); n != 2 {
		t.Errorf("%d queries for %d lookups at once", n, askers)
	}
}

// TestOneCallerLeavingDoesNotFailTheOthers has another caller wait for a lookup that is given up. It makes the lookup itself then, which
// fails, since there is no upstream.
func TestOneCallerLeavingDoesNotFailTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(Forwarder)
		_, fl, _ := f.join("a.test")
		ended := make(chan error)
		go func() {
			_, _, err := f.Lookup(t.Context(), "a.test")
			ended <- err
		}()
		synctest.Wait() // until it waits
		left, leave := context.WithCancel(t.Context())
		leave()
		if _, err := f.fly(left, "a.test", fl); !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		if err := <-ended; !errors.Is(err, ServerFailure) {
			t.Errorf("who stayed got %v", err)
		}
	})
}

// TestALookupEndsWithItsContext, and not in a minute. The next one begins anew.
func TestALookupEndsWithItsContext(t *testing.T) {
	up := startUpstream(t, silent)
	f := forwarder(up)
	f.Timeout, f.TotalTimeout = time.Minute, time.Minute
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, _, err := f.Lookup(ctx, "a.test")
			left <- err
		}()
		waitForFlight(t, f, "a.test")
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		if n := f.underWay(); n != 0 || len(f.flights) != 0 {
			t.Errorf("%d lookups under way, %d to join", n, len(f.flights))
		}
	}
}

func TestLookupsInFlightAreBounded(t *testing.T) {
	release := make(chan struct{})
	up := startUpstream(t, func(q *asked) {
		<-release
		q.answer(q.msg.Question[0].Name + " 60 IN A 192.0.2.1")
	})
	f := forwarder(up)
	f.Timeout, f.TotalTimeout = time.Minute, time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range maxFlights {
		all.Go(func() { f.Lookup(ctx, fmt.Sprintf("n%d.test", i)) })
	}
	for f.underWay() < maxFlights {
		time.Sleep(time.Millisecond)
	}
	wantKind(t, f, "one-more.test", Busy)
	cancel()
	all.Wait()
	close(release)
	for f.underWay() > 0 {
		time.Sleep(time.Millisecond)
	}
	if !answersSoon(t, f) {
		t.Error("there is still no room")
	}
}

// answersSoon asks until an answer comes: the upstream, which has a thousand questions
// left, may lose one.
func answersSoon(t *testing.T, f *Forwarder) bool {
	for n := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _, err := f.Lookup(ctx, fmt.Sprintf("one-more%d.test", n))
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

func (f *Forwarder) underWay() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inFlight
}

func waitForFlight(t *testing.T, f *Forwarder, name string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		fl := f.flights[name]
		f.mu.Unlock()
		if fl != nil {
			return
		}
	}
	t.Fatalf("nobody ever asked for %s", name)
}

func TestLookupWithoutUpstreams(t *testing.T) {
	wantKind(t, &Forwarder{}, "a.test", ServerFailure)
}

func TestErrorNamesNoUpstream(t *testing.T) {
	up := startUpstream(t, failing(miekg.RcodeRefused))
	_, _, err := forwarder(up).Lookup(t.Context(), "a.test")
	var e *Error
	if !errors.As(err, &e) || e.Name != "a.test" || e.Kind != Refused || e.Timeout() {
		t.Fatalf("error %#v", err)
	}
	if want := `lookup "a.test": the name server refused`; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func BenchmarkCachedHit(b *testing.B) {
	f := &Forwarder{}
	for i := range 5000 {
		f.keep(fmt.Sprintf("n%d.example.test", i), entry{addrs: []netip.Addr{netip.IPv6Loopback()}, expires: time.Now().Add(time.Hour)})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := f.Cached("n77.example.test"); !ok {
			b.Fatal("a miss")
		}
	}
}

// BenchmarkLookupForwarded measures both families over loopback, with an
// upstream that only copies ID and question into ready-made answers.
func BenchmarkLookupForwarded(b *testing.B) {
	conn, listener := listenBoth(b)
	listener.Close()
	var served sync.WaitGroup
	served.Go(func() { echo(b, conn) })
	f := &Forwarder{Upstreams: []netip.AddrPort{conn.LocalAddr().(*net.UDPAddr).AddrPort()}}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := f.Lookup(b.Context(), "a.test"); err != nil {
			b.Fatal(err)
		}
	}
	conn.Close()
	served.Wait()
}

// echo answers every query for a.test with an address whose TTL is 0.
func echo(b *testing.B, conn *net.UDPConn) {
	ready := map[uint16][]byte{
		typeA:    append([]byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4}, 192, 0, 2, 1),
		typeAAAA: append([]byte{0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 0, 0, 16, 0x20, 1, 0xd, 0xb8}, make([]byte, 12)...),
	}
	const end = headerSize + len("a.test") + 2 + 4
	buf := make([]byte, 512)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if n < end {
			b.Errorf("a query of %d bytes", n)
			return
		}
		msg := append(buf[:end], ready[binary.BigEndian.Uint16(buf[end-4:])]...)
		copy(msg[2:], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0})
		conn.WriteToUDPAddrPort(msg, client)
	}
}

// TestALookupThatIsLeftBeforeItIsSentEndsOnce: nothing can be sent to an upstream with
// a zone from where most lookups are sent, and whoever waits may leave meanwhile.
func TestALookupThatIsLeftBeforeItIsSentEndsOnce(t *testing.T) {
	f := &Forwarder{Upstreams: []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%lo]:53")}, TotalTimeout: time.Second}
	var all sync.WaitGroup
	for i := range 2000 {
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() { _, _, _ = f.Lookup(ctx, fmt.Sprintf("n%d.test", i)) })
		all.Go(leave)
		if i%100 == 99 {
			all.Wait()
		}
	}
	all.Wait()
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		n := f.inFlight
		f.mu.Unlock()
		if n == 0 {
			return
		}
		if n < 0 || time.Now().After(late) {
			t.Fatalf("%d lookups are under way", n)
		}
	}
}

// TestAnUpstreamThatIsNotThereIsNotWaitedFor: that nobody has its port is heard at once.
func TestAnUpstreamThatIsNotThereIsNotWaitedFor(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	c.Close()
	f := &Forwarder{Upstreams: []netip.AddrPort{at}, Timeout: time.Minute, TotalTimeout: time.Minute}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 5 {
		_, _, err := f.Lookup(soon, fmt.Sprintf("n%d.test", i))
		if failed := (*Error)(nil); !errors.As(err, &failed) || failed.Kind != ServerFailure {
			t.Errorf("lookup %d: %v", i, err)
		}
	}
}
