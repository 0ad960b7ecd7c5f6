package operator

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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// adminAddress is where the operator's listener is over TCP: on the gateway's loopback.
const adminAddress = "127.0.0.1:9464"

// TestNothingLeadsToTheOperatorsListener tries every way to write where it is, also where the
// operator has opened the rest of loopback, and that very address and port.
func TestNothingLeadsToTheOperatorsListener(t *testing.T) {
	world.Covers(t, "SP-02")
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
			d := world.Start(t, world.WithAdmin(adminAddress, more))
			v := &world.Vector{ID: "SP-02", Says: "the operator's listener"}
			for _, host := range spellings {
				to := host + ":9464"
				for _, way := range world.WaysFor(v, to) {
					reachesNoAdmin(t, d, v, way, to)
				}
			}
			if opened := strings.Contains(more, "unsafe"); opened && d.ConnectStatus(t, "127.0.0.1:8080") != http.StatusOK {
				t.Error("loopback is not open, so that this shows nothing")
			}
			records, err := d.Log.Since(0)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Kind == record.KindAdmin {
					t.Errorf("somebody came to the operator's listener: %+v", r)
				}
			}
			if e := d.RunCommand(t, nil, "status", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Out, "ready") {
				t.Errorf("and it does not answer the operator: exit %d, %s%s", e.Code, e.Out, e.Talk)
			}
		})
	}
}

// reachesNoAdmin puts a destination through a way in, which has to be refused.
func reachesNoAdmin(t *testing.T, d *world.Daemon, v *world.Vector, way, to string) {
	t.Helper()
	x, _ := d.Send(t, v, way, to)
	for _, a := range x.Answers {
		if a.Status == http.StatusOK || a.Status == 0 && a.Reply == 0 {
			t.Errorf("%s %s is answered %+v", way, to, a)
		}
	}
	if x.Opened || len(x.Answers) == 0 {
		t.Errorf("%s %s: opened %t, %d answers, %v", way, to, x.Opened, len(x.Answers), x.Err)
	}
}

