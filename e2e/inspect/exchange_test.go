package inspect

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// exchangePolicy has a host whose requests nobody judges, and one whose requests are looked at.
const exchangePolicy = `version: 1
allow:
  - whole.allowed.test
  - {host: judged.allowed.test, paths: ["/**"]}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`

// exchangeWays are how curl reaches them: in clear, in a tunnel to port 80, and inside TLS in both versions.
var exchangeWays = map[string]string{
	"in clear":   "U=http://whole.allowed.test; C='curl -sS'; ",
	"in CONNECT": "U=http://whole.allowed.test; C='curl -sS -p'; ",
	"HTTP/1.1":   "U=https://judged.allowed.test; C=\"curl -sS --http1.1 --cacert $LAB_CA\"; ",
	"HTTP/2":     "U=https://judged.allowed.test; C=\"curl -sS --http2 --cacert $LAB_CA\"; ",
}

// oddAnswers are what servers of the field send, by name.
var oddAnswers = map[string]string{
	"204-chunked":  "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"204-length":   "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
	"blank":        "HTTP/1.1 200 OK\r\nContent-Type : text/plain\r\nContent-Length: 4\r\n\r\nfine",
	"two-lengths":  "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nfine",
	"chunk-blanks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4  \r\nfine\r\n0\r\n\r\n",
}

// An exchangeSite answers as the servers of public bug reports did.
type exchangeSite struct {
	early atomic.Int64 // bytes of bodies that came to a server which had redirected
	left  atomic.Int64 // clients that were seen to leave
}

func (s *exchangeSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw := func(answer string) io.Reader {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return strings.NewReader("")
		}
		context := r.Context()
		go func() { <-context.Done(); c.Close() }()
		rw.WriteString(answer)
		rw.Flush()
		return rw
	}
	switch name := r.URL.Path; {
	case name == "/wait":
		<-r.Context().Done()
		s.left.Add(1)
	case name == "/redirect" && r.ProtoMajor == 1:
		n, _ := io.Copy(io.Discard, raw("HTTP/1.1 307 Temporary Redirect\r\nLocation: /take\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
		s.early.Add(n)
	case name == "/redirect":
		http.Redirect(w, r, "/take", http.StatusTemporaryRedirect)
	case name == "/take":
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "took %d %v", n, err)
	case name == "/hints":
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "fine")
	case name == "/many":
		for range 105 {
			w.Header().Add("X-Many", "yes")
		}
		w.Header().Set("X-Long", strings.Repeat("y", 70_000))
		io.WriteString(w, "fine")
	case name == "/too-many":
		for range 1001 {
			w.Header().Add("X-Many", "yes")
		}
	case name == "/upgrade":
		io.Copy(io.Discard, raw("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nraw and ready"))
	case strings.HasPrefix(name, "/odd/"):
		answerOnce(w, oddAnswers[strings.TrimPrefix(name, "/odd/")])
	default:
		fmt.Fprintf(w, "asked %s by %q", r.RequestURI, r.Header.Get("Authorization"))
	}
}

// answerOnce sends an answer as it stands, and closes.
func answerOnce(w http.ResponseWriter, answer string) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	rw.WriteString(answer)
	rw.Flush()
}

const nodeUpgrade = `
const [name, port] = process.argv[1].split(":");
require("http").request({host: name, port, path: "http://whole.allowed.test/upgrade", headers: {Connection: "Upgrade", Upgrade: "tcp"}})
  .on("upgrade", (res, socket, head) => { socket.unshift(head);
    socket.once("data", (d) => { console.log(res.statusCode, res.headers.upgrade, d.toString()); socket.destroy(); }); })
  .on("response", (res) => console.log(res.statusCode)).end();
`

// pythonReset asks, and resets its connection a second later.
const pythonReset = `
import os, socket, struct, time
host, port = os.environ["LAB_PROXY"].split(":")
s = socket.create_connection((host, int(port)))
s.sendall(b"GET http://whole.allowed.test/wait HTTP/1.1\r\nHost: whole.allowed.test\r\n\r\n")
time.sleep(1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
s.close()
`

