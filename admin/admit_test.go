package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

func TestOverTCPOnlyTheTokenCounts(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	for name, row := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"the token":                  {nil, 200},
		"none":                       {func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"another":                    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer egressd-admin-wrong") }, 401},
		"its beginning":              {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:len(token)-1]) }, 401},
		"more than it":               {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"x") }, 401},
		"no word before it":          {func(r *http.Request) { r.Header.Set("Authorization", token) }, 401},
		"as a password":              {func(r *http.Request) { r.SetBasicAuth("admin", token) }, 401},
		"twice":                      {func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+token) }, 401},
		"in the query":               {func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + token }, 401},
		"for a name":                 {func(r *http.Request) { r.Host = "localhost" }, 421},
		"for a name that leads here": {func(r *http.Request) { r.Host = strings.Replace(w.Host, "127.0.0.1", "rebound.test", 1) }, 421},
		"for another port":           {func(r *http.Request) { r.Host = "127.0.0.1:1" }, 421},
		"of a page":                  {func(r *http.Request) { r.Header.Set("Origin", "http://"+w.Host) }, 403},
		"of a page without origin":   {func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		"of an image":                {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 403},
	} {
		status, text := w.ask(t, "GET", "/healthz", "", row.change)
		for status == http.StatusTooManyRequests { // the row before is still slow
			status, text = w.ask(t, "GET", "/healthz", "", row.change)
		}
		if status != row.status {
			t.Errorf("%s: %d %s; want %d", name, status, text, row.status)
		}
	}
}

