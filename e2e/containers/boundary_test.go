package containers

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox/containers"
)

// TestDockerRunRemovesWhatItRefuses has the engine make containers of flags that lead out. None of them starts, and none is
// left.
func TestDockerRunRemovesWhatItRefuses(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	before := w.docker(t, "ps", "-aq")
	for _, row := range []struct{ flags, says string }{
		{"--cap-add SYS_PACCT", "--cap-add SYS_PACCT"},
		{"--cap-add SYS_BOOT", "--cap-add SYS_BOOT"},
		{"--cap-add MAC_ADMIN", "--cap-add MAC_ADMIN"},
		{"--privileged", "--privileged"},
		{"--gpus all", "--gpus"},
		{"--device /dev/null", "--device"},
		{"--device-cgroup-rule a", "--device-cgroup-rule"},
		{"--log-driver syslog", "--log-driver syslog"},
		{"--log-driver=fluentd", "--log-driver fluentd"},
		{"--cgroup-parent /x", "--cgroup-parent /x"},
		{"--sysctl net.ipv4.ip_forward=1", "--sysctl net.ipv4.ip_forward"},
		{"--security-opt seccomp=unconfined", "--security-opt seccomp"},
		{"--security-opt apparmor=unconfined", "--security-opt apparmor"},
		{"--security-opt systempaths=unconfined", "--security-opt /proc/kcore"},
		{"--pid host", "--pid host"},
		{"--ipc host", "--ipc host"},
		{"--uts host", "--uts host"},
		{"--network bridge", "--network bridge"},
		{"--label egressd.policy=/x", "--label egressd.policy"},
		{"-l com.docker.compose.service=egressd", "--label com.docker.compose.service"},
		{"-v /etc:/e", "--volume /etc"},
		{"-v /usr/local/bin:/e", "--volume /usr/local/bin"},
		{"-v /var/lib/egressd:/e:ro", "--volume /var/lib/egressd"},
		{"--mount type=volume,src=far,dst=/e,volume-opt=type=nfs,volume-opt=device=:/x,volume-opt=o=addr=192.0.2.1", "nfs"},
		{"-p 80:80", "--publish"},
	} {
		mark, err := d.Log.Mark()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := w.dockerRun(ctx, d, "web", append(append([]string{"-itd", "--rm"}, strings.Fields(row.flags)...), engine.Shell)...)
		var talk bytes.Buffer
		cmd.Stderr = &talk
		_ = w.Gateway.Run(cmd)
		cancel()
		if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(talk.String(), row.says) {
			t.Errorf("%s: exit %d, %q", row.flags, cmd.ProcessState.ExitCode(), talk.String())
		}
		if row.flags == "-p 80:80" || row.flags == "--device-cgroup-rule a" {
			continue // there was no container: docker itself refuses the latter
		}
		records, err := decisionsSince(d, mark)
		if err != nil || len(records) != 1 {
			t.Errorf("%s: %v, %+v", row.flags, err, records)
			continue
		}
		wasRecorded(t, records[0], row.says)
		why, err := d.Command(t.Context(), nil, "why", "--config", d.Config, "--json", whyID(t, talk.String())).Output()
		if err != nil || !strings.Contains(string(why), records[0].Flow) || !strings.Contains(string(why), records[0].Decision.Rule) {
			t.Errorf("%s: why says %s, %v", row.flags, why, err)
		}
		if records[0].Sandbox != "web" {
			t.Errorf("%s: of the sandbox %q", row.flags, records[0].Sandbox)
		}
		said, _ := d.Command(t.Context(), nil, "doctor", "--config", d.Config, "--docker", w.Socket, "--container", records[0].Container.Name).Output()
		if !strings.Contains(string(said), row.says) || !strings.Contains(string(said), records[0].Flow) {
			t.Errorf("%s: doctor --container says %s", row.flags, said)
		}
	}
	if after := w.docker(t, "ps", "-aq"); after != before {
		t.Errorf("containers are left: %s", after)
	}
	said, _ := d.Command(t.Context(), nil, "doctor", "--config", d.Config).Output()
	if !strings.Contains(string(said), "refused: ") || !strings.Contains(string(said), "in the last day") {
		t.Errorf("doctor says %s", said)
	}
}

