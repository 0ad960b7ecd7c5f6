package devcontainer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/integrations"
)

// An image gets its labels in more ways than by the line that names them.
func TestDockerfileThatHidesALabelOrAnImage(t *testing.T) {
	for text, refused := range map[string]bool{
		"FROM base\nARG A=devcontainer\nLABEL ${A}.metadata='[{\"privileged\": true}]'\n": true,
		"FROM base\nLABEL \"dev\"container.metadata=x\n":                                  true,
		"FROM base\nLABEL a=b dev\\container.metadata=x\n":                                true,
		"FROM base\nLABEL a=b \\\n  dev'container'.metadata=x\n":                          true,
		"FROM base\nLABEL devcontainer\\\n.metadata=x\n":                                  true,
		"FROM base\nONBUILD LABEL $A x\n":                                                 true,
		"FROM base AS a\nRUN <<EOF\nFROM scratch AS unread\nEOF\nFROM unread\n":           true,
		"FROM base AS a\nRUN <<'E\\'\nE\\\nFROM unread\n":                                 true,
		"FROM base AS a\nRUN x \\\nFROM scratch AS unread\nFROM unread\n":                 true,
		"FROM base AS a\nFR\\\nOM unread\n":                                               true,
		"\ufeffFROM unread\n":                                                             true,
		"# syntax=evil/frontend\nFROM base\n":                                             true,
		"#!/x\n// syntax = evil/frontend\nFROM base\n":                                    true,
		"# escape=`\nFROM base\n":                                                         true,
		"{\"syntax\": \"evil/frontend\"}":                                                 true,
		"RUN true\n":                                                                      true,
		"# syntax=docker/dockerfile:1.7-labs\n# escape=\\\nFROM base AS a\nLABEL version=\"$V\" maintainer=me\n\nFROM a AS b\nRUN x \\\n # why\n y\nFROM b\n": false,
		"FROM base AS Unread\nFROM unread\n":                               true,
		"FROM base\nLABEL a=b \\\n devcontainer.meta\\\ndata=x\n":          true,
		"FROM base\nLABEL a=b \\\n# why\n devcontainer.meta\\\n\ndata=x\n": true,
		// The tools of dev containers look for the image in ways of their own.
		"FROM base AS a\n# why\rFROM unread\n":                                             true,
		"FROM base AS a\n# why\u2028FROM unread\n":                                         true,
		"FROM base AS a\n# why\u2029 FROM unread\n":                                        true,
		"FROM base AS a\n# why\u0085FROM unread\n":                                         true,
		"\u00a0FROM base AS unread\nFROM unread\n":                                         true,
		"\ufeff\ufeffFROM base AS unread\nFROM unread\n":                                   true,
		"FROM base a\u017f unread\nFROM unread\n":                                          true,
		"FROM base \\\n AS unread\nFROM unread\n":                                          true,
		"FROM base AS \\\n unread\nFROM unread\n":                                          true,
		"FROM base AS a\nRUN <<EOF\nFROM\nunread\nEOF\n":                                   true,
		"FROM base AS a\nRUN <<EOF\nFROM --platform=linux/amd64\nunread\nEOF\n":            true,
		"FROM base AS a\nRUN <<EOF\n  fromage x\nEOF\n":                                    true,
		"FROM base AS \"unread\"\nFROM \"unread\"\n":                                       true,
		"FROM base\r\n# gr\u00fc\u00dfe\u3000\u2026\r\nRUN x\r\n":                          false,
		"from --platform=linux/amd64 base as a\nFROM a\n":                                  false,
		"FROM base\nLABEL \\\n  a=b \\\n  c=d\n":                                           false,
		"FROM base AS a\nRUN <<EOF\nEOF\nFROM a\n":                                         false,
		"FROM base\nRUN <<EOF\necho \\\nEOF\nLABEL org.opencontainers.image.title='a b'\n": false,
	} {
		d := workspace(t, `{"build": {"dockerfile": "D"}}`)
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "D"), text)
		_, err := Merge(d)
		var boundary *BoundaryError
		if errors.As(err, &boundary) != refused || !refused && err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What was judged has to be what the tool reads at the next start.
func TestSettingsBehindALink(t *testing.T) {
	for text, refused := range map[string]bool{
		`{"build": {"dockerfile": "linked"}}`:          true,
		`{"build": {"dockerfile": "../D"}}`:            false, // mounted in its place
		`{"build": {"dockerfile": "away/D"}}`:          true,
		`{"features": {"./linked-file": {}}}`:          true,
		`{"features": {"./linked-folder": {}}}`:        true,
		`{"dockerFile": "D", "features": {"./f": {}}}`: false,
	} {
		d := workspace(t, text)
		in := func(name string) string { return filepath.Join(d.Folder, ".devcontainer", name) }
		for _, at := range []string{in("D"), filepath.Join(d.Folder, "D")} {
			writeFile(t, at, "FROM base\n")
		}
		for _, at := range []string{in("f/devcontainer-feature.json"), filepath.Join(d.Folder, "feature.json"), in("linked-file/x")} {
			writeFile(t, at, `{"id": "f"}`)
		}
		for at, to := range map[string]string{in("linked"): "../D", in("away"): "..", in("linked-file/devcontainer-feature.json"): "../../feature.json", in("linked-folder"): "f"} {
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Merge(d)
		var boundary *BoundaryError
		if errors.As(err, &boundary) != refused || !refused && err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Of readers of JSON with comments, some have a comment end at a carriage return.
func TestLineEndsThatReadersDifferOn(t *testing.T) {
	var shape *integrations.ShapeError
	if _, err := Merge(workspace(t, "{\"image\": \"base\" // x \r, \"initializeCommand\": \"x\"\n}")); !errors.As(err, &shape) {
		t.Errorf("a carriage return alone: %v", err)
	}
	if _, err := Merge(workspace(t, "{\r\n\"image\": \"base\" // x\r\n}\r\n")); err != nil {
		t.Errorf("lines that end in two characters: %v", err)
	}
}
