package export

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/record"
)

var update = flag.Bool("update", false, "write the golden files anew")

var testOrigin = Origin{Version: "1.4.0", Host: "build-7", Log: "egressd/8f0c5d6e7a8b9c0d1e2f3a4b5c6d7e8f"}

// samples are the records of testdata/records.jsonl.
func samples(t testing.TB) (all []*record.Record, lines [][]byte) {
	t.Helper()
	text, err := os.ReadFile("testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(bytes.NewReader(text))
	for in.Scan() {
		r := new(record.Record)
		if err := json.Unmarshal(in.Bytes(), r); err != nil {
			t.Fatal(err)
		}
		all, lines = append(all, r), append(lines, bytes.Clone(in.Bytes()))
	}
	return all, lines
}

func TestGolden(t *testing.T) {
	records, lines := samples(t)
	got := map[string][]byte{}
	for _, name := range Formats() {
		encode, _ := Named(name)
		for i, r := range records {
			got[name] = encode(got[name], r, lines[i], testOrigin)
		}
	}
	var entries []EncodedRecord
	got["csv"] = []byte(CSVHeader())
	for i, r := range records {
		got["csv"] = CSV(got["csv"], r, nil, testOrigin)
		entries = append(entries, EncodedRecord{r, lines[i]})
		got["syslog"] = append(Syslog(got["syslog"], EncodedRecord{r, lines[i]}, testOrigin, 4711), '\n')
	}
	otlp := otlpJSON(t, entries, time.Unix(1700000000, 0))
	var indented bytes.Buffer
	if err := json.Indent(&indented, otlp, "", " "); err != nil {
		t.Fatal(err)
	}
	got["otlp"] = indented.Bytes()
	for name, text := range got {
		path := filepath.Join("testdata/golden", name+".txt")
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, want) {
			t.Errorf("%s differs from %s; where that is meant, go test ./logs/export -update\n%s", name, path, firstDifference(text, want))
		}
	}
}

// otlpJSON returns a request of OTLP as the JSON form of protobuf, in which white space is random.
func otlpJSON(t testing.TB, entries []EncodedRecord, observed time.Time) []byte {
	t.Helper()
	text, err := OTLP(nil, entries, testOrigin, observed)
	if err != nil {
		t.Fatal(err)
	}
	var request logspb.LogsData
	if err := proto.Unmarshal(text, &request); err != nil {
		t.Fatal(err)
	}
	text, err = protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(&request)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	return compact.Bytes()
}

func firstDifference(got, want []byte) string {
	wants := bytes.Split(want, []byte("\n"))
	for i, line := range bytes.Split(got, []byte("\n")) {
		if i >= len(wants) || !bytes.Equal(line, wants[i]) {
			return string(line)
		}
	}
	return "fewer lines"
}

// A schema is the part of a published one that events are checked against: see
// testdata/schema/README.md.
type schema struct {
	By           string
	Fields       map[string]any // a type, or the values that there are
	Required     map[string][]string
	Requires     map[string]string
	Activities   map[string]map[string]float64
	Dispositions map[string]float64
	Types        map[string][]string
	Columns      map[string][]string
	Keys         any
	Own          string
}

func readSchema(t testing.TB, name string) *schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/schema", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	s := new(schema)
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// flatten maps the path of each member to its values.
func flatten(path string, value any, into map[string][]any) {
	switch v := value.(type) {
	case map[string]any:
		for k, member := range v {
			flatten(strings.TrimPrefix(path+"."+k, "."), member, into)
		}
	case []any:
		for _, item := range v {
			flatten(path+"[]", item, into)
		}
	default:
		into[path] = append(into[path], v)
	}
}

// check reports what in an event is not as the schema has it.
func (s *schema) check(t testing.TB, line []byte) map[string][]any {
	t.Helper()
	var event any
	if err := json.Unmarshal(line, &event); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	members := map[string][]any{}
	flatten("", event, members)
	for path, values := range members {
		kind, ok := s.Fields[path]
		if top, _, _ := strings.Cut(path, "."); !ok && s.Fields[top+".**"] != nil {
			continue
		}
		if !ok {
			t.Errorf("there is no %s in the schema: %s", path, line)
		}
		for _, v := range values {
			if !fits(v, kind) {
				t.Errorf("%s is %v, and has to be %v: %s", path, v, kind, line)
			}
		}
	}
	class := plain(members[s.By])
	if s.Required[class] == nil {
		t.Errorf("%s is %q: %s", s.By, class, line)
	}
	for _, path := range s.Required[class] {
		if members[path] == nil {
			t.Errorf("%s is missing: %s", path, line)
		}
	}
	for path, other := range s.Requires {
		if members[path] != nil && members[other] == nil {
			t.Errorf("%s is there without %s: %s", path, other, line)
		}
	}
	return members
}