// wasRecorded looks at the record of a refused container: it names the setting by a row of the table, and says what was refused of it.
func wasRecorded(t *testing.T, r record.Record, says string) {
	t.Helper()
	isRow := r.Decision != nil && slices.ContainsFunc(boundary.Table(), func(s boundary.Setting) bool { return s.Field == r.Decision.Rule })
	if r.Kind != record.KindRefused || !isRow || r.Decision.Action != "deny" || r.Decision.Class != string(policy.ContainerRefused) || r.Decision.Layer != string(policy.Builtin) ||
		!strings.Contains(r.Decision.Reason, says) || r.Container == nil || r.Container.ID == "" || r.Flow == "" {
		t.Fatalf("%s is recorded as %+v, %+v", says, r, r.Decision)
	}
}

// whyID is the id in the command that a refusal names.
func whyID(t *testing.T, said string) string {
	t.Helper()
	id := regexp.MustCompile(`egressd why ([0-9A-Z]+)`).FindStringSubmatch(said)
	if id == nil {
		t.Errorf("no record is named in %q", said)
		return "none"
	}
	return id[1]
}

// judgingPolicy has egressd ask the engine about containers that are attached.
func (w *dockerWorld) judgingPolicy(policy string) string {
	return policy + "docker: {socket: \"unix:" + w.Socket + "\"}\n"
}

// TestAttachmentsAreJudged attaches containers that nobody judged when they were made.
func TestAttachmentsAreJudged(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, w.judgingPolicy(dockerPolicy))
	good := w.contain(t, "--network", "none", "-v", t.TempDir()+":/data", engine.Scratch)
	if e := d.Attach(t, "web", "--docker", w.Socket, good); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	holds(t, d, "web", w.ways(t, good))
	volumes := filepath.Join(filepath.Dir(w.Socket), "data", "volumes") // this engine keeps them there
	for flags, says := range map[string]string{
		"--cap-add SYS_PACCT":           "--cap-add SYS_PACCT",
		"-v /etc:/e":                    "--volume /etc",
		"-v " + w.Socket + ":/anywhere": "--volume " + w.Socket,
		"-v " + volumes + ":/v:ro":      "--volume " + volumes,
		"--security-opt apparmor=unconfined --log-driver none": "--security-opt apparmor=unconfined",
	} {
		mark, err := d.Log.Mark()
		if err != nil {
			t.Fatal(err)
		}
		c := w.contain(t, append(append([]string{"--network", "none"}, strings.Fields(flags)...), engine.Scratch)...)
		if e := d.Attach(t, "web", "--docker", w.Socket, c); e.Code != 1 || !strings.Contains(e.Talk, says) {
			t.Errorf("%s: exit %d, %q", flags, e.Code, e.Talk)
		}
		records, err := decisionsSince(d, mark)
		if err != nil || len(records) != 1 { // attach refuses by itself, and says so to egressd serve
			t.Fatalf("%s: %v, %+v", flags, err, records)
		}
		wasRecorded(t, records[0], says)
		pid := w.docker(t, "inspect", "-f", "{{.State.Pid}}", c)
		if e := d.Attach(t, "web", pid); e.Code != 1 || !strings.Contains(e.Talk, says) {
			t.Errorf("%s, by its process: exit %d, %q", flags, e.Code, e.Talk)
		}
		records, err = decisionsSince(d, mark)
		if err != nil || len(records) != 2 {
			t.Fatalf("%s: %v, %+v", flags, err, records)
		}
		wasRecorded(t, records[1], says)
		out, _ := d.Command(t.Context(), nil, "doctor", "--container", c, "--docker", w.Socket).CombinedOutput()
		if !strings.Contains(string(out), "✗ settings: "+says) {
			t.Errorf("%s: doctor says %s", flags, out)
		}
	}
	place := filepath.Join(t.TempDir(), "data")
	if err := os.Symlink("/etc", place); err != nil {
		t.Fatal(err)
	}
	swapped := w.contain(t, "--network", "none", "-v", place+":/d", engine.Scratch)
	if err := errors.Join(os.Remove(place), os.Mkdir(place, 0o755)); err != nil { // it was a link for a moment
		t.Fatal(err)
	}
	for _, who := range []string{swapped, w.docker(t, "inspect", "-f", "{{.State.Pid}}", swapped)} {
		if e := d.Attach(t, "web", "--docker", w.Socket, who); e.Code != 1 || !strings.Contains(e.Talk, "--volume /etc: ") {
			t.Errorf("a link for a moment, %s: exit %d, %q", who, e.Code, e.Talk)
		}
	}
	if out, _ := d.Command(t.Context(), nil, "doctor", "--container", swapped, "--docker", w.Socket).CombinedOutput(); !strings.Contains(string(out), "✗ settings: --volume /etc: ") {
		t.Errorf("doctor says %s", out)
	}
	inside := w.contain(t, "--network", "none", "--cap-add", "SYS_PACCT", "-v", world.Egressd.Path()+":/egressd:ro", "-v", filepath.Join(d.Dir, "web")+":/run/egressd:ro", engine.Shell, "/egressd", "enter", "--", engine.ProbePath, "wait")
	w.said(t, inside, "--cap-add SYS_PACCT")
}