// TestOnlyItsOwnUserHasTheOperatorsSocket: by its mode, and where that was changed by what the
// kernel says of who connects.
func TestOnlyItsOwnUserHasTheOperatorsSocket(t *testing.T) {
	world.Covers(t, "SP-05")
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"))
	socket := filepath.Join(d.Dir, "operator", "admin.sock")
	info, err := os.Lstat(socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	ask := []string{"--unix-socket", socket, "http://egressd/healthz"}
	if got := d.Curl(t, d.World.Gateway, nil, ask...); got != "{\"status\":\"ok\"}\n" {
		t.Fatalf("its user is answered %q", got)
	}
	other := []string{"setpriv", "--reuid", "1234", "--regid", "1234", "--keep-groups"}
	for dir := d.Dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the socket alone keeps others out
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.Curl(t, d.World.Gateway, other, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("another user is answered %q", got)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := d.Curl(t, d.World.Gateway, other, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("another user, who can connect, is answered %q", got)
	}
	if got := d.Curl(t, d.World.Sandbox, nil, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("its own user in another network is answered %q", got)
	}
	d.Stop(t)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
	for _, why := range []string{"refused: another user connected, by uid 1234", "refused: somebody connected from another network, by uid 0"} {
		if !d.HasSaid(t, why) {
			t.Errorf("the log does not say %q", why)
		}
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
}

// TestTheOperatorNeedsNoLine has a policy without listen.admin, a command without XDG_RUNTIME_DIR, and later an error in
// the file. A sandbox that shares the files does not reach the socket.
func TestTheOperatorNeedsNoLine(t *testing.T) {
	world.Covers(t, "SP-05")
	policy := fmt.Sprintf("version: 1\nlisten: {open_to_network: true, proxy: [\"%s:%d\", \"[%s]:%d\"]}\n", lab.GatewayIPv4, world.ProxyPort, lab.GatewayIPv6, world.ProxyPort)
	d := world.Start(t, policy+"allow: [allowed.test]\n")
	bare := []string{"env", "-u", "XDG_RUNTIME_DIR"}
	if e := d.RunCommand(t, bare, "allow", "--config", d.Config, "other.allowed.test"); e.Code != 0 {
		t.Fatalf("exit %d: %s", e.Code, e.Talk)
	}
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusOK {
		t.Errorf("what was allowed for a while gets %d", status)
	}
	sockets, err := filepath.Glob(filepath.Join(d.Dir, "egressd/admin/*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("%v, %v", sockets, err)
	}
	ask := []string{"--unix-socket", sockets[0], "http://egressd/healthz"}
	if got := d.Curl(t, d.World.Gateway, nil, ask...); !strings.Contains(got, "ok") {
		t.Fatalf("its user is answered %q", got)
	}
	if got := d.Curl(t, d.World.Sandbox, nil, ask...); strings.Contains(got, "ok") || !strings.Contains(got, "curl:") {
		t.Errorf("another network is answered %q", got)
	}
	if e := d.RunCommand(t, nil, append([]string{"run", "--config", d.Config, "--", "curl", "-sS", "-m", "20"}, ask...)...); strings.Contains(e.Out, "ok") {
		t.Errorf("a program under run is answered %s", e.Out)
	}
	d.WriteConfig(t, policy+"allow: [\n")
	for _, words := range [][]string{{"status"}, {"status", "--connections"}, {"allow", "--list"}, {"answer"}, {"reload"}, {"why", "last"}} {
		e := d.RunCommand(t, bare, append(words, "--config", d.Config)...)
		if strings.Contains(e.Talk, "not running") || e.Code > 1 {
			t.Errorf("%v with an error in the file: exit %d: %s%s", words, e.Code, e.Out, e.Talk)
		}
	}
	d.Stop(t)
	if _, err := os.Lstat(sockets[0]); err == nil {
		t.Error("the socket is still there")
	}
	d.WriteConfig(t, policy)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
}

// TestTheOperatorsSocketTakesNobodysPlace has something at its path, or a folder that is not
// egressd's alone.
func TestTheOperatorsSocketTakesNobodysPlace(t *testing.T) {
	world.Covers(t, "SP-05")
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
		"a file":             {func(t *testing.T, p place) { world.Must(t, os.WriteFile(p.socket, nil, 0o600)) }, "is not a socket of this user"},
		"a link":             {func(t *testing.T, p place) { world.Must(t, os.Symlink(filepath.Join(p.dir, "elsewhere"), p.socket)) }, "is not a socket of this user"},
		"a link to a socket": {func(t *testing.T, p place) {
			deadSocket(t, p.socket+"2")
			world.Must(t, os.Symlink(p.socket+"2", p.socket))
		}, "is not a socket of this user"},
		"a folder":            {func(t *testing.T, p place) { world.Must(t, os.Mkdir(p.socket, 0o700)) }, "is not a socket of this user"},
		"a socket in use":     {func(t *testing.T, p place) { listens(t, p.socket) }, "is in use by another process"},
		"another's socket":    {func(t *testing.T, p place) { deadSocket(t, p.socket); world.Must(t, os.Lchown(p.socket, 1234, 1234)) }, "is not a socket of this user"},
		"a folder for all":    {func(t *testing.T, p place) { world.Must(t, os.Chmod(p.dir, 0o777)) }, "others may write in"},
		"a folder as /tmp is": {func(t *testing.T, p place) { world.Must(t, os.Chmod(p.dir, 0o777|os.ModeSticky)) }, "others may write in"},
		"a folder of a group": {func(t *testing.T, p place) { world.Must(t, os.Chmod(p.dir, 0o770)) }, "others may write in"},
		"another's folder":    {func(t *testing.T, p place) { world.Must(t, os.Chown(p.dir, 1234, 1234)) }, "belongs to another user"},
		"another's link to a folder": {func(t *testing.T, p place) {
			world.Must(t, os.Rename(p.dir, p.dir+"2"))
			world.Must(t, os.Symlink(p.dir+"2", p.dir))
			world.Must(t, os.Lchown(p.dir, 1234, 1234))
		}, "is a link of another user"},
	} {
		t.Run(says, func(t *testing.T) {
			d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, ""))
			p := place{dir: filepath.Join(d.Dir, "operator")}
			p.socket = filepath.Join(p.dir, "admin.sock")
			world.Must(t, os.Mkdir(p.dir, 0o700))
			row.plant(t, p)
			starts(t, d, row.why)
		})
	}
	for _, path := range []string{"@admin", "relative/admin.sock"} { // which the file cannot say, and a variable can
		t.Run(path, func(t *testing.T) {
			d := world.NewDaemon(t, world.WithAdmin("unix:${EGRESSD_TEST_ADMIN}", ""))
			t.Setenv("EGRESSD_TEST_ADMIN", path)
			starts(t, d, "is no absolute path")
		})
	}
}

// starts starts egressd, which has to refuse for a reason, or with "" to serve.
func starts(t *testing.T, d *world.Daemon, why string) {
	t.Helper()
	began := d.Begin(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	switch {
	case began && why == "":
		d.Stop(t)
	case began:
		d.Stop(t)
		t.Errorf("it serves")
	case why == "" || !world.Eventually(world.Patience, func() bool { return strings.Contains(d.Output.String(), why) }): // which may come after its end
		t.Errorf("it does not start, and says %q, not %q", d.Output.String(), why)
	}
}

// deadSocket leaves a socket at which nobody listens.
func deadSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	world.Must(t, err)
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
	world.Covers(t, "SP-07")
	d := world.Start(t, world.WithAdmin(adminAddress, "allow: [allowed.test]\n"))
	token := adminToken(t, d)
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
				status := knocks(t, d, guess)
				begin.Lock()
				statuses[status]++
				begin.Unlock()
			}
		})
	}
	for range 10 {
		if status := knocks(t, d, token); status != http.StatusOK {
			t.Errorf("the operator is answered %d meanwhile", status)
		}
	}
	guessing.Wait()
	if statuses[401]+statuses[429] != most || statuses[429] == 0 {
		t.Errorf("%d guesses are answered %v", most, statuses)
	}
	d.Stop(t)
	all, err := d.Log.Since(0)
	world.Must(t, err)
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
	text, err := os.ReadFile(filepath.Join(d.Dir, "audit", "00000001.log"))
	if err != nil || strings.Contains(string(text), "egressd-admin-") {
		t.Errorf("a token is in the log (%v)", err)
	}
	if _, err := os.Lstat(adminTokenPath(d)); err == nil {
		t.Error("the token is there after the end, for clients to show to whoever has the port")
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	if again := adminToken(t, d); again == token || knocks(t, d, token) != http.StatusUnauthorized || knocks(t, d, again) != http.StatusOK {
		t.Error("the token counts after a restart, or the new one does not")
	}
}

