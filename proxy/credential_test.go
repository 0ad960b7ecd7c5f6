package proxy

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
)

const (
	theSecret      = "sk-live-7Hq2mZ0pXw"
	credentialText = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/v1/**"], upgrade: websocket, id: key, inject: {header: Authorization, value: "Bearer {}", env: KEY, placeholder: EXAMPLE_TOKEN}}
  - {host: "allowed.test:*", paths: ["/public/**"], id: public}
  - {host: "other.test:*", methods: [GET, POST]}
unsafe_allow: ["127.0.0.1:*"]
`
)

func newSecret(t testing.TB) *secret.Secret {
	t.Helper()
	s, err := secret.New(secret.Options{Header: "Authorization", Value: "Bearer {}", Placeholder: "EXAMPLE_TOKEN", Text: []byte(theSecret)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plainSet is the set of the credential of the rule key.
func plainSet(t testing.TB) *credentials.Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(theSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	c := credentials.New(credentials.Spec{Name: "key", From: credentials.Source{File: path}},
		&credentials.Plain{Rule: "key", Host: "allowed.test", Header: "Authorization", Value: "Bearer {}", Placeholder: "EXAMPLE_TOKEN"},
		func(path string) string { return path })
	if err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return credentials.NewSet(credentials.Key{}, []*credentials.Credential{c})
}

// newCredentialWorld has the credential of the rule key for allowed.test.
func newCredentialWorld(t *testing.T, text string) *inspectWorld {
	t.Helper()
	s := newSecret(t)
	set := plainSet(t)
	return newInspectWorld(t, text, func(i *inspect.Inspection) {
		i.Secrets.Apply = func(digest string, dst policy.Destination, r *credentials.Request) credentials.Answer {
			if r.Rule != "" && (r.Rule != "key" || digest == "" || dst.Host != "allowed.test") {
				t.Errorf("asked for the credential of %q by %q for %s", r.Rule, digest, dst)
			}
			return set.Apply(r)
		}
		i.Secrets.Redaction = func(dst policy.Destination) (*secret.Redaction, bool) {
			if dst.Host != "allowed.test" {
				return nil, false
			}
			return s.Redaction, true
		}
	})
}

// headSeen is an origin's memory of the last request's head.
type headSeen struct {
	mu     sync.Mutex
	fields http.Header
	n      int
}

func (s *headSeen) handle(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields = r.Header.Clone()
	s.n++
}

func (s *headSeen) last() (http.Header, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fields, s.n
}

// asksForParts are fields by which a response comes in parts.
var asksForParts = []string{"Range", "If-Range", "Request-Range", "x-ms-range", "A-IM"}

func TestACredentialIsAddedInside(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:EXAMPLE_TOKEN"))
	filled := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+theSecret))
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		var seen headSeen
		o := w.pki.secureOrigin(t, overH2, seen.handle, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for _, tt := range []struct {
			name, want string
			sent       []string
		}{
			{"none sent", "Bearer " + theSecret, nil},
			{"the sandbox's own is replaced", "Bearer " + theSecret, []string{"Authorization: Bearer mine"}},
			{"several become one", "Bearer " + theSecret, []string{"Authorization: Bearer a", "Authorization: token EXAMPLE_TOKEN"}},
			{"a placeholder is filled", "token " + theSecret, []string{"Authorization: token EXAMPLE_TOKEN"}},
			{"also in Basic", filled, []string{"Authorization: " + basic}},
			{"not in other fields", "Bearer " + theSecret, []string{"X-Other: EXAMPLE_TOKEN"}},
		} {
			sent := append(tt.sent, "Accept-Encoding: gzip, br")
			for _, name := range asksForParts {
				sent = append(sent, name+": bytes=0-3")
			}
			if r := ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil, sent...); r.StatusCode != 200 {
				t.Fatalf("%s: %s", tt.name, r.all())
			}
			got, _ := seen.last()
			if a := got["Authorization"]; len(a) != 1 || a[0] != tt.want {
				t.Errorf("%s: Authorization %q, want %q", tt.name, a, tt.want)
			}
			if got.Get("Accept-Encoding") != "identity" || slices.ContainsFunc(asksForParts, func(name string) bool { return got.Get(name) != "" }) {
				t.Errorf("%s: sent on %v", tt.name, got)
			}
			if strings.Contains(got.Get("X-Other"), theSecret) {
				t.Errorf("%s: X-Other %s", tt.name, got.Get("X-Other"))
			}
		}
	})
}

// TestAnEchoedCredentialIsStruckOut has the origin repeat it everywhere.
func TestAnEchoedCredentialIsStruckOut(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			got := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			rw.Header().Set("Trailer", "X-After")
			rw.Header().Set("X-Echo", "it was "+got)
			rw.Header()["X-"+got] = []string{"in a name"}
			rw.Header().Add("Set-Cookie", "a="+url.QueryEscape(got))
			rw.Header().Add("Set-Cookie", "b="+hex.EncodeToString([]byte(got)))
			for _, part := range []string{"begin ", got[:5], got[5:9], got[9:] + " ", base64.StdEncoding.EncodeToString([]byte(got)), " end"} {
				io.WriteString(rw, part)
				http.NewResponseController(rw).Flush()
			}
			rw.Header().Set("X-After", got)
			rw.Header().Set(http.TrailerPrefix+"X-Late", got)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		r := ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil)
		stars := strings.Repeat("*", len(theSecret))
		if want := "begin " + stars + " ****"; r.StatusCode != 200 || !strings.HasPrefix(r.body, want) || !strings.HasSuffix(r.body, " end") {
			t.Errorf("body %q", r.body)
		}
		if r.Header.Get("X-Echo") != "it was "+stars || r.Trailer.Get("X-After") != stars || len(r.Header["Set-Cookie"]) != 2 {
			t.Errorf("header %v, trailer %v", r.Header, r.Trailer)
		}
		checkHidden(t, r.all())
		for name := range r.Header { // over HTTP/2 its case is lost on the way, and so is the credential
			if !overH2 && strings.EqualFold(name, "X-"+theSecret) {
				t.Errorf("the name %s passed", name)
			}
		}
		end := w.recorded(t, closeOf(w.recorded(t, requestTo("/v1/x"))))
		if !strings.Contains(end.Note, "struck out") || end.HTTP.Status != 200 {
			t.Errorf("ended %+v", end)
		}
	})
}

// checkHidden looks for the credential in the forms in which it may be sent
// back.
func checkHidden(t testing.TB, text string) {
	t.Helper()
	forms := []string{theSecret, url.QueryEscape(theSecret), hex.EncodeToString([]byte(theSecret)), fmt.Sprintf("%X", theSecret)}
	for ahead := range 3 { // of the characters of base64, those that only tell of the credential
		coded := base64.StdEncoding.EncodeToString([]byte("xx"[:ahead] + theSecret))
		forms = append(forms, coded[(8*ahead+5)/6:8*(ahead+len(theSecret))/6])
	}
	for _, form := range forms {
		if strings.Contains(text, form) {
			t.Errorf("the credential shows, as %q, in %q", form, text)
		}
	}
}

// TestAnEchoKeepsItsLength: what is struck out does not change the framing.
func TestAnEchoKeepsItsLength(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			text := strings.Repeat("x", 100_000) + r.Header.Get("Authorization")
			rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
			io.WriteString(rw, text)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for range 2 { // the connection stands afterwards
			r := ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil)
			if want := 100_000 + len("Bearer ") + len(theSecret); len(r.body) != want || r.ContentLength != int64(want) {
				t.Errorf("%d bytes of %d, want %d", len(r.body), r.ContentLength, want)
			}
			checkHidden(t, r.body[99_000:])
		}
	})
}

// TestWhatCannotBeSearchedIsRefused has the origin compress although it was
// told not to.
func TestWhatCannotBeSearchedIsRefused(t *testing.T) {
	for _, coding := range []string{"gzip", "identity, gzip", "br", "x"} {
		eachVersion(t, func(t *testing.T, overH2 bool) {
			w := newCredentialWorld(t, credentialText)
			o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Encoding", coding)
				z := gzip.NewWriter(rw)
				io.WriteString(z, r.Header.Get("Authorization"))
				z.Close()
			}, nil)
			rt := w.visitor(t, overH2, "allowed.test", o.port)
			r := ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil)
			r.refused(t, 502, policy.ResponseRefused)
			if w.recorded(t, ended(string(policy.ResponseRefused))).HTTP.Path != "/v1/x" {
				t.Error("another flow was recorded")
			}
			ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil, "Accept-Encoding: br").refused(t, 502, policy.ResponseRefused)
			other := w.visitor(t, overH2, "other.test", o.port)
			if r := ask(t, other, "GET", o.url("other.test", "/x"), nil, "Accept-Encoding: br"); r.StatusCode != 200 || r.Header.Get("Content-Encoding") != coding {
				t.Errorf("of a host without a credential: %s", r.all())
			}
		})
	}
}

// TestAPartIsRefused: a server may send one to whoever asked for none, or by a
// way of asking that nobody here knows.
func TestAPartIsRefused(t *testing.T) {
	for _, tt := range []struct {
		status      int
		name, value string
	}{
		{206, "X-Other", "y"},
		{226, "IM", "range"},
		{200, "Content-Range", "bytes 0-3/25"},
		{416, "Content-Range", "bytes */25"},
		{200, "Content-Type", "Multipart/ByteRanges; boundary=x"},
	} {
		eachVersion(t, func(t *testing.T, overH2 bool) {
			w := newCredentialWorld(t, credentialText)
			o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(tt.name, tt.value)
				rw.WriteHeader(tt.status)
				io.WriteString(rw, "part")
			}, nil)
			rt := w.visitor(t, overH2, "allowed.test", o.port)
			ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil).refused(t, 502, policy.ResponseRefused)
			w.recorded(t, ended(string(policy.ResponseRefused)))
			ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil).refused(t, 502, policy.ResponseRefused)
			other := w.visitor(t, overH2, "other.test", o.port)
			if r := ask(t, other, "GET", o.url("other.test", "/x"), nil); r.StatusCode != tt.status || r.Header.Get(tt.name) != tt.value || r.body != "part" {
				t.Errorf("of a host without a credential: %s", r.all())
			}
		})
	}
}

