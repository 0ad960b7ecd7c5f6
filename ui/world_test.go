package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/printable"
)

// hostile are texts that a sandbox may choose.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`, `https://evil.example/`, `{{.CSRF}}`, "\u202egnp.exe", "\x1b[2Jgone", "a\u0301\u200bb", `</style><b>`, `</title><b>`, "x\" y:z\\",
}

// logOf writes a log with a request by each hostile text, in each field, and a few plain ones.
func logOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	seq := 0
	line := func(rest string) {
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-20T09:%02d:00.000000Z",%s}`+"\n", seq, seq%60, rest)
		seq++
	}
	line(`"kind":"start","note":"started"`)
	flow := func() string { return fmt.Sprintf("01KB%06d", seq) }
	for _, text := range hostile {
		q := quoted(text)
		id := flow()
		head := fmt.Sprintf(`"flow":"%s","sandbox":%s,"container":{"id":%s,"name":%s},"via":"connect","src":"127.0.0.1:4000","dst":{"host":%s,"port":443},"tls":{"sni":%s},"http":{"method":%s,"path":%s},"process":{"pid":7,"exe":%s,"argv":[%s]}`, id, q, q, q, q, q, q, q, q, q)
		line(`"kind":"request",` + head + fmt.Sprintf(`,"decision":{"action":"allow","rule":%s,"layer":"user","reason":%s,"policy":"sha256:1"}`, q, q))
		line(`"kind":"close",` + head + fmt.Sprintf(`,"bytes":{"up":70000,"down":3},"duration_ms":9,"outcome":%s,"note":%s`, q, q))
		line(fmt.Sprintf(`"kind":"open","flow":"%s","sandbox":%s,"via":"socks5","dst":{"host":%s,"port":22},"process":{"pid":7,"exe":%s,"argv":[%s]},"decision":{"action":"deny","rule":%s,"layer":"user","reason":%s,"class":%s,"allowed_if":[%s]},"raw":%s`, flow(), q, q, q, q, q, q, q, q, q))
		line(fmt.Sprintf(`"kind":"signal","flow":"%s","sandbox":%s,"via":"connect","dst":{"host":%s,"port":443},"process":{"pid":7,"exe":%s,"argv":[]},"signal":{"what":"canary","name":%s,"where":%s,"encoding":%s}`, id, q, q, q, q, q, q))
		line(fmt.Sprintf(`"kind":"admin","note":%s`, q))
	}
	id := flow()
	line(fmt.Sprintf(`"kind":"open","flow":"%s","sandbox":"ci","via":"connect","dst":{"host":"evil.test","port":443},"process":{"pid":7,"exe":"/usr/bin/curl","argv":["curl"]},"decision":{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`, id))
	line(fmt.Sprintf(`"kind":"open","flow":"%s","count":41,"sandbox":"ci","via":"connect","dst":{"host":"evil.test","port":443},"process":{"pid":0,"exe":"/usr/bin/curl","argv":[]},"decision":{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`, id))
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// quoted writes a text as JSON in ASCII. egressd itself escapes each byte; the log of somebody else may hold any
// character.
func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(printable.JSON(text))
}

// A page is a served page, and a client of it.
type page struct {
	*Server
	t       *testing.T
	address string
	cookie  string
}

// serve serves the page of a log until the test ends.
func serve(t *testing.T, o Options) *page {
	t.Helper()
	s := New(o)
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &page{Server: s, t: t, address: l.Addr().String()}
}

// opened is serve, with the cookie of the link, after the log was read.
func opened(t *testing.T, o Options) *page {
	t.Helper()
	p := serve(t, o)
	answer, _ := p.ask("GET", strings.TrimPrefix(p.Link(), "http://"+p.guard.host), nil)
	for _, c := range answer.Cookies() {
		p.cookie = c.Name + "=" + c.Value
	}
	for begin := time.Now(); time.Since(begin) < 10*time.Second; {
		progress, changed := p.index.Progress()
		if progress.CaughtUp || progress.Err != nil {
			break
		}
		<-changed
	}
	return p
}

// ask sends a request as a browser would that has the page open, apart from the fields of change, of which
// empty ones are left out.
func (p *page) ask(method, target string, change map[string]string) (*http.Response, string) {
	p.t.Helper()
	body := change["body"]
	r, err := http.NewRequest(method, "http://"+p.address+target, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Host = p.guard.host
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Sec-Fetch-Dest", "document")
	r.Header.Set("Cookie", p.cookie)
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+p.guard.host)
	}
	for name, value := range change {
		switch {
		case name == "Host":
			r.Host = value
		case name == "body":
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	client := http.Client{
		Timeout:       20 * time.Second,
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer, string(text)
}
