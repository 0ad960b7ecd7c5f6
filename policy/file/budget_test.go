package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestBytesThatARuleLetsUp(t *testing.T) {
	p := compiled(t, `allow:
  - {host: a.test, max_bytes_up: 5MB}
  - {host: b.test, max_bytes_up: 1KiB, paths: [/up]}
  - {host: b.test, max_bytes_up: 2000}
  - {host: c.test, paths: [/up]}
  - {host: c.test, max_bytes_up: 10}
  - d.test
  - {host: d.test, max_bytes_up: 10}
  - {host: d.test, max_bytes_up: 20}
sandboxes:
  - {name: ci, listen: "unix:/a", allow: [{host: a.test, max_bytes_up: 1kB}]}
`, inspecting)
	for _, row := range []struct {
		who, ask string
		size     int64
		verdict  policy.Verdict
		most     int64
	}{
		{"", "a.test:443", 0, policy.Allow, 5_000_000},
		{"ci", "a.test:443", 0, policy.Allow, 1000},
		{"", "POST https://a.test/", 5_000_000, policy.Allow, 5_000_000},
		{"", "POST https://a.test/", 5_000_001, policy.Deny, 0},
		{"", "b.test:443", 0, policy.Inspect, 0}, // or all of the tunnel would have the first budget
		{"", "POST https://b.test/up", 1024, policy.Allow, 1024},
		{"", "POST https://b.test/up", 1025, policy.Deny, 0},
		{"", "POST https://b.test/", 2000, policy.Allow, 2000},
		{"", "c.test:443", 0, policy.Inspect, 0},
		{"", "POST https://c.test/up", 5000, policy.Allow, 0},
		{"", "POST https://c.test/", 11, policy.Deny, 0},
		{"", "d.test:443", 0, policy.Allow, 10}, // the smallest of three lines for the same
	} {
		r, err := ParseCheck(row.ask)
		if err != nil {
			t.Fatal(err)
		}
		if r.HTTP != nil {
			r.HTTP.BodySize = row.size
		}
		r.Sandbox.Name = row.who
		d := p.Decide(context.Background(), &r)
		if d.Verdict != row.verdict || d.Verdict == policy.Allow && d.MaxBytesUp != row.most || d.Verdict == policy.Deny && d.Class != policy.ByteBudget {
			t.Errorf("%s: %s of %d bytes: %s, %d bytes may go up", row.who, row.ask, row.size, saying(d), d.MaxBytesUp)
		}
	}
}

func TestBadBytesThatARuleLetsUp(t *testing.T) {
	for rule, want := range map[string]string{
		`allow: [{host: a.test, max_bytes_up: 0}]`:                      `allow[0].max_bytes_up: "0" is not a number of bytes of at least 1`,
		`allow: [{host: a.test, max_bytes_up: 5XB}]`:                    "is not a number of bytes",
		`allow: [{host: a.test, max_bytes_up: -5}]`:                     "is not a number of bytes",
		`allow: [{host: a.test, max_bytes_up: 9999999999999999999GiB}]`: "is not a number of bytes",
		`allow: [{host: a.test, max_bytes_up: 9000000000000000GiB}]`:    "is not a number of bytes",
		`allow: [{host: a.test, max_bytes_up: [5]}]`:                    "allow[0].max_bytes_up is a list",
		`deny: [{host: a.test, max_bytes_up: 5MB}]`:                     "stands in allow alone",
	} {
		_, err := Parse("f", []byte("version: 1\n"+rule))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