func TestAMissingCredentialSendsNothing(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, credentialText, func(i *inspect.Inspection) {
			i.Secrets.Apply = func(string, policy.Destination, *credentials.Request) credentials.Answer {
				return credentials.Answer{Refused: "not now", Unavailable: true}
			}
		})
		var seen headSeen
		o := w.pki.secureOrigin(t, overH2, seen.handle, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		r := ask(t, rt, "GET", o.url("allowed.test", "/v1/x"), nil, "Authorization: Bearer mine")
		r.refused(t, 503, policy.CredentialUnavailable)
		if r.Header.Get("Retry-After") == "" {
			t.Errorf("answered %s", r.all())
		}
		if _, n := seen.last(); n != 0 {
			t.Errorf("%d requests went up", n)
		}
		w.recorded(t, ended(string(policy.CredentialUnavailable)))
	})
}

// TestACredentialGoesNowhereElse asks for other paths, other hosts and in
// clear, with the placeholder.
func TestACredentialGoesNowhereElse(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		var seen headSeen
		o := w.pki.secureOrigin(t, overH2, seen.handle, nil)
		for host, path := range map[string]string{"allowed.test": "/public/x", "other.test": "/v1/x"} {
			r := ask(t, w.visitor(t, overH2, host, o.port), "GET", o.url(host, path), nil, "Authorization: token EXAMPLE_TOKEN", "Range: bytes=0-1")
			got, _ := seen.last()
			if r.StatusCode != 200 || got.Get("Authorization") != "token EXAMPLE_TOKEN" || (got.Get("Range") == "") != (host == "allowed.test") {
				t.Errorf("%s%s: %d, sent on %v", host, path, r.StatusCode, got)
			}
		}
	})
}

