package export

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/egressd/egressd/record"
)

// hostile are texts that try to be more than a value.
var hostile = []string{
	"", "plain", " spaces at both ends ", "two\nlines\r\n", `quote " and \ and / and ]`, "a|b=c d=e", `\n\r\t\u0041\`, "a|b",
	"\x1b[31mred\x1b[0m", "\u202eevil\u2066", "\x00\x01\x7f", "\u0085\u009b\u2028\u2029", "\xff\xfe\xc3", "😀", `"}],"admin":true,"x":[{"`,
	"<134>1 - - - - - -", "\\", `\\u0041`, strings.Repeat("long ", 3000), "=", "\\=", "end\\",
	"=1+1", "+1", "-1", "@SUM(1)", "\t=1+1", " =1+1", "'=1+1", "a;=1+1", `","=1+1`, "\r\n=1+1", "\uff1d1+1",
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
		Bytes:    &record.Bytes{Up: 1, Down: 2}, Duration: 1234, Outcome: record.Outcome(text), Raw: text, Note: text, Count: 3,
		Signal: &record.Signal{What: text, Name: text, Where: text, Encoding: text},
	}
}

var kinds = []record.Kind{record.KindOpen, record.KindClose, record.KindRequest, record.KindDNS, record.KindRefused, record.KindPolicy, record.KindStart, record.KindSignal, record.KindAdmin, record.KindHeartbeat}

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
		got := encode(bytes.Clone(before), r, []byte(`{"v":1}`), testOrigin)
		if !bytes.HasPrefix(got, before) {
			t.Fatalf("%s does not append: %q", name, got)
		}
		for line := range bytes.Lines(got[len(before):]) {
			if !bytes.HasSuffix(line, []byte("\n")) || !isPrintable(line[:len(line)-1]) {
				t.Fatalf("%s: %q", name, line)
			}
			checkJSON(t, name, line, text)
		}
	}
	checkCSV(t, r, text)
	entry := EncodedRecord{r, []byte(`{"v":1}`)}
	checkSyslog(t, string(Syslog(nil, entry, Origin{Host: text}, 1)), r)
	checkJSON(t, "otlp", otlpJSON(t, []EncodedRecord{entry, {r, []byte(text)}}, time.Now()), text)
}

func isPrintable(line []byte) bool {
	return !bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' })
}

// hostilePlaces are members that hold the text alone, or nothing where there is none.
var hostilePlaces = map[string][]string{
	"ocsf": {"unmapped.sandbox", "unmapped.rule", "unmapped.raw", "unmapped.note", "tls.sni", "http_request.http_method", "query.hostname", "actor.process.path", "firewall_rule.desc"},
	"ecs":  {"egressd.sandbox", "egressd.raw", "egressd.note", "rule.name", "tls.client.server_name", "url.path", "dns.question.name", "process.executable", "process.args[]"},
}

func checkJSON(t *testing.T, name string, line []byte, text string) {
	t.Helper()
	var event any
	if err := json.Unmarshal(line, &event); err != nil {
		t.Fatalf("%s: %v: %q", name, err, line)
	}
	if name != "otlp" && !isPrintable(bytes.TrimSuffix(line, []byte("\n"))) { // which is binary
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