// decisionsSince are the records of decisions behind a mark: on a slow machine a heartbeat comes between them.
func decisionsSince(d *world.Daemon, mark int) ([]record.Record, error) {
	records, err := d.Log.Since(mark)
	return slices.DeleteFunc(records, func(r record.Record) bool { return r.Decision == nil }), err
}

// TestInitComposeRefuses has files of projects that get around egressd, and their siblings.
func TestInitComposeRefuses(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	const image = "image: " + engine.Shell
	w.docker(t, "commit", "--change", "LABEL com.docker.compose.project=theirs", w.contain(t, engine.Shell), "egressd.test/theirs:1")
	t.Cleanup(func() { w.docker(t, "rmi", "egressd.test/theirs:1") })
	for text, says := range map[string]string{
		"services: {web: {" + image + ", volumes: ['" + w.Socket + ":/anywhere']}}":                                     "volumes " + w.Socket,
		"services: {web: {" + image + ", volumes: ['" + filepath.Dir(w.Socket) + ":/e']}}":                              "volumes " + filepath.Dir(w.Socket),
		"services: {web: {" + image + ", volumes: ['" + filepath.Dir(w.Socket) + "/data/volumes:/v:ro']}}":              "an engine keeps containers and volumes there",
		"services: {web: {" + image + ", volumes: ['x:/x']}}\nvolumes: {x: {name: /etc}}":                               "it is made elsewhere",
		"services: {container: {" + image + "}, web: {" + image + ", volumes_from: ['container:app-egressd-1']}}":       "volumes_from container:app-egressd-1",
		"services: {web: {" + image + ", logging: {driver: syslog, options: {syslog-address: 'udp://192.0.2.1:514'}}}}": "logging.driver syslog",
		"services: {web: {" + image + ", volumes: ['./policy:/p']}}":                                                    "/policy: it has in it, or lies in, what is egressd's",
		"services: {web: {" + image + ", volumes: ['.:/src']}}":                                                         "it is, or has in it, a way out",
		"services: {web: {" + image + ", volumes: ['/etc/cron.d:/c']}}":                                                 "volumes /etc/cron.d",
		"services: {web: {" + image + ", volumes: ['~/.bashrc:/c']}}":                                                   ".bashrc",
		"services: {web: {" + image + ", volumes: ['egressd-state:/s']}}\nvolumes: {egressd-state: {}}":                 "volumes egressd-state",
		"services: {web: {build: ., image: 'egressd.test/theirs:1'}}":                                                   "egressd.test/theirs:1, which the engine has from elsewhere",
		"services: {web: {build: ., image: 'egressd:latest'}}":                                                          "in the place of egressd's own",
		"services: {web: {" + image + "}, egressd: {" + image + "}}":                                                    "egressd: a sandbox cannot be called that",
		"services: {web: {" + image + ", networks: [x]}}\nnetworks: {x: {name: other_default}}":                         "name other_default",
		"services: {web: {" + image + ", networks: [x]}}\nnetworks: {x: {external: true}}":                              "external",
		"services: {web: {" + image + ", network_mode: bridge}}":                                                        "network_mode bridge",
		"services: {web: {" + image + ", external_links: [other_db_1]}}":                                                "external_links other_db_1",
		"services: {web: {" + image + ", labels: {egressd.policy: /x}}}":                                                "labels egressd.policy",
		"services: {web: {" + image + ", labels: ['com.docker.compose.service=egressd']}}":                              "labels com.docker.compose.service",
		"services: {web: {" + image + ", deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}}}":     "deploy.resources.reservations.devices",
		"name: app\nservices: {web: {" + image + ", networks: [x]}}\nnetworks: {x: {name: app_egressd-out}}":            "name app_egressd-out",
		"name: app\nservices: {web: {" + image + ", volumes: ['x:/x']}}\nvolumes: {x: {name: app_egressd-state}}":       "it is made elsewhere",
		"name: app\nservices: {web: {" + image + ", volumes: ['x:/x']}}\nvolumes: {x: {name: egressd-local-state}}":     "it is made elsewhere",
		"services: {web: {" + image + ", networks: [x]}}\nnetworks: {x: {ipam: {config: [{subnet: 151.101.0.0/16}]}}}":  "ipam.config.subnet 151.101.0.0/16",
		"services: {web: {" + image + ", build: {context: ., args: {A: '$A_TOKEN'}}}}":                                  "build with A_TOKEN of your environment",
		"services: {web: {" + image + ", volumes: ['~/.aws:/a:ro']}}":                                                   "/.aws: keys, passwords or sessions",
		"services: {web: {" + image + ", of_tomorrow: 1}}":                                                              "of_tomorrow",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(world.Egressd.Path(), "init", "compose", "--subnet", composePool, "--policy", "policy")
		cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "A_TOKEN=x", "HOME="+dir, "XDG_CONFIG_HOME="+filepath.Join(dir, "config")), w.Environment()...)
		var talk bytes.Buffer
		cmd.Stderr = &talk
		_ = w.Gateway.Run(cmd)
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(talk.String(), says) {
			t.Errorf("%s: exit %d, %q", text, cmd.ProcessState.ExitCode(), talk.String())
		}
		if _, err := os.Stat(filepath.Join(dir, "compose.egressd.yaml")); err == nil {
			t.Errorf("%s: the override file was written", text)
		}
	}
}

