package export

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/egressd/egressd/record"
)

// hostile are texts that try to be more than a value.
var hostile = []string{
	"", "plain", " spaces at both ends ", "two\nlines\r\n", `quote " and \ and / and ]`, "a|b=c d=e", `\n\r\t\u0041\`, "CEF:0|x|y|z|1|n|10|",
	"\x1b[31mred\x1b[0m", "\u202eevil\u2066", "\x00\x01\x7f", "\u0085\u009b\u2028\u2029", "\xff\xfe\xc3", "😀", `"}],"admin":true,"x":[{"`,
	"<134>1 - - - - - -", "\\", `\\u0041`, strings.Repeat("long ", 3000), "=", "\\=", "end\\",
}

// hostileRecord has one text wherever a sandbox could put one.
func hostileRecord(kind record.Kind, text string) *record.Record {
	return &record.Record{
		V: 1, Seq: 7, Time: time.Date(2026, 11, 20, 9, 51, 38, 362114000, time.UTC), Kind: kind,
		Flow: "01KB6ZQ4SZ", Sandbox: text, Via: text, Src: "127.0.0.1:1",
		Dst:      &record.Destination{Host: text, Port: 443, Addrs: []string{text}, Addr: text, Class: text},
		TLS:      &record.TLS{SNI: text, ALPN: []string{text, text}, JA4: text},
		HTTP:     &record.HTTP{Method: text, Path: text, Status: 200},
		DNS:      &record.DNS{Name: text, Type: "A " + text},
		Process:  &record.Process{PID: 1, Exe: text, Argv: []string{text, text}},
		Decision: &record.Decision{Action: "deny", Rule: text, Layer: text, Reason: text, Class: text, AllowedIf: []string{text}, Policy: text},
		Bytes:    &record.Bytes{Up: 1, Down: 2}, Duration: 1234, Outcome: text, Raw: text, Note: text, Count: 3,
		Signal: &record.Signal{What: text, Name: text, Where: text, Encoding: text},
	}
}

// cefSchema is read once: the fuzzer asks for it often.
var cefSchema = sync.OnceValue(func() *schema {
	text, err := os.ReadFile("testdata/schema/cef.json")
	s := new(schema)
	if err := errors.Join(err, json.Unmarshal(text, s)); err != nil {
		panic(err)
	}
	return s
})

var kinds = []record.Kind{record.KindOpen, record.KindClose, record.KindRequest, record.KindDNS, record.KindRefused, record.KindPolicy, record.KindStart, record.KindSignal, record.KindAdmin}

func FuzzHostileText(f *testing.F) {
	for _, text := range hostile {
		for i := range kinds {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, text string) {
		checkHostile(t, hostileRecord(kinds[int(kind)%len(kinds)], text), text)
	})
}

func checkHostile(t *testing.T, r *record.Record, text string) {
	for _, name := range Formats() {
		encode, _ := Named(name)
		before := []byte("what was there before\n")
		got := encode(bytes.Clone(before), r, testOrigin)
		if !bytes.HasPrefix(got, before) {
			t.Fatalf("%s does not append: %q", name, got)
		}
		for line := range bytes.Lines(got[len(before):]) {
			if !bytes.HasSuffix(line, []byte("\n")) || !isPrintable(line[:len(line)-1]) {
				t.Fatalf("%s: %q", name, line)
			}
			if name == "cef" {
				checkCEF(t, string(line), r)
			} else {
				checkJSON(t, name, line, text)
			}
		}
	}
	entry := EncodedRecord{r, []byte(`{"v":1}`)}
	checkSyslog(t, string(Syslog(nil, entry, Origin{Host: text}, 1)), r)
	checkJSON(t, "otlp", OTLP(nil, []EncodedRecord{entry, {r, []byte(text)}}, testOrigin, time.Now()), text)
}

func isPrintable(line []byte) bool {
	return !bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' })
}

// hostilePlaces are members that hold the text alone, or nothing where there is none.
var hostilePlaces = map[string][]string{
	"ocsf": {"unmapped.sandbox", "unmapped.rule", "unmapped.raw", "unmapped.note", "tls.sni", "http_request.http_method", "query.hostname", "actor.process.path", "firewall_rule.desc"},
	"ecs":  {"egressd.sandbox", "egressd.raw", "egressd.note", "rule.name", "tls.client.server_name", "url.path", "dns.question.name", "process.executable", "process.args[]"},
	"eve":  {"egressd.sandbox", "egressd.raw", "http.url", "tls.sni", "dns.rrname"},
	"zeek": {"egressd_sandbox", "egressd_rule", "method", "uri", "server_name", "query"},
}

func checkJSON(t *testing.T, name string, line []byte, text string) {
	t.Helper()
	var event any
	if err := json.Unmarshal(line, &event); err != nil {
		t.Fatalf("%s: %v: %q", name, err, line)
	}
	if !isPrintable(bytes.TrimSuffix(line, []byte("\n"))) {
		t.Fatalf("%s: %q", name, line)
	}
	want := strings.ToValidUTF8(text, "\ufffd")
	if text != want {
		want = string([]rune(text)) // each byte on its own
	}
	members := map[string][]any{}
	flatten("", event, members)
	for _, path := range hostilePlaces[name] {
		for _, v := range members[path] {
			if v != want {
				t.Fatalf("%s: %s is %q, and not %q", name, path, v, want)
			}
		}
	}
	if name == "ocsf" && text != "" && len(members["unmapped.note"]) != 1 {
		t.Fatalf("no note: %s", line)
	}
}

// parseCEF reads a line as the format's own rules have it.
func parseCEF(t *testing.T, line string) (header []string, extension map[string]string) {
	t.Helper()
	rest := strings.TrimSuffix(line, "\n")
	var field strings.Builder
	for len(header) < 7 {
		switch {
		case rest == "":
			t.Fatalf("the header ends early: %q", line)
		case strings.HasPrefix(rest, `\\`), strings.HasPrefix(rest, `\|`):
			field.WriteByte(rest[1])
			rest = rest[2:]
		case rest[0] == '|':
			header = append(header, field.String())
			field.Reset()
			rest = rest[1:]
		default:
			field.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	// A key is a word before a "=" that no backslash escapes.
	extension = map[string]string{}
	at := cefKey.FindAllStringSubmatchIndex(rest, -1)
	for i, m := range at {
		end := len(rest)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		key := rest[m[2]:m[3]]
		if _, twice := extension[key]; twice {
			t.Fatalf("%s twice: %q", key, line)
		}
		extension[key] = cefUnescape(rest[m[1]:end])
	}
	return header, extension
}

var cefKey = regexp.MustCompile(`(?:^| )([A-Za-z0-9]+)=`)

func cefUnescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\=`, `=`, `\n`, "\n", `\r`, "\r").Replace(s)
}

