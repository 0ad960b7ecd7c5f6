package export

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// A Found is a record in a store.
type Found struct {
	Line   []byte // the line as the log stores it, or what is left of it
	Origin string // of the log; empty if the row does not say
}

// maxRow bounds a line of the input, which may be a whole answer of Elasticsearch.
const maxRow = 256 << 20

// EachRow finds records in what a store of logs returns. It calls do with each record in the lines of from. A line is one of these:
//
//   - a record, as a log or a sink of the format json has it, or a syslog message with one
//   - a JSON object with a record in _msg (VictoriaLogs), message or body, or with an event of the formats ecs or ocsf there
//   - an event of the formats ecs or ocsf
//   - a hit of Elasticsearch, with one of these in _source, or an answer with hits
//
// It returns the number of rows without a record. An error is one of from.
func EachRow(from io.Reader, do func(Found)) (strange int64, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), maxRow)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if !inLine(line, do) {
			strange++
		}
	}
	if err := lines.Err(); err != nil {
		return strange, fmt.Errorf("read rows: %w", err)
	}
	return strange, nil
}

// begin is how every stored line begins.
var begin = []byte(`{"v":1,"seq":`)

// inLine calls do with the records in a line of the input, and reports whether all of it is records.
func inLine(line []byte, do func(Found)) bool {
	if line[0] != '{' { // syslog: its structured data holds no unescaped quote in a value
		i := bytes.Index(line, begin)
		if i < 0 {
			return false
		}
		line = line[i:]
	}
	if bytes.HasPrefix(line, begin) {
		do(rowOf(line, ""))
		return true
	}
	var o object
	if json.Unmarshal(line, &o) != nil {
		return false
	}
	var answer struct{ Hits []object }
	if json.Unmarshal(o["hits"], &answer) == nil && answer.Hits != nil {
		found := len(answer.Hits) > 0
		for _, hit := range answer.Hits {
			found = hit.row(do) && found
		}
		return found
	}
	return o.row(do)
}

func rowOf(text []byte, named string) Found {
	line, from := Stored(text)
	if from == "" {
		from = named
	}
	return Found{bytes.Clone(line), from}
}

type object map[string]json.RawMessage

// row finds the record of an object. It looks only at members that hold the text of a row: a program in a sandbox chooses the
// values of others, such as its arguments.
func (o object) row(do func(Found)) bool {
	if source := o.part("_source"); source != nil {
		o = source
	}
	named := o.origin(o.text("egressd.origin"))
	texts := []string{o.text("event.original"), o.part("event").text("original"), o.text("raw_data"), o.text("log.record.original"), o.text("_msg"), o.text("body"), o.text("message")}
	for _, text := range texts {
		switch {
		case bytes.HasPrefix([]byte(text), begin):
			do(rowOf([]byte(text), named))
			return true
		case len(text) > 0 && text[0] == '{':
			var event object
			if json.Unmarshal([]byte(text), &event) != nil {
				continue
			}
			for _, held := range []string{event.part("event").text("original"), event.text("raw_data")} {
				if bytes.HasPrefix([]byte(held), begin) {
					do(rowOf([]byte(held), event.origin(named)))
					return true
				}
			}
		}
	}
	return false
}

// origin returns the origin in an event of the formats ecs and ocsf.
func (o object) origin(otherwise string) string {
	for _, part := range []string{"egressd", "unmapped"} {
		if text := o.part(part).text("origin"); text != "" {
			return text
		}
	}
	return otherwise
}

func (o object) part(name string) (part object) {
	_ = json.Unmarshal(o[name], &part) // nil if it is no object
	return part
}

func (o object) text(name string) (text string) {
	_ = json.Unmarshal(o[name], &text) // "" if it is no string
	return text
}
