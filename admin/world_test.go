package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

const token = "egressd-admin-right"

// A world is a server on TCP, with a gate whose policy denies one port and allows the rest.
type world struct {
	*Server
	dir string // of the log
}

type opinion func(*policy.Request) policy.Decision

func (f opinion) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	return f(r), nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Server: &Server{Token: token}, dir: filepath.Join(t.TempDir(), "audit")}
	w.denied.delay = time.Millisecond
	var err error
	if w.Log, err = audit.Create(w.dir, audit.Options{Durability: audit.Process}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Log.Close() })
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Gate = egress.New(egress.Config{Log: w.Log, Sandboxes: everybody})
	decides := opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Port == 22 {
			return policy.Decision{Class: policy.RuleDeny, Rule: "no-ssh", Layer: policy.User}
		}
		return policy.Decision{Verdict: policy.Allow, Rule: "test", Layer: policy.User}
	})
	if err := w.Gate.SetPolicy(t.Context(), policy.New(decides), "test"); err != nil {
		t.Fatal(err)
	}
	return w
}

// listen serves on loopback until the end of the test.
func (w *world) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Host = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(l) }()
	t.Cleanup(func() {
		w.shutdown(t)
		if err := <-ended; err != http.ErrServerClosed {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func (w *world) shutdown(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	w.Shutdown(ctx)
}

// open opens a flow to an address, or does not.
func (w *world) open(t *testing.T, to string) *egress.Flow {
	t.Helper()
	dst, err := policy.ParseDestination(to)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := w.Gate.Open(t.Context(), sandbox.Peer{}, policy.Request{Via: policy.ViaConnect, Destination: dst})
	return f
}

// ask sends a request with the token, and changes it first.
func (w *world) ask(t *testing.T, method, path, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+w.Host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if change != nil {
		change(r)
	}
	if len(body) > bodyMost { // which is refused before it was sent
		r.Header.Set("Expect", "100-continue")
	}
	one := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 30 * time.Second}, Timeout: 30 * time.Second}
	a, err := one.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// records returns what the log holds of one kind.
func (w *world) records(t *testing.T, kind record.Kind) (found []record.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var r record.Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == kind {
			found = append(found, r)
		}
	}
	return found
}
