package world

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

var SegmentName = regexp.MustCompile(`^[0-9]{8,}\.log$`)

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
		case !e.Type().IsRegular() || !SegmentName.MatchString(e.Name()):
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
			if err := Conforms(line); err != nil {
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

// Conforms checks one line of a log.
func Conforms(line []byte) error {
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
