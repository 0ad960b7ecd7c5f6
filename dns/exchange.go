package dns

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

const (
	maxPacket = 1232 // offered to upstreams (RFC 9715)
	buffer    = 4096 // room for those that send more than was offered

	flagResponse  = 0x80 // in the third byte of a message
	maskOpcode    = 0x78
	flagTruncated = 0x02
	flagDesired   = 0x01
	maxLabel      = 63

	maxUnfit = 64 // packets that answer nothing, before TCP is asked instead
)

// A query is one question on its way to one upstream.
type query struct {
	name  string
	wire  []byte // as sent: the ID and the case of the name are as hard to guess as they get
	end   int    // where the question section ends in wire
	state state
	reply *reply
}

type state uint8

const (
	waiting  state = iota
	overTCP        // to be asked again where nobody can forge a reply or cut it short
	answered       // reply is filled in, for better or worse
)

// newQuery makes a message of its own for the question; nothing in it comes
// from a message of someone else.
func newQuery(name string, r *reply) (*query, error) {
	var noise [2 + (maxName+7)/8]byte
	rand.Read(noise[:])
	if len(name) == 0 || len(name) > maxName {
		return nil, errBroken
	}
	wire := make([]byte, headerSize, headerSize+len(name)+2+4+optSize)
	copy(wire, noise[:2])
	wire[2], wire[5], wire[11] = flagDesired, 1, 1 // one question, one OPT record
	for label := range strings.SplitSeq(mixCase(name, noise[2:]), ".") {
		if len(label) == 0 || len(label) > maxLabel {
			return nil, errBroken
		}
		wire = append(append(wire, byte(len(label))), label...)
	}
	wire = append(wire, 0, byte(r.rtype>>8), byte(r.rtype), 0, miekg.ClassINET)
	end := len(wire)
	wire = append(wire, 0, 0, byte(miekg.TypeOPT), maxPacket>>8, maxPacket&0xff, 0, 0, 0, 0, 0, 0)
	return &query{name: name, wire: wire, end: end, reply: r}, nil
}

// fits reports whether msg is a response to q and to nothing else, the case of
// the letters aside, and whether the case is right too.
func (q *query) fits(msg []byte) (folded, exact bool) {
	if len(msg) < q.end || !bytes.Equal(msg[:2], q.wire[:2]) ||
		msg[2]&(flagResponse|maskOpcode) != flagResponse ||
		binary.BigEndian.Uint16(msg[4:]) != 1 {
		return false, false
	}
	asked, said := q.wire[headerSize:q.end], msg[headerSize:q.end]
	name := len(asked) - 4
	if !bytes.Equal(asked[name:], said[name:]) || !sameFolded(asked[:name], said[:name]) {
		return false, false
	}
	return true, bytes.Equal(asked, said)
}

// takePacket reads msg into the reply if it is the response to q. A response in another case may be a forgery: that
// question goes to TCP, as does a truncated response. exact is false for another case.
func (q *query) takePacket(msg []byte) (exact bool) {
	folded, exact := q.fits(msg)
	switch {
	case !folded:
	case !exact || msg[2]&flagTruncated != 0:
		q.state = overTCP
	default:
		q.state = answered
		q.reply.read(msg, q.end, q.name)
	}
	return exact
}

// takeStream reads a response that came over TCP. Over TCP the case of the name does not matter.
func (q *query) takeStream(msg []byte) {
	q.state = answered
	if folded, _ := q.fits(msg); !folded || msg[2]&flagTruncated != 0 {
		q.reply.kind = Malformed
		return
	}
	q.reply.read(msg, q.end, q.name)
}

func (q *query) fail(err error) {
	q.state = answered
	q.reply.kind = kindOf(err)
}

// kindOf sorts the errors of sockets. net.ErrClosed means a timeout: only the end of the lookup closes a socket that
// is being read. context.Canceled means one too: the lookup ended before it had the socket.
func kindOf(err error) Kind {
	for _, late := range []error{os.ErrDeadlineExceeded, context.DeadlineExceeded, context.Canceled, net.ErrClosed} {
		if errors.Is(err, late) {
			return Timeout
		}
	}
	return ServerFailure
}

