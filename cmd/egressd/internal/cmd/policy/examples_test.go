package policy

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestExamplesAreGreen runs the tests of every example policy, and has nothing wrong
// found in it. What a project in it says is trusted first.
func TestExamplesAreGreen(t *testing.T) {
	paths, err := filepath.Glob(testfiles.Path(t, "examples", "policies", "*", config.FileName))
	if err != nil || len(paths) < 4 {
		t.Fatalf("found %d examples, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) { exampleIsGreen(t, path) })
	}
}

func exampleIsGreen(t *testing.T, path string) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	folder := filepath.Dir(path)
	above := policyOptions{config: path, above: filepath.Join(folder, "organisation.yaml")}
	trees, err := filepath.Glob(filepath.Join(folder, "*", config.TreeFolder))
	if err != nil {
		t.Fatal(err)
	}
	store, err := config.OpenTrustStore()
	if err != nil {
		t.Fatal(err)
	}
	succeeds(t, "policy", "test", "--config", path) // as it is, without its organisation
	folders := []string{filepath.Join(folder, "policy")}
	for _, dir := range trees {
		trustTree(t, store, filepath.Dir(dir))
		folders = append(folders, filepath.Join(dir, "policy"))
	}
	var out strings.Builder
	if err := (&policyTestOptions{policyOptions: above}).run(t.Context(), &out, nil); err != nil {
		t.Errorf("policy test: %v\n%s", err, &out)
	}
	out.Reset()
	if err := above.check(&out, nil); err != nil {
		t.Errorf("policy check: %v\n%s", err, &out)
	}
	for line := range strings.Lines(out.String()) { // an organisation may be stricter than its users
		if line != "nothing found\n" && !strings.Contains(line, "organisation.yaml keeps ") {
			t.Errorf("policy check: %s", line)
		}
	}
	for _, folder := range folders {
		succeeds(t, "policy", "fmt", "-d", folder)
	}
}

func succeeds(t *testing.T, args ...string) {
	t.Helper()
	var stdout, stderr strings.Builder
	if code := clitest.Run(newPolicy(), args, &stdout, &stderr); code != 0 {
		t.Errorf("%q: exit code %d\n%s%s", args, code, &stdout, &stderr)
	}
}

func trustTree(t *testing.T, store config.TrustStore, dir string) {
	t.Helper()
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	found, err := config.ReadTree(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(&config.Pin{Dir: dir, Digest: found.Digest(), Files: found}); err != nil {
		t.Fatal(err)
	}
}

// TestTheLockedOrganisation asks the example who decides.
func TestTheLockedOrganisation(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	store, err := config.OpenTrustStore()
	if err != nil {
		t.Fatal(err)
	}
	folder := testfiles.Path(t, "examples", "policies", "locked-organisation")
	trustTree(t, store, filepath.Join(folder, "tree"))
	c, err := config.LoadUnder(filepath.Join(folder, config.FileName), filepath.Join(folder, "organisation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{
		{"shop", "https://docs.acme.example/", "allow by allow[0] (organisation)"},
		{"shop", "https://wiki.acme.example/", "allow by allow[0] (user)"},
		{"shop", "POST https://wiki.acme.example/", "deny by org-read-only (organisation)"},
		{"shop", "https://any.storage.example/", "deny by org-storage (organisation)"},
		{"shop", "https://shop-staging.acme.example/", "allow by allow[0] (project)"},
		{"", "https://shop-staging.acme.example/", "deny by default (builtin)"},
		{"shop", "https://api.partner.example/prices", "allow by partner (project)"},
		{"shop", "https://prices.partner.example/", "allow by prices (project)"},
		{"shop", "POST https://prices.partner.example/", "deny by org-read-only (organisation)"},
		{"shop", "https://api.github.com/graphql", "deny by no-graphql (project)"},
		{"shop", "https://pypi.org/simple/", "deny by deny[0] (project)"},
		{"", "https://pypi.org/simple/", "allow by preset:pypi (user)"},
		{"shop", "https://evil.example/", "deny by ceiling (organisation)"},
	})
}
