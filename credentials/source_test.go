package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSources(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "login.json")
	if err := os.WriteFile(path, []byte(`{"claudeAiOauth": {"accessToken": "sk-ant-oat01-REAL", "n": 3}, "sk-leaked": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EGRESSD_TEST_SECRET", "from-env-REAL")
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, row := range []struct {
		name string
		from Source
		want string // "" for an error
		ends bool
	}{
		{"a field", Source{File: path, Field: "claudeAiOauth.accessToken"}, "sk-ant-oat01-REAL", false},
		{"a field that is missing", Source{File: path, Field: "claudeAiOauth.other"}, "", false},
		{"a field that is no text", Source{File: path, Field: "claudeAiOauth.n"}, "", false},
		{"a field in what is no object", Source{File: path, Field: "claudeAiOauth.accessToken.x"}, "", false},
		{"a file that is missing", Source{File: filepath.Join(dir, "none")}, "", false},
		{"a variable", Source{Env: "EGRESSD_TEST_SECRET"}, "from-env-REAL", false},
		{"a command", Source{Command: []string{"echo", "printed-REAL"}}, "printed-REAL\n", false},
		{"a command with JSON", Source{Command: []string{"echo", `{"token": "json-REAL", "expires_at": "` + soon + `"}`}}, "json-REAL", true},
		{"a command with JSON that does not end", Source{Command: []string{"echo", `{"token": "json-REAL"}`}}, "json-REAL", false},
		{"a token that has expired", Source{Command: []string{"echo", `{"token": "json-REAL", "expires_at": "2020-01-01T00:00:00Z"}`}}, "", false},
		{"JSON without a token", Source{Command: []string{"echo", `{"secret": "json-REAL"}`}}, "", false},
		{"broken JSON", Source{Command: []string{"echo", `{"token": json-REAL`}}, "", false},
		{"a command that fails", Source{Command: []string{"sh", "-c", "echo leaked-REAL >&2; exit 3"}}, "", false},
	} {
		text, until, err := row.from.read(t.Context(), func(p string) string { return p }, nil)
		if string(text) != row.want || (err != nil) != (row.want == "") || (until != 0) != row.ends {
			t.Errorf("%s: %q %d %v", row.name, text, until, err)
		}
		if err != nil && (strings.Contains(err.Error(), "REAL") || strings.Contains(err.Error(), "leaked")) {
			t.Errorf("%s: the error shows it: %v", row.name, err)
		}
	}
}

// TestASecretIsReadAgainBeforeItEnds has the times of one that a command prints.
func TestASecretIsReadAgainBeforeItEnds(t *testing.T) {
	c := New(Spec{Name: "x", From: Source{Command: []string{"true"}}}, nil, nil)
	for _, row := range []struct{ left, least, most time.Duration }{
		{time.Hour, 54 * time.Minute, 55 * time.Minute},
		{10 * time.Minute, 7*time.Minute + 30*time.Second, 8 * time.Minute},
		{time.Second, unreadAgain, unreadAgain},
	} {
		s := credentialOf(t, "npm", "npm_REALREALREAL")
		c.now.Store(s.now.Load())
		c.until.Store(time.Now().Add(row.left).Unix())
		if got := c.Next(); got < row.least || got > row.most {
			t.Errorf("with %s left, after %s", row.left, got)
		}
	}
}

// TestWithoutASecretNothingIsExportedAndNothingPasses is case 25.
func TestWithoutASecretNothingIsExportedAndNothingPasses(t *testing.T) {
	c := credentialOf(t, "npm", "npm_REALREALREAL")
	set := NewSet(Key{}, []*Credential{c})
	ask := func() Answer {
		return set.Apply(&Request{Sandbox: "ci", Rule: "npm", Host: "registry.npmjs.org"})
	}
	if a := ask(); a.Refused != "" || a.Added == nil {
		t.Fatalf("%+v", a)
	}
	c.until.Store(time.Now().Unix())
	if a := ask(); a.Refused == "" || !a.Unavailable || len(a.Fields) > 0 {
		t.Errorf("one that has ended: %+v", a)
	}
	if all, missing := set.Variables("ci"); len(all) > 0 || len(missing) != 1 {
		t.Errorf("%v %v", all, missing)
	}
	c.until.Store(0)
	c.now.Store(nil)
	if a := ask(); !a.Unavailable {
		t.Errorf("one that was never read: %+v", a)
	}
}