// TestDockerRunNeedsADockerThatAsks has a command docker that starts containers by itself, as that of podman does.
func TestDockerRunNeedsADockerThatAsks(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := "#!/bin/sh\ncase $1 in version) echo 4.3 ;; run) touch " + started + " ;; *) exit 1 ;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := w.dockerRun(t.Context(), d, "web", engine.Shell)
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	said, _ := cmd.CombinedOutput()
	if _, err := os.Stat(started); err == nil || cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("it started something: %v, exit %d, %s", err, cmd.ProcessState.ExitCode(), said)
	}
}

// TestComposeStartsWhatWasJudged has a service that writes the files between the judging and the start.
func TestComposeStartsWhatWasJudged(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Fatal(err)
	}
	dir, programs := t.TempDir(), t.TempDir()
	started := filepath.Join(programs, "started")
	script := "#!/bin/sh\ncase $* in\n'compose version') ;;\n*' config') cat ;;\n" +
		"*' up') printf 'services: {a: {image: a, privileged: true}}' >" + dir + "/compose.yaml; echo evil >" + dir + "/compose.egressd.yaml\n" +
		"while [ $# -gt 0 ]; do if [ \"$1\" = -f ]; then cat \"$2\"; fi; shift; done >" + started + " ;;\n*) exec " + docker + " \"$@\" ;;\nesac\n"
	for path, text := range map[string]string{filepath.Join(programs, "docker"): script, filepath.Join(dir, "compose.yaml"): "services: {a: {image: a, volumes: ['.:/a']}}\n"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := append(append(os.Environ(), w.Environment()...), "HOME="+t.TempDir(), "PATH="+programs+":"+os.Getenv("PATH"))
	made := exec.Command(world.Egressd.Path(), "init", "compose", "--subnet", composePool, "--policy", filepath.Join(programs, "policy"))
	made.Dir, made.Env = dir, append(env, "PATH="+os.Getenv("PATH"))
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	up := exec.Command("sh", filepath.Join(programs, "policy", "up.sh"))
	up.Dir, up.Env = dir, env
	out, _ := up.CombinedOutput()
	text, err := os.ReadFile(started)
	if err != nil || !strings.Contains(string(text), "'.:/a'") || strings.Contains(string(text), "privileged: true") || strings.Contains(string(text), "evil") {
		t.Errorf("%v: started %q\n%s", err, text, out)
	}
	up = exec.Command("sh", filepath.Join(programs, "policy", "up.sh")) // what they wrote is there now
	up.Dir, up.Env = dir, env
	if out, err := up.CombinedOutput(); err == nil || !strings.Contains(string(out), "privileged") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestComposeOfAnotherProject has files of a project choose the name of another one, whose volumes the engine has.
func TestComposeOfAnotherProject(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	w.docker(t, "volume", "create", "--label", "com.docker.compose.project=victim", "victim_data")
	t.Cleanup(func() { w.docker(t, "volume", "rm", "victim_data") })
	w.contain(t, "--label", "com.docker.compose.project=busy", "--label", "com.docker.compose.project.working_dir=/srv/busy", engine.Shell)
	const services = "services: {web: {image: '" + engine.Shell + "', volumes: ['data:/d']}}\nvolumes: {data: {}}\n"
	for _, row := range []struct {
		says, folder, name, env string
		args                    []string
		code                    int
	}{
		{"name in the file", "app", "name: victim\n", "", nil, 1},
		{"name in .env", "app", "", "COMPOSE_PROJECT_NAME=victim\n", nil, 1},
		{"name of a folder that another one has", "busy", "", "", nil, 1},
		{"name of a folder without another one", "victim", "", "", nil, 0},
		{"a name of nobody's", "app", "name: nobody\n", "", nil, 0},
		{"told that it is the same project", "app", "name: victim\n", "", []string{"--project", "victim"}, 0},
	} {
		dir := filepath.Join(t.TempDir(), row.folder)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"compose.yaml": row.name + services, ".env": row.env} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(world.Egressd.Path(), append([]string{"init", "compose", "--subnet", composePool, "--policy", filepath.Join(t.TempDir(), "policy")}, row.args...)...)
		cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+filepath.Join(dir, "config")), w.Environment()...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != row.code || code == 1 && !strings.Contains(string(out), "would share networks and volumes") {
			t.Errorf("%s: exit %d, %s", row.says, code, out)
		}
	}
}

