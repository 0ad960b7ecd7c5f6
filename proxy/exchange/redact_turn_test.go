package exchange

import (
	"runtime"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
)

// TestLongPartsOfResponsesAreRedactedInTurns takes all turns, and then has parts of two sizes redacted in all ways.
func TestLongPartsOfResponsesAreRedactedInTurns(t *testing.T) {
	_, flow, _ := egresstest.OpenFlow(t, "1")
	s, err := secret.New(secret.Options{Header: "Authorization", Text: []byte("a-secret-text")})
	if err != nil {
		t.Fatal(err)
	}
	frame := func(size int) []byte { // of a server's WebSocket
		return append([]byte{0x82, 126, byte(size >> 8), byte(size)}, strings.Repeat("a", size)...)
	}
	x := &h1Exchange{Exchange: &Exchange{Flow: flow, redaction: s.Redaction}}
	ways := map[string]func(size int){
		"a body":   func(size int) { x.responseFilter().scan(make([]byte, size)) },
		"messages": func(size int) { x.messageFilter().scan(frame(size)) },
		"fields": func(size int) {
			x.Passing(http1.Fields{{Name: "X-Text", Value: strings.Repeat("a", size)}})
		},
	}
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		if !redacting.TakeNow() {
			t.Fatal("no turn is free")
		}
	}
	waiting := 0
	done := make(chan string, len(ways))
	for says, redact := range ways {
		redact(longPart / 2)
		go func() { redact(2 * longPart); done <- says }()
		for waiting++; redacting.Waiting() < waiting; runtime.Gosched() {
			select {
			case says := <-done:
				t.Fatalf("%s: redacted without a turn", says)
			default:
			}
		}
	}
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		redacting.Give()
	}
	for range ways {
		<-done
	}
	if !redacting.TakeNow() {
		t.Error("the turns were not given back")
	}
	redacting.Give()
}
