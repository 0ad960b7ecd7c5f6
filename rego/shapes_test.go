package rego_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// TestPoliciesAsTheyAreWritten loads policies that have the shapes of public ones, for this and for other
// inputs. The first lines of each say what becomes of it:
//
//	# v0           it is Rego v0, which is said; the rest is about what Rewrite makes of it
//	# says: TEXT   it does not load, and a sentence with TEXT says what to change
//	# rewrite: TEXT  it cannot be rewritten, and a sentence with TEXT says what to change
//	# allow: TEST  it loads, and allows this
//	# deny: TEST   it loads, and denies this, not because it failed
//	# lint: TEXT   a lint says this; none of the others has any
//
// No policy is green and denies everything: one that loads has an "allow", or a lint.
func TestPoliciesAsTheyAreWritten(t *testing.T) {
	names, err := filepath.Glob("testdata/shapes/*.rego")
	if err != nil || len(names) < 30 {
		t.Fatal(len(names), err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s := rego.Source{Name: name, Text: text}
			wants := wantsOf(string(text))
			if _, old := wants["v0"]; old {
				saysTo(t, s, "policy fmt --rewrite-v0")
				if s.Text, err = rego.Rewrite(s); err != nil {
					if wants["rewrite"] == "" || !strings.Contains(err.Error(), wants["rewrite"]) {
						t.Error(err)
					}
					return
				}
			}
			if says := wants["says"]; says != "" {
				saysTo(t, s, says)
				return
			}
			decides(t, s, wants)
		})
	}
}

func wantsOf(text string) map[string]string {
	wants := map[string]string{}
	for line := range strings.Lines(text) {
		head, isComment := strings.CutPrefix(line, "# ")
		if !isComment {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSpace(head), ":")
		wants[key] = strings.TrimSpace(value)
	}
	return wants
}

// saysTo has a policy refused with a sentence that has a place.
func saysTo(t *testing.T, s rego.Source, says string) {
	t.Helper()
	_, err := rego.Load([]rego.Source{s}, rego.Options{})
	problems, ok := errors.AsType[policy.FileError](err)
	if !ok {
		t.Fatalf("it loads, or the error has no place: %v", err)
	}
	if !slices.ContainsFunc(problems, func(p policy.Problem) bool { return p.File == s.Name && strings.Contains(p.Message, says) }) {
		t.Errorf("it says\n%v\nwant %s", err, says)
	}
}

func decides(t *testing.T, s rego.Source, wants map[string]string) {
	t.Helper()
	e, err := rego.Load([]rego.Source{s}, rego.Options{Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	found := rego.Lint([]rego.Source{s})
	said := slices.ContainsFunc(found, func(p policy.Problem) bool { return strings.Contains(p.Message, wants["lint"]) })
	if wants["lint"] == "" && len(found) > 0 || wants["lint"] != "" && !said {
		t.Errorf("lint says %v", found)
	}
	if wants["allow"] == "" && wants["lint"] == "" {
		t.Error("it is green, and nothing is allowed")
	}
	f, err := file.Parse("egressd.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{e}})
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range slices.Sorted(maps.Keys(wants)) {
		if action != "allow" && action != "deny" {
			continue
		}
		r, err := file.ParseCheck(wants[action])
		if err != nil {
			t.Fatal(err)
		}
		if d, _ := p.Judge(t.Context(), r); d.Verdict.Action() != action || d.Class == policy.PolicyError {
			t.Errorf("%s %s: %v, %s: %s", action, wants[action], d.Verdict, d.Class, d.ReasonAndCause())
		}
	}
}