// TestComposeMountsInPlace has a service that can write the folder of the project try to put links where another one has
// mounts.
func TestComposeMountsInPlace(t *testing.T) {
	if w := theEngine(t); w != nil {
		w.eachCompose(t, w.holdsInPlace)
	}
}

func (w *dockerWorld) holdsInPlace(t *testing.T) {
	w.loadImage(t)
	c := &composed{dockerWorld: w, dir: t.TempDir()}
	const services = "services:\n  web: {image: '" + engine.Shell + "', volumes: ['./app:/app'], cap_add: [SYS_PTRACE], links: [db]}\n" +
		"  db: {image: '" + engine.Shell + "', volumes: ['./app/conf/db.conf:/etc/db.conf:ro', './app/data/db:/data'], env_file: app/conf/vars.env}\n  backup: {image: '" + engine.Shell + "', volumes_from: ['db:ro']}\n"
	for name, text := range map[string]string{"compose.yaml": services, "app/conf/db.conf": "is", "app/conf/vars.env": "VAR=is\n"} {
		at := filepath.Join(c.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy")
	t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1") })
	c.up(t)
	id := func(service string) string {
		return w.docker(t, "ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.service="+service)
	}
	w.docker(t, "exec", id("web"), "sh", "-c", `cd /app
for one in conf conf/db.conf conf/vars.env data data/db; do
	mv $one away; rm -rf $one; ln -sfn /etc $one; ln -sf /etc/shadow $one
done
cp /bin/busybox x; mv x conf/db.conf; mkdir conf2; mv conf2 conf; echo changed >conf/db.conf`)
	// In a namespace of its own, without these mounts, the program could rename what they cover. The engine's filter refuses it one.
	made, _ := w.Docker(t.Context(), "exec", "-w", "/app", id("web"), "unshare", "-Urm", "sh", "-c", `mkdir -p /tmp/n && mount -t tmpfs t /tmp/n && mkdir -p /tmp/n/old /tmp/n/bin && cp /bin/busybox /tmp/n/bin/ &&
pivot_root /tmp/n /tmp/n/old && /bin/busybox umount -l /old && /bin/busybox mv conf away && /bin/busybox ln -s /etc conf && /bin/busybox echo replaced`)
	if strings.Contains(made, "replaced") {
		t.Errorf("a program made a namespace of users: %s", made)
	}
	places := []string{"conf", "conf/db.conf", "data", "data/db"}
	if w.Command(t.Context(), "compose", "version").Run() != nil { // Compose 1 reads it at the next start
		places = append(places, "conf/vars.env")
	}
	for _, one := range places {
		if info, err := os.Lstat(filepath.Join(c.dir, "app", one)); err != nil || info.Mode()&os.ModeSymlink != 0 {
			t.Errorf("%s was replaced: %v", one, err)
		}
	}
	w.docker(t, "restart", "-t", "1", id("db"))
	if got := w.docker(t, "exec", id("db"), "cat", "/etc/db.conf"); got != "changed" {
		t.Errorf("db reads %q", got)
	}
	for _, service := range []string{"web", "db", "backup"} {
		if bad, _ := w.doctor(t, id(service)); bad["settings"] != "" {
			t.Errorf("doctor of %s: %q", service, bad)
		}
	}
}

// TestInitComposeTakesProjects has the Compose of this machine read files in the shapes of public projects. Safe ones are held
// as they are.
func TestInitComposeTakesProjects(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	paths, err := filepath.Glob("../../integrations/compose/testdata/projects/*.yaml")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%v, %q", err, paths)
	}
	leadOut := []string{"cloud-keys.yaml", "front-door.yaml", "gpu.yaml", "local-cloud.yaml", "metrics.yaml", "unconfined.yaml"}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		home := t.TempDir()
		dir := filepath.Join(home, "src", "project", "docker")
		for _, folder := range []string{filepath.Join(dir, "secrets"), filepath.Join(dir, "..", ".git")} {
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range map[string]string{"compose.yaml": string(text), ".env": "DB_PASSWORD=x\n", ".env.test": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(world.Egressd.Path(), "init", "compose", "--subnet", composePool, "--policy", filepath.Join(home, "policy"))
		cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, ".config")), w.Environment()...)
		var talk bytes.Buffer
		cmd.Stderr = &talk
		_ = w.Gateway.Run(cmd)
		want := 0
		if slices.Contains(leadOut, filepath.Base(path)) {
			want = 1
		}
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit %d, %s", filepath.Base(path), code, talk.String())
		}
	}
}

