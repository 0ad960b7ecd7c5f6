package export

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestTheStoredLineComesBack has each record in each form that carries it, and takes the line of the log out of it again.
func TestTheStoredLineComesBack(t *testing.T) {
	records, lines := samples(t)
	for i, r := range records {
		text := bytes.TrimSuffix(JSON(nil, r, lines[i], testOrigin), []byte("\n"))
		if line, from := Stored(text); !bytes.Equal(line, lines[i]) || from != testOrigin.Log {
			t.Errorf("%s\nbecame %s of %q", lines[i], line, from)
		}
		if line, from := Stored(lines[i]); !bytes.Equal(line, lines[i]) || from != "" {
			t.Errorf("a stored line became %s of %q", line, from)
		}
		var told struct {
			Count      int64
			Origin, ID string
			Kind       string
		}
		if err := json.Unmarshal(text, &told); err != nil {
			t.Fatal(err)
		}
		if told.Count != r.Times() || told.ID != ID(testOrigin.Log, r.Seq) || told.Kind != string(r.Kind) {
			t.Errorf("%s has %+v", text, told)
		}
		for name, path := range map[string]string{"ecs": "event", "ocsf": ""} {
			encode, _ := Named(name)
			var event map[string]json.RawMessage
			if err := json.Unmarshal(encode(nil, r, lines[i], testOrigin), &event); err != nil {
				t.Fatal(err)
			}
			var held struct {
				Original string
				RawData  string `json:"raw_data"`
			}
			whole := json.RawMessage(encode(nil, r, lines[i], testOrigin))
			if path != "" {
				whole = event[path]
			}
			if err := json.Unmarshal(whole, &held); err != nil || held.Original+held.RawData != string(lines[i]) {
				t.Errorf("%s holds %q: %v", name, held.Original+held.RawData, err)
			}
		}
	}
}

// TestWhatASandboxWritesIsNoOrigin has texts of a sandbox that look like the members behind a record.
func TestWhatASandboxWritesIsNoOrigin(t *testing.T) {
	line := []byte(`{"v":1,"seq":3,"kind":"refused","raw":"x\",\"origin\":\"egressd/00\",\"id\":\"00-3\"}"}`)
	if got, from := Stored(line); !bytes.Equal(got, line) || from != "" {
		t.Errorf("%s of %q", got, from)
	}
}
