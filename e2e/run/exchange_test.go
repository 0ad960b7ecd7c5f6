package run

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// A mockEngine is as much of Docker's API as docker exec needs.
type mockEngine struct{ left atomic.Int64 }

func (e *mockEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if strings.HasPrefix(path, "/v1.") {
		_, path, _ = strings.Cut(path[1:], "/")
		path = "/" + path
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Api-Version", "1.43")
	switch {
	case path == "/_ping":
		io.WriteString(w, "OK")
	case path == "/containers/c1/json":
		io.WriteString(w, `{"Id": "c1", "Config": {}, "State": {"Running": true}}`)
	case path == "/containers/c1/exec":
		io.WriteString(w, `{"Id": "e1"}`)
	case path == "/exec/e1/json":
		io.WriteString(w, `{"ID": "e1", "Running": false, "ExitCode": 0}`)
	case path == "/exec/e1/start":
		e.start(w, r)
	case path == "/wait":
		<-r.Context().Done()
		e.left.Add(1)
	case path == "/hints":
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "fine")
	default:
		http.NotFound(w, r)
	}
}

// start changes to a raw stream, of which each part begins with eight bytes.
func (e *mockEngine) start(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	if r.Header.Get("Upgrade") != "tcp" {
		http.Error(w, "no Upgrade", http.StatusBadRequest)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	say(rw, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	const said = "etc\nusr\n"
	say(rw, "\x01\x00\x00\x00\x00\x00\x00"+string(rune(len(said)))+said)
}

func say(rw *bufio.ReadWriter, text string) {
	rw.WriteString(text)
	rw.Flush()
}

// TestExchangesUnderRun has programs that know of no proxy upgrade, hint and leave.
func TestExchangesUnderRun(t *testing.T) {
	const address = "engine.allowed.test:2375"
	e := new(mockEngine)
	text := func(rule string) string { return fmt.Sprintf("version: 1\nallow: [%s]\n", rule) }
	d := world.NewDaemon(t, text("'"+address+"'"))
	d.World.Origin.Sites.Store(address, e)
	for name := range proxyNames {
		t.Setenv(name, "")
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	const exec = "docker -H tcp://" + address + " exec c1 ls"
	if r := runAs(t, d, "user", exec); r.code != 0 || r.out != "etc\nusr\n" {
		t.Errorf("docker exec: exit %d, %q %q", r.code, r.out, r.talk)
	}
	if r := runAs(t, d, "user", "curl -sSv http://"+address+"/hints 2>&1"); !strings.Contains(r.out, "103 Early Hints") || !strings.Contains(r.out, "fine") {
		t.Errorf("exit %d, %q %q", r.code, r.out, r.talk)
	}
	reset := python + `'
import socket, struct, time
s = socket.create_connection(("engine.allowed.test", 2375), 9)
s.sendall(b"GET /wait HTTP/1.1\r\nHost: ` + address + `\r\n\r\n"); time.sleep(1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); s.close(); time.sleep(2)'`
	left := 0
	for _, rec := range runAs(t, d, "user", reset).records {
		if rec.Outcome == "client-left" {
			left++
		}
	}
	if e.left.Load() != 1 || left != 1 {
		t.Errorf("the engine saw %d clients leave, the log has %d", e.left.Load(), left)
	}
	judged := world.NewDaemon(t, text("{host: '"+address+"', paths: ['/**']}"))
	if r := runAs(t, judged, "user", exec); r.code == 0 || !strings.Contains(r.out+r.talk, "upgrade-denied") {
		t.Errorf("docker exec where requests are judged: exit %d, %q %q", r.code, r.out, r.talk)
	}
}