// TestComposeContainersAreJudged has what no file says: labels of an image, another sandbox that writes around a mount, a
// container that is there already, and a link that is there for a moment.
func TestComposeContainersAreJudged(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	w.eachCompose(t, func(t *testing.T) {
		const poses = "egressd.test/poses:1"
		w.docker(t, "commit", "--change", "LABEL egressd.policy=/x", w.contain(t, engine.Shell), poses)
		t.Cleanup(func() { w.docker(t, "rmi", "-f", poses) })
		for i, row := range []struct{ says, service, refused string }{
			{"a label of the image", "{image: '" + poses + "'}", "--label egressd.policy: "},
			{"another sandbox writes around a mount", "{image: '" + engine.Shell + "', volumes: ['./shared/data:/d']}", "/shared, which the container "},
			{"another sandbox mounts what it writes around", "{image: '" + engine.Shell + "', volumes: ['./other:/o']}", " mounts "},
			{"nothing", "{image: '" + engine.Shell + "', volumes: ['./data:/d'], network_mode: 'service:db', pid: 'service:db'}", ""},
		} {
			if i > 0 && row.refused != "" && strings.HasSuffix(t.Name(), "1") {
				continue // egressd does not know which Compose asks
			}
			t.Run(row.says, func(t *testing.T) {
				c := &composed{dockerWorld: w, dir: t.TempDir()}
				for _, folder := range []string{"shared/data", "other/data"} {
					if err := os.MkdirAll(filepath.Join(c.dir, folder), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(filepath.Join(c.dir, "compose.yaml"), []byte("services: {web: "+row.service+", db: {image: '"+engine.Shell+"'}}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				const shared = "egressd-test-shared"
				t.Cleanup(func() { w.docker(t, "volume", "rm", shared) })
				w.contain(t, "--network", "none", "--mount", "type=volume,src="+shared+",dst=/s,volume-opt=type=none,volume-opt=o=bind,volume-opt=device="+filepath.Join(c.dir, "shared"), "-v", filepath.Join(c.dir, "other", "data")+":/d", engine.Shell)
				w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy")
				t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1") })
				cmd := exec.Command("sh", filepath.Join(c.dir, "policy", "up.sh"), "-d")
				cmd.Env = append(append(os.Environ(), "COMPOSE_PROJECT_NAME=app", "HOME="+c.dir, "XDG_CONFIG_HOME="+filepath.Join(c.dir, "config")), w.Environment()...)
				out, err := cmd.CombinedOutput()
				running := w.docker(t, "ps", "-q", "--filter", "label=com.docker.compose.service=web")
				if row.refused == "" {
					if err != nil || running == "" {
						t.Errorf("%v: %s", err, out)
					}
					return
				}
				if err == nil || running != "" || !strings.Contains(string(out), "egressd: error: ") || !strings.Contains(string(out), row.refused) {
					t.Errorf("%v, %q runs: %s", err, running, out)
				}
				log, err := w.typeOn(t, filepath.Join(c.dir, "policy", "egressd")+" log --json flow:"+whyID(t, string(out)))
				r, bad := record.Decode([]byte(strings.TrimSpace(log)))
				if err != nil || bad != nil {
					t.Fatalf("%v, %v: %s", err, bad, log)
				}
				wasRecorded(t, *r, row.refused)
				if r.Sandbox != "web" || r.Container.Service != "web" {
					t.Errorf("recorded of %q, %+v", r.Sandbox, r.Container)
				}
			})
		}
	})
}

// TestWhatIsMountedIsJudgedAtTheStart has a link in the place of a mount between the judging and the start.
func TestWhatIsMountedIsJudgedAtTheStart(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	place := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(place, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "front") // short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	var swap, back func() error
	front := &containers.Front{Engine: w.Socket, Judge: func(s *containers.Sight, _ func(string) (*containers.Sight, error)) error {
		var is struct{ State struct{ Running bool } }
		if err := s.Container.Into(&is); err != nil {
			return err
		}
		if is.State.Running {
			return errors.Join(back(), judged(s))
		}
		return errors.Join(judged(s), swap())
	}}
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	start := func(args ...string) (id string, err error) {
		id = w.docker(t, append([]string{"create", "--network", "none", "-v", place + ":/d"}, args...)...)
		t.Cleanup(func() { w.docker(t, "rm", "-f", id) })
		cmd := w.Command(t.Context(), "start", id)
		cmd.Env = append(cmd.Env, "DOCKER_HOST=unix://"+l.Addr().String())
		return id, cmd.Run()
	}
	runs := func(id string) string { return w.docker(t, "inspect", "-f", "{{.State.Running}}", id) }
	nothing := func() error { return nil }
	swap, back = nothing, nothing
	if id, err := start(engine.Shell); err != nil || runs(id) != "true" {
		t.Fatalf("a container that is fine: %v, %v", err, front.Refused())
	}
	swap = func() error { return errors.Join(os.Remove(place), os.Symlink("/etc", place)) }
	back = func() error { return errors.Join(os.Remove(place), os.Mkdir(place, 0o755)) }
	id, err := start("--restart", "always", engine.Shell)
	if refused := front.Refused(); err == nil || len(refused) != 1 || !strings.Contains(refused[0].Err.Error(), "Mounts /etc") || runs(id) != "false" || w.docker(t, "inspect", "-f", "{{.HostConfig.RestartPolicy.Name}}", id) != "no" {
		t.Errorf("a link for a moment: %v, %v, it runs: %s", err, refused, runs(id))
	}
	if err := swap(); err != nil {
		t.Fatal(err)
	}
	swap = nothing
	if id, err = start(engine.Shell); err == nil || runs(id) != "false" || w.docker(t, "inspect", "-f", "{{.State.StartedAt}}", id) != "0001-01-01T00:00:00Z" {
		t.Errorf("a link: %v, %v", err, front.Refused())
	}
}

// TestComposeBuildsByNoGitOfTheProject has a configuration of git in a project, such as a service may write, by which a look at HEAD starts a program of the
// project on this machine: HEAD is missing, and is fetched from where the configuration says.
func TestComposeBuildsByNoGitOfTheProject(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	c := &composed{dockerWorld: w, dir: t.TempDir()}
	for name, text := range map[string]string{
		"compose.yaml": "services: {web: {build: ./app, command: [sleep, '1000']}, agent: {image: '" + engine.Shell + "', volumes: ['./work:/w']}}\n", "app/Dockerfile": "FROM " + engine.Shell + "\nRUN echo built >/built\n",
	} {
		at := filepath.Join(c.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	app := filepath.Join(c.dir, "app")
	started := hostileGit(t, app)
	w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy")
	t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1", "--rmi", "local") })
	c.up(t, "--build")
	if _, err := os.Stat(started); err == nil {
		t.Error("a program of the project was started on this machine")
	}
	if said := w.docker(t, "exec", w.docker(t, "ps", "-q", "--filter", "label=com.docker.compose.service=web"), "cat", "/built"); said != "built" {
		t.Errorf("it was not built: %q", said)
	}
	// The next build has a service run that writes in the project. It could put links there while Compose reads.
	if err := os.WriteFile(filepath.Join(app, "more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	agent := w.docker(t, "ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.service=agent")
	c.up(t, "--build")
	said := w.docker(t, "events", "--since", "1h", "--until", strconv.FormatInt(time.Now().Unix()+1, 10), "--filter", "container="+agent, "--format", "{{.Action}}")
	if i := strings.Index(said, "pause\n"); i < 0 || !strings.HasSuffix(said[i:], "unpause") {
		t.Errorf("the service did not stand still, or does so still: %q", said)
	}
}

// judged is the first mount that the table refuses.
func judged(s *containers.Sight) error {
	for _, b := range boundary.Judge(s.Container, &boundary.Machine{}) {
		if b.Field == "Mounts" {
			return errors.New(b.String())
		}
	}
	return nil
}

// hostileGit makes a repository in a folder whose configuration has git start a program of the project. started is what that leaves.
func hostileGit(t *testing.T, app string) (started string) {
	t.Helper()
	started = filepath.Join(app, "started")
	for name, text := range map[string]string{
		"program": "#!/bin/sh\ntouch " + started + "\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": strings.Repeat("12345678", 5) + "\n", ".git/objects/info/x": "",
		".git/config": "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = origin\n[remote \"origin\"]\nurl = " + app + "\nuploadpack = " + app + "/program\npromisor = true\n",
	} {
		at := filepath.Join(app, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	looked := exec.Command("git", "show", "--format=%H", "HEAD", "--quiet", "--")
	looked.Dir = app
	_ = looked.Run()
	if err := os.Remove(started); err != nil {
		t.Fatalf("git starts no program, so this test tells nothing: %v", err)
	}
	return started
}

// TestComposeWithANetworkThatIsThere starts a project without egressd first, so that its network leads out.
func TestComposeWithANetworkThatIsThere(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	c := &composed{dockerWorld: w, dir: t.TempDir()}
	const services = "services: {web: {image: '" + engine.Shell + "', networks: [inner]}}\nnetworks: {inner: {}}\n"
	if err := os.WriteFile(filepath.Join(c.dir, "compose.yaml"), []byte(services), 0o600); err != nil {
		t.Fatal(err)
	}
	w.docker(t, "network", "create", "--label", "com.docker.compose.project=app", "--label", "com.docker.compose.network=inner", "app_inner")
	w.init(t, c.dir, "compose", "--subnet", composePool, "--policy", "policy")
	up := func() ([]byte, error) {
		cmd := exec.Command("sh", filepath.Join(c.dir, "policy", "up.sh"), "-d")
		cmd.Env = append(append(os.Environ(), "COMPOSE_PROJECT_NAME=app", "HOME="+c.dir, "XDG_CONFIG_HOME="+filepath.Join(c.dir, "config")), w.Environment()...)
		return cmd.CombinedOutput()
	}
	t.Cleanup(func() { c.compose(t, "down", "-v", "-t", "1") })
	if out, err := up(); err == nil || !strings.Contains(string(out), "the network app_inner is there, and leads out") {
		t.Errorf("%v: %s", err, out)
	}
	w.docker(t, "network", "rm", "app_inner")
	if out, err := up(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if inside := w.docker(t, "network", "inspect", "-f", "{{.Internal}}", "app_inner"); inside != "true" {
		t.Errorf("the network is internal: %s", inside)
	}
}
