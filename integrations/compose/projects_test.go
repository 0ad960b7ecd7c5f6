package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProjectsOfOthers has files in the shapes of public projects, with invented names. Safe ones are held as they are; each other
// one is refused for a setting that leads out.
func TestProjectsOfOthers(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	refused := map[string]string{
		"api.yaml":           "",
		"base.yaml":          "",
		"blog.yaml":          "",
		"browser-tests.yaml": "",
		"cloud-keys.yaml":    "deploy has volumes /home/me/.aws",
		"dags.yaml":          "",
		"debugger.yaml":      "",
		"framework.yaml":     "",
		"front-door.yaml":    "app has the network front: external",
		"gems.yaml":          "",
		"gpu.yaml":           "llm has deploy.resources.reservations.devices",
		"house.yaml":         "",
		"local-cloud.yaml":   "cloud has volumes /var/run/docker.sock",
		"metrics.yaml":       "watch has volumes /var/run/docker.sock",
		"named-volumes.yaml": "",
		"node.yaml":          "",
		"php.yaml":           "",
		"python-web.yaml":    "",
		"search.yaml":        "",
		"secrets.yaml":       "",
		"unconfined.yaml":    "dev has security_opt seccomp:unconfined",
		"volumes-from.yaml":  "",
	}
	entries, err := os.ReadDir("testdata/projects")
	if err != nil || len(entries) != len(refused) {
		t.Fatalf("%v, %d files", err, len(entries))
	}
	for name, why := range refused {
		text, err := os.ReadFile(filepath.Join("testdata/projects", name))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "project", "docker")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "compose.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := file.FindProject("")
		if err != nil {
			t.Fatal(err)
		}
		file.Call(p, func(string, string) bool { return true }, nil)
		var held []string
		for i := range file.Services {
			held = append(held, file.Services[i].Name)
		}
		m := composeMachine()
		m.Workspace = filepath.Dir(dir)
		problems := strings.Join(file.Problems(m, held), "\n")
		if (problems == "") != (why == "") || !strings.Contains(problems, why) {
			t.Errorf("%s:\n%s", name, problems)
		}
	}
}