// adminTokenPath is where the token of adminAddress is.
func adminTokenPath(d *world.Daemon) string {
	return filepath.Join(d.Dir, "egressd", "admin", "127.0.0.1-9464.token")
}

// adminToken reads the token that egressd has made.
func adminToken(t *testing.T, d *world.Daemon) string {
	t.Helper()
	path := adminTokenPath(d)
	info, err := os.Lstat(path)
	world.Must(t, err)
	text, err := os.ReadFile(path)
	world.Must(t, err)
	if info.Mode() != 0o600 || !regexp.MustCompile(`^egressd-admin-[A-Z2-7]{52}\n$`).Match(text) {
		t.Fatalf("the token has mode %v and is %q", info.Mode(), text)
	}
	return strings.TrimSpace(string(text))
}

// knocks asks with a token, and returns the status.
func knocks(t *testing.T, d *world.Daemon, token string) int {
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return d.World.Gateway.Dial("tcp", adminAddress)
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
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test, other.allowed.test]\n"))
	tunnel, other := d.MustOpenTunnel(t, "allowed.test:443"), d.MustOpenTunnel(t, "allowed.test:443")
	d.ConnectStatus(t, "evil.test:443")
	d.ConnectStatus(t, "evil test:443")
	listed := d.RunCommand(t, nil, "status", "--connections", "--json", "--config", d.Config)
	var flow egress.OpenFlow
	for line := range strings.Lines(listed.Out) {
		var one egress.OpenFlow
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if one.Src == tunnel.LocalAddr().String() {
			flow = one
		}
	}
	if flow.Via != "connect" || flow.Port != 443 || flow.Sandbox != "default" || flow.Host != "allowed.test" || flow.Addr == "" || flow.Began.IsZero() {
		t.Fatalf("listed %s", listed.Out)
	}
	if e := d.RunCommand(t, nil, "cut", flow.ID, "--config", d.Config); e.Code != 0 || !tunnel.EndsWithin(world.Patience) {
		t.Errorf("not cut: exit %d, %s", e.Code, e.Talk)
	}
	if other.EndsWithin(100 * time.Millisecond) {
		t.Error("the other tunnel was cut, too")
	}
	if r := d.CloseRecord(t, tunnel.LocalAddr().String()); r.Outcome != "cut" || !d.HasSaid(t, "cut flow "+flow.ID+", asked by uid 0, pid ") {
		t.Errorf("the end is %+v", r)
	}
	if e := d.RunCommand(t, nil, "cut", flow.ID, "--config", d.Config); e.Code != 1 {
		t.Errorf("cut twice: exit %d, %s", e.Code, e.Talk)
	}
	figuresAgree(t, d)
	before := d.Digest(t)
	d.WriteConfig(t, world.WithAdmin(world.AdminSocket, "allow: [other.allowed.test]\n"))
	e := d.RunCommand(t, nil, "reload", "--json", "--config", d.Config)
	if after := d.Digest(t); e.Code != 0 || after == before || !strings.Contains(e.Out, after) || !other.EndsWithin(world.Patience) {
		t.Errorf("reloaded: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	if e := d.RunCommand(t, nil, "status", "--json", "--config", d.Config); e.Code != 0 || !strings.Contains(e.Out, `"ready":true`) || !strings.Contains(e.Out, d.Digest(t)) {
		t.Errorf("status: exit %d, %s%s", e.Code, e.Out, e.Talk)
	}
	good, err := os.ReadFile(d.Config)
	world.Must(t, err)
	world.Must(t, os.WriteFile(filepath.Join(d.Dir, "good.yaml"), good, 0o600)) // by which the socket is found
	world.Must(t, os.WriteFile(d.Config, append(good, "colour: blue\n"...), 0o600))
	if e := d.RunCommand(t, nil, "reload", "--config", filepath.Join(d.Dir, "good.yaml")); e.Code != 1 || !strings.Contains(e.Talk, "colour") {
		t.Errorf("a policy that is not right: exit %d, %s", e.Code, e.Talk)
	}
	if e := d.RunCommand(t, nil, "status", "--json", "--config", filepath.Join(d.Dir, "good.yaml")); e.Code != 1 || !strings.Contains(e.Out, `"rejected":{`) {
		t.Errorf("status after it: exit %d, %s", e.Code, e.Out)
	}
	world.Must(t, os.WriteFile(d.Config, good, 0o600))
}

