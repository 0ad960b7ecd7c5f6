package policy

import (
	"bufio"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// TestExamplesFromOthersDecideAsTheySay holds each example of another sandbox's
// settings to the decisions that stand beside it, and the words about it in
// docs/how-to/move-to-egressd.md to where the two differ.
func TestExamplesFromOthersDecideAsTheySay(t *testing.T) {
	folders, err := filepath.Glob(testfiles.Path(t, "examples", "from", "*"))
	if err != nil || len(folders) < 11 {
		t.Fatalf("found %d examples, %v", len(folders), err)
	}
	words := wordsOnOthers(t)
	for _, folder := range folders {
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			said, ok := words[name]
			if !ok {
				t.Error("the page has no row for it")
			}
			delete(words, name)
			if others, _ := filepath.Glob(filepath.Join(folder, "*")); len(others) != 3 {
				t.Errorf("it is not a setting, a policy and decisions: %q", others)
			}
			found := comparisonOf(t, folder)
			for _, word := range []string{"stricter", "wider", "unsaid"} {
				if strings.Contains(said, word+":") != found[word] {
					t.Errorf("the page says %q; the decisions have %s: %t", said, word, found[word])
				}
			}
		})
	}
	for name := range words {
		t.Errorf("the page has a row for %s, and there is no example", name)
	}
}

// comparisonOf checks the decisions of an example, and returns whether in any
// egressd is stricter, or wider, or what the other does is not documented.
func comparisonOf(t *testing.T, folder string) map[string]bool {
	path := filepath.Join(folder, config.FileName)
	succeeds(t, "policy", "test", "--config", path)
	c, err := config.LoadUnder(path, filepath.Join(folder, "none.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	found, verdicts := map[string]bool{}, map[string]int{}
	for _, line := range decisionsOf(t, folder) {
		if got := decidedWith(t, p, line.subject); got != line.ours {
			t.Errorf("%s: %s, want %s", line.subject, got, line.ours)
		}
		found[compared(line.theirs, line.ours)] = true
		verdicts[line.ours]++
	}
	if verdicts["allow"] == 0 || verdicts["deny"] == 0 {
		t.Errorf("the decisions are all the same: %v", verdicts)
	}
	return found
}

// A twofold is one destination, with what each of the two does.
type twofold struct{ theirs, ours, subject string }

func decisionsOf(t *testing.T, folder string) (all []twofold) {
	t.Helper()
	f, err := os.Open(filepath.Join(folder, "decisions.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != 3 || !slices.Contains([]string{"allow", "deny", "ask", "?"}, fields[0]) {
			t.Fatalf("cannot read %q", lines.Text())
		}
		all = append(all, twofold{fields[0], fields[1], fields[2]})
	}
	return all
}

func compiledText(t *testing.T, text string) *policy.Policy {
	t.Helper()
	parsed, err := file.Parse("imported", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func compared(theirs, ours string) string {
	switch {
	case theirs == "?":
		return "unsaid"
	case theirs == ours:
		return "same"
	case ours == "deny":
		return "stricter"
	}
	return "wider"
}

// decidedWith decides HOST:PORT, or HOST:PORT=ADDRESS.
func decidedWith(t *testing.T, p *policy.Policy, subject string) string {
	t.Helper()
	name, address, resolved := strings.Cut(subject, "=")
	r, err := file.ParseCheck(name)
	if err != nil {
		t.Fatal(err)
	}
	if resolved {
		r.Destination.Addrs = []netip.Addr{netip.MustParseAddr(address)}
	}
	d, _ := p.Judge(context.Background(), r)
	return d.Verdict.Action()
}

// wordsOnOthers returns the last cell of each row of docs/how-to/move-to-egressd.md, by the
// folder of the example that the row names.
func wordsOnOthers(t *testing.T) map[string]string {
	t.Helper()
	_, section, _ := strings.Cut(testfiles.Page(t, "how-to/move-to-egressd.md"), "\n")
	words := map[string]string{}
	for _, line := range strings.Split(section, "\n") {
		_, rest, ok := strings.Cut(line, "`examples/from/")
		if !ok || !strings.HasPrefix(line, "|") {
			continue
		}
		name, _, _ := strings.Cut(rest, "`")
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		words[name] = cells[len(cells)-1]
	}
	return words
}
