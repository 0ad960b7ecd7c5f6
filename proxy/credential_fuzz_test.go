package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
)

const fuzzText = `version: 1
allow:
  - {host: "allowed.test:%[1]s", paths: ["/v1/**"], upgrade: websocket, id: key, inject: {header: Authorization, value: "Bearer {}", env: KEY, placeholder: EXAMPLE_TOKEN}}
  - {host: "allowed.test:%[2]s", paths: ["/**"]}
  - {host: "other.test:*", paths: ["/**"]}
unsafe_allow: ["127.0.0.1:*"]
`

// mirror answers with all that it was sent, in an encoding that the path
// chooses.
func mirror(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	var head bytes.Buffer
	r.Header.Write(&head)
	all := r.Method + " " + r.RequestURI + "\r\n" + head.String() + string(body)
	encodings := []func(string) string{
		func(s string) string { return s },
		url.QueryEscape,
		url.PathEscape,
		func(s string) string { return hex.EncodeToString([]byte(s)) },
		func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("x" + s)) },
		func(s string) string { b, _ := json.Marshal(s); return string(b) },
	}
	odd := encodings[len(r.URL.Path)%len(encodings)](all)
	rw.Header().Set("X-Auth", strings.Join(r.Header["Authorization"], ";"))
	rw.Header().Set("X-Odd", encodings[len(body)%len(encodings)](r.Header.Get("Authorization")))
	rw.Header().Set("Trailer", "X-Last")
	for len(odd) > 0 {
		n := min(len(odd), 1+len(odd)/3)
		io.WriteString(rw, odd[:n])
		http.NewResponseController(rw).Flush()
		odd = odd[n:]
	}
	rw.Header().Set("X-Last", r.Header.Get("Authorization"))
}

// A mirrorWorld has a host with a credential that repeats all it is sent, and
// servers that must never see the credential.
type mirrorWorld struct {
	*inspectWorld
	mirror, others *origin
	seen           witness // what the others were sent
	read           int64   // of the log
}

func newMirrorWorld(f *testing.F) *mirrorWorld {
	set, keys := plainSet(f), newPKI(f)
	w := &mirrorWorld{mirror: keys.secureOrigin(f, false, mirror, nil)}
	w.others = keys.secureOrigin(f, false, func(_ http.ResponseWriter, r *http.Request) {
		w.seen.mu.Lock()
		defer w.seen.mu.Unlock()
		r.Write(&w.seen.seen)
	}, nil)
	w.inspectWorld = newInspectWorld(f, fmt.Sprintf(fuzzText, w.mirror.port, w.others.port), func(i *inspect.Inspection) {
		i.Roots = keys.Pool
		i.Secrets.Apply = func(_ string, _ policy.Destination, r *credentials.Request) credentials.Answer { return set.Apply(r) }
	})
	return w
}

// send sends a request in a tunnel of its own and returns the answer, as it
// came and with its body unchunked.
func (w *mirrorWorld) send(t *testing.T, where uint8, line, fields, body string) string {
	host, port := "allowed.test", w.mirror.port
	switch where % 4 {
	case 2:
		port = w.others.port
	case 3:
		host, port = "other.test", w.others.port
	}
	c := w.inside(t, host, port)
	defer c.Close()
	io.WriteString(c, line+"\r\nHost: "+host+":"+port+"\r\nConnection: close\r\n"+fields)
	if body != "" {
		fmt.Fprintf(c, "Content-Length: %d\r\n", len(body))
	}
	io.WriteString(c, "\r\n"+body)
	c.Conn.(*tls.Conn).CloseWrite()
	raw, _ := io.ReadAll(c.in)
	all := string(raw)
	if resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil); err == nil {
		text, _ := io.ReadAll(resp.Body)
		all += string(text)
	}
	return all
}

// news is what the log and the other servers have got since the last call.
func (w *mirrorWorld) news(t *testing.T) string {
	file, err := os.Open(filepath.Join(w.log, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, w.read, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	w.read += int64(len(text))
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	defer w.seen.seen.Reset()
	return string(text) + w.seen.seen.String()
}

// FuzzCredentialStaysHidden sends requests inside tunnels to the host that a
// credential is for, to another port of it, and to another host. It shows
// neither to the client, nor to those other servers, nor in the log.
func FuzzCredentialStaysHidden(f *testing.F) {
	w := newMirrorWorld(f)
	for n, path := range []string{"/v1/x", "/v1/xy", "/v1/xyz", "/v1/", "/v1/x?q=EXAMPLE_TOKEN", "/v1/../x", "/v1/%2e%2e/abcd", "/v1/a/b/c/d"} {
		f.Add(uint8(n), "GET "+path+" HTTP/1.1", "", "")
		f.Add(uint8(n), "POST "+path+" HTTP/1.1", "Authorization: token EXAMPLE_TOKEN\r\n", strings.Repeat("b", n))
		f.Add(uint8(n), "GET "+path+" HTTP/1.1", "Range: bytes=0-5\r\nAccept-Encoding: gzip\r\nauthorization: Basic bWU6RVhBTVBMRV9UT0tFTg==\r\n", "")
		f.Add(uint8(n), "GET "+path+" HTTP/1.0", "Connection: authorization\r\n", "x")
	}
	f.Add(uint8(0), "GET /v1/live HTTP/1.1", strings.Join(webSocketFields, "\r\n")+"\r\n", "")
	f.Fuzz(func(t *testing.T, where uint8, line, fields, body string) {
		if strings.Contains(line+fields+body, theSecret) {
			return
		}
		checkHidden(t, w.send(t, where, line, fields, body))
		checkHidden(t, w.news(t))
	})
}
