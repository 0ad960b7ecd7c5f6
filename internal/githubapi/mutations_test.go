package githubapi

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// publicSchema returns the members of the input of each mutation, with their types.
func publicSchema(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] != "#" {
			all[words[0]] = map[string]string{}
			for _, word := range words[1:] {
				name, kind, _ := strings.Cut(word, ":")
				all[words[0]][name] = strings.Trim(kind, "[]!")
			}
		}
	}
	if len(all) < 200 {
		t.Fatalf("the schema has %d mutations", len(all))
	}
	return all
}

// TestTheTableAgreesWithTheSchema: what the schema calls an id is asked for, and no object passes unseen.
func TestTheTableAgreesWithTheSchema(t *testing.T) {
	schema := publicSchema(t)
	newer := []string{"requestReviewsByLogin", "replaceActorsForAssignable"}
	for _, name := range MutationNames() {
		m, members := MutationNamed(name), schema[name]
		if (members == nil) != slices.Contains(newer, name) {
			t.Errorf("%s: is it in the schema?", name)
		}
		for member, kind := range members {
			asked := slices.Contains(m.IDs, member) || slices.Contains(m.People, member)
			_, object := m.Objects[member]
			switch plain := slices.Contains(m.Plain, member); {
			case kind == "ID" && (plain || object || slices.Contains(m.Logins, member)):
				t.Errorf("%s.%s is an id, and nobody asks whose", name, member)
			case kind != "ID" && asked:
				t.Errorf("%s.%s is no id", name, member)
			case strings.HasSuffix(kind, "Input") && plain, object && !strings.HasPrefix(kind, "Draft"):
				t.Errorf("%s.%s is a %s", name, member, kind)
			}
		}
	}
}

// TestTheTableHasNoMutationThatWritesElsewhere: what changes branches, files, settings or other repositories is left out.
func TestTheTableHasNoMutationThatWritesElsewhere(t *testing.T) {
	for name := range publicSchema(t) {
		for _, verb := range []string{"merge", "transfer", "clone", "deleteRef", "createRef", "updateRef", "Commit", "Branch", "Repository", "Gist", "Deploy", "Enterprise", "Sponsor", "Project", "Ruleset", "lock", "revert", "delete", "archive", "enable", "import"} {
			if strings.Contains(name, verb) && MutationNamed(name) != nil {
				t.Errorf("%s is in the table", name)
			}
		}
	}
}
