package containers

import (
	"archive/tar"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

// past are ways past any proxy, to hosts that may and may not be reached.
var past = []string{
	"direct http://" + world.EvilIPv4 + "/", "direct http://" + world.AllowedIPv4 + "/", "direct http://[" + world.AllowedIPv6 + "]/", "direct http://169.254.169.254/latest/meta-data/",
	"direct http://" + lab.GatewayIPv4 + ":8080/", "tcp " + world.EvilIPv4 + ":443", "dns " + world.Resolver + " secret.evil.test",
}

// TestDevContainer has the command devcontainer make containers of what egressd init wrote. With
// the variable EGRESSD_E2E_DEVCONTAINER it does so in both modes, and tests the Feature as that
// command does.
func TestDevContainer(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	importDevImage(t, w)
	t.Run("proxy", func(t *testing.T) { devContainerByProxy(t, w) })
	if os.Getenv("EGRESSD_E2E_DEVCONTAINER") != "" {
		t.Run("transparent", func(t *testing.T) { devContainerCaptured(t, w) })
		t.Run("features test", func(t *testing.T) { devContainerFeatureTest(t, w) })
	}
}

func devContainerByProxy(t *testing.T, w *dockerWorld) {
	t.Helper()
	d := startFor(t, w, w.judgingPolicy(devContainerPolicy))
	c := newDevContainer(t, d, w, `{
  "image": "`+devImage+`", // of the tests
  "onCreateCommand": "/probe 'get http://created.allowed.test/'",
  "postStartCommand": ["/probe", "get http://started.allowed.test/", "get http://started.evil.test/"],
}`)
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if talk := c.up(t); !strings.Contains(talk, "egressd: sandbox web · proxy 127.0.0.1:3128") || !strings.Contains(talk, "get http://created.allowed.test/: 200 OK origin") {
		t.Errorf("devcontainer up said %s", talk)
	}
	came(t, c.exec(t, "get http://a.allowed.test/", "get https://b.allowed.test/"), map[string]string{
		"get http://a.allowed.test/": "200 OK origin " + world.AllowedIPv4, "get https://b.allowed.test/": "200 OK origin",
	})
	c.silent(t, func() {
		out := c.exec(t, append([]string{"get http://evil.test/", "get http://169.254.169.254/latest/", "dns 127.0.0.1:53 secret.evil.test"}, past...)...)
		came(t, out, map[string]string{"get http://evil.test/": "403 Blocked by egressd", "get http://169.254.169.254/latest/": "403 Blocked by egressd"})
		for _, way := range past {
			came(t, out, map[string]string{way: "error: "})
		}
	})
	out := w.docker(t, "exec", "-u", "1000", c.id(), engine.ProbePath, "get http://plain.allowed.test/", "get http://plain.evil.test/")
	came(t, out, map[string]string{"get http://plain.allowed.test/": "200 OK origin", "get http://plain.evil.test/": "403 Blocked"})
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{
		"created.allowed.test": "allow", "started.allowed.test": "allow", "started.evil.test": "deny", "a.allowed.test": "allow", "b.allowed.test": "allow",
		"evil.test": "deny", "169.254.169.254": "deny", "plain.allowed.test": "allow", "plain.evil.test": "deny",
	} {
		if got := world.ActionOf(records, "web", host); got != want {
			t.Errorf("%s: recorded %q, want %q", host, got, want)
		}
	}
	c.keepsItsSettings(t)
	c.keepsItsWorkspace(t)
	c.survivesNobody(t, "get http://a.allowed.test/", "get http://evil.test/", past)
	c.doesNotStartUnheld(t)
}

// keepsItsSettings has root in the container try to change what it is built of next time.
func (c *devContainer) keepsItsSettings(t *testing.T) {
	t.Helper()
	out := c.w.docker(t, "exec", c.id(), "sh", "-c", `cd /workspaces/project && touch mine && echo can write
echo '{}' >.devcontainer/devcontainer.json && echo changed
echo exit >.devcontainer/egressd/entrypoint && echo changed
mv .devcontainer other && echo moved; mv /workspaces/project /workspaces/other && echo moved
umount .devcontainer && echo unmounted; rm /run/egressd/enter.sock && echo removed; true`)
	if out != "can write" {
		t.Errorf("printed %q", out)
	}
}

// keepsItsWorkspace has a program in the container make a repository whose root is a folder above the workspace.
func (c *devContainer) keepsItsWorkspace(t *testing.T) {
	t.Helper()
	c.w.docker(t, "exec", c.id(), "sh", "-c", `cd /workspaces/project && mkdir -p .git/objects .git/refs && echo ref: refs/heads/main >.git/HEAD
printf '[core]\nrepositoryformatversion = 0\nworktree = ../..\n' >.git/config`)
	root, err := exec.Command("git", "-C", c.folder, "rev-parse", "--show-cdup").Output()
	if err != nil || strings.TrimSpace(string(root)) != "../" {
		t.Fatalf("git says %q, %v", root, err)
	}
	if out, talk, code := c.tell(t, "up", "--workspace-folder", c.folder, "--remove-existing-container"); code != 0 {
		t.Fatalf("exit %d, %s\n%s", code, out, talk)
	}
	mounted := c.w.docker(t, "inspect", "-f", "{{range .Mounts}}{{println .Source .Destination}}{{end}}", c.id())
	if !strings.Contains(mounted, c.folder+" /workspaces/project\n") || strings.Contains(mounted, filepath.Dir(c.folder)+" ") {
		t.Errorf("mounted: %s", mounted)
	}
	if err := os.RemoveAll(filepath.Join(c.folder, ".git")); err != nil {
		t.Fatal(err)
	}
}

// survivesNobody kills egressd, looks for a way out, and has another one take the
// network in.
func (c *devContainer) survivesNobody(t *testing.T, allowed, denied string, past []string) {
	t.Helper()
	c.d.Kill()
	ways := append([]string{allowed, denied}, past...)
	c.silent(t, func() {
		out := c.w.probe(t, c.id(), ways...)
		for _, way := range ways {
			came(t, out, map[string]string{way: "error: "})
		}
	})
	c.d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", c.d.Config))
	c.w.docker(t, "exec", c.id(), "/usr/local/share/egressd/entrypoint")
	came(t, c.w.probe(t, c.id(), allowed, denied), map[string]string{allowed: "200 OK origin", denied: "403 Blocked"})
}

// doesNotStartUnheld changes the settings to what leaves a way out, or none at all.
func (c *devContainer) doesNotStartUnheld(t *testing.T) {
	t.Helper()
	at := filepath.Join(c.folder, ".devcontainer", "devcontainer.json")
	whole, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ says, old, new, want string }{
		{"a network", `"--network=none"`, `"--network=bridge"`, "eth0"},
		{"a capability", `"--cap-drop=NET_RAW"`, `"--cap-add=SYS_PACCT"`, "capability 20"},
		{"the engine's socket, under another name", `"mounts": [`, `"mounts": ["source=` + c.w.Socket + `,target=/any,type=bind",`, "the socket /any is mounted"},
		{"no egressd behind the socket", `/web,target=`, `/run,target=`, "enter.sock"},
	} {
		if err := os.WriteFile(at, []byte(strings.ReplaceAll(string(whole), row.old, row.new)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(c.d.Dir, "run"), 0o700); err != nil {
			t.Fatal(err)
		}
		out, talk, code := c.tell(t, "up", "--workspace-folder", c.folder, "--remove-existing-container")
		// The tool may end with 0: if the container ends while the tool looks into it, it takes that for a failed command.
		if !strings.Contains(talk, row.want) || !strings.Contains(talk, "IS NOT HELD BY EGRESSD") {
			t.Errorf("%s: exit %d, %s\n%s", row.says, code, out, talk)
		}
		if code := c.w.docker(t, "wait", c.id()); code != "1" {
			t.Errorf("%s: the container ended with %s", row.says, code)
		}
	}
}

// captured are ways that a program takes which knows of no proxy, none of which may lead out, and
// what they come to. An engine gives a container without a network no IPv6.
var captured = map[string]string{
	"direct http://evil.test/":                    "403 Blocked by egressd",
	"direct http://" + world.EvilIPv4 + "/":       "403 Blocked by egressd",
	"direct http://169.254.169.254/latest/":       "403 Blocked by egressd",
	"direct http://" + lab.GatewayIPv4 + ":8080/": "403 Blocked by egressd",
	"direct http://[" + world.AllowedIPv6 + "]/":  "error: ",
	"direct http://[fd00:ec2::254]/latest/":       "error: ",
	"udp " + world.EvilIPv4 + ":9999":             "error: ",
	"dns " + world.Resolver + " secret.evil.test": "answered [28.255.", // it stands for the name
}

func devContainerCaptured(t *testing.T, w *dockerWorld) {
	t.Helper()
	d := startFor(t, w, devContainerPolicy)
	c := newDevContainer(t, d, w, `{"image": "`+devImage+`", "remoteUser": "user", "updateRemoteUserUID": false, "onCreateCommand": "/probe 'direct http://created.allowed.test/'"}`, "--transparent")
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if talk := c.up(t); !strings.Contains(talk, "egressd: sandbox web · transparent") || !strings.Contains(talk, "direct http://created.allowed.test/: 200 OK origin") {
		t.Errorf("devcontainer up said %s", talk)
	}
	came(t, c.exec(t, "direct http://a.allowed.test/", "id"), map[string]string{"direct http://a.allowed.test/": "200 OK origin " + world.AllowedIPv4, "id": "uid 1000 "})
	ways := slices.Collect(maps.Keys(captured))
	c.silent(t, func() { came(t, c.w.probe(t, c.id(), ways...), captured) })
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{
		"created.allowed.test": "allow", "a.allowed.test": "allow", "evil.test": "deny", world.EvilIPv4: "deny", "169.254.169.254": "deny",
	} {
		if got := world.ActionOf(records, "web", host); got != want {
			t.Errorf("%s: recorded %q, want %q", host, got, want)
		}
	}
	c.survivesNobody(t, "direct http://a.allowed.test/", "direct http://evil.test/", ways)
	// Root in the container has CAP_NET_ADMIN, and gets rid of what captures.
	c.silent(t, func() {
		w.docker(t, "exec", "-u", "0", c.id(), "sh", "-c", "ip route flush table local; ip route flush table main; ip addr flush dev lo")
		for _, l := range strings.Split(c.w.probe(t, c.id(), ways...), "\n") {
			if strings.Contains(l, " origin ") {
				t.Errorf("without its routes: %s", l)
			}
		}
	})
}

// devContainerFeatureTest runs the tests that lie beside the Feature.
func devContainerFeatureTest(t *testing.T, w *dockerWorld) {
	t.Helper()
	d := startFor(t, w, devContainerPolicy)
	env := []string{"EGRESSD_DOOR=" + filepath.Join(d.Dir, "web"), "EGRESSD_BINARY=" + world.Egressd.Path()}
	out, talk, code := runDevContainer(t, w, d.Dir, env, "features", "test", "--project-folder", world.Source("integrations", "devcontainer"),
		"--features", "egressd", "--skip-autogenerated", "--skip-duplicated")
	if code != 0 || !strings.Contains(out+talk, "held by egressd") {
		t.Errorf("exit %d, %s\n%s", code, out, talk)
	}
}

func TestDevContainerFeatureIsWhole(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	dir := filepath.Join(t.TempDir(), "packages")
	out, talk, code := runDevContainer(t, w, filepath.Dir(dir), nil, "features", "package", "--output-folder", dir, world.Source("integrations", "devcontainer", "src"))
	f, err := os.Open(filepath.Join(dir, "devcontainer-feature-egressd.tgz"))
	if err != nil {
		t.Fatalf("exit %d, %v: %s\n%s", code, err, out, talk)
	}
	defer f.Close()
	var names []string
	for r := tar.NewReader(f); ; { // whose name says gzip, and which is none
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(h.Name, "./"))
	}
	slices.Sort(names)
	if want := "devcontainer-feature.json entrypoint hold install.sh"; strings.Join(slices.DeleteFunc(names, func(n string) bool { return n == "" }), " ") != want {
		t.Errorf("it has %q", names)
	}
}

