package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// adminAddress is where the operator's listener is over TCP: on the gateway's loopback.
const adminAddress = "127.0.0.1:9464"

// withAdmin is a policy with an operator's listener.
func withAdmin(at, more string) string {
	return fmt.Sprintf("version: 1\nlisten: {proxy: [\"%s:%d\", \"[%s]:%d\"], admin: %q}\n%s", lab.GatewayIPv4, proxyPort, lab.GatewayIPv6, proxyPort, at, more)
}

const socketOfOperator = "unix:${XDG_RUNTIME_DIR}/operator/admin.sock"

// TestNothingLeadsToTheOperatorsListener tries every way to write where it is, also where the
// operator has opened the rest of loopback, and that very address and port.
func TestNothingLeadsToTheOperatorsListener(t *testing.T) {
	covers(t, "SP-02")
	spellings := []string{
		"127.0.0.1", "127.1", "127.0.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "0", "0.0.0.0", "[::]",
		"[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::1%25lo]", "①②⑦.⓪.⓪.①",
		"localhost", "LOCALHOST", "localhost.", "home.allowed.test", "zero.allowed.test", "localhost-at.allowed.test", "loc.allowed.test",
	}
	for says, more := range map[string]string{
		"as allowed as can be": "default: allow\nallow: [\"0.0.0.0/0:*\", \"[::/0]:*\"]\n",
		"opened by name": "default: allow\nallow: [\"*.allowed.test:*\"]\n" +
			"unsafe_allow: [\"127.0.0.0/8:*\", \"127.0.0.1:9464\", \"0.0.0.0:9464\", \"[::1]:9464\", \"[::]:9464\", \"localhost:*\"]\n",
	} {
		t.Run(says, func(t *testing.T) {
			d := start(t, withAdmin(adminAddress, more))
			v := &vector{ID: "SP-02", Says: "the operator's listener"}
			for _, host := range spellings {
				to := host + ":9464"
				for _, way := range waysFor(v, to) {
					d.reachesNoOperator(t, v, way, to)
				}
			}
			if opened := strings.Contains(more, "unsafe"); opened && d.status(t, "127.0.0.1:8080") != http.StatusOK {
				t.Error("loopback is not open, so that this shows nothing")
			}
			records, err := d.log.since(0)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Kind == record.KindAdmin {
					t.Errorf("somebody came to the operator's listener: %+v", r)
				}
			}
			if e := d.tell(t, nil, "status", "--config", d.config); e.code != 0 || !strings.Contains(e.out, "ready") {
				t.Errorf("and it does not answer the operator: exit %d, %s%s", e.code, e.out, e.talk)
			}
		})
	}
}

// reachesNoOperator puts a destination through a way in, which has to be refused.
func (d *daemon) reachesNoOperator(t *testing.T, v *vector, way, to string) {
	t.Helper()
	x, _ := d.put(t, v, way, to)
	for _, a := range x.answers {
		if a.status == http.StatusOK || a.status == 0 && a.reply == 0 {
			t.Errorf("%s %s is answered %+v", way, to, a)
		}
	}
	if x.opened || len(x.answers) == 0 {
		t.Errorf("%s %s: opened %t, %d answers, %v", way, to, x.opened, len(x.answers), x.err)
	}
}

