package record

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// everything is a line in which each member of a record stands once.
const everything = `{"v":1,"seq":7,"time":"2026-11-20T09:51:38.362114Z","kind":"close","flow":"01KB6ZQ4SZ","count":17,"names":{"first":"b.a.test:443","last":"c.a.test:80","domains":2},"shared":true,"sandbox":"ci",` +
	`"container":{"id":"4f2d9a1c0b7e","name":"web-1","image":"node:22","project":"shop","service":"web"},"via":"connect",` +
	`"src":"127.0.0.1:1","dst":{"host":"a.test","port":443,"addrs":["192.0.2.1","2001:db8::1"],"from":"hosts","addr":"192.0.2.1","asked":"192.0.2.9","class":"private"},` +
	`"tls":{"sni":"a.test","alpn":["h2","http/1.1"],"ech":true,"ja4":"t13","inspected":true},` +
	`"http":{"method":"GET","path":"/a\"b\\c\u001b\u00ff","path_cut":true,"query_bytes":7,"authority":"b.test:80","status":200,"own":true},"body":{"bytes":12,"sha256":"ab","says":["mcp ping"]},"git":{"repo":"acme/app","op":"push","refs":["0 1 refs/heads/x"]},"dns":{"name":"a.test","type":"AAAA"},` +
	`"process":{"pid":7,"exe":"/usr/bin/curl","argv":["curl","-s"]},` +
	`"decision":{"action":"deny","rule":"r","layer":"user","reason":"no","class":"default-deny","allowed_if":["x","y"],"log":true,"policy":"sha256:0","rules":"5c","revision":"v1 v2","question":["q"]},` +
	`"shadow":{"action":"allow","rule":"r","layer":"user","reason":"no","class":"rule-deny","inspect":true,"policy":"sha256:1"},` +
	`"signal":{"what":"canary","name":"aws","where":"path","encoding":"hex"},` +
	`"log":{"origin":"egressd/00","size":8,"root":"AA=","follows":"egressd/11","had":9},"bytes":{"up":1,"down":2},"duration_ms":3,"outcome":"closed","credential":"github","raw":"GET \u000d","note":"n"}`

// agrees checks that what the canonical form takes is what encoding/json makes
// of the line, and reports whether it took it.
func agrees(t *testing.T, d *Decoder, s *Buffer, line string) bool {
	t.Helper()
	if !d.canonical(s, line) {
		return false
	}
	var want Record
	if err := json.Unmarshal([]byte(line), &want); err != nil {
		t.Fatalf("took %q, of which encoding/json says %v", line, err)
	}
	if !reflect.DeepEqual(s.Record, want) {
		t.Fatalf("%s\n got %+v\nwant %+v", line, s.Record, want)
	}
	return true
}

// TestEveryMemberIsCanonical fails where a member was added to records that
// the fast form does not know: it would be read all the same, and slowly.
func TestEveryMemberIsCanonical(t *testing.T) {
	var d Decoder
	var s Buffer
	if !agrees(t, &d, &s, everything) {
		t.Fatal("the line is not canonical")
	}
	absent(t, "record", reflect.ValueOf(s.Record))
}

// absent reports what is zero in v, where all should be there.
func absent(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("%s is missing in the line of this test, or in the canonical form", name)
	case v.Kind() == reflect.Pointer:
		absent(t, name, v.Elem())
	case v.Kind() == reflect.Struct && v.Type().PkgPath() != "time":
		for i := range v.NumField() {
			absent(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
}

// TestSlotsAreEmptiedBetweenLines reads a short line after a long one.
func TestSlotsAreEmptiedBetweenLines(t *testing.T) {
	var d Decoder
	var s Buffer
	short := `{"v":1,"seq":8,"time":"2026-11-20T09:51:38.362114Z","kind":"open","dst":{"host":"","port":0},"process":{},"decision":{"allowed_if":[]}}`
	for _, line := range []string{everything, short, everything, everything} {
		if !agrees(t, &d, &s, line) {
			t.Errorf("not canonical: %s", line)
		}
	}
}

func TestWhatIsNotCanonicalIsLeftToJSON(t *testing.T) {
	var d Decoder
	var s Buffer
	for _, line := range []string{
		"", "{", "{}x", `{"kind":"open"`, `{"kind":"open",}`, `{,"kind":"open"}`, `{"kind":open}`, `{"kind":"open"}}`, `{"kind":"open`,
		`{"kind": "open"}`, ` {"kind":"open"}`, `{"kind":"open","kind":"close"}`, `{"flow":"A","kind":"open"}`, `{"Kind":"open"}`,
		`{"kind":"o\n"}`, `{"kind":"\u0100"}`, `{"kind":"\ud83d"}`, "{\"kind\":\"\x80\"}", "{\"kind\":\"\x7f\"}", "{\"kind\":\"\x00\"}",
		`{"kind":"open","new":1}`, `{"seq":01,"kind":"open"}`, `{"seq":-1}`, `{"seq":1.5}`, `{"seq":1e3}`, `{"seq":9999999999999999999}`,
		`{"dst":null}`, `{"dst":{"port":65536}}`, `{"dst":{"addrs":null}}`, `{"dst":{"addrs":["a",]}}`, `{"dst":{"addrs":[,"a"]}}`,
		`{"tls":{"ech":false}}`, `{"tls":{"ech":truex}}`, `{"time":"2026-02-30T09:51:38.362114Z"}`, `{"time":"2026-11-20T24:51:38.362114Z"}`,
		`{"time":"2026-11-20T09:51:60.362114Z"}`, `{"time":"2026-11-20T09:51:38Z"}`, `{"time":"2026-11-20T09:51:38.362114+"}`,
	} {
		if agrees(t, &d, &s, line) {
			t.Errorf("taken for canonical: %s", line)
		}
	}
}

func TestDecodeReadsBothForms(t *testing.T) {
	want, err := Decode([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode([]byte(" " + strings.Replace(everything, `,"note":"n"}`, `,"later":{"a":[1]},"note":"n"}`, 1)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, got %+v, want %+v", err, got, want)
	}
	for _, line := range []string{`{"kind":`, `{}`, `{"kind":""}`, `[]`, ``} {
		if r, err := Decode([]byte(line)); err == nil {
			t.Errorf("%q is %+v", line, r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(everything)
	f.Add(`{"v":1,"seq":0,"time":"2026-11-20T09:51:38.362114Z","kind":"start","note":"x\u0007"}`)
	f.Add(`{"dst":{"host":"a","port":1,"addrs":[]},"bytes":{"up":0,"down":0}}`)
	var d Decoder
	var s Buffer
	f.Fuzz(func(t *testing.T, line string) {
		agrees(t, &d, &s, line)
		r, err := Decode([]byte(line))
		var want Record
		if e := json.Unmarshal([]byte(line), &want); (e == nil && want.Kind != "") != (err == nil) {
			t.Fatalf("%q: %v, and encoding/json says %v", line, err, e)
		} else if err == nil && !reflect.DeepEqual(*r, want) {
			t.Fatalf("%q:\n got %+v\nwant %+v", line, *r, want)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	var d Decoder
	var s Buffer
	b.SetBytes(int64(len(everything)))
	for b.Loop() {
		if err := d.Decode(&s, everything); err != nil {
			b.Fatal(err)
		}
	}
}
