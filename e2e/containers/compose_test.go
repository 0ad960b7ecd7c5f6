package containers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/record"
)

// composeServices serve each other and themselves, as far as their networks go.
const composeServices = `services:
  web:
    image: ` + engine.Shell + `
    command: ["httpd", "-f", "-p", "8080"]
  worker:
    image: ` + engine.Shell + `
    command: ["httpd", "-f", "-p", "8080"]
`

// What egressd init compose --subnet 10.140.16.0/20 gives them.
const (
	composePool  = "10.140.16.0/20"
	webProxy     = "10.140.16.2"
	workerProxy  = "10.140.16.66"
	hostService  = "8099"
	workerToken  = "open-sesame"
	metadataIPv4 = "169.254.169.254"
)

// A composed is an application of two services that egressd is in front of.
type composed struct {
	*dockerWorld
	dir                  string
	web, worker, egressd string // IDs of containers
	log                  *world.AuditLog
}

// loadImage has the engine know egressd's image.
func (w *dockerWorld) loadImage(t *testing.T) {
	t.Helper()
	if _, err := w.Docker(t.Context(), "image", "inspect", "egressd:latest"); err == nil {
		return
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if out, err := exec.Command(world.Imager.Path(), "-binary", world.Egressd.Path(), "-o", archive).CombinedOutput(); err != nil {
		t.Fatalf("make the image: %v\n%s", err, out)
	}
	w.docker(t, "load", "-q", "-i", archive)
}

// init runs egressd init on the engine's host.
func (w *dockerWorld) init(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(world.Egressd.Path(), append([]string{"init"}, args...)...)
	var talk bytes.Buffer
	cmd.Dir, cmd.Stderr, cmd.Env = dir, &talk, append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+filepath.Join(dir, "config"))
	cmd.Env = append(cmd.Env, w.Environment()...) // it reads the ID of the image
	if err := w.Gateway.Run(cmd); err != nil {
		t.Fatalf("egressd init %s: %v\n%s", strings.Join(args, " "), err, talk.String())
	}
}

// eachCompose runs a test with Compose 2 as a plugin of docker, and with Compose 1 where there is none.
func (w *dockerWorld) eachCompose(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	const plugin = "docker-compose"
	t.Run("Compose 2", test)
	if err := w.Unplug(plugin); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Plug(plugin, world.Compose.Path()); err != nil {
			t.Error(err)
		}
	}()
	t.Run("Compose 1", test)
}

// compose runs the Compose that up.sh starts.
func (c *composed) compose(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // also in a Cleanup
	defer cancel()
	program := []string{"docker", "compose"}
	if c.Command(ctx, "compose", "version").Run() != nil {
		program = []string{"docker-compose"}
	}
	empty := filepath.Join(c.dir, "empty.env") // .env of the test has options of Compose
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program[0], append(append(program[1:], "-p", "app", "--env-file", empty, "-f", "compose.yaml", "-f", "compose.egressd.yaml"), args...)...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.Environment()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compose %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// startComposed makes the files by egressd init compose, gives the policy a resolver of the lab
// and a token to one of the services, and starts it all.
func startComposed(t *testing.T, w *dockerWorld) *composed {
	t.Helper()
	w.loadImage(t)
	c := &composed{dockerWorld: w, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.dir, "compose.yaml"), []byte(composeServices), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, ".env"), []byte("COMPOSE_FILE=evil.yaml\nDOCKER_HOST=tcp://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy", "--allow", "web=web.allowed.test", "--allow", "web=*.web.allowed.test", "--allow", "worker=worker.allowed.test")
	c.completePolicy(t)
	t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1") })
	c.up(t)
	for service, id := range map[string]*string{"web": &c.web, "worker": &c.worker, "egressd": &c.egressd} {
		*id = w.docker(t, "ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.service="+service)
	}
	c.log = &world.AuditLog{Dir: filepath.Join(w.docker(t, "volume", "inspect", "-f", "{{.Mountpoint}}", "app_egressd-state"), "audit")}
	return c
}

// up runs the script that judges the files again.
func (c *composed) up(t *testing.T, options ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{filepath.Join(c.dir, "policy", "up.sh"), "-d"}, options...)...)
	cmd.Dir = c.dir
	cmd.Env = append(append(os.Environ(), "COMPOSE_PROJECT_NAME=app", "HOME="+c.dir, "XDG_CONFIG_HOME="+filepath.Join(c.dir, "config")), c.Environment()...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.Gateway.Run(cmd); err != nil {
		t.Fatalf("up.sh: %v\n%s", err, out.String())
	}
}

