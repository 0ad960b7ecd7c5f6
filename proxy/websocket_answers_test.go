package proxy

import (
	"bufio"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// answered is one frame of a server: without a mask.
func answered(first byte, text string) string {
	if len(text) < 126 {
		return string([]byte{first, byte(len(text))}) + text
	}
	return string([]byte{first, 126, byte(len(text) >> 8), byte(len(text))}) + text
}

// inFragments is a message in many frames, and a few pings.
func inFragments(r *rand.Rand, text string) (stream string, pings int) {
	var b strings.Builder
	first := byte(1)
	for len(text) > 0 {
		n := min(r.IntN(9), len(text))
		b.WriteString(answered(first, text[:n]))
		if r.IntN(3) == 0 {
			pings++
			b.WriteString(answered(0x89, "s"))
		}
		first, text = 0, text[n:]
	}
	return b.String() + answered(0x80, ""), pings
}

// readMessage reads a message as a client does, and counts the pings in it.
func readMessage(t *testing.T, in *bufio.Reader) (text string, pings int) {
	t.Helper()
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			t.Fatal(err)
		}
		n := int(head[1])
		if n == 126 {
			var more [2]byte
			io.ReadFull(in, more[:])
			n = int(more[0])<<8 | int(more[1])
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(in, payload); err != nil {
			t.Fatal(err)
		}
		if head[0] == 0x89 {
			pings++
			continue
		}
		if text += string(payload); head[0]&0x80 != 0 {
			return text, pings
		}
	}
}

// live opens a WebSocket whose request carries the credential, to an upstream that says
// says, in small parts, and then waits.
func (w *inspectWorld) live(t *testing.T, r *rand.Rand, says string) *testClient {
	t.Helper()
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, switched)
		for len(says) > 0 {
			n := min(1+r.IntN(40), len(says))
			if _, err := io.WriteString(c, says[:n]); err != nil {
				return
			}
			says = says[n:]
		}
		io.Copy(io.Discard, c)
	})
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/v1/live", webSocketFields...))
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	return c
}

// TestACredentialInFragmentsIsStruckOut has servers write messages in frames as large as a
// buffer of theirs: who says how much stands before the credential, says where it is cut.
func TestACredentialInFragmentsIsStruckOut(t *testing.T) {
	w := newCredentialWorld(t, credentialText)
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 5))
		coded := base64.StdEncoding.EncodeToString([]byte(theSecret))
		text := strings.Repeat("x", r.IntN(200)) + "Bearer " + theSecret + " " + coded + " s"
		stream, pings := inFragments(r, text)
		c := w.live(t, r, stream+answered(0x89, theSecret)+answered(0x82, theSecret[:9])+answered(0x81, "end"))
		said, between := readMessage(t, c.in)
		checkHidden(t, said)
		if len(said) != len(text) || !strings.HasSuffix(said, "* s") || between != pings {
			t.Errorf("of %q and %d pings came %q and %d", text, pings, said, between)
		}
		// A message that ends as the credential begins is not kept for the next one.
		if said, pings := readMessage(t, c.in); said != theSecret[:9] || pings != 1 {
			t.Errorf("the second message is %q", said)
		}
		if said, _ := readMessage(t, c.in); said != "end" {
			t.Errorf("the last message is %q", said)
		}
		c.Close()
		w.recorded(t, func(r record.Record) bool {
			return r.Kind == record.KindClose && strings.Contains(r.Note, "struck out")
		})
	}
	w.closed(t, theSecret)
}

// TestFramesThatNoServerSendsAreRefused: they cannot be searched for the credential.
func TestFramesThatNoServerSendsAreRefused(t *testing.T) {
	for name, says := range map[string]string{
		"compressed":                  "\xc1\x03abc",
		"masked":                      "\x81\x83\x00\x00\x00\x00abc",
		"no beginning":                "\x80\x03abc",
		"another beginning":           "\x01\x01a\x01\x01b",
		"of no kind":                  "\x83\x03abc",
		"a control frame in parts":    "\x09\x01a",
		"a long control frame":        "\x89\x7e\x01\x00",
		"longer than there are bytes": "\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
		"a length in two bytes":       "\x82\x7e\x00\x01a",
		"a length in eight bytes":     "\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x01a",
		"a close frame of a byte":     "\x88\x01a",
		"a message behind the close":  "\x88\x00\x81\x01a",
		"no frames":                   "HELLO",
		"much within a message":       "\x01\x01s" + strings.Repeat(answered(0x89, strings.Repeat("p", 125)), 600),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCredentialWorld(t, credentialText)
			c := w.live(t, rand.New(rand.NewPCG(1, 1)), answered(0x81, "before")+says+answered(0x8a, theSecret))
			got := c.rest()
			c.Close()
			checkHidden(t, got)
			w.recorded(t, ended(string(policy.ResponseRefused)))
			w.closed(t, theSecret)
		})
	}
}
