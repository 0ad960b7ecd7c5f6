package rego_test

import (
	"errors"
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
//	# from: TOOL   where policies of this shape are found
//	# v0           it is Rego v0, which is said; the rest is about what Rewrite makes of it
//	# data: JSON   the data beside it
//	# says: TEXT   it does not load, and a sentence with TEXT says what to change
//	# rewrite: TEXT  it cannot be rewritten, and a sentence with TEXT says what to change
//	# whole: TEXT  it does not load, and a sentence with TEXT says so of all of it
//	# allow: TEST  it loads, and allows this
//	# ask: TEST    it loads, and asks about this
//	# deny: TEST   it loads, and denies this, not because it failed
//	# lint: TEXT   a lint says this; none of the others has any
//
// No policy is green and denies everything: one that loads has an "allow", or a lint.
func TestPoliciesAsTheyAreWritten(t *testing.T) {
	names, err := filepath.Glob("testdata/shapes/*.rego")
	if err != nil || len(names) < 190 {
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
			sources := []rego.Source{s}
			if data := wants["data"]; len(data) > 0 {
				sources = append(sources, rego.Source{Name: "data.json", Text: []byte(data[0])})
			}
			if _, old := wants["v0"]; old {
				saysTo(t, sources, "policy fmt --rewrite-v0")
				if sources[0].Text, err = rego.Rewrite(s); err != nil {
					if rewrite := wants["rewrite"]; rewrite == nil || !strings.Contains(err.Error(), rewrite[0]) {
						t.Error(err)
					}
					return
				}
			}
			for _, says := range wants["says"] {
				saysTo(t, sources, says)
			}
			for _, says := range wants["whole"] {
				if _, err := rego.Load(sources, rego.Options{}); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("it says %v\nwant %s", err, says)
				}
			}
			if wants["says"] == nil && wants["whole"] == nil {
				decides(t, sources, wants)
			}
		})
	}
}

func wantsOf(text string) map[string][]string {
	wants := map[string][]string{}
	for line := range strings.Lines(text) {
		head, isComment := strings.CutPrefix(line, "# ")
		if !isComment {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSpace(head), ":")
		wants[key] = append(wants[key], strings.TrimSpace(value))
	}
	return wants
}

// saysTo has a policy refused with a sentence that has a place.
func saysTo(t *testing.T, sources []rego.Source, says string) {
	t.Helper()
	_, err := rego.Load(sources, rego.Options{})
	problems, ok := errors.AsType[policy.FileError](err)
	if !ok {
		t.Fatalf("it loads, or the error has no place: %v", err)
	}
	if !slices.ContainsFunc(problems, func(p policy.Problem) bool {
		return p.File == sources[0].Name && strings.Contains(p.Message, says)
	}) {
		t.Errorf("it says\n%v\nwant %s", err, says)
	}
}

func decides(t *testing.T, sources []rego.Source, wants map[string][]string) {
	t.Helper()
	e, err := rego.Load(sources, rego.Options{Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	found := rego.Lint(sources)
	for _, lint := range wants["lint"] {
		if !slices.ContainsFunc(found, func(p policy.Problem) bool { return strings.Contains(p.Message, lint) }) {
			t.Errorf("lint says %v, want %s", found, lint)
		}
	}
	if wants["lint"] == nil && len(found) > 0 {
		t.Errorf("lint says %v", found)
	}
	if wants["allow"] == nil && wants["lint"] == nil {
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
	for _, action := range []string{"allow", "ask", "deny"} {
		for _, test := range wants[action] {
			r, err := file.ParseCheck(test)
			if err != nil {
				t.Fatal(err)
			}
			r.Usage = new(policy.Usage)
			if d, _ := p.Judge(t.Context(), r); d.Verdict.Action() != action || d.Class == policy.PolicyError {
				t.Errorf("%s %s: %v, %s: %s", action, test, d.Verdict, d.Class, d.ReasonAndCause())
			}
		}
	}
}