// curl asks at a socket, in some network and as some user, and returns what came of it.
func (d *daemon) curl(t *testing.T, in *lab.Net, before []string, arguments ...string) string {
	t.Helper()
	words := slices.Concat(before, []string{"curl", "-sS", "-m", "20"}, arguments)
	cmd := exec.Command(words[0], words[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = in.Run(cmd) // what it says is looked at
	return out.String()
}

// TestOnlyItsOwnUserHasTheOperatorsSocket: by its mode, and where that was changed by what the
// kernel says of who connects.
func TestOnlyItsOwnUserHasTheOperatorsSocket(t *testing.T) {
	covers(t, "SP-05")
	d := start(t, withAdmin(socketOfOperator, "allow: [allowed.test]\n"))
	socket := filepath.Join(d.dir, "operator", "admin.sock")
	info, err := os.Lstat(socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	ask := []string{"--unix-socket", socket, "http://egressd/healthz"}
	if got := d.curl(t, d.world.Gateway, nil, ask...); got != "{\"status\":\"ok\"}\n" {
		t.Fatalf("its user is answered %q", got)
	}
	other := []string{"setpriv", "--reuid", "1234", "--regid", "1234", "--keep-groups"}
	for dir := d.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the socket alone keeps others out
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.curl(t, d.world.Gateway, other, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("another user is answered %q", got)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := d.curl(t, d.world.Gateway, other, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("another user, who can connect, is answered %q", got)
	}
	if got := d.curl(t, d.world.Sandbox, nil, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("its own user in another network is answered %q", got)
	}
	d.stop(t)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
	for _, why := range []string{"refused: another user connected, by uid 1234", "refused: somebody connected from another network, by uid 0"} {
		if !d.noted(t, why) {
			t.Errorf("the log does not say %q", why)
		}
	}
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
}

// noted reports whether a record of what operators asked for begins with a text.
func (d *daemon) noted(t *testing.T, text string) bool {
	t.Helper()
	all, err := d.log.since(0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(r record.Record) bool { return r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, text) })
}

// TestTheOperatorsSocketTakesNobodysPlace has something at its path, or a folder that is not
// egressd's alone.
func TestTheOperatorsSocketTakesNobodysPlace(t *testing.T) {
	covers(t, "SP-05")
	type place struct{ dir, socket string }
	listens := func(t *testing.T, path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	for says, row := range map[string]struct {
		plant func(*testing.T, place)
		why   string // it does not start; "" where it does
	}{
		"nothing":            {func(*testing.T, place) {}, ""},
		"a socket of nobody": {func(t *testing.T, p place) { deadSocket(t, p.socket) }, ""},
		"a file":             {func(t *testing.T, p place) { must(t, os.WriteFile(p.socket, nil, 0o600)) }, "is not a socket of this user"},
		"a link":             {func(t *testing.T, p place) { must(t, os.Symlink(filepath.Join(p.dir, "elsewhere"), p.socket)) }, "is not a socket of this user"},
		"a link to a socket": {func(t *testing.T, p place) {
			deadSocket(t, p.socket+"2")
			must(t, os.Symlink(p.socket+"2", p.socket))
		}, "is not a socket of this user"},
		"a folder":            {func(t *testing.T, p place) { must(t, os.Mkdir(p.socket, 0o700)) }, "is not a socket of this user"},
		"a socket in use":     {func(t *testing.T, p place) { listens(t, p.socket) }, "is in use by another process"},
		"another's socket":    {func(t *testing.T, p place) { deadSocket(t, p.socket); must(t, os.Lchown(p.socket, 1234, 1234)) }, "is not a socket of this user"},
		"a folder for all":    {func(t *testing.T, p place) { must(t, os.Chmod(p.dir, 0o777)) }, "others may write in"},
		"a folder as /tmp is": {func(t *testing.T, p place) { must(t, os.Chmod(p.dir, 0o777|os.ModeSticky)) }, "others may write in"},
		"a folder of a group": {func(t *testing.T, p place) { must(t, os.Chmod(p.dir, 0o770)) }, "others may write in"},
		"another's folder":    {func(t *testing.T, p place) { must(t, os.Chown(p.dir, 1234, 1234)) }, "belongs to another user"},
		"another's link to a folder": {func(t *testing.T, p place) {
			must(t, os.Rename(p.dir, p.dir+"2"))
			must(t, os.Symlink(p.dir+"2", p.dir))
			must(t, os.Lchown(p.dir, 1234, 1234))
		}, "is a link of another user"},
	} {
		t.Run(says, func(t *testing.T) {
			d := newDaemon(t, withAdmin(socketOfOperator, ""))
			p := place{dir: filepath.Join(d.dir, "operator")}
			p.socket = filepath.Join(p.dir, "admin.sock")
			must(t, os.Mkdir(p.dir, 0o700))
			row.plant(t, p)
			d.starts(t, row.why)
		})
	}
	for _, path := range []string{"@admin", "relative/admin.sock"} { // which the file cannot say, and a variable can
		t.Run(path, func(t *testing.T) {
			d := newDaemon(t, withAdmin("unix:${EGRESSD_TEST_ADMIN}", ""))
			t.Setenv("EGRESSD_TEST_ADMIN", path)
			d.starts(t, "is no absolute path")
		})
	}
}

// starts starts egressd, which has to refuse for a reason, or with "" to serve.
func (d *daemon) starts(t *testing.T, why string) {
	t.Helper()
	began := d.begin(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	switch {
	case began && why == "":
		d.stop(t)
	case began:
		d.stop(t)
		t.Errorf("it serves")
	case why == "" || !eventually(patience, func() bool { return strings.Contains(d.talk.String(), why) }): // which may come after its end
		t.Errorf("it does not start, and says %q, not %q", d.talk.String(), why)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// deadSocket leaves a socket at which nobody listens.
func deadSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
}

// tries is how often a token is guessed; EGRESSD_E2E_TRIES=100000 is the whole case.
func tries() int64 {
	if n, err := strconv.ParseInt(os.Getenv("EGRESSD_E2E_TRIES"), 10, 64); err == nil {
		return n
	}
	return 1000
}

// TestGuessingTheTokenIsSlowCountedAndKeepsNobodyOut guesses at the operator's listener over TCP.
func TestGuessingTheTokenIsSlowCountedAndKeepsNobodyOut(t *testing.T) {
	covers(t, "SP-07")
	d := start(t, withAdmin(adminAddress, "allow: [allowed.test]\n"))
	token := d.operatorToken(t)
	const guessers = 8
	var guessing sync.WaitGroup
	var begin sync.Mutex
	left, most := tries(), tries()
	statuses := map[int]int64{}
	for range guessers {
		guessing.Go(func() {
			for {
				begin.Lock()
				left--
				mine := left
				begin.Unlock()
				if mine < 0 {
					return
				}
				guess := token[:len(token)-8] + fmt.Sprintf("%08d", mine)
				status := d.knocks(t, guess)
				begin.Lock()
				statuses[status]++
				begin.Unlock()
			}
		})
	}
	for range 10 {
		if status := d.knocks(t, token); status != http.StatusOK {
			t.Errorf("the operator is answered %d meanwhile", status)
		}
	}
	guessing.Wait()
	if statuses[401]+statuses[429] != most || statuses[429] == 0 {
		t.Errorf("%d guesses are answered %v", most, statuses)
	}
	d.stop(t)
	all, err := d.log.since(0)
	must(t, err)
	var counted, records int64
	for _, r := range all {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "refused: a request without the token") {
			counted += r.Times()
			records++
		}
	}
	if counted != most || records > most/10 {
		t.Errorf("%d of %d are in the log, in %d records", counted, most, records)
	}
	text, err := os.ReadFile(filepath.Join(d.dir, "audit", "00000001.log"))
	if err != nil || strings.Contains(string(text), "egressd-admin-") {
		t.Errorf("a token is in the log (%v)", err)
	}
	if _, err := os.Lstat(d.operatorTokenPath()); err == nil {
		t.Error("the token is there after the end, for clients to show to whoever has the port")
	}
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	if again := d.operatorToken(t); again == token || d.knocks(t, token) != http.StatusUnauthorized || d.knocks(t, again) != http.StatusOK {
		t.Error("the token counts after a restart, or the new one does not")
	}
}

// operatorTokenPath is where the token of adminAddress is.
func (d *daemon) operatorTokenPath() string {
	return filepath.Join(d.dir, "egressd", "admin", "127.0.0.1-9464.token")
}

// operatorToken reads the token that egressd has made.
func (d *daemon) operatorToken(t *testing.T) string {
	t.Helper()
	path := d.operatorTokenPath()
	info, err := os.Lstat(path)
	must(t, err)
	text, err := os.ReadFile(path)
	must(t, err)
	if info.Mode() != 0o600 || !regexp.MustCompile(`^egressd-admin-[A-Z2-7]{52}\n$`).Match(text) {
		t.Fatalf("the token has mode %v and is %q", info.Mode(), text)
	}
	return strings.TrimSpace(string(text))
}

// knocks asks with a token, and returns the status.
func (d *daemon) knocks(t *testing.T, token string) int {
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return d.world.Gateway.Dial("tcp", adminAddress)
	}}}
	r, err := http.NewRequest("GET", "http://"+adminAddress+"/healthz", nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := c.Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	a.Body.Close()
	return a.StatusCode
}

// TestTheOperatorSeesWhatIsOpenAndCutsIt drives the commands.
func TestTheOperatorSeesWhatIsOpenAndCutsIt(t *testing.T) {
	d := start(t, withAdmin(socketOfOperator, "allow: [allowed.test, other.allowed.test]\n"))
	tunnel, other := d.mustOpen(t, "allowed.test:443"), d.mustOpen(t, "allowed.test:443")
	d.status(t, "evil.test:443")
	d.status(t, "evil test:443")
	listed := d.tell(t, nil, "ps", "--json", "--config", d.config)
	var flow egress.OpenFlow
	for line := range strings.Lines(listed.out) {
		var one egress.OpenFlow
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if one.Src == tunnel.LocalAddr().String() {
			flow = one
		}
	}
	if flow.Via != "connect" || flow.Port != 443 || flow.Sandbox != "default" || flow.Host != "allowed.test" || flow.Addr == "" || flow.Began.IsZero() {
		t.Fatalf("listed %s", listed.out)
	}
	if e := d.tell(t, nil, "cut", flow.ID, "--config", d.config); e.code != 0 || !tunnel.endsWithin(patience) {
		t.Errorf("not cut: exit %d, %s", e.code, e.talk)
	}
	if other.endsWithin(100 * time.Millisecond) {
		t.Error("the other tunnel was cut, too")
	}
	if r := d.closeRecord(t, tunnel.LocalAddr().String()); r.Outcome != "cut" || !d.noted(t, "cut flow "+flow.ID+", asked by uid 0, pid ") {
		t.Errorf("the end is %+v", r)
	}
	if e := d.tell(t, nil, "cut", flow.ID, "--config", d.config); e.code != 1 || !strings.Contains(e.talk, "no open flow") {
		t.Errorf("cut twice: exit %d, %s", e.code, e.talk)
	}
	d.figuresAgree(t)
	before := d.digest(t)
	d.writeConfig(t, withAdmin(socketOfOperator, "allow: [other.allowed.test]\n"))
	e := d.tell(t, nil, "reload", "--json", "--config", d.config)
	if after := d.digest(t); e.code != 0 || after == before || !strings.Contains(e.out, after) || !other.endsWithin(patience) {
		t.Errorf("reloaded: exit %d, %s%s", e.code, e.out, e.talk)
	}
	if e := d.tell(t, nil, "status", "--json", "--config", d.config); e.code != 0 || !strings.Contains(e.out, `"ready":true`) || !strings.Contains(e.out, d.digest(t)) {
		t.Errorf("status: exit %d, %s%s", e.code, e.out, e.talk)
	}
	good, err := os.ReadFile(d.config)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(d.dir, "good.yaml"), good, 0o600)) // by which the socket is found
	must(t, os.WriteFile(d.config, append(good, "colour: blue\n"...), 0o600))
	if e := d.tell(t, nil, "reload", "--config", filepath.Join(d.dir, "good.yaml")); e.code != 1 || !strings.Contains(e.talk, "colour") {
		t.Errorf("a policy that is not right: exit %d, %s", e.code, e.talk)
	}
	if e := d.tell(t, nil, "status", "--config", filepath.Join(d.dir, "good.yaml")); e.code != 1 || !strings.Contains(e.out, "the last reload was rejected") {
		t.Errorf("status after it: exit %d, %s", e.code, e.out)
	}
	must(t, os.WriteFile(d.config, good, 0o600))
}

var sample = regexp.MustCompile(`(?m)^egressd_decisions_total\{via="([^"]*)",action="([^"]*)",class="([^"]*)"\} ([0-9]+)$`)

// figuresAgree compares the figures of decisions with the records of the log.
func (d *daemon) figuresAgree(t *testing.T) {
	t.Helper()
	recorded, counted := map[string]int64{}, map[string]int64{}
	text := d.curl(t, d.world.Gateway, nil, "--unix-socket", filepath.Join(d.dir, "operator", "admin.sock"), "http://egressd/metrics")
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(m[4], 10, 64)
		must(t, err)
		counted[m[1]+" "+m[2]+" "+m[3]] += n
	}
	all, err := d.log.since(0)
	must(t, err)
	for _, r := range all {
		switch {
		case r.Decision == nil, r.Kind == record.KindPolicy, r.Kind == record.KindClose && r.Decision.Action == "allow", r.Kind == record.KindDNS && r.Via != "dns":
		default:
			recorded[r.Via+" "+r.Decision.Action+" "+r.Decision.Class] += r.Times()
		}
	}
	if fmt.Sprint(counted) != fmt.Sprint(recorded) || len(recorded) < 3 {
		t.Errorf("counted %v, recorded %v", counted, recorded)
	}
}

