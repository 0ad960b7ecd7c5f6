//go:build linux

package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestParseReply(t *testing.T) {
	for _, c := range []struct {
		text   string
		status int
		body   string
		closes bool
	}{
		{"HTTP/1.1 200 OK\r\n\r\n", 200, "", false},
		{"HTTP/1.0 200 Connection established\r\nProxy-agent: x\r\n\r\n", 200, "", true},
		{"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false},
		{"HTTP/1.1 403 Blocked: a b\r\ncontent-length:  3\r\nConnection: close\r\n\r\nno\n", 403, "no\n", true},
		{"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno\n\r\n0\r\n\r\n", 403, "3\r\nno\n\r\n0\r\n\r\n", false},
		{"HTTP/1.1 407 \r\n\r\nuntil the end", 407, "until the end", false},
	} {
		r, done, err := parseReply([]byte(c.text))
		if err != nil || !done || r.status != c.status || string(r.body) != c.body || r.closes != c.closes {
			t.Errorf("%q: %+v, %v, %v", c.text, r, done, err)
		}
	}
}

func TestParseReplyWaitsForAllOfIt(t *testing.T) {
	const whole = "HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nbody"
	for n := range len(whole) {
		if _, done, err := parseReply([]byte(whole[:n])); done || err != nil {
			t.Errorf("%q: complete %v, %v", whole[:n], done, err)
		}
	}
}

func TestParseReplyRefusesWhatIsNotAnAnswer(t *testing.T) {
	for _, text := range []string{
		"\r\n\r\n",
		"SSH-2.0-x\r\n\r\n",
		"HTTP/1.1 20\r\n\r\n",
		"HTTP/1.1 abc\r\n\r\n",
		"HTTP/2 200\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
		"HTTP/1.1 200 OK\r\n\r\nbytes behind a tunnel's head",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		if r, done, err := parseReply([]byte(text)); err == nil {
			t.Errorf("%q: %+v, %v", text, r, done)
		}
	}
}

// serveOne answers every first read of a connection with answer, and ends the
// connection after it unless it is to be kept.
func serveOne(t *testing.T, answer string, keep bool) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for again := true; again; again = keep {
					if _, err := c.Read(buf); err != nil {
						return
					}
					io.WriteString(c, answer)
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

const briefly = 20 * time.Millisecond

// playBriefly plays a script, for longer where no connection came to a second operation
// so soon, as on a machine that is busy.
func playBriefly(s func(*job) *script, j *job, connections int) (got tally, err error) {
	for length := briefly; length < time.Minute; length *= 4 {
		if got, err = play(s(j), connections, length); err != nil || got.ops+got.errors > int64(connections) {
			break
		}
	}
	return got, err
}

func TestAWrongAnswerIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		script func(*job) *script
		want   string
	}{
		"connect, refused":       {"HTTP/1.1 403 No\r\n\r\n", connectScript, "status 403"},
		"connect, not HTTP":      {"SSH-2.0-x\r\n\r\n", connectScript, "not an HTTP answer"},
		"connect, early bytes":   {"HTTP/1.1 200 OK\r\n\r\nx", connectScript, errFraming.Error()},
		"connect, ended":         {"HTTP/1.1 200 OK\r\n", connectScript, errEnded.Error()},
		"denied, but let pass":   {"HTTP/1.1 200 OK\r\n\r\n", deniedScript, "status 200"},
		"denied, as a failure":   {"HTTP/1.1 502 Bad\r\n\r\n", deniedScript, "status 502"},
		"page, of another":       {strings.Replace(page, "abc", "xyz", 1), httpScript, "wrong answer"},
		"page, with status 404":  {strings.Replace(page, "200", "404", 1), httpScript, "status 404"},
		"page, without a length": {"HTTP/1.1 200 OK\r\n\r\n" + pageBody, httpScript, errFraming.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			j := &job{Proxy: serveOne(t, c.answer, false), Host: originName, Hello: []byte("hello\r\n\r\n")}
			got, err := playBriefly(c.script, j, 2)
			if err != nil || got.ops != 0 || got.errors == 0 || got.reopened != 0 {
				t.Fatalf("%d done, %d errors, %d reopened, %v", got.ops, got.errors, got.reopened, err)
			}
			if !strings.Contains(got.first.Error(), c.want) {
				t.Errorf("error %q, want %q", got.first, c.want)
			}
		})
	}
}

func TestAWrongByteFromTheOriginIsCounted(t *testing.T) {
	j := &job{Hello: []byte("hello\r\n\r\n")}
	j.Origins.Flight = serveOne(t, "?", true)
	got, err := playBriefly(connectScript, j, 1)
	if err != nil || got.ops != 0 || got.errors == 0 {
		t.Errorf("%d done, %d errors, %v", got.ops, got.errors, err)
	}
}

func TestADenialMayBeAny4xx(t *testing.T) {
	for _, status := range []string{"403 Forbidden", "407 Request rejected by proxy", "429 Later"} {
		j := &job{Proxy: serveOne(t, "HTTP/1.1 "+status+"\r\nContent-Length: 1\r\n\r\nx", false)}
		if got, err := playBriefly(deniedScript, j, 1); err != nil || got.ops == 0 || got.errors != 0 {
			t.Errorf("%s: %d done, %d errors, first %v, %v", status, got.ops, got.errors, got.first, err)
		}
	}
}

func TestAConnectionThatEndsAfterAnAnswerIsOpenedAgain(t *testing.T) {
	for name, answer := range map[string]string{
		"announced":   strings.Replace(page, "\r\n", "\r\nConnection: close\r\n", 1),
		"unannounced": page,
	} {
		j := &job{}
		j.Origins.HTTP = serveOne(t, answer, false)
		got, err := playBriefly(httpScript, j, 2)
		if err != nil || got.errors != 0 || got.ops == 0 || got.reopened == 0 {
			t.Errorf("%s: %d done, %d errors, first %v, %d reopened, %v", name, got.ops, got.errors, got.first, got.reopened, err)
		}
	}
}

func TestAnAbsentProxyEndsTheJobSoon(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	got, err := play(deniedScript(&job{Proxy: port}), 2, 5*time.Second)
	if err != nil || got.errors != maxErrors {
		t.Errorf("%d errors, %v", got.errors, err)
	}
}