func TestACredentialIsNeverSentInClear(t *testing.T) {
	w := newCredentialWorld(t, credentialText)
	var seen headSeen
	o := webOrigin(t, seen.handle)
	ask := "Authorization: token EXAMPLE_TOKEN"
	resp, body := w.dial(t).send(get("allowed.test", o.port, "/v1/x", ask, "Connection: close")).response("GET")
	got, n := seen.last()
	if strings.Contains(fmt.Sprint(got), theSecret) || n > 0 && got.Get("Authorization") != "token EXAMPLE_TOKEN" {
		t.Errorf("sent in clear: %v; answered %d %s", got, resp.StatusCode, body)
	}
	// And in a tunnel without TLS.
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	c.send("GET /v1/x HTTP/1.1\r\nHost: allowed.test:" + o.port + "\r\n" + ask + "\r\nConnection: close\r\n\r\n").rest()
	if got, _ := seen.last(); strings.Contains(fmt.Sprint(got), theSecret) {
		t.Errorf("sent in clear inside a tunnel: %v", got)
	}
	w.closed(t, theSecret)
}

// TestACredentialOfAWebSocketIsStruckOut: frames from an upstream are not
// masked, and must not be compressed either.
func TestACredentialOfAWebSocketIsStruckOut(t *testing.T) {
	w := newCredentialWorld(t, credentialText)
	o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		got := r.Header.Get("Authorization")
		said := fmt.Sprintf("[%s%v.", got, r.Header["Sec-Websocket-Extensions"])
		at := len(got) - 4
		fmt.Fprintf(buf, "%sX-Echo: %s\r\n\r\n\x81%c%s", strings.TrimSuffix(switched, "\r\n"), got, len(said), said[:at])
		buf.Flush()
		fmt.Fprint(buf, said[at:])
		buf.Flush()
	}, nil)
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/v1/live", append(webSocketFields, "Sec-WebSocket-Extensions: permessage-deflate")...))
	got := c.rest()
	c.Close()
	checkHidden(t, got)
	if !strings.HasPrefix(got, "HTTP/1.1 101 ") || !strings.HasSuffix(got, "[].") {
		t.Errorf("read %q", got)
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Kind == record.KindClose && strings.Contains(r.Note, "struck out")
	})
	w.closed(t, theSecret)
}

