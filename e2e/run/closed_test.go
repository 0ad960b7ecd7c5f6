package run

import (
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestAClosedPortEndsByAResetAtOnce under run: the connection begins, and says within a tenth of a second that it leads nowhere.
func TestAClosedPortEndsByAResetAtOnce(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test:*\"]\n")
	const script = `
import socket, time
for _ in range(5):
    s = socket.create_connection(("refuses.allowed.test", 7999), 9); began = time.time()
    try: print("read", s.recv(9))
    except ConnectionResetError: print("reset", int((time.time() - began) * 1000))`
	r := runAs(t, d, "user", "/usr/bin/python3 -c '"+script+"'")
	best := 1 << 20 // the machine may have other work for one of them
	for line := range strings.Lines(r.out) {
		ms, reset := strings.CutPrefix(strings.TrimSpace(line), "reset ")
		n, err := strconv.Atoi(ms)
		if !reset || err != nil {
			t.Errorf("%q", line)
			continue
		}
		best = min(best, n)
	}
	if best >= 100 {
		t.Errorf("%q %q", r.out, r.talk)
	}
	for says, row := range map[string]struct {
		script string
		code   int
	}{
		"a descriptor of bash": {`bash -c '</dev/tcp/refuses.allowed.test/7999'`, 0},
		"a byte through it":    {`bash -c 'exec 3<>/dev/tcp/refuses.allowed.test/7999; read -t 5 -u 3 line' 2>/dev/null`, 1},
		"a page":               {`curl -sS -m9 http://refuses.allowed.test:7999/ | grep -q network-refused`, 0},
	} {
		if r := runAs(t, d, "user", row.script); r.code != row.code {
			t.Errorf("%s: exit code %d: %q %q", says, r.code, r.out, r.talk)
		}
	}
}