// TestExchanges has the programs of public bug reports meet the servers of them, over each way.
func TestExchanges(t *testing.T) {
	d := world.Start(t, exchangePolicy)
	site := new(exchangeSite)
	for _, host := range []string{"whole.allowed.test", "judged.allowed.test"} {
		d.World.Origin.Sites.Store(host, site)
	}
	dir, ca := t.TempDir(), d.AuthorityFile()
	run := func(t *testing.T, way, command, wants string) {
		t.Helper()
		if out, err := d.Shell(dir, ca, exchangeWays[way]+command); err != nil || !strings.Contains(out, wants) {
			t.Errorf("%v, printed %q, want %q", err, world.Shorten(out), wants)
		}
	}
	for way := range exchangeWays {
		t.Run(way, func(t *testing.T) {
			run(t, way, "$C -v $U/hints", " 103")
			run(t, way, "$C $U/many", "fine")
			run(t, way, "$C $U/too-many", `"class":"malformed-response"`)
			run(t, way, "$C $U/too-many", "limits.response_fields")
			run(t, way, "head -c 300000 /dev/zero | $C -L -H 'Expect: 100-continue' -T - $U/take", "took 300000 <nil>")
			if way == "HTTP/2" { // a server of it sends nothing that is odd
				return
			}
			run(t, way, "head -c 300000 /dev/zero | $C -L -T - $U/redirect", "took 300000 <nil>")
			for name := range oddAnswers {
				wants := "200 fine"
				if strings.HasPrefix(name, "204") {
					wants = "204 "
				}
				run(t, way, "$C -w '%{http_code} ' -o got $U/odd/"+name+"; cat got; rm -f got", wants)
			}
		})
	}
	t.Run("why", func(t *testing.T) { expectWhy(t, d) })
	if n := site.early.Load(); n != 0 {
		t.Errorf("%d bytes went to servers that had redirected", n)
	}
	t.Run("upgrade", func(t *testing.T) {
		run(t, "in clear", "node -e '"+nodeUpgrade+"' $LAB_PROXY", "101 tcp raw and ready")
		run(t, "HTTP/1.1", "$C -H 'Connection: Upgrade' -H 'Upgrade: tcp' $U/upgrade", `"class":"upgrade-denied"`)
	})
	t.Run("UTF-8", func(t *testing.T) { // curl escapes it by itself, but for a proxy
		run(t, "in clear", "$C $U/日本", "asked /%E6%97%A5%E6%9C%AC by")
	})
	t.Run("userinfo", func(t *testing.T) {
		run(t, "in clear", "wget -q -O - http://user:hunter2@whole.allowed.test/x", `by "Basic dXNlcjpodW50ZXIy"`)
		run(t, "in clear", "wget -S -O - --header 'Authorization: Basic eDp5' http://user:hunter2@whole.allowed.test/x 2>&1 || true", "x")
		if d.Log.Holds("hunter2") {
			t.Error("a password of a URL stands in the log")
		}
	})
	t.Run("a destination that is a proxy", func(t *testing.T) {
		run(t, "in clear", "curl -sS --preproxy socks5h://$LAB_PROXY -x http://whole.allowed.test:80 http://evil.test/", "upstream.proxy")
	})
	t.Run("clients that leave", func(t *testing.T) {
		for _, line := range []string{
			"python3 -c '" + pythonReset + "'",
			exchangeWays["HTTP/1.1"] + "timeout -s KILL 1 $C $U/wait; true",
			exchangeWays["HTTP/2"] + "timeout -s KILL 1 $C $U/wait; true",
		} {
			before, mark := site.left.Load(), d.LogMark(t)
			if out, err := d.Shell(dir, ca, line); err != nil {
				t.Fatal(err, out)
			}
			if !world.Eventually(world.Settling, func() bool { return site.left.Load() > before && leftSince(d, mark) == 1 }) {
				t.Errorf("%q: %d left, %d recorded", line, site.left.Load()-before, leftSince(d, mark))
			}
		}
	})
}

// expectWhy has egressd say why a response could not be passed on.
func expectWhy(t *testing.T, d *world.Daemon) {
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Outcome == "malformed-response" {
			if why := d.RunCommand(t, nil, "why", r.Flow, "--config", d.Config); why.Code != 0 || !strings.Contains(why.Out, "limits.response_fields") {
				t.Errorf("exit %d, %s", why.Code, why.Out)
			}
			return
		}
	}
	t.Error("no record of it")
}

// leftSince counts the requests that are recorded as left by their client.
func leftSince(d *world.Daemon, mark int) (n int) {
	records, _ := d.Log.Since(mark)
	for _, r := range records {
		if r.Kind == record.KindClose && r.HTTP != nil && r.Outcome == "client-left" {
			n++
		}
	}
	return n
}
