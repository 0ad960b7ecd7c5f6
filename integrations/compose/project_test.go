package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations/boundary"
)

// TestFindProject asks for the project as Compose finds it, and whether a file of the project chose the name.
func TestFindProject(t *testing.T) {
	for _, row := range []struct {
		given, env, file string
		want             ProjectName
	}{
		{"", "", "services: {a: {image: a}}", ProjectName{"my-app", true}},
		{"", "", "name: victim\nservices: {a: {image: a}}", ProjectName{"victim", false}},
		{"", "", "name: my-app\nservices: {a: {image: a}}", ProjectName{"my-app", true}},
		{"", "COMPOSE_PROJECT_NAME='victim' # here\n", "name: other\nservices: {a: {image: a}}", ProjectName{"victim", false}},
		{"", "export COMPOSE_PROJECT_NAME = victim\r\n", "services: {a: {image: a}}", ProjectName{"victim", false}},
		{"given", "COMPOSE_PROJECT_NAME=victim\n", "services: {a: {image: a}}", ProjectName{"given", true}},
		{"", "", "name: Not A Name\nservices: {a: {image: a}}", ProjectName{}},
	} {
		dir := filepath.Join(t.TempDir(), "My-App.")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"compose.yaml": row.file, ".env": row.env} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		p, err := file.FindProject(row.given)
		if p != row.want || (err == nil) != (row.want.Name != "") {
			t.Errorf("%+v: %+v, %v", row, p, err)
		}
	}
}

// TestEnvIsPassedOnByName has lines by which Compose, or the engine's client, would do something else than the file says.
func TestEnvIsPassedOnByName(t *testing.T) {
	const file = "services: {a: {image: 'a:${TAG}', environment: [TOKEN, 'X=$X_Y', COMPOSE_FILE, LD_PRELOAD, DOCKER_HOST]}}"
	lines := envFile(strings.Split(`TAG=1
export TOKEN="s e"
X_Y = 2
TAG2=no
TOKEN_2=no
COMPOSE_FILE=/evil.yaml
COMPOSE_FILE: /evil.yaml
export COMPOSE_ENV_FILES=/home/u/.netrc
DOCKER_HOST=tcp://192.0.2.1:1
LD_PRELOAD=/w/evil.so
# TAG=3
 TAG=4
TAG: 5`, "\n"))
	passed := lines.passedOn(file)
	want := "TAG=1\nexport TOKEN=\"s e\"\nX_Y = 2\n"
	if _, got, _ := strings.Cut(passed, "\n"); got != want {
		t.Errorf("%q", got)
	}
}

// TestVolumesOfTheProjectAlone has volumes and networks with names of their own, where the project is called otherwise.
func TestVolumesOfTheProjectAlone(t *testing.T) {
	for name, own := range map[string]bool{"app_data": true, "victim_data": false, "_data": false, "data": false} {
		file := composeFile(t, "name: victim\nservices: {web: {image: x, volumes: ['data:/d']}}\nvolumes: {data: {name: "+name+"}}\n")
		file.Call(ProjectName{Name: "app"})
		problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"})
		if (len(problems) == 0) != own {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

// TestSecretsOfTheEnvironment names variables that services get of the user's own environment.
func TestSecretsOfTheEnvironment(t *testing.T) {
	file := composeFile(t, "services: {web: {image: x, environment: [GITHUB_TOKEN, 'K=${OPENAI_API_KEY:-}', LANG]}}\n")
	got := file.Secrets([]string{"GITHUB_TOKEN=1", "OPENAI_API_KEY=2", "LANG=C", "AWS_SECRET_ACCESS_KEY=3", "TOKEN=4"})
	if strings.Join(got, " ") != "GITHUB_TOKEN OPENAI_API_KEY" {
		t.Errorf("%q", got)
	}
}