// TestACredentialIsNoName: not of a field, nor of a trailer field, announced or
// not, in whatever case it arrives.
func TestACredentialIsNoName(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			got := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			rw.Header().Set("Trailer", "X-After, X-Egressd-Id, "+got)
			rw.Header().Set("X-"+strings.ToUpper(got), "as a name")
			rw.Header().Set("Y-"+base64.RawURLEncoding.EncodeToString([]byte(got)), "as a name")
			io.WriteString(rw, "body")
			rw.Header().Set("X-After", "passes")
			rw.Header().Set(got, "as a name")
			rw.Header().Set(http.TrailerPrefix+"Z-"+got, "as a name")
		}, nil)
		r := ask(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/v1/x"), nil)
		if r.body != "body" || r.Trailer.Get("X-After") != "passes" {
			t.Errorf("answered %s", r.all())
		}
		told := strings.ToLower(r.all())
		for _, form := range []string{theSecret, base64.RawURLEncoding.EncodeToString([]byte(theSecret)), "as a name", "X-Egressd-Id"} {
			if strings.Contains(told, strings.ToLower(form)) {
				t.Errorf("%s shows in %s", form, told)
			}
		}
	})
}

// TestATrailerAnnouncesNoCredential, before the body is there.
func TestATrailerAnnouncesNoCredential(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, credentialText)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", "X-After, X-Egressd-Id, "+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			io.WriteString(rw, "body")
		}, nil)
		resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/v1/x"), nil)
		if _, after := resp.Trailer["X-After"]; len(resp.Trailer) > 1 || len(resp.Trailer) == 1 && !after {
			t.Errorf("announced %v", resp.Trailer)
		}
	})
}