var unitEscape = regexp.MustCompile(`(?:\\u[0-9a-f]{4})+`)

// seen reads what visible wrote.
func seen(s string) string {
	return unitEscape.ReplaceAllStringFunc(s, func(run string) string {
		var units []uint16
		for _, digits := range strings.Split(run[2:], `\u`) {
			n, _ := strconv.ParseUint(digits, 16, 16)
			units = append(units, uint16(n))
		}
		return string(utf16.Decode(units))
	})
}

func checkCEF(t *testing.T, line string, r *record.Record) {
	t.Helper()
	header, extension := parseCEF(t, line)
	if header[0] != "CEF:0" || header[1] != "egressd" || !strings.Contains("1 4 6 8", header[6]) {
		t.Fatalf("%q", header)
	}
	s := cefSchema()
	for key, value := range extension {
		limit, ok := s.Keys.(map[string]any)[key].(float64)
		if !ok {
			t.Fatalf("there is no key %s", key)
		}
		if n := len([]rune(seen(value))); limit > 0 && float64(n) > limit {
			t.Fatalf("%s has %d characters", key, n)
		}
	}
	f := factsOf(r)
	wants := map[string]string{"cs1": r.Sandbox, "cs2": f.said.Rule, "msg": cmp.Or(f.said.Reason, r.Note, f.noticed()), "cn1": "7"}
	if f.kind == aboutFlow || f.kind == aboutRequest {
		wants["sproc"], wants["reason"] = r.Process.Exe, f.said.Class
	}
	for key, text := range wants {
		want := string([]rune(cut(text, int(s.Keys.(map[string]any)[key].(float64)))))
		if key == "cn1" {
			want = text
		}
		if got := seen(extension[key]); got != want {
			t.Fatalf("%s is %q, and not %q, in %q", key, got, want, line)
		}
	}
}

var syslogHeader = regexp.MustCompile(`^<(\d{1,3})>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ([!-~]{1,255}) egressd 1 ([!-~]{1,32}) (\[meta sequenceId="8"\]\[egressd(?: [a-z]+="(?:[^"\\\]]|\\["\\\]])*")*\]) \{"v":1\}$`)

func checkSyslog(t *testing.T, message string, r *record.Record) {
	t.Helper()
	m := syslogHeader.FindStringSubmatch(message)
	if m == nil || !isPrintable([]byte(message)) {
		t.Fatalf("%q", message)
	}
	if priority, _ := strconv.Atoi(m[1]); priority>>3 != facilityAudit {
		t.Fatalf("facility of %q", message)
	}
	for _, p := range regexp.MustCompile(` ([a-z]+)="((?:[^"\\\]]|\\["\\\]])*)"`).FindAllStringSubmatch(m[4], -1) {
		if p[1] != "sandbox" {
			continue
		}
		got := seen(strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\]`, `]`).Replace(p[2]))
		if want := string([]rune(r.Sandbox)); got != want {
			t.Fatalf("sandbox is %q, and not %q", got, want)
		}
	}
}
