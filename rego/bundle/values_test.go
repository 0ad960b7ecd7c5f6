package bundle

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestDataIsCountedBeforeItIsRead, for what nobody has signed has to be read to find that
// out: each text here stands in place of one that was signed.
func TestDataIsCountedBeforeItIsRead(t *testing.T) {
	const many = maxBundleValues + 1
	for says, row := range map[string]struct{ name, text string }{
		"lists in JSON":              {"hosts/data.json", `{"a":[` + strings.Repeat("[],", many) + "[]]}"},
		"objects in JSON":            {"hosts/data.json", `{"a":[` + strings.Repeat("{},", many) + "{}]}"},
		"JSON that is cut short":     {"hosts/data.json", `{"a":[` + strings.Repeat("[],", many)},
		"JSON with an end in quotes": {"hosts/data.json", `{"a":["\"",` + strings.Repeat("1,", many) + "1]}"},
		"a list in YAML":             {"hosts/data.yaml", "a:\n" + strings.Repeat("- \n", many)},
		"a list of one line in YAML": {"hosts/data.yml", "a: [" + strings.Repeat("x,", many) + "]"},
		"keys in YAML":               {"hosts/data.yaml", strings.Repeat("? \n", many)},
		"a manifest":                 {manifestName, "{" + strings.Repeat(`"":{},`, many) + "}"},
	} {
		f := newForger(t)
		files := signedWith(f, row.name, "{}")
		files[row.name] = []byte(row.text)
		_, err := Read(f.pack(files), &Key{PEM: f.public}, time.Now())
		want := fmt.Sprintf("may hold more than %d values", maxBundleValues)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), row.name) {
			t.Errorf("%s: %v, want %q", says, err, want)
		}
	}
}

// signedWith is a good signature over the files of f and one more.
func signedWith(f *forger, name, text string) bundleFiles {
	f.t.Helper()
	f.files[name] = []byte(text)
	files, err := unpack(f.with(`{"signatures":["` + f.token(map[string]any{"alg": "ES256"}, map[string]any{"files": f.covered()}) + `"]}`))
	if err != nil {
		f.t.Fatal(err)
	}
	return files
}

// TestTextsAreNotCounted where it is known what is text.
func TestTextsAreNotCounted(t *testing.T) {
	for text, want := range map[string]int{
		`{"a": ["x,y,z", "[[[{{{", "\\", ",\",:-?"]}`: 6,
		`"a,b"`:             1,
		"a: [1, 2]\nb: {}":  6,
		"a: 'one, two'":     3,
		"- a\n- b\n- - c":   5,
		"? a\n: b":          3,
		`{"a": [1, 2], "b"`: 6,
	} {
		if n := maxValues([]byte(text)); n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
}

// TestDataOfAllFilesIsCountedTogether.
func TestDataOfAllFilesIsCountedTogether(t *testing.T) {
	files := bundleFiles{}
	for i := range 4 {
		files[fmt.Sprintf("hosts/%d/data.json", i)] = []byte(`[` + strings.Repeat("1,", maxBundleValues/4-2) + "1]")
	}
	if err := files.countValues(); err != nil {
		t.Errorf("with as many as there may be: %v", err)
	}
	files["hosts/z/data.json"] = []byte("1")
	if err := files.countValues(); err == nil || !strings.Contains(err.Error(), `"hosts/z/data.json"`) {
		t.Errorf("with one more: %v", err)
	}
}