var sample = regexp.MustCompile(`(?m)^egressd_decisions_total\{via="([^"]*)",action="([^"]*)",class="([^"]*)"\} ([0-9]+)$`)

// figuresAgree compares the figures of decisions with the records of the log.
func figuresAgree(t *testing.T, d *world.Daemon) {
	t.Helper()
	recorded, counted := map[string]int64{}, map[string]int64{}
	text := d.Curl(t, d.World.Gateway, nil, "--unix-socket", filepath.Join(d.Dir, "operator", "admin.sock"), "http://egressd/metrics")
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(m[4], 10, 64)
		world.Must(t, err)
		counted[m[1]+" "+m[2]+" "+m[3]] += n
	}
	all, err := d.Log.Since(0)
	world.Must(t, err)
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

// TestARunReachesNoAdminListener: not the socket, which is hidden and would refuse it; not the
// port, though the program was given it, and not the token.
func TestARunReachesNoAdminListener(t *testing.T) {
	d := world.Start(t, world.WithAdmin(adminAddress, "allow: [allowed.test]\n"))
	token := adminToken(t, d)
	script := "cat " + adminTokenPath(d) + "; curl -sS -m9 -H 'Authorization: Bearer " + token + "' http://" + adminAddress + "/healthz"
	e := d.RunCommand(t, nil, "run", "--config", d.Config, "--host-port", "9464", "--", "sh", "-c", script)
	if strings.Contains(e.Out, token) || strings.Contains(e.Out, `"status"`) || !strings.Contains(e.Talk, "127.0.0.1") {
		t.Errorf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
	}
	other := filepath.Join(d.Dir, "other.yaml") // says nothing of a listener
	world.Must(t, os.WriteFile(other, []byte("version: 1\nunsafe_allow: ['127.0.0.0/8:*']\n"), 0o600))
	e = d.RunCommand(t, nil, "run", "--config", other, "--host-port", "9464", "--", "sh", "-c", script)
	if strings.Contains(e.Out, token) || strings.Contains(e.Out, "Bearer") || strings.Contains(e.Out, `"error"`) || !strings.Contains(e.Talk, "127.0.0.1") {
		t.Errorf("by another policy: exit %d, %q, %q", e.Code, e.Out, e.Talk)
	}
	d.Stop(t)
	d.WriteConfig(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	socket := filepath.Join(d.Dir, "operator", "admin.sock")
	e = d.RunCommand(t, nil, "run", "--config", d.Config, "--", "sh", "-c", "ls "+socket+"; curl -sS -m9 --unix-socket "+socket+" http://egressd/healthz")
	if strings.Contains(e.Out, `"status"`) || strings.Contains(e.Out, "admin.sock") {
		t.Errorf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
	}
	if !d.Alive() || d.Cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("egressd has ended")
	}
}
