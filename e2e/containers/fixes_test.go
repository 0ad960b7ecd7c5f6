package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// probeTools are the requests of [world.FixCases] for an image without curl.
const probeTools = `
http() { case $1 in GET) ` + engine.ProbePath + ` "get $2";; *) ` + engine.ProbePath + ` "post $2";; esac; }
name() { ` + engine.ProbePath + ` "dns 127.0.0.11:53 $1" | sed 's/answered/origin/'; }
`

// typeOn types a command on the engine's host, in a folder that is nobody's, as a user of the engine does.
func (w *dockerWorld) typeOn(t *testing.T, line string, env ...string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = t.TempDir(), append(append(os.Environ(), w.Environment()...), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = w.Gateway.Run(cmd)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), err
}

// fixSidecar is a place in a container whose egressd is a sidecar with the policy and the wrapper in a folder, and a log
// in a volume.
func (w *dockerWorld) fixSidecar(t *testing.T, policy, volume, container string) *world.FixPlace {
	log := &world.AuditLog{Dir: filepath.Join(w.docker(t, "volume", "inspect", "-f", "{{.Mountpoint}}", volume), "audit")}
	return &world.FixPlace{
		Tools: probeTools, Served: true, Policy: filepath.Join(policy, "egressd.yaml"),
		Command: func(words string) string { return filepath.Join(policy, "egressd") + " " + words },
		Typed:   func(t *testing.T, line string) (string, error) { return w.typeOn(t, line) },
		Do: func(t *testing.T, script string) (out, talk string, records []record.Record) {
			mark, err := log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			out = w.docker(t, "exec", container, "sh", "-c", script)
			if records, err = log.Since(mark); err != nil {
				t.Fatal(err)
			}
			return out, "", records
		},
	}
}

var writtenAllow = regexp.MustCompile(`(?m)^allow:( \[\]\n|\n(  - .*\n)+)`)