// TestARunReachesNoOperator: not the socket, which is hidden and would refuse it; not the
// port, though the program was given it, and not the token.
func TestARunReachesNoOperator(t *testing.T) {
	d := start(t, withAdmin(adminAddress, "allow: [allowed.test]\n"))
	token := d.operatorToken(t)
	script := "cat " + d.operatorTokenPath() + "; curl -sS -m9 -H 'Authorization: Bearer " + token + "' http://" + adminAddress + "/healthz"
	e := d.tell(t, nil, "run", "--config", d.config, "--host-port", "9464", "--", "sh", "-c", script)
	if strings.Contains(e.out, token) || strings.Contains(e.out, `"status"`) || !strings.Contains(e.talk, "1 denied: 127.0.0.1") {
		t.Errorf("exit %d, %q, %q", e.code, e.out, e.talk)
	}
	other := filepath.Join(d.dir, "other.yaml") // says nothing of a listener
	must(t, os.WriteFile(other, []byte("version: 1\nunsafe_allow: ['127.0.0.0/8:*']\n"), 0o600))
	e = d.tell(t, nil, "run", "--config", other, "--host-port", "9464", "--", "sh", "-c", script)
	if strings.Contains(e.out, token) || strings.Contains(e.out, "Bearer") || strings.Contains(e.out, `"error"`) || !strings.Contains(e.talk, "1 denied: 127.0.0.1") {
		t.Errorf("by another policy: exit %d, %q, %q", e.code, e.out, e.talk)
	}
	d.stop(t)
	d.writeConfig(t, withAdmin(socketOfOperator, "allow: [allowed.test]\n"))
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	socket := filepath.Join(d.dir, "operator", "admin.sock")
	e = d.tell(t, nil, "run", "--config", d.config, "--", "sh", "-c", "ls "+socket+"; curl -sS -m9 --unix-socket "+socket+" http://egressd/healthz")
	if strings.Contains(e.out, `"status"`) || strings.Contains(e.out, "admin.sock") {
		t.Errorf("exit %d, %q, %q", e.code, e.out, e.talk)
	}
	if !d.alive() || d.cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("egressd has ended")
	}
}