// try asks one upstream for all that is open and fills in its replies.
func (f *Forwarder) try(ctx context.Context, upstream netip.AddrPort, name string, open []*reply) {
	queries := make([]*query, 0, len(open))
	for _, r := range open {
		q, err := newQuery(name, r)
		if err != nil {
			r.kind = Malformed
			continue
		}
		queries = append(queries, q)
	}
	if err := f.askUDP(ctx, upstream, queries); err != nil {
		for _, q := range queries {
			if q.state == waiting {
				q.fail(err)
			}
		}
	}
	for _, q := range queries {
		if q.state == overTCP {
			f.askTCP(ctx, upstream, q)
		}
	}
}

// askUDP sends the queries from a new socket and reads until every query has its response. The socket has a random port and
// is connected, so only packets from upstream arrive. Packets that fit no query are ignored. Many of
// them mean that an attacker guesses: open queries then go to TCP.
func (f *Forwarder) askUDP(ctx context.Context, upstream netip.AddrPort, queries []*query) error {
	conn, err := new(net.Dialer).DialUDP(ctx, "udp", netip.AddrPort{}, upstream)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	deadline := time.Now().Add(f.timeout())
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	for _, q := range queries {
		if _, err := conn.Write(q.wire); err != nil {
			return err
		}
	}
	unfit, room := 0, make([]byte, buffer)
	for anyWaiting(queries) {
		n, err := conn.Read(room)
		if err != nil {
			return err
		}
		fitted, told := take(queries, room[:n])
		if !fitted {
			if unfit++; unfit == maxUnfit {
				leaveToTCP(queries)
			}
			continue
		}
		if !told || !anyWaiting(queries) {
			continue
		}
		if err := conn.SetReadDeadline(earlier(deadline, time.Now().Add(f.timeout()/4))); err != nil {
			return err
		}
	}
	return nil
}

func leaveToTCP(queries []*query) {
	for _, q := range queries {
		if q.state == waiting {
			q.state = overTCP
		}
	}
}

// take gives msg to the waiting queries. fitted reports whether msg is the exact response to one of them, and told
// whether it holds addresses.
func take(queries []*query, msg []byte) (fitted, told bool) {
	for _, q := range queries {
		if q.state != waiting {
			continue
		}
		if exact := q.takePacket(msg); q.state != waiting {
			return exact, q.state == answered && q.reply.kind == 0
		}
	}
	return false, false
}

func anyWaiting(queries []*query) bool {
	for _, q := range queries {
		if q.state == waiting {
			return true
		}
	}
	return false
}

// askTCP sends q over a connection of its own, so that an upstream that takes
// one query a connection will do.
func (f *Forwarder) askTCP(ctx context.Context, upstream netip.AddrPort, q *query) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout())
	defer cancel()
	conn, err := new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, upstream)
	if err != nil {
		q.fail(err)
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	msg, err := exchangeTCP(conn, q.wire)
	if err != nil {
		q.fail(err)
		return
	}
	q.takeStream(msg)
}

// exchangeTCP writes one message and reads one, each after its length in two
// bytes (RFC 1035, section 4.2.2).
func exchangeTCP(conn io.ReadWriter, wire []byte) ([]byte, error) {
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(wire)))
	if _, err := conn.Write(append(framed, wire...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	// It takes memory as it comes: a length alone costs whoever says it two bytes.
	size := int64(binary.BigEndian.Uint16(length[:]))
	msg, err := io.ReadAll(io.LimitReader(conn, size))
	if err == nil && int64(len(msg)) < size {
		err = io.ErrUnexpectedEOF
	}
	return msg, err
}

func (f *Forwarder) timeout() time.Duration { return cmp.Or(f.Timeout, defaultTimeout) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// mixCase flips the case of the letters of name whose bit is set in bits,
// which has one bit for each byte of name.
func mixCase(name string, bits []byte) string {
	mixed := []byte(name)
	for i, c := range mixed {
		if isLower(c) && bits[i/8]>>(i%8)&1 == 1 {
			mixed[i] = c ^ caseBit
		}
	}
	return string(mixed)
}

// sameFolded reports whether a and b differ in the case of ASCII letters at
// most. Unlike bytes.EqualFold it knows no other letters.
func sameFolded(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && (a[i]^b[i] != caseBit || !isLower(a[i]|caseBit)) {
			return false
		}
	}
	return true
}

const caseBit = 'a' ^ 'A'

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
