package dns

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
)

// An upstream is a name server on loopback, UDP and TCP on one port, that
// answers as its script says.
type upstream struct {
	addr   netip.AddrPort
	script func(*asked)
	done   sync.WaitGroup

	mu  sync.Mutex
	log []string // "udp A a.test", in lower case, as it came in
}

// asked is one query as it reached an upstream.
type asked struct {
	t       testing.TB
	network string
	raw     []byte
	msg     *miekg.Msg
	client  netip.AddrPort
	send    func([]byte)
}

func startUpstream(t testing.TB, script func(*asked)) *upstream {
	t.Helper()
	packets, listener := listenBoth(t)
	up := &upstream{addr: packets.LocalAddr().(*net.UDPAddr).AddrPort(), script: script}
	up.done.Go(func() { up.servePackets(t, packets) })
	up.done.Go(func() { up.serveStreams(t, listener) })
	t.Cleanup(func() {
		packets.Close()
		listener.Close()
		up.done.Wait()
	})
	return up
}

func listenBoth(t testing.TB) (*net.UDPConn, net.Listener) {
	t.Helper()
	for range 20 {
		packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, listener
		}
		packets.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

func (up *upstream) servePackets(t testing.TB, conn *net.UDPConn) {
	buf := make([]byte, 4096)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		raw := slices.Clone(buf[:n])
		up.done.Go(func() {
			up.answer(t, "udp", raw, client, func(b []byte) { conn.WriteToUDPAddrPort(b, client) })
		})
	}
}

func (up *upstream) serveStreams(t testing.TB, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		up.done.Go(func() {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(30 * time.Second))
			var length [2]byte
			if _, err := io.ReadFull(conn, length[:]); err != nil {
				return
			}
			raw := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, err := io.ReadFull(conn, raw); err != nil {
				return
			}
			client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
			up.answer(t, "tcp", raw, client, func(b []byte) {
				conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
			})
		})
	}
}

func (up *upstream) answer(t testing.TB, network string, raw []byte, client netip.AddrPort, send func([]byte)) {
	msg := new(miekg.Msg)
	if err := msg.Unpack(raw); err != nil || len(msg.Question) != 1 {
		t.Errorf("the upstream cannot read the query %x: %v", raw, err)
		return
	}
	q := &asked{t: t, network: network, raw: raw, msg: msg, client: client, send: send}
	up.mu.Lock()
	up.log = append(up.log, network+" "+q.family()+" "+plain(msg.Question[0].Name))
	up.mu.Unlock()
	up.script(q)
}

// queries returns what was asked so far, sorted.
func (up *upstream) queries() []string {
	up.mu.Lock()
	defer up.mu.Unlock()
	return slices.Sorted(slices.Values(up.log))
}

func (q *asked) family() string { return miekg.TypeToString[q.msg.Question[0].Qtype] }

// reply packs an answer of records in zone-file form, each put into the
// section that its prefix names: none for answer, "ns:" or "extra:".
func (q *asked) reply(rcode int, records ...string) []byte {
	m := new(miekg.Msg)
	m.SetRcode(q.msg, rcode)
	m.RecursionAvailable = true
	m.Compress = true
	for _, text := range records {
		section := &m.Answer
		if rest, ok := strings.CutPrefix(text, "ns:"); ok {
			section, text = &m.Ns, rest
		} else if rest, ok := strings.CutPrefix(text, "extra:"); ok {
			section, text = &m.Extra, rest
		}
		rr, err := miekg.NewRR(text)
		if err != nil {
			q.t.Errorf("record %q: %v", text, err)
			return nil
		}
		*section = append(*section, rr)
	}
	b, err := m.Pack()
	if err != nil {
		q.t.Errorf("pack: %v", err)
	}
	return b
}

// answer sends the records that fit the family asked for and all others that
// are no addresses.
func (q *asked) answer(records ...string) { q.send(q.reply(miekg.RcodeSuccess, q.fitting(records)...)) }

func (q *asked) fitting(records []string) []string {
	other, address := map[string]string{"A": " AAAA ", "AAAA": " A "}[q.family()]
	return slices.DeleteFunc(slices.Clone(records), func(r string) bool { return address && strings.Contains(r, other) })
}

// answering is the script of an upstream that tells the truth.
func answering(records ...string) func(*asked) {
	return func(q *asked) { q.answer(records...) }
}

func silent(*asked) {}

func failing(rcode int) func(*asked) {
	return func(q *asked) { q.send(q.reply(rcode)) }
}

// forwarder returns a Forwarder that asks ups, patient enough for a busy
// machine.
func forwarder(ups ...*upstream) *Forwarder {
	f := &Forwarder{}
	for _, up := range ups {
		f.Upstreams = append(f.Upstreams, up.addr)
	}
	return f
}

// wantAddrs looks name up and compares what comes back.
func wantAddrs(t *testing.T, f *Forwarder, name string, want ...string) (aliases []string) {
	t.Helper()
	addrs, aliases, err := f.Lookup(t.Context(), name)
	if err != nil {
		t.Fatalf("Lookup(%s): %v", name, err)
	}
	if got := texts(addrs); !slices.Equal(got, want) {
		t.Fatalf("Lookup(%s) = %v, want %v", name, got, want)
	}
	return aliases
}

func wantKind(t *testing.T, f *Forwarder, name string, want Kind) {
	t.Helper()
	addrs, aliases, err := f.Lookup(t.Context(), name)
	if !errors.Is(err, want) {
		t.Fatalf("Lookup(%q) = %v, %v; want %v", name, addrs, err, want)
	}
	if addrs != nil || aliases != nil {
		t.Errorf("Lookup(%q) gave %v %v beside its error", name, addrs, aliases)
	}
}

func texts(addrs []netip.Addr) []string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return s
}
