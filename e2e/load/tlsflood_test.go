package load

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"golang.org/x/net/http2"
)

// Content types and handshake messages (RFC 8446 §5.1, §4).
const (
	handshakeRecord   = 22
	applicationRecord = 23
	newSessionTicket  = 4
	keyUpdate         = 24
)

// A recorder writes TLS 1.3 records of its own making (RFC 8446 §5.2), with
// the keys of a connection to which nothing was written yet.
type recorder struct {
	to     net.Conn
	src    string
	secret []byte
	seal   cipher.AEAD
	iv     []byte
	count  uint64
	over   chan struct{} // closed when nothing more comes back
}

// newRecorder makes TLS as an ordinary client does, and takes its way out over.
func newRecorder(t *testing.T, d *world.Daemon) *recorder {
	t.Helper()
	var keys bytes.Buffer
	conn := d.OpenTLS(t, func(c *tls.Config) { c.KeyLogWriter = &keys })
	if suite := conn.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Fatalf("the cipher suite is %s", tls.CipherSuiteName(suite))
	}
	r := &recorder{to: conn.NetConn(), src: conn.LocalAddr().String(), over: make(chan struct{})}
	for line := range strings.Lines(keys.String()) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "CLIENT_TRAFFIC_SECRET_0" {
			r.secret, _ = hex.DecodeString(f[2])
		}
	}
	if err := r.rekey(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.over)
		io.Copy(io.Discard, r.to)
	}()
	return r
}

// rekey derives what records are sealed with from the secret (RFC 8446 §7.3).
func (r *recorder) rekey() error {
	key, err := expand(r.secret, "key", 16)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	if r.seal, err = cipher.NewGCM(block); err != nil {
		return err
	}
	r.count = 0
	r.iv, err = expand(r.secret, "iv", r.seal.NonceSize())
	return err
}

// expand is HKDF-Expand-Label without a context (RFC 8446 §7.1).
func expand(secret []byte, label string, size int) ([]byte, error) {
	label = "tls13 " + label
	info := string([]byte{byte(size >> 8), byte(size), byte(len(label))}) + label + "\x00"
	return hkdf.Expand(sha256.New, secret, info, size)
}

// record writes one record.
func (r *recorder) record(kind byte, content ...byte) error {
	inner := append(bytes.Clone(content), kind)
	head := []byte{applicationRecord, 3, 3}
	head = binary.BigEndian.AppendUint16(head, uint16(len(inner)+r.seal.Overhead()))
	nonce := bytes.Clone(r.iv)
	tail := nonce[len(nonce)-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^r.count)
	r.count++
	_, err := r.to.Write(r.seal.Seal(head, nonce, inner, head))
	return err
}

// update announces new keys and goes over to them (RFC 8446 §4.6.3).
func (r *recorder) update(request byte) (err error) {
	if err := r.record(handshakeRecord, keyUpdate, 0, 0, 1, request); err != nil {
		return err
	}
	if r.secret, err = expand(r.secret, "traffic upd", len(r.secret)); err != nil {
		return err
	}
	return r.rekey()
}

// hello begins HTTP/2.
func (r *recorder) hello() error {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	http2.NewFramer(&b, nil).WriteSettings()
	return r.record(applicationRecord, b.Bytes()...)
}

// ping is a frame that is answered.
func ping() []byte {
	var b bytes.Buffer
	http2.NewFramer(&b, nil).WritePing(false, [8]byte{})
	return b.Bytes()
}

var tlsFloods = []struct {
	says string
	ends bool
	send func(*recorder) error
}{
	{"KeyUpdate that asks for one", true, func(r *recorder) error {
		return repeat(10_000, func(int) error { return r.update(1) })
	}},
	{"KeyUpdate", true, func(r *recorder) error {
		return repeat(10_000, func(int) error { return r.update(0) })
	}},
	{"KeyUpdate in the middle of HTTP/2", true, func(r *recorder) error {
		r.hello()
		return repeat(10_000, func(int) error { return r.update(1) })
	}},
	{"KeyUpdate between frames", true, func(r *recorder) error { // of which there are too many that carry nothing
		r.hello()
		return repeat(5_000, func(int) error {
			if err := r.update(1); err != nil {
				return err
			}
			return r.record(applicationRecord, ping()...)
		})
	}},
	{"empty records", true, func(r *recorder) error {
		return repeat(10_000, func(int) error { return r.record(applicationRecord) })
	}},
	{"empty records in the middle of HTTP/2", true, func(r *recorder) error {
		r.hello()
		return repeat(10_000, func(int) error { return r.record(applicationRecord) })
	}},
	{"session tickets from a client", true, func(r *recorder) error {
		return repeat(10_000, func(int) error { return r.record(handshakeRecord, newSessionTicket, 0, 0, 0) })
	}},
	{"records of a byte", false, func(r *recorder) error {
		r.hello()
		return repeat(500, func(int) error {
			for _, b := range ping() {
				if err := r.record(applicationRecord, b); err != nil {
					return err
				}
			}
			return nil
		})
	}},
}

// TestTLSFloods does what the end of TLS has to bear. The connection ends, or
// costs little, and another client is served meanwhile.
func TestTLSFloods(t *testing.T) {
	world.Covers(t, "TL-38")
	d := world.StartInspecting(t, "")
	usual(t, d)
	for _, flood := range tlsFloods {
		t.Run(flood.says, func(t *testing.T) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			r := newRecorder(t, d)
			w := startWatch(t, d)
			flood.send(r) // an error is the end
			patience := 200 * time.Millisecond
			if flood.ends {
				patience = 20 * time.Second
			}
			ended := false
			select {
			case <-r.over:
				ended = true
			case <-time.After(patience):
			}
			w.judge(t)
			if ended != flood.ends {
				t.Errorf("the connection ended: %v, want %v", ended, flood.ends)
			}
			r.to.Close()
			<-r.over
			expectBounded(t, d, r.src, mark)
		})
	}
	usual(t, d)
	d.Settled(t)
}