const storedText = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/v1/**"], id: key, inject: {header: Authorization, value: "Bearer {}", env: KEY, placeholder: EXAMPLE_TOKEN}}
  - {host: "allowed.test:*", paths: ["/open/**"], upgrade: websocket, id: open}
unsafe_allow: ["127.0.0.1:*"]
`

// TestAStoredCredentialIsStruckOutOfAnyResponse has the upstream keep the credential of one
// request and give it back in answer to another, which carries none.
func TestAStoredCredentialIsStruckOutOfAnyResponse(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newCredentialWorld(t, storedText)
		stored := make(chan string, 1)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/store" {
				stored <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
				return
			}
			got := <-stored
			rw.Header().Set("Trailer", "X-After")
			rw.Header().Set("X-Kept", got)
			for _, part := range []string{"begin ", got[:5], got[5:] + " ", base64.StdEncoding.EncodeToString([]byte(got)), " end"} {
				io.WriteString(rw, part)
				http.NewResponseController(rw).Flush()
			}
			rw.Header().Set("X-After", got)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		if r := ask(t, rt, "GET", o.url("allowed.test", "/v1/store"), nil); r.StatusCode != 200 {
			t.Fatal(r.all())
		}
		r := ask(t, rt, "GET", o.url("allowed.test", "/open/x"), nil, "Accept-Encoding: gzip", "Range: bytes=0-3")
		checkHidden(t, r.all())
		stars := strings.Repeat("*", len(theSecret))
		if r.StatusCode != 200 || !strings.HasPrefix(r.body, "begin "+stars+" ") || r.Header.Get("X-Kept") != stars || r.Trailer.Get("X-After") != stars {
			t.Errorf("answered %s", r.all())
		}
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/open/x")))); !strings.Contains(end.Note, "struck out") {
			t.Errorf("ended %+v", end)
		}
	})
}

// TestAStoredCredentialIsStruckOutInClear: the upstream gives it back over plain HTTP, with a
// length and without, on its own and in a tunnel.
func TestAStoredCredentialIsStruckOutInClear(t *testing.T) {
	w := newCredentialWorld(t, storedText)
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) {
		text := "it was " + theSecret
		if r.URL.Path == "/open/length" {
			text += strings.Repeat(" ", 1<<20) + theSecret
			rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
		}
		io.WriteString(rw, text)
		http.NewResponseController(rw).Flush()
	})
	for _, path := range []string{"/open/length", "/open/pieces"} {
		resp, body := w.dial(t).send(get("allowed.test", o.port, path, "Connection: close")).response("GET")
		checkHidden(t, body)
		if resp.StatusCode != 200 || !strings.HasPrefix(body, "it was ***") {
			t.Errorf("%s: answered %d %.80s", path, resp.StatusCode, body)
		}
		c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
		checkHidden(t, c.send("GET "+path+" HTTP/1.1\r\nHost: allowed.test:"+o.port+"\r\nConnection: close\r\n\r\n").rest())
	}
}

// TestAStoredCredentialIsStruckOutOfMessages of a WebSocket whose request carried none.
func TestAStoredCredentialIsStruckOutOfMessages(t *testing.T) {
	w := newCredentialWorld(t, storedText)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		talk(t, c, func(c net.Conn) {
			io.WriteString(c, "\x01\x09"+theSecret[:9]+"\x80"+string(rune(len(theSecret)-9))+theSecret[9:]+answered(0x81, "end"))
		})
	})
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/open/live", append(webSocketFields, "Sec-WebSocket-Extensions: permessage-deflate")...))
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	c.send("\x8a\x01x").expect("\x8a\x01x")
	if said, _ := readMessage(t, c.in); said != strings.Repeat("*", len(theSecret)) {
		t.Errorf("the message is %q", said)
	}
	if said, _ := readMessage(t, c.in); said != "end" {
		t.Errorf("the last message is %q", said)
	}
}