func (c *composed) completePolicy(t *testing.T) {
	t.Helper()
	path := filepath.Join(c.dir, "policy", "egressd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	policy := strings.Replace(string(text), "{name: worker, ", "{name: worker, token_file: worker.token, ", 1)
	if policy == string(text) {
		t.Fatalf("the policy has no worker:\n%s", text)
	}
	policy += fmt.Sprintf("upstream: {dns: [%q]}\naudit: {durability: process}\n", world.Resolver)
	for name, text := range map[string]string{path: policy, filepath.Join(c.dir, "policy", "worker.token"): workerToken + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// serveEverywhere has a service of the host listen on each of its addresses, both families.
func (w *dockerWorld) serveEverywhere(t *testing.T) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := w.Gateway.Listen(network, ":"+hostService)
		if err != nil {
			t.Fatal(err)
		}
		world.Serve(t, l, func(net.Conn) {})
	}
}

// hostAddresses are all of the engine's host, those of its bridges too, as a container
// would have to name them.
func (w *dockerWorld) hostAddresses(t *testing.T) (all []string) {
	t.Helper()
	if err := w.Gateway.Do(func() error {
		addrs, err := net.InterfaceAddrs()
		for _, a := range addrs {
			ip := a.(*net.IPNet).IP
			switch {
			case ip.IsLoopback():
			case ip.IsLinkLocalUnicast():
				all = append(all, net.JoinHostPort(ip.String()+"%eth0", hostService))
			default:
				all = append(all, net.JoinHostPort(ip.String(), hostService))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// resolveOnLoopback has the engine's host ask a forwarder of its own for names, as with
// systemd-resolved: engines before 23.0.11, 25.0.5 and 26.0 ask it for containers of internal
// networks, too, from outside of those (CVE-2024-29018).
func (w *dockerWorld) resolveOnLoopback(t *testing.T) {
	t.Helper()
	const file, forwarder = "/etc/resolv.conf", "127.0.0.1"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("nameserver "+forwarder+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	})
	from, err := w.Gateway.ListenPacket("udp4", forwarder+":53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	to, err := w.Gateway.Dial("udp4", world.Resolver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			n, _, err := from.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = to.Write(question[:n]) // that it is asked is seen; nobody needs the answer
		}
	}()
}

// leaveBridgesAlone has the host's bridges ask no packet filter for what passes within one of
// them, as on a host without br_netfilter.
func (w *dockerWorld) leaveBridgesAlone(t *testing.T) {
	t.Helper()
	set := func(value string) {
		if err := w.Gateway.Do(func() error {
			return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(value), 0o644)
		}); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
	set("0")
	t.Cleanup(func() { set("1") })
}

// An attempt is one way that a container tries, and what has to come of it.
type attempt struct{ container, way, want string }

// attempts makes all of them at once: what leads nowhere takes its time.
func (w *dockerWorld) attempts(t *testing.T, all []attempt) {
	t.Helper()
	scripts := map[string]string{}
	for _, a := range all {
		scripts[a.container] += engine.ProbePath + " '" + a.way + "' & "
	}
	said := map[string]string{}
	for container, script := range scripts {
		said[container] = "\n" + w.docker(t, "exec", container, "sh", "-c", script+"wait")
	}
	for _, a := range all {
		_, got, _ := strings.Cut(said[a.container], "\n"+a.way+": ")
		got, _, _ = strings.Cut(got, "\n")
		if !strings.Contains(got, a.want) {
			t.Errorf("%s: %q, and it should have been %q", a.way, got, a.want)
		}
	}
}

// watchFarHosts counts what arrives at far hosts that nobody is to reach.
func (w *dockerWorld) watchFarHosts(t *testing.T) {
	t.Helper()
	const table = "table inet seen"
	if err := w.Internet.Load(fmt.Sprintf("%s {}\ndelete %s\n%s { chain seen { type filter hook prerouting priority -300; ip daddr { %s, %s } counter; ip6 daddr %s counter; }; }\n",
		table, table, table, world.EvilIPv4, metadataIPv4, world.AllowedIPv6)); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft fails where something arrived there.
func (w *dockerWorld) nothingLeft(t *testing.T) {
	t.Helper()
	out, err := w.Internet.Tool("nft", "list", "table", "inet", "seen")
	if err != nil || strings.Count(out, "counter packets 0 bytes 0") != 2 {
		t.Errorf("it got out: %v\n%s", err, out)
	}
}

// An intruder is a container in the network of a service that has a right which the files take
// away: it can have other addresses and routes.
type intruder struct {
	said chan string
}

// intrude starts a shell script in an intruder.
func (c *composed) intrude(t *testing.T, service, script string) intruder {
	t.Helper()
	i := intruder{make(chan string, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() {
		defer cancel()
		out, err := c.Docker(ctx, "run", "--rm", "--network", "app_egressd-"+service, "--cap-add", "NET_ADMIN", engine.Shell, "sh", "-c", script)
		i.said <- fmt.Sprint(out, " ", err)
	}()
	return i
}

// TestCompose has two services in front of which egressd init compose puts egressd try all
// that leads past it.
func TestCompose(t *testing.T) {
	if w := theEngine(t); w != nil {
		w.eachCompose(t, w.holdsComposed)
	}
}

func (w *dockerWorld) holdsComposed(t *testing.T) {
	w.serveEverywhere(t)
	w.resolveOnLoopback(t)
	c := startComposed(t, w)
	w.leaveBridgesAlone(t)
	ask := "via http://worker:" + workerToken + "@"
	workerAt := c.addressOf(t, "worker", c.worker)
	const failed = "error: "
	all := []attempt{
		{c.web, "get http://web.allowed.test/", "200 OK origin "},
		{c.web, "get http://evil.test/", `"class":"default-deny"`},
		{c.web, "get http://worker.allowed.test/", `"class":"default-deny"`},
		{c.web, "get http://" + metadataIPv4 + "/", `"class":"address-denied"`},
		{c.web, "via http://" + webProxy + ":3128 http://" + workerAt + ":8080/", `"class":"address-denied"`},
		{c.web, ask + webProxy + ":3128 http://worker.allowed.test/", `"class":"unknown-sandbox"`},
		{c.worker, ask + workerProxy + ":3128 http://worker.allowed.test/", "200 OK origin "},
		{c.worker, ask + workerProxy + ":3128 http://web.allowed.test/", `"class":"default-deny"`},
		{c.worker, "via http://" + workerProxy + ":3128 http://worker.allowed.test/", `"class":"unknown-sandbox"`},
		{c.worker, "tcp " + workerAt + ":8080", "connected"},
		{c.web, "tcp " + workerAt + ":8080", failed},
		{c.web, "tcp " + workerProxy + ":3128", failed},
		{c.web, "dns 127.0.0.11:53 web.allowed.test", "answered [" + world.AllowedIPv4},
		{c.web, "dns 127.0.0.11:53 secret.evil.test", failed},
		{c.web, "dns " + world.Resolver + " secret.evil.test", failed},
		{c.web, "dns " + webProxy + ":53 secret.evil.test", failed},
		{c.web, "direct http://" + world.EvilIPv4 + "/", failed},
		{c.web, "direct http://" + metadataIPv4 + "/", failed},
		{c.web, "direct http://[" + world.AllowedIPv6 + "]/", failed},
		{c.web, "udp " + world.EvilIPv4 + ":443", failed},
		{c.web, "tcp 10.140.16.1:" + hostService, failed},
		{c.web, "tcp 10.140.16.32:" + hostService, failed},
	}
	for _, address := range w.hostAddresses(t) {
		all = append(all, attempt{c.web, "tcp " + address, failed})
	}
	c.doctored(t)
	c.isNotMistaken(t)
	w.watchFarHosts(t)
	asked, written := w.Zone.Mark(), c.marked(t)
	c.byDockersResolver(t)
	router, other := c.byRouter(t), c.byAddress(t)
	w.attempts(t, all)
	// Both have to have tried.
	if said := <-router.said; strings.Count(said, "error: ") != 2 {
		t.Errorf("by egressd as a router: %q", said)
	}
	if said := <-other.said; strings.Count(said, "error: ") != 1 {
		t.Errorf("by the address of web: %q", said)
	}
	w.nothingLeft(t)
	c.nobodyAskedFor(t, asked, "secret.evil.test")
	c.nobodyAskedFor(t, asked, "stolen.web.allowed.test")
	c.recordsSay(t, written, "web.allowed.test", "web")
	c.recordsSay(t, written, "worker.allowed.test", "worker")
	c.killed(t)
}

func (c *composed) marked(t *testing.T) int {
	t.Helper()
	mark, err := c.log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

func (c *composed) nobodyAskedFor(t *testing.T, mark int, domain string) {
	t.Helper()
	for _, name := range c.Zone.Since(mark) {
		if strings.HasSuffix(name, domain) {
			t.Errorf("the name %s got out", name)
		}
	}
}

// recordsSay has what was allowed be allowed to one sandbox alone.
func (c *composed) recordsSay(t *testing.T, mark int, host, sandbox string) {
	t.Helper()
	records, err := c.log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	allowed := 0
	for _, r := range records {
		if r.Dst == nil || r.Dst.Host != host || r.Decision == nil || r.Decision.Action != "allow" || r.Kind != record.KindRequest {
			continue
		}
		if allowed++; r.Sandbox != sandbox {
			t.Errorf("%s was allowed to %q", host, r.Sandbox)
		}
	}
	if allowed != 1 {
		t.Errorf("%d records say that %s was allowed", allowed, host)
	}
}

// doctored has doctor find nothing in a service, and what there is in a container of nobody's.
func (c *composed) doctored(t *testing.T) {
	t.Helper()
	doctor := func(container string) (string, error) {
		var out bytes.Buffer
		cmd := exec.Command(world.Egressd.Path(), "doctor", "--container", container, "--docker", c.Socket) // it finds the policy that holds web
		cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+t.TempDir())
		cmd.Stdout, cmd.Stderr = &out, &out
		err := c.Gateway.Run(cmd)
		return out.String(), err
	}
	if out, err := doctor(c.web); err != nil || !strings.Contains(out, "✓ variables") {
		t.Errorf("doctor, of web: %v\n%s", err, out)
	}
	out, err := doctor(c.contain(t, engine.Shell))
	for _, want := range []string{"✗ route", "✗ settings: --cap-drop", "✗ names"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("doctor, of a container of Docker's own, does not say %q: %v\n%s", want, err, out)
		}
	}
}

// isNotMistaken has a container with the labels of egressd's, which the script leaves alone.
func (c *composed) isNotMistaken(t *testing.T) {
	t.Helper()
	folder := filepath.Join(c.dir, "policy")
	c.contain(t, "--label", "com.docker.compose.service=egressd", "--label", "egressd.policy="+folder, engine.Shell)
	cmd := exec.Command("sh", filepath.Join(folder, "egressd"), "status")
	cmd.Env = append(os.Environ(), c.Environment()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("egressd status, beside a container with its labels: %v\n%s", err, out)
	}
}

// byDockersResolver says whether names leave an internal network where nobody told the
// container whom to ask: what the files prevent.
func (c *composed) byDockersResolver(t *testing.T) {
	t.Helper()
	mark := c.Zone.Mark()
	c.docker(t, "run", "--rm", "--network", "app_egressd-web", engine.Shell, engine.ProbePath, "dns 127.0.0.11:53 untold.evil.test")
	t.Logf("names that left an internal network by this engine: %v", c.Zone.Since(mark))
}

// byRouter sends by way of egressd's container.
func (c *composed) byRouter(t *testing.T) intruder {
	t.Helper()
	return c.intrude(t, "web", "ip route del default; ip route add default via "+webProxy+" && for way in 'direct http://"+world.EvilIPv4+"/' 'udp "+world.EvilIPv4+":443'; do "+engine.ProbePath+` "$way" & done; wait`)
}

// byAddress asks for a name with the address of web, from the network of worker.
func (c *composed) byAddress(t *testing.T) intruder {
	t.Helper()
	address := c.addressOf(t, "web", c.web)
	return c.intrude(t, "worker", "ip addr add "+address+"/32 dev eth0 && ip route add "+workerProxy+"/32 dev eth0 src "+address+" && "+engine.ProbePath+" 'dns "+workerProxy+":53 stolen.web.allowed.test'")
}

func (c *composed) addressOf(t *testing.T, service, container string) string {
	t.Helper()
	return c.docker(t, "inspect", "-f", `{{(index .NetworkSettings.Networks "app_egressd-`+service+`").IPAddress}}`, container)
}

// killed leaves the services with nothing when egressd has been killed.
func (c *composed) killed(t *testing.T) {
	t.Helper()
	asked := c.Zone.Mark()
	c.docker(t, "kill", "-s", "KILL", c.egressd)
	all := []attempt{
		{c.web, "get http://web.allowed.test/", "error: "},
		{c.web, "direct http://" + world.EvilIPv4 + "/", "error: "},
		{c.web, "dns 127.0.0.11:53 secret.evil.test", "error: "},
		{c.worker, "udp " + world.EvilIPv4 + ":443", "error: "},
	}
	for _, address := range c.hostAddresses(t) {
		all = append(all, attempt{c.web, "tcp " + address, "error: "})
	}
	c.attempts(t, all)
	c.nothingLeft(t)
	c.nobodyAskedFor(t, asked, ".test")
}
