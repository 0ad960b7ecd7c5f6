package sniff

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// serverHello is a message of a server with a random, in records of n bytes.
func serverHello(random string, n int) []byte {
	body := append([]byte{3, 3}, random...)
	body = append(body, bytes.Repeat([]byte{0}, 50)...)
	return inRecords(append([]byte{2, 0, 0, byte(len(body))}, body...), n)
}

var ccs = []byte{20, 3, 3, 0, 1, 1}

// inSegments has take see b in pieces of 1, 2, 3, 7 and all bytes.
func inSegments(b []byte, take func(segment []byte) (done bool), fresh func()) {
	for _, n := range []int{1, 2, 3, 7, len(b)} {
		fresh()
		for rest := b; len(rest) > 0; {
			k := min(n, len(rest))
			if take(rest[:k]) {
				break
			}
			rest = rest[k:]
		}
	}
}

func TestARetryIsOverOnceTheServerHasAnswered(t *testing.T) {
	for says, row := range map[string]struct {
		answer []byte
		over   bool
	}{
		"asks":                             {serverHello(retryRandom, 4096), false},
		"asks, in records of five bytes":   {serverHello(retryRandom, 5), false},
		"asks, and says so behind records": {append(bytes.Clone(ccs), serverHello(retryRandom, 4096)...), false},
		"asks, and changes its cipher":     {append(serverHello(retryRandom, 4096), ccs...), false},
		"answers":                          {serverHello(strings.Repeat("r", 32), 4096), true},
		"answers nearly like it":           {serverHello(retryRandom[:31]+"x", 3), true},
		"another message":                  {inRecords([]byte{1, 0, 0, 0}, 4096), true},
		"a record of type 0":               {append([]byte{0, 3, 3, 0, 1, 1}, serverHello(retryRandom, 4096)...), true},
		"something else":                   {[]byte("220 mail.test ESMTP\r\n"), true},
		"early application data":           {[]byte{23, 3, 3, 0, 1, 1}, true},
	} {
		var r *Retry
		over := false
		inSegments(row.answer, func(b []byte) bool {
			over = r.Server(b)
			return over
		}, func() {
			if r != nil && over != row.over {
				t.Errorf("a server that %s: over %v", says, over)
			}
			r = new(Retry)
		})
		if over != row.over {
			t.Errorf("a server that %s at once: over %v", says, over)
		}
	}
}

func TestASecondHelloIsFoundWhereverItIs(t *testing.T) {
	second := hello{extensions: [][]byte{serverName("evil.test"), extension(extCookie, vec16([]byte("c")))}}.message()
	early := []byte{23, 3, 3, 0, 3, 22, 3, 1} // what looks like a record is none
	malformed := new(MalformedError)
	for says, row := range map[string]struct {
		sent  []byte
		wrong bool
	}{
		"alone":                        {inRecords(second, 4096), false},
		"in pieces":                    {inRecords(second, 5), false},
		"behind a change of ciphers":   {append(bytes.Clone(ccs), inRecords(second, 4096)...), false},
		"behind early data":            {append(append(bytes.Clone(early), early...), inRecords(second, 9)...), false},
		"behind an empty record":       {append([]byte{23, 3, 3, 0, 0}, inRecords(second, 4096)...), false},
		"with a record in its midst":   {append(append(inRecords(second, 9)[:14:14], ccs...), inRecords(second, 9)[14:]...), true},
		"with an empty record before":  {append([]byte{22, 3, 3, 0, 0}, inRecords(second, 4096)...), true},
		"another message":              {inRecords([]byte{16, 0, 0, 1, 0}, 4096), true},
		"behind a heartbeat":           {append([]byte{24, 3, 3, 0, 1, 1}, inRecords(second, 4096)...), false},
		"with an unknown record in it": {append(append(inRecords(second, 9)[:14:14], 99, 3, 3, 0, 1, 1), inRecords(second, 9)[14:]...), true},
		"behind 64 KiB of early data":  {append(bytes.Repeat([]byte{23, 3, 3, 0, 1, 1}, 64<<10-1), inRecords(second, 4096)...), false},
		"behind too many records":      {append(bytes.Repeat([]byte{23, 3, 3, 0, 0}, 64<<10), inRecords(second, 4096)...), true},
		"a hello that is too long":     {inRecords(append([]byte{1, 0, 0xff, 0}, make([]byte, 0xff00)...), 4096), true},
	} {
		var r *Retry
		var got Hello
		err := ErrShort
		check := func() {
			switch {
			case r == nil:
			case row.wrong && !errors.As(err, &malformed):
				t.Errorf("%s: %+v, %v", says, got, err)
			case !row.wrong && (err != nil || got.ServerName != "evil.test"):
				t.Errorf("%s: %+v, %v", says, got, err)
			}
		}
		inSegments(row.sent, func(b []byte) bool {
			got, err = r.Client(b)
			return err != ErrShort
		}, func() {
			check()
			r = new(Retry)
		})
		check()
	}
}

func TestWhatIsNoTLSEndsAWatch(t *testing.T) {
	for says, sent := range map[string]string{
		"text":                      "xxxxxxxx",
		"a record that is too long": "\x17\x03\x03\xff\xff\x01",
		"a record of type 0":        "\x00\x03\x03\x00\x01\x01",
		"a record of type 19":       "\x13\x03\x03\x00\x00",
		"a record of type 25":       "\x19\x03\x03\x00\x00",
		"a record of type 255":      "\xff\x03\x03\x00\x01\x01",
		"one behind early data":     "\x17\x03\x03\x00\x01\x01\x63\x03\x03\x00\x00",
	} {
		var err error
		var r *Retry
		check := func() {
			if r != nil && err != ErrNoTLS {
				t.Errorf("%s: %v", says, err)
			}
		}
		inSegments([]byte(sent), func(b []byte) bool {
			_, err = r.Client(b)
			return err != ErrShort
		}, func() {
			check()
			r = new(Retry)
		})
		check()
	}
}

// TestAWatchOfAServerEnds, whatever the server repeats.
func TestAWatchOfAServerEnds(t *testing.T) {
	for says, record := range map[string][]byte{
		"changes of ciphers":        ccs,
		"alerts":                    {21, 3, 3, 0, 2, 1, 0},
		"handshakes without a byte": {22, 3, 3, 0, 0},
	} {
		var r Retry
		if r.Server(bytes.Repeat(record, 64<<10)) || !r.Server(record) {
			t.Errorf("a server that sends %s: the watch ends too early, or does not end", says)
		}
	}
}