// putFixRules gives a policy that egressd init wrote the rules of [world.FixCases]. change makes other changes of its text.
func (w *dockerWorld) putFixRules(t *testing.T, folder string, change func(text string) string) {
	t.Helper()
	path := filepath.Join(folder, "egressd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	policy := change(writtenAllow.ReplaceAllString(string(text), world.FixRules))
	if !strings.Contains(policy, world.FixRules) {
		t.Fatalf("it has no list allow:\n%s", text)
	}
	policy += fmt.Sprintf("upstream: {dns: [%q]}\naudit: {durability: process}\ntls: {extra_roots: [lab.pem]}\n", world.Resolver)
	if err := os.MkdirAll(filepath.Join(folder, "policy"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"egressd.yaml": policy, "lab.pem": string(w.Origin.Ca.PEM()), "policy/egress.rego": world.FixRego} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tryFixes(t *testing.T, p *world.FixPlace, kinds ...string) {
	for _, c := range world.FixCases(kinds...) {
		t.Run(c.Name, func(t *testing.T) { p.Try(t, &c) })
	}
}

// TestEachPrintedFixInContainers types each fix that is printed for a denial in a container, where it was printed: the
// request works then, and its neighbours are as they were.
func TestEachPrintedFixInContainers(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	t.Run("docker", func(t *testing.T) { fixesBesideDocker(t, w) })
	t.Run("docker run", func(t *testing.T) { fixesInDockerRun(t, w) })
	t.Run("compose", func(t *testing.T) { fixesInCompose(t, w) })
	t.Run("dev container", func(t *testing.T) { fixesInDevContainer(t, w) })
}

func fixesBesideDocker(t *testing.T, w *dockerWorld) {
	dir := t.TempDir()
	w.init(t, dir, "docker", "--project", "fixes", "--subnet", composePool, "--policy", "policy")
	policy := filepath.Join(dir, "policy")
	w.putFixRules(t, policy, func(text string) string { return text })
	t.Cleanup(func() { w.docker(t, "volume", "rm", "egressd-fixes-state") })
	down := exec.Command("sh", filepath.Join(policy, "up.sh"), "down")
	down.Env = append(os.Environ(), w.Environment()...)
	t.Cleanup(func() {
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("up.sh down: %v\n%s", err, out)
		}
	})
	if said, err := w.typeOn(t, filepath.Join(policy, "up.sh")); err != nil {
		t.Fatalf("up.sh: %v\n%s", err, said)
	}
	said, err := w.typeOn(t, filepath.Join(policy, "run-agent.sh")+" -d "+engine.Shell+" "+engine.ProbePath+" wait")
	if err != nil {
		t.Fatalf("run-agent.sh: %v\n%s", err, said)
	}
	agent := strings.TrimSpace(said)
	t.Cleanup(func() { w.docker(t, "rm", "-f", agent) })
	place := w.fixSidecar(t, policy, "egressd-fixes-state", agent)
	tryFixes(t, place, "container", "names", "sidecar")
	t.Run("loop", func(t *testing.T) { place.TryLoop(t, nil, "container") })
	t.Run("page", func(t *testing.T) { pageOfSidecar(t, place) })
	t.Run("its own list", func(t *testing.T) {
		giveList(t, place, "{name: agent, ")
		savesIntoItsList(t, place, "agent")
	})
}

// fixesInDockerRun has a container of egressd docker run, beside an egressd serve on the host. Everything in it is captured.
func fixesInDockerRun(t *testing.T, w *dockerWorld) {
	d := world.NewDaemonIn(t, w.World, "version: 1\n"+world.FixRules+`sandboxes: [{name: web, enter: "unix:${XDG_RUNTIME_DIR}/web/enter.sock"}]`+"\ntls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	d.PutFile(t, "policy/egress.rego", world.FixRego)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	out, err := w.dockerRun(t.Context(), d, "web", "-d", engine.Shell, engine.ProbePath, "wait").Output()
	if err != nil {
		t.Fatalf("docker run: %v\n%s", err, out)
	}
	id := strings.TrimSpace(string(out))
	t.Cleanup(func() { _, _ = w.Docker(context.Background(), "rm", "-f", id) })
	if !world.Eventually(20*time.Second, func() bool { return len(recordsOf(t, d, record.KindStart)) > 1 }) {
		t.Fatalf("it did not enter: %s", w.docker(t, "logs", id))
	}
	place := &world.FixPlace{
		Tools: strings.ReplaceAll(probeTools, `"get $2"`, `"direct $2"`), Served: true, Policy: d.Config,
		Command: func(words string) string { return "egressd " + words + " --config " + d.Config },
		Typed: func(t *testing.T, line string) (string, error) {
			return w.typeOn(t, line, "PATH="+filepath.Dir(world.Egressd.Path())+":"+os.Getenv("PATH"), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "XDG_RUNTIME_DIR="+d.Dir)
		},
		Do: func(t *testing.T, script string) (string, string, []record.Record) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			out := w.docker(t, "exec", id, "sh", "-c", script)
			records, err := d.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			return out, "", records
		},
	}
	tryFixes(t, place, "brief")
	t.Run("loop", func(t *testing.T) { place.TryLoop(t, nil, "container") })
}

// recordsOf are the records of one kind.
func recordsOf(t *testing.T, d *world.Daemon, kind record.Kind) []record.Record {
	t.Helper()
	all, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(r record.Record) bool { return r.Kind != kind })
}

// pageOfSidecar opens the link that ui prints, where a person has a browser, and ends the page.
func pageOfSidecar(t *testing.T, p *world.FixPlace) {
	said, err := p.Typed(t, `export TMPDIR="$PWD"; timeout -s INT 20 `+p.Command("ui --no-open")+` >link & page=$!
for i in 1 2 3 4 5 6 7 8 9 10; do [ -s link ] || sleep 1; done
port=$(sed 's/.*localhost:\([0-9]*\).*/\1/' link); host=$(sed 's#http://\([^/]*\)/.*#\1#' link); path=$(sed 's#http://[^/]*##' link)
curl -sS -o /dev/null -w 'page %{http_code}\n' -H "Host: $host" "http://127.0.0.1:$port$path"
kill -INT "$(pgrep -P "$(pgrep -P $page)" -x egressd || pgrep -P $page)"; wait $page; echo left: $(ls "$TMPDIR")`)
	if !strings.Contains(said, "page 200") && !strings.Contains(said, "page 30") {
		t.Errorf("the page: %v\n%s", err, said)
	}
	if !strings.Contains(said, "left: link\n") {
		t.Errorf("the copy is left: %s", said)
	}
}

// giveList gives a sandbox a list of its own in the policy, by an editor on the host.
func giveList(t *testing.T, p *world.FixPlace, line string) {
	t.Helper()
	text, err := os.ReadFile(p.Policy)
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Replace(string(text), line, line+"allow: [own.test, filed.test], ", 1)
	if listed == string(text) {
		t.Fatalf("no %s in\n%s", line, text)
	}
	if err := os.WriteFile(p.Policy, []byte(listed), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := p.Typed(t, p.Command("reload")); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// savesIntoItsList saves hosts for a sandbox with a list of its own, by the script that init wrote: one that was denied,
// and one by its name.
func savesIntoItsList(t *testing.T, p *world.FixPlace, sandbox string) {
	get := func(method, host string) (passes bool, records []record.Record) {
		t.Helper()
		out, _, records := p.Do(t, probeTools+"http "+method+" http://"+host+"/a")
		return strings.Contains(out, "origin"), records
	}
	save := func(words string) {
		t.Helper()
		if said, err := p.Typed(t, p.Command("allow "+words+" --save")); err != nil {
			t.Fatalf("allow %s --save: %v\n%s", words, err, said)
		}
	}
	passes, records := get("GET", "saved.test")
	if passes || len(records) == 0 {
		t.Fatalf("saved.test passes before: %+v", records)
	}
	save("saved.test --from " + records[len(records)-1].Flow)
	save("named.test --sandbox " + sandbox)
	for request, want := range map[string]bool{
		"GET saved.test": true, "POST saved.test": false, "GET sub.saved.test": false,
		"GET named.test": true, "POST named.test": true, "GET sub.named.test": false, "GET filed.test": true, "GET own.test": false,
	} {
		method, host, _ := strings.Cut(request, " ")
		if got, _ := get(method, host); got != want {
			t.Errorf("%s passes: %t", request, got)
		}
	}
	text, err := os.ReadFile(p.Policy)
	if err != nil {
		t.Fatal(err)
	}
	f, err := file.Parse(p.Policy, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Sandboxes {
		if s.Name != sandbox {
			continue
		}
		var hosts []string
		for _, r := range slices.Concat(s.Allow, s.AlsoAllow) {
			hosts = append(hosts, r.Pattern.String())
		}
		slices.Sort(hosts)
		if list := strings.Join(slices.Compact(hosts), " "); !strings.Contains(list, "saved.test") || !strings.Contains(list, "named.test") || !strings.Contains(list, "own.test") {
			t.Errorf("its list is %s:\n%s", list, text)
		}
		return
	}
	t.Errorf("no sandbox %s is left:\n%s", sandbox, text)
}

// fixesInCompose has a service with a list of its own, and one that is given one.
func fixesInCompose(t *testing.T, w *dockerWorld) {
	c := &composed{dockerWorld: w, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.dir, "compose.yaml"), []byte(composeServices), 0o600); err != nil {
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0o077)) // the user of the image has to read the policy all the same
	w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy")
	policy := filepath.Join(c.dir, "policy")
	syscall.Umask(0o022)
	w.putFixRules(t, policy, func(text string) string {
		return strings.Replace(text, "{name: web, ", "{name: web, allow: [own.test, narrow.test, shut.test], ", 1)
	})
	t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1") })
	c.compose(t, "up", "-d")
	of := func(service string) *world.FixPlace {
		id := w.docker(t, "ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.service="+service)
		return w.fixSidecar(t, policy, "app_egressd-state", id)
	}
	t.Run("with its own list", func(t *testing.T) { tryFixes(t, of("web"), "listed") })
	t.Run("saved", func(t *testing.T) {
		place := of("worker")
		giveList(t, place, "{name: worker, ")
		savesIntoItsList(t, place, "worker")
	})
}

// fixesInDevContainer has a container whose user is not root, as the policy is told step by step.
func fixesInDevContainer(t *testing.T, w *dockerWorld) {
	importDevImage(t, w)
	const listen = `listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"]}` + "\n"
	d := world.NewDaemonIn(t, w.World, "version: 1\n"+world.FixRules+listen+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	d.PutFile(t, "policy/egress.rego", world.FixRego)
	c := &devContainer{w, d, filepath.Join(d.Dir, "project")}
	t.Cleanup(c.remove)
	settings := filepath.Join(c.folder, ".devcontainer", "devcontainer.json")
	if err := os.MkdirAll(filepath.Dir(settings), 0o755); err != nil {
		t.Fatal(err)
	}
	init := func() string {
		if err := os.WriteFile(settings, []byte(`{"image": "`+devImage+`", "containerUser": "user", "remoteUser": "user", "updateRemoteUserUID": false}`), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := d.Command(t.Context(), nil, "init", "devcontainer", "--config", d.Config, "--workspace", c.folder, "--name", "web", "--yes")
		cmd.Env = append(cmd.Env, w.Environment()...)
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return string(said)
	}
	said := init()
	missing := regexp.MustCompile(`under sandboxes: (- {name: web, enter: "unix:[^"]+")}`).FindStringSubmatch(said)
	if missing == nil || !strings.Contains(said, "add uid: [1000] to it if the container's user is not root") {
		t.Fatalf("init says %s", said)
	}
	// The line as it was printed, with a socket below the test's folder.
	line := regexp.MustCompile(`unix:[^"]+/web/`).ReplaceAllString(missing[1], "unix:"+d.Dir+"/web/")
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	d.PutFile(t, "egressd.yaml", string(text)+"sandboxes:\n  "+line+"}\n")
	init()
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	// The container ends at once, which the tools' exit status may be too early to say.
	if out, talk, code := c.tell(t, "up", "--workspace-folder", c.folder); !strings.Contains(talk, "uid: [1000]") || !strings.Contains(talk, "IS NOT STARTED") {
		t.Errorf("devcontainer up of a user whom the policy does not name: exit %d, %s\n%s", code, out, talk)
	}
	d.PutFile(t, "egressd.yaml", string(text)+"sandboxes:\n  "+line+", uid: [1000]}\n")
	typed := func(t *testing.T, line string) (string, error) {
		return w.typeOn(t, line, "PATH="+filepath.Dir(world.Egressd.Path())+":"+os.Getenv("PATH"), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "XDG_RUNTIME_DIR="+d.Dir)
	}
	if said, err := typed(t, "egressd reload --config "+d.Config); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	out, talk, code := c.tell(t, "up", "--workspace-folder", c.folder, "--remove-existing-container")
	if code != 0 {
		t.Fatalf("devcontainer up: exit %d, %s\n%s", code, out, talk)
	}
	tryFixes(t, &world.FixPlace{
		Tools: probeTools, Served: true, Policy: d.Config, Typed: typed,
		Command: func(words string) string { return "egressd " + words + " --config " + d.Config },
		Do: func(t *testing.T, script string) (string, string, []record.Record) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			out, talk, code := c.tell(t, "exec", "--workspace-folder", c.folder, "sh", "-c", script)
			if code != 0 {
				t.Fatalf("devcontainer exec: exit %d, %s\n%s", code, out, talk)
			}
			records, err := d.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			return out, talk, records
		},
	}, "brief")
}
