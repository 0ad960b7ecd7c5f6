package compose

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tree writes files below a folder, by their relative paths. A text "-> PATH" is a link.
func tree(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(path, []byte(text), 0o600)
		if to, isLink := strings.CutPrefix(text, "-> "); isLink {
			_ = os.Remove(path)
			err = os.Symlink(to, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// composedProject has a file whose services are in others.
var composedProject = map[string]string{
	"compose.yaml": `include:
  - db/compose.yaml
  - {path: [queue/compose.yaml, queue/more.yaml], project_directory: queue/here, env_file: [queue/q.env]}
services:
  web: {extends: {file: common/base.yaml, service: base}, env_file: [web.env, {path: "${WHERE}/more.env", required: false}], environment: ["KEY=${MY_TOKEN}", HOME], volumes: [".:/app"]}
  tool: {extends: {service: web}, label_file: tool.labels, profiles: [tools], networks: [default]}
`,
	".env":              "WHERE=env\nCOMPOSE_FILE=x\nOTHER=1\n",
	"common/base.yaml":  "services:\n  base: {image: a, env_file: base.env, extends: {file: ../deep.yaml, service: deep}}\n  unused: {image: a, env_file: [unused.env]}\n",
	"deep.yaml":         "services: {deep: {image: a}}\n",
	"db/compose.yaml":   "include: [../more/compose.yaml]\nservices: {db: {image: a, volumes: [./data:/d]}}\n",
	"more/compose.yaml": "services: {more: {image: a, env_file: m.env}}\n", "queue/compose.yaml": "services: {q: {image: a, env_file: q2.env}}\n", "queue/more.yaml": "services: {q: {tty: true}}\n",
}

func TestInputs(t *testing.T) {
	dir := tree(t, composedProject)
	file, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !file.Composed() {
		t.Error("nothing is composed")
	}
	in := file.readInputs()
	var got []string
	for _, path := range append(in.files, file.beside.files...) {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, name)
	}
	slices.Sort(got)
	want := strings.Fields(".env common/base.env common/base.yaml common/unused.env db/.env db/compose.yaml deep.yaml env/more.env more/.env more/compose.yaml more/m.env queue/compose.yaml queue/here/q2.env queue/more.yaml queue/q.env tool.labels web.env")
	if !slices.Equal(got, want) {
		t.Errorf("it reads\n%q, want\n%q", got, want)
	}
	if len(in.problems) > 0 || len(in.judge.service.problems) > 0 {
		t.Errorf("%q, %q", in.problems, in.judge.service.problems)
	}
	if _, env, _ := strings.Cut(file.Env(), "\n"); env != "WHERE=env\nOTHER=1\n" {
		t.Errorf("Compose gets %q", env)
	}
}

// TestInputsThatNobodyCanTell has files from elsewhere, and variables of files whose values only Compose knows.
func TestInputsThatNobodyCanTell(t *testing.T) {
	for _, text := range []string{
		"include: ['https://example.com/a.git']\n", "include: ['oci://example.com/a']\n", "include: ['git@example.com:a.git']\n", "include: ['${UNSET_1}/a.yaml']\n",
		"include: [{path: a.yaml, project_directory: '$UNSET_1'}]\n", "include: [{path: a.yaml, env_file: '$UNSET_1'}]\n", "include: [{path: a.yaml, of_tomorrow: 1}]\n",
		"services: {a: {extends: {file: '$UNSET_1', service: b}}}\n", "services: {a: {extends: {file: b.yaml, service: b, of_tomorrow: 1}}}\n",
		"services: {a: {extends: {file: variable.yaml, service: b}}}\n", "services: {a: {extends: {file: tag.yaml, service: b}}}\n", "services: {a: {env_file: '${UNSET_1:?}'}}\n",
		"services: {a: {env_file: '/proc/self/root/../x'}}\n", "include: ['/proc/self/cwd/../a.yaml']\n",
	} {
		dir := tree(t, map[string]string{"compose.yaml": text, "a.yaml": "services: {}\n", "b.yaml": "services: {b: {image: x}}\n", "variable.yaml": "services: {b: {env_file: $HOME/x}}\n", "tag.yaml": "services: {b: {image: !x y}}\n"})
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if in := file.readInputs(); len(in.problems)+len(in.judge.service.problems) == 0 {
			t.Errorf("%s: reads %q", text, in.files)
		}
	}
}

// TestInputsWithoutAnEnd has files that Compose would read for ever. It is not started.
func TestInputsWithoutAnEnd(t *testing.T) {
	for _, text := range []string{
		"include: [/dev/zero]\n", "include: [{path: a.yaml, env_file: /dev/zero}]\n", "include: [{path: [a.yaml, zero]}]\n", "services: {a: {extends: {file: zero, service: b}}}\n",
		"services: {a: {image: a, label_file: zero}}\n", "include: [folder/c.yaml]\nservices: {}\n", "services: {a: {image: a, env_file: zero}}\n", "include: [folder]\n",
	} {
		dir := tree(t, map[string]string{"compose.yaml": text, "a.yaml": "services: {}\n", "zero": "-> /dev/zero", "folder/c.yaml": "services: {c: {image: a, env_file: ../zero}}\n"})
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := file.Resolved(ctx, "p"); program(ctx) != nil && !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", text, err)
		}
		cancel()
	}
}

// TestInputsThatChange has what a service can do while Compose reads, also for a moment.
func TestInputsThatChange(t *testing.T) {
	swap := func(a, b string) error {
		for _, names := range [][2]string{{a, b + ".tmp"}, {b, a}, {b + ".tmp", b}} {
			if err := os.Rename(names[0], names[1]); err != nil {
				return err
			}
		}
		return nil
	}
	twice := func(a, b string) error {
		if err := swap(a, b); err != nil {
			return err
		}
		return swap(a, b)
	}
	old := time.Now().Add(-time.Hour)
	for says, row := range map[string]struct {
		does    func() error
		changed bool
	}{
		"nothing":                           {func() error { return nil }, false},
		"another file of the project":       {func() error { return os.WriteFile("else", nil, 0o600) }, false},
		"a link for the file":               {func() error { return swap("sub/web.env", "link") }, true},
		"a link for the file, and back":     {func() error { return twice("sub/web.env", "link") }, true},
		"a link for the folder, and back":   {func() error { return twice("sub", "other") }, true},
		"another link on the way, and back": {func() error { return twice("way", "way2") }, true},
		"other contents with the same time": {func() error {
			if err := os.WriteFile("sub/web.env", []byte("A=2\n"), 0o600); err != nil {
				return err
			}
			return os.Chtimes("sub/web.env", old, old)
		}, true},
		"a file behind a link":        {func() error { return os.WriteFile("behind/folder/x.env", []byte("A=5\n"), 0o600) }, true},
		"no file any more":            {func() error { return os.Remove(".env") }, true},
		"a file where none was":       {func() error { return os.Symlink("sub/web.env", "none.env") }, true},
		"other variables in .env":     {func() error { return os.WriteFile(".env", []byte("B=2\n"), 0o600) }, true},
		"a link in the place of .env": {func() error { return twice(".env", "link") }, true},
	} {
		t.Run(says, func(t *testing.T) {
			dir := tree(t, map[string]string{"compose.yaml": "services: {a: {env_file: [sub/web.env, way/web.env, away/x.env, {path: none.env, required: false}]}}\n", ".env": "B=1\n", "sub/web.env": "A=1\n", "other/web.env": "A=3\n",
				"link": "-> /etc/passwd", "away": "-> behind/folder", "behind/folder/x.env": "A=4\n", "way": "-> sub", "way2": "-> other"})
			t.Chdir(dir)
			if err := os.Chtimes("sub/web.env", old, old); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // the kernel's clock of files ticks slower than that
			file, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			file.Within(dir)
			in := file.readInputs()
			time.Sleep(10 * time.Millisecond)
			if err := row.does(); err != nil {
				t.Fatal(err)
			}
			if same := in.same() && file.beside.same(); same == row.changed {
				t.Errorf("the same: %v", same)
			}
		})
	}
}

// TestWhatComposeHasPutTogether has the words of docker compose config, version 2.40.3, for files of the shape of composedProject.
func TestWhatComposeHasPutTogether(t *testing.T) {
	t.Setenv("MY_TOKEN", "s3cret-of-the-user")
	printed, err := os.ReadFile("testdata/settled/printed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for says, row := range map[string]struct{ old, new, problem string }{
		"as it is":              {"", "", ""},
		"a mount of another":    {"source: /srv/project/db/data", "source: /etc", "db has volumes /etc"},
		"an image with a token": {"image: shop/db:1", "image: shop/db:s3cret-of-the-user", "db has image with MY_TOKEN of your environment"},
		"a key of tomorrow":     {"    image: shop/db:1", "    image: shop/db:1\n    of_tomorrow: 1", "db has of_tomorrow"},
	} {
		dir := tree(t, composedProject)
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		file.Call(ProjectName{Name: "shop"}, nil, nil)
		text := strings.Replace(string(printed), row.old, row.new, 1)
		settled, err := file.resolved([]byte(text), file.readInputs(), true)
		if err != nil {
			t.Fatal(err)
		}
		m := composeMachine()
		m.Workspace = "/srv/project"
		problems := strings.Join(settled.Problems(m, []string{"web", "tool", "db"}), "\n")
		if (problems == "") != (row.problem == "") || !strings.Contains(problems, row.problem) {
			t.Errorf("%s: %s", says, problems)
		}
		for name, networks := range map[string]int{"web": 0, "db": 0, "tool": 1} {
			if got := settled.Service(name).Networks; len(got) != networks {
				t.Errorf("%s: %s has the networks %q", says, name, got)
			}
		}
		if text := string(settled.Text); strings.Contains(text, "s3cret") || !strings.Contains(text, "Bearer ${MY_TOKEN}") || !slices.Contains(settled.Secrets(os.Environ(), settled), "MY_TOKEN") {
			t.Errorf("%s: the token is not a variable:\n%s", says, text)
		}
		m.Own = append(m.Own, filepath.Join(dir, "web.env"))
		if problems := strings.Join(settled.Problems(m, []string{"web"}), "\n"); !strings.Contains(problems, "web.env is read by the file") {
			t.Errorf("%s: %s", says, problems)
		}
	}
}