// TestDevContainerFeatureByHand installs the Feature in a container that nobody builds, and starts it.
func TestDevContainerFeatureByHand(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := startFor(t, w, strings.Replace(devContainerPolicy, `"]`+"\nsandboxes", `", {host: inspected.allowed.test, methods: [GET]}]`+"\nsandboxes", 1))
	feature := world.Source("integrations", "devcontainer", "src", "egressd")
	begin := func(flags ...string) string {
		args := append([]string{"-v", feature + ":/feature:ro", "-v", world.Egressd.Path() + ":/usr/local/bin/egressd:ro", "-v", filepath.Join(d.Dir, "web") + ":/run/egressd:ro"}, flags...)
		return w.contain(t, append(args, engine.Shell, "sh", "-c", `sh /feature/install.sh && { /usr/local/share/egressd/entrypoint || exit 1; } && echo started && exec /probe wait`)...)
	}
	c := begin("--network=none", "--cap-add=NET_ADMIN", "-e", "MODE=transparent")
	if !world.Eventually(20*time.Second, func() bool { return strings.Contains(w.docker(t, "logs", c), "started") }) {
		t.Fatalf("it said %s", w.docker(t, "logs", c))
	}
	came(t, w.probe(t, c, slices.Collect(maps.Keys(captured))...), captured)
	came(t, w.probe(t, c, "direct http://a.allowed.test/"), map[string]string{"direct http://a.allowed.test/": "200 OK origin " + world.AllowedIPv4})
	authority, err := d.Command(t.Context(), nil, "ca", "--pem", "--config", d.Config).Output()
	if trusted := w.docker(t, "exec", c, "cat", "/usr/local/share/egressd/ca.pem"); err != nil || len(authority) == 0 || trusted != strings.TrimSpace(string(authority)) {
		t.Errorf("it is to trust %q, %v, and not %q", trusted, err, authority)
	}
	for says, flags := range map[string][]string{
		"the container has CAP_NET_ADMIN, and mode is proxy": {"--network=none", "--cap-add=NET_ADMIN"},
		"mode is transparent, which takes CAP_NET_ADMIN":     {"--network=none", "-e", "MODE=transparent"},
		"the container has capability 2 of":                  {"--network=none", "--privileged"},
		"the socket /run/docker.sock is mounted":             {"--network=none", "-v", w.Socket + ":/run/docker.sock"},
		"the network has the interface eth0":                 {},
		"mode is other":                                      {"--network=none", "-e", "MODE=other"},
		"socket has characters that a shell would read":      {"--network=none", "-e", "SOCKET=/run/$(id)"},
		"no egressd answers":                                 {"--network=none", "-e", "SOCKET=/run/egressd/none.sock"},
	} {
		c := begin(flags...)
		if code := w.docker(t, "wait", c); code != "1" {
			t.Errorf("%q: it ended with %s", flags, code)
		}
		said, err := w.Command(t.Context(), "logs", c).CombinedOutput()
		if err != nil || !strings.Contains(string(said), says) {
			t.Errorf("%q: it said %s, %v", flags, said, err)
		}
	}
}
