package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// recordSchema is docs/record.schema.json, by which every line of every log is checked
// that a test has written.
var recordSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	return jsonschema.NewCompiler().Compile(Source("docs", "record.schema.json"))
})

var segmentName = regexp.MustCompile(`^[0-9]{8,}\.log$`)

// conform checks all lines of all logs below dir. Logs that egressd has set aside as
// damaged are not looked at.
func conform(t *testing.T, dir string) (lines int) {
	t.Helper()
	problems := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // it went away, or never was
		case e.IsDir() && strings.HasPrefix(e.Name(), "damaged-"):
			return filepath.SkipDir
		case !e.Type().IsRegular() || !segmentName.MatchString(e.Name()):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // what a kill has cut off
			}
			lines++
			if err := conforms(line); err != nil {
				t.Errorf("%s: %v\n%s", path, err, line)
				if problems++; problems == 5 {
					return fs.SkipAll
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return lines
}

func conforms(line []byte) error {
	schema, err := recordSchema()
	if err != nil {
		return err
	}
	record, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return err
	}
	return schema.Validate(record)
}

// TestTheSchemaRefuses has lines that differ from records in one thing.
func TestTheSchemaRefuses(t *testing.T) {
	covers(t, "AU-03")
	const good = `{"v":1,"seq":4,"time":"2026-11-20T09:51:38.362114Z","kind":"open","flow":"01KB6ZQ4SZ","count":3,"sandbox":"ci","via":"connect","src":"127.0.0.1:0",` +
		`"dst":{"host":"a.test","port":443,"addrs":["192.0.2.1"]},"tls":{"sni":"a.test","alpn":["h2"]},"process":{"pid":3,"exe":"/bin/x","argv":["x",""]},` +
		`"decision":{"action":"deny","rule":"r","layer":"user","class":"rule-deny","policy":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`
	if err := conforms([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"v":1`:                         `"v":2`,
		`"seq":4`:                       `"seq":"4"`,
		`362114Z`:                       `3621Z`,
		`"kind":"open"`:                 `"kind":"opened"`,
		`"kind":"open",`:                `"kind":"close",`,
		`"flow":"01KB6ZQ4SZ",`:          ``,
		`01KB6ZQ4SZ`:                    `01KB6ZQ4SU`,
		`"count":3`:                     `"count":0`,
		`127.0.0.1:0`:                   `127.0.0.1:4`, // of a sum
		`"via":"connect"`:               `"via":"http2"`,
		`"host":"a.test",`:              ``,
		`"port":443`:                    `"port":70000`,
		`"192.0.2.1"`:                   `"host"`,
		`"alpn":["h2"]`:                 `"alpn":[]`,
		`"sni":"a.test"`:                `"sni":"a.test","more":1`,
		`"pid":3`:                       `"pid":-3`,
		`"action":"deny"`:               `"action":"allow"`, // of a sum
		`,"class":"rule-deny"`:          ``,
		`rule-deny`:                     `no-reason`,
		`"layer":"user",`:               ``,
		`sha256:e3`:                     `sha256:3`,
		`"decision"`:                    `"Decision"`,
		`"sandbox":"ci"`:                `"sandbox":"\u0101"`,
		`"sandbox":"ci",`:               `"sandbox":"ci","raw":"x",`,
		`"sandbox":"ci",` + `"via"`:     `"sandbox":"","via"`,
		`"src":"127.0.0.1:0",` + `"dst`: `"src":"127.0.0.1:0","bytes":{"up":1,"down":1},"dst`,
	} {
		bad := strings.Replace(good, from, to, 1)
		if bad == good {
			t.Fatalf("%s is not there", from)
		}
		if conforms([]byte(bad)) == nil {
			t.Errorf("%s for %s is accepted", to, from)
		}
	}
}
