package peers

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// written is a conversion as golden files have it.
func written(c *Conversion) []byte {
	var b strings.Builder
	b.WriteString(c.Text)
	for _, list := range []struct {
		title string
		lines []string
	}{{"stricter", c.Stricter}, {"wider", c.Wider}, {"left out", c.Left}} {
		b.WriteString("\n# " + list.title + "\n")
		for _, line := range list.lines {
			b.WriteString("# - " + line + "\n")
		}
	}
	return []byte(b.String())
}

func holdsGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is now\n%s", path, got)
	}
}

// TestThePeersOwnForms reads one policy of each peer, and of each form that it has, as its users write it: what becomes of it, and
// the lists. With widen in the name of the golden file, it may widen.
func TestThePeersOwnForms(t *testing.T) {
	paths, err := filepath.Glob("testdata/import/*.*")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasSuffix(name, ".golden") {
			continue
		}
		kind, _, _ := strings.Cut(name, ".")
		seen[kind] = true
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for suffix, widen := range map[string]bool{".golden": false, ".widen.golden": true} {
				c, err := Import(kind, text, Options{Widen: widen})
				if err != nil {
					t.Fatal(err)
				}
				compiled(t, c.Text)
				if widen == (len(c.Wider) > 0) {
					holdsGolden(t, path+suffix, written(c))
				} else if !widen {
					t.Errorf("it is wider: %q", c.Wider)
				}
			}
		})
	}
	for _, k := range kinds {
		if !seen[k.Name] {
			t.Errorf("there is no example of %s", k.Name)
		}
	}
}

// TestADeniedRangeHoldsAgainstNames asks for a name that leads to a denied range, where a line before that opens the range, or only
// some requests are denied. Random policies are rarely like that.
func TestADeniedRangeHoldsAgainstNames(t *testing.T) {
	for kind, text := range map[string]string{
		"docker": `{"rules": [{"decision": "allow", "resources": ["x.test"]}, {"decision": "deny", "resources": ["93.184.0.0/16"], "methods": ["POST"]}]}`,
	} {
		c, err := Import(kind, []byte(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		q := question{host: "x.test", port: 443, method: "POST", path: "/", resolved: []netip.Addr{netip.MustParseAddr("93.184.216.34")}}
		if lets(compiled(t, c.Text), q) != policy.Deny {
			t.Errorf("%s: %v is allowed by\n%s", kind, q, c.Text)
		}
	}
	c, err := Export("srt", rulesIn(t, "version: 1\nallow: ['x.test:*']\ndeny: [{host: 93.184.0.0/16, methods: [POST]}]\n"), Options{})
	if err != nil || !strings.Contains(c.Text, `"93.184.0.0/16"`) {
		t.Errorf("srt: %+v, %v", c, err)
	}
}