// TestAServerThatNobodySetUpAnswersNobody: no token is no token that somebody could show.
func TestAServerThatNobodySetUpAnswersNobody(t *testing.T) {
	w := newWorld(t)
	w.Token = ""
	if hasToken(http.Header{"Authorization": {"Bearer "}}, w.Token) {
		t.Error("an empty token counts")
	}
	w.Token, w.Host = token, ""
	r, err := http.NewRequest("GET", "/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if w.admits(discard{}, r, new(connection)) {
		t.Error("without a host, somebody was let in")
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// TestWrongTokensAreCountedAndTheOperatorGetsIn: all are recorded, with their number and without
// what they were; and who has the token is answered in between.
func TestWrongTokensAreCountedAndTheOperatorGetsIn(t *testing.T) {
	const callers, each = 8, 40
	w := newWorld(t)
	w.listen(t)
	began := time.Now()
	var wrong sync.WaitGroup
	for range callers {
		wrong.Go(func() {
			for i := range each {
				status, _ := w.ask(t, "GET", "/metrics", "", func(r *http.Request) { r.Header.Set("Authorization", fmt.Sprintf("Bearer GUESS-%d", i)) })
				if status != 401 && status != 429 {
					t.Errorf("a wrong token: %d", status)
				}
			}
		})
	}
	for range 20 {
		if status, text := w.ask(t, "GET", "/healthz", "", nil); status != 200 {
			t.Errorf("the operator: %d %s", status, text)
		}
	}
	wrong.Wait()
	w.shutdown(t)
	var sum int64
	all := w.records(t, record.KindAdmin)
	for i := range all {
		sum += all[i].Times()
		if all[i].Src == "" || !strings.HasPrefix(all[i].Note, "refused: a request without the token") {
			t.Errorf("record %+v", all[i])
		}
	}
	if sum != callers*each {
		t.Errorf("%d are recorded of %d", sum, callers*each)
	}
	if len(all) > 2*int(time.Since(began).Seconds()+2) {
		t.Errorf("in %d records: who guesses writes the log full", len(all))
	}
	if text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log")); err != nil || strings.Contains(string(text), "GUESS") {
		t.Errorf("what was tried stands in the log (%v)", err)
	}
}

// TestWhoOnlyConnectsGivesWay: a program that shares the loopback keeps hundreds of connections open.
func TestWhoOnlyConnectsGivesWay(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for range 4 * connectionsMost {
		c, err := net.Dial("tcp", w.Host)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	if status, _ := w.ask(t, "GET", "/healthz", "", nil); status != 200 {
		t.Errorf("the operator: %d", status)
	}
	w.connections.mu.Lock()
	defer w.connections.mu.Unlock()
	if n := len(w.connections.all); n > connectionsMost {
		t.Errorf("%d are connected, of %d at most", n, connectionsMost)
	}
}

// TestWhatNoClientSends has bytes that parsers disagree on, or that cost them much.
func TestWhatNoClientSends(t *testing.T) {
	w := newWorld(t)
	w.Reload = func(context.Context, string) (any, error) { t.Error("reloaded"); return nil, nil }
	w.listen(t)
	auth := "Host: " + w.Host + "\r\nAuthorization: Bearer " + token + "\r\n"
	for name, row := range map[string]struct{ send, want string }{
		"a huge head":              {"GET /healthz HTTP/1.1\r\n" + auth + "X: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", "HTTP/1.1 431"},
		"many fields":              {"GET /healthz HTTP/1.1\r\n" + auth + strings.Repeat("X: a\r\n", 8<<10) + "\r\n", "HTTP/1.1 431"},
		"chunks":                   {"POST /v1/reload HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 413"},
		"two lengths of a body":    {"POST /v1/reload HTTP/1.1\r\n" + auth + "Content-Length: 5\r\nContent-Length: 0\r\n\r\nabcde", "HTTP/1.1 400"},
		"length and chunks":        {"POST /v1/reload HTTP/1.1\r\n" + auth + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 413"},
		"a body for a reload":      {"POST /v1/reload HTTP/1.1\r\n" + auth + "Content-Length: 2\r\n\r\n{}", "HTTP/1.1 400"},
		"two hosts":                {"GET /healthz HTTP/1.1\r\n" + auth + "Host: evil.test\r\n\r\n", "HTTP/1.1 400"},
		"a URL of another host":    {"GET http://evil.test/healthz HTTP/1.1\r\n" + auth + "\r\n", "HTTP/1.1 421"},
		"OPTIONS *":                {"OPTIONS * HTTP/1.1\r\n" + auth + "\r\n", "HTTP/1.1 4"},
		"CONNECT":                  {"CONNECT " + w.Host + " HTTP/1.1\r\n" + auth + "\r\n", "HTTP/1.1 4"},
		"HTTP/2":                   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 "},
		"TLS":                      {"\x16\x03\x01\x00\x05abcdefgh\r\n\r\n", "HTTP/1.1 400"},
		"a reload by GET":          {"GET /v1/reload HTTP/1.1\r\n" + auth + "\r\n", "HTTP/1.1 405"},
		"a path with more slashes": {"POST //v1/reload HTTP/1.1\r\n" + auth + "Content-Length: 0\r\n\r\n", "HTTP/1.1 307"},
	} {
		if got := w.raw(t, row.send); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s: answered %.40q, want %q", name, got, row.want)
		}
	}
}

// TestEachRequestOfAConnectionShowsTheToken: what follows one that did has not shown it.
func TestEachRequestOfAConnectionShowsTheToken(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	host := "Host: " + w.Host + "\r\n"
	got := w.raw(t, "GET /healthz HTTP/1.1\r\n"+host+"Authorization: Bearer "+token+"\r\n\r\nGET /metrics HTTP/1.1\r\n"+host+"\r\nGET /healthz HTTP/1.1\r\n"+host+"\r\n")
	if strings.Count(got, "HTTP/1.1 ") != 2 || !strings.Contains(got, "HTTP/1.1 401") || strings.Contains(got, "egressd_") {
		t.Errorf("answered %q", got)
	}
}

// raw sends bytes and returns all that is answered until the server closes.
func (w *world) raw(t *testing.T, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", w.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		io.WriteString(c, text)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, _ := io.ReadAll(bufio.NewReader(c)) // which a reset may end
	return string(got)
}

func TestTheUsualPortMayBeLeftOut(t *testing.T) {
	for _, row := range []struct {
		at, host string
		is       bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1", true},
		{"127.0.0.1:80", "127.0.0.1:", true},
		{"[::1]:80", "[::1]", true},
		{"127.0.0.1:80", "", false},
		{"127.0.0.1:80", "127.0.0.1:8080", false},
		{"127.0.0.1:80", "127.0.0.2", false},
		{"127.0.0.1:80", "localhost", false},
		{"127.0.0.1:8080", "127.0.0.1", false},
		{"127.0.0.1:8080", "127.0.0.1:80", false},
		{"", "", false},
	} {
		if is := (&Server{Host: row.at}).isOwnHost(row.host); is != row.is {
			t.Errorf("at %q, Host %q: %t", row.at, row.host, is)
		}
	}
}
