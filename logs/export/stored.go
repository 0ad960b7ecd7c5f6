package export

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/egressd/egressd/record"
)

// ID returns the id of the record with number seq of the log with the given origin. No other record of any log has it. It is empty
// without an origin.
func ID(origin string, seq int64) string {
	if origin == "" {
		return ""
	}
	return strings.TrimPrefix(origin, "egressd/") + "-" + strconv.FormatInt(seq, 10)
}

// JSON is the encoder of the format "json": the stored line, with the members count, if r has none, origin and id behind the
// others. [Stored] takes them away again.
func JSON(b []byte, r *record.Record, line []byte, from Origin) []byte {
	if from.Log == "" {
		return append(append(b, line...), '\n')
	}
	b = append(b, line[:len(line)-1]...)
	if r.Count == 0 {
		b = append(b, one...)
	}
	b = append(append(b, origin...), from.Log...)
	b = append(append(b, id...), ID(from.Log, r.Seq)...)
	return append(b, '"', '}', '\n')
}

const (
	one    = `,"count":1`
	origin = `,"origin":"`
	id     = `","id":"`
)

// Stored returns the line of the log that [JSON] made text of, and the origin of the log. A stored line is returned as it is,
// without an origin. No record that egressd stores ends with these members, and no value can hold their quotes.
func Stored(text []byte) (line []byte, from string) {
	i := bytes.LastIndex(text, []byte(origin))
	if i < 0 || !bytes.HasSuffix(text, []byte(`"}`)) {
		return text, ""
	}
	from, _, found := strings.Cut(string(text[i+len(origin):len(text)-2]), id)
	if !found || strings.Contains(from, `"`) {
		return text, ""
	}
	line = bytes.TrimSuffix(text[:i], []byte(one))
	return append(bytes.Clone(line), '}'), from
}