func plain(values []any) string {
	if len(values) != 1 {
		return ""
	}
	if n, ok := values[0].(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	text, _ := values[0].(string)
	return text
}

func fits(v, kind any) bool {
	if all, ok := kind.([]any); ok {
		return slices.Contains(all, v)
	}
	text, isText := v.(string)
	n, isNumber := v.(float64)
	switch kind {
	case "string":
		return isText && text != ""
	case "integer":
		return isNumber && n == float64(int64(n))
	case "number":
		return isNumber
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "ip":
		_, err := netip.ParseAddr(text)
		return err == nil
	case "time":
		_, err := time.Parse(time.RFC3339Nano, text)
		return err == nil
	}
	return false
}

// eachLine calls do with every event that the samples give in a form.
func eachLine(t testing.TB, encode Encoder, do func([]byte, *record.Record)) {
	t.Helper()
	records, lines := samples(t)
	count := 0
	for i, r := range records {
		for line := range bytes.Lines(encode(nil, r, lines[i], testOrigin)) {
			do(bytes.TrimSuffix(line, []byte("\n")), r)
			count++
		}
	}
	if count < len(records)-6 {
		t.Errorf("%d events of %d records", count, len(records))
	}
}

func TestOCSFIsOfTheSchema(t *testing.T) {
	s := readSchema(t, "ocsf")
	uids := map[string]bool{}
	eachLine(t, ocsf, func(line []byte, r *record.Record) {
		m := s.check(t, line)
		class, activity := m["class_uid"][0].(float64), m["activity_id"][0].(float64)
		if m["type_uid"][0] != class*100+activity {
			t.Errorf("type_uid: %s", line)
		}
		name, _ := m["activity_name"][0].(string)
		if want, ok := s.Activities[plain(m["class_uid"])][name]; activity != ocsfOther && (!ok || want != activity) {
			t.Errorf("activity %v is not %s: %s", activity, name, line)
		}
		if d := m["disposition"]; d != nil && s.Dispositions[d[0].(string)] != m["disposition_id"][0] {
			t.Errorf("disposition: %s", line)
		}
		if m["src_endpoint.name"] == nil && m["dst_endpoint.hostname"] == nil && class < 5000 && class > 4000 {
			t.Errorf("neither end: %s", line)
		}
		if uid := plain(m["metadata.uid"]); uids[uid] {
			t.Errorf("uid %s twice", uid)
		} else {
			uids[uid] = true
		}
	})
}

func TestECSIsOfTheSchema(t *testing.T) {
	s := readSchema(t, "ecs")
	eachLine(t, ecs, func(line []byte, _ *record.Record) {
		m := s.check(t, line)
		for _, kind := range m["event.type[]"] {
			if !slices.ContainsFunc(m["event.category[]"], func(c any) bool { return slices.Contains(s.Types[c.(string)], kind.(string)) }) {
				t.Errorf("type %s is of none of the categories: %s", kind, line)
			}
		}
	})
}

func TestOTLPAttributesAreOfTheConventions(t *testing.T) {
	s := readSchema(t, "otlp")
	known := s.Keys.([]any)
	records, lines := samples(t)
	for i, r := range records {
		var request struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct {
						TimeUnixNano   string
						SeverityNumber int
						Body           struct{ StringValue string }
						Attributes     []struct {
							Key   string
							Value map[string]any
						}
					}
				}
			}
		}
		if err := json.Unmarshal(otlpJSON(t, []EncodedRecord{{r, lines[i]}}, time.Now()), &request); err != nil {
			t.Fatal(err)
		}
		record := request.ResourceLogs[0].ScopeLogs[0].LogRecords[0]
		if record.Body.StringValue != string(lines[i]) || record.TimeUnixNano != strconv.FormatInt(r.Time.UnixNano(), 10) || record.SeverityNumber < 1 || record.SeverityNumber > 24 {
			t.Errorf("%+v", record)
		}
		for _, a := range record.Attributes {
			if !strings.HasPrefix(a.Key, s.Own) && !slices.Contains(known, any(a.Key)) {
				t.Errorf("there is no attribute %s", a.Key)
			}
			if len(a.Value) != 1 {
				t.Errorf("%s has the values %v", a.Key, a.Value)
			}
		}
	}
}
