package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
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

// A composedDev is a dev container that is a service of Compose, held by egressd init compose.
type composedDev struct {
	*dockerWorld
	home, project, policy string
}

// composedDevContainer writes a project with settings, and has egressd hold its services.
func composedDevContainer(t *testing.T, w *dockerWorld, service, settings string, more map[string]string) *composedDev {
	t.Helper()
	home := t.TempDir()
	c := &composedDev{w, home, filepath.Join(home, "project"), filepath.Join(home, "policy")}
	files := map[string]string{
		"compose.yaml":                    "services: {web: " + service + "}\n",
		".devcontainer/devcontainer.json": `{"dockerComposeFile": "../compose.yaml", "service": "web", "workspaceFolder": "/workspaces/project"` + settings + `}`,
	}
	maps.Copy(files, more)
	for name, text := range files {
		at := filepath.Join(c.project, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := c.typed(t, world.Egressd.Path(), "init", "compose", "--yes", "--subnet", composePool, "--policy", c.policy, "--allow", "*.allowed.test"); err != nil {
		t.Fatalf("init compose: %v\n%s", err, said)
	}
	policy := filepath.Join(c.policy, "egressd.yaml")
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policy, append(text, fmt.Sprintf("upstream: {dns: [%q]}\n", world.Resolver)...), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		down := c.command(ctx, "docker", "compose", "-p", "app", "-f", filepath.Join(c.policy, "judged.yaml"), "-f", filepath.Join(c.policy, "judged.egressd.yaml"), "down", "-v", "-t", "1")
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	return c
}

func (c *composedDev) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cli := world.Source("tools", "npm", "node_modules", ".bin")
	cmd.Dir, cmd.Env = c.project, append(append(os.Environ(), "HOME="+c.home, "XDG_CONFIG_HOME="+filepath.Join(c.home, "config"), "COMPOSE_PROJECT_NAME=app", "PATH="+cli+":"+os.Getenv("PATH")), c.Environment()...)
	return cmd
}

// typed runs a command on the engine's host, in the project.
func (c *composedDev) typed(t *testing.T, argv ...string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := c.command(ctx, argv...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = c.Gateway.Run(cmd)
	return out.String(), err
}

// TestDevContainerOfCompose has the dev container CLI start what egressd has judged, and what the engine then makes of settings and
// images that nobody could judge before.
func TestDevContainerOfCompose(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	importDevImage(t, w)
	w.serveEverywhere(t)
	w.resolveOnLoopback(t)
	const service = `{image: '` + devImage + `', command: [sleep, '1000'], volumes: ['./:/workspaces/project'], environment: {OF_ENV: '${OF_ENV}'}}`
	t.Run("held", func(t *testing.T) {
		c := composedDevContainer(t, w, service, `, "postCreateCommand": "/probe 'get http://created.allowed.test/'"`, map[string]string{".env": "OF_ENV=of the file\n"})
		script := filepath.Join(c.policy, "devcontainer.sh")
		said, err := c.typed(t, "sh", script)
		if err != nil || !strings.Contains(said, "get http://created.allowed.test/: 200 OK origin") {
			t.Fatalf("devcontainer.sh: %v\n%s", err, said)
		}
		ways := append([]string{"get http://a.allowed.test/", "get http://evil.test/"}, past...)
		said, err = c.typed(t, append([]string{"sh", script, "exec", engine.ProbePath}, ways...)...)
		if err != nil {
			t.Fatalf("devcontainer.sh exec: %v\n%s", err, said)
		}
		came(t, said, map[string]string{"get http://a.allowed.test/": "200 OK origin " + world.AllowedIPv4, "get http://evil.test/": `"class":"default-deny"`})
		for _, way := range past {
			came(t, said, map[string]string{way: "error: "})
		}
		_, fix, _ := strings.Cut(said, `"fix":"`)
		fix, _, _ = strings.Cut(fix, `"`)
		if said, err := c.typed(t, "sh", "-c", fix); err != nil || fix == "" {
			t.Fatalf("%q: %v\n%s", fix, err, said)
		}
		said, err = c.typed(t, "sh", script, "exec", engine.ProbePath, "get http://evil.test/")
		if err != nil {
			t.Fatalf("devcontainer.sh exec: %v\n%s", err, said)
		}
		came(t, said, map[string]string{"get http://evil.test/": "200 OK origin"})
		if said, err := c.typed(t, "sh", script, "exec", "sh", "-c", "echo $OF_ENV"); err != nil || !strings.Contains(said, "of the file") {
			t.Errorf("a variable of .env: %v\n%s", err, said)
		}
		if said, err := c.typed(t, "sh", script, "build"); err == nil {
			t.Errorf("another command: %s", said)
		}
	})
	t.Run("built by BuildKit", func(t *testing.T) { devContainerBuilt(t, w) })
	t.Run("variables of the user", func(t *testing.T) { devContainerGetsNoVariables(t, w) })
	const labelled = "egressd.test/labelled:1"
	w.docker(t, "commit", "--change", `LABEL devcontainer.metadata="[{\"privileged\":true}]"`, w.contain(t, engine.Shell), labelled)
	t.Cleanup(func() { w.docker(t, "rmi", "-f", labelled) })
	for _, row := range []struct{ says, service, settings, refused string }{
		{"a capability in the settings", service, `, "capAdd": ["SYS_PACCT"]`, "--cap-add SYS_PACCT"},
		{"a mount in the settings", service, `, "mounts": ["source=/etc,target=/e,type=bind"]`, "--volume /etc"},
		{"a label of the image", strings.Replace(service, devImage, labelled, 1), "", "--privileged"},
	} {
		t.Run(row.says, func(t *testing.T) {
			c := composedDevContainer(t, w, row.service, row.settings, nil)
			said, err := c.typed(t, "sh", filepath.Join(c.policy, "devcontainer.sh"))
			if running := w.docker(t, "ps", "-q", "--filter", "label=com.docker.compose.service=web"); err == nil || running != "" || !strings.Contains(said, "egressd: error: "+row.refused) {
				t.Fatalf("%v, %q runs: %s", err, running, said)
			}
			log, err := c.typed(t, filepath.Join(c.policy, "egressd"), "log", "--json", "flow:"+whyID(t, said))
			r, bad := record.Decode([]byte(strings.TrimSpace(log)))
			if err != nil || bad != nil {
				t.Fatalf("%v, %v: %s", err, bad, log)
			}
			wasRecorded(t, *r, row.refused)
		})
	}
}

// devContainerBuilt has BuildKit build what the dev container CLI starts, by a Dockerfile that this command has made of the project's. The
// repository of the project would start a program on this machine if git looked at it.
func devContainerBuilt(t *testing.T, w *dockerWorld) {
	t.Helper()
	c := composedDevContainer(t, w, `{build: ./app, command: [sleep, '1000'], volumes: ['./src:/workspaces/project']}`, `, "remoteUser": "user"`, map[string]string{
		"app/Dockerfile": "FROM " + devImage + "\nRUN --mount=type=tmpfs,target=/only echo built >/built\n", // no other builder has --mount
		"src/x":          "",
	})
	started := hostileGit(t, filepath.Join(c.project, "app"))
	said, err := c.typed(t, "sh", filepath.Join(c.policy, "devcontainer.sh"))
	if err != nil {
		t.Fatalf("devcontainer.sh: %v\n%s", err, said)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("a program of the project was started on this machine")
	}
	said, err = c.typed(t, "sh", filepath.Join(c.policy, "devcontainer.sh"), "exec", "sh", "-c", engine.ProbePath+" id 'get http://a.allowed.test/' 'get http://evil.test/'; cat /built")
	if err != nil || !strings.Contains(said, "built") {
		t.Fatalf("devcontainer.sh exec: %v\n%s", err, said)
	}
	came(t, said, map[string]string{"id": "uid 1000 ", "get http://a.allowed.test/": "200 OK origin", "get http://evil.test/": `"class":"default-deny"`})
}

// devContainerGetsNoVariables has a label of an image ask for a variable of the user's environment, which the dev container CLI would hand over.
func devContainerGetsNoVariables(t *testing.T, w *dockerWorld) {
	t.Helper()
	const asking = "egressd.test/asking:1"
	t.Setenv("EGRESSD_TEST_SECRET", "hunter2")
	w.docker(t, "commit", "--change", `LABEL devcontainer.metadata="[{\"remoteEnv\":{\"TAKEN\":\"got \${localEnv:EGRESSD_TEST_SECRET}\"}}]"`, w.contain(t, engine.Shell), asking)
	t.Cleanup(func() { w.docker(t, "rmi", "-f", asking) })
	c := composedDevContainer(t, w, `{image: '`+asking+`', command: [sleep, '1000'], working_dir: /, volumes: ['./:/workspaces/project']}`, `, "postCreateCommand": "echo \"$TAKEN\" >/taken"`, nil)
	script := filepath.Join(c.policy, "devcontainer.sh")
	if said, err := c.typed(t, "sh", script); err != nil {
		t.Fatalf("devcontainer.sh: %v\n%s", err, said)
	}
	said, err := c.typed(t, "sh", script, "exec", "sh", "-c", `cat /taken; echo "$TAKEN"`)
	if err != nil || !strings.Contains(said, "got") || strings.Contains(said, "hunter2") {
		t.Errorf("it has %q, %v", said, err)
	}
}
