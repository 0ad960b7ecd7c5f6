package e2e

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
)

// TestRunRecordsPrograms has several programs ask for names, connect and send
// datagrams. A program that is gone by then, or that is looked for for too long, is
// left out, so that each has several chances; a wrong one is never recorded.
func TestRunRecordsPrograms(t *testing.T) {
	d := newDaemon(t, runPolicy)
	for user := range users {
		for _, flags := range [][]string{nil, {"--redirect"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				r := d.runAs(t, user, `for i in 1 2 3 4 5; do
	curl -sS -m9 -o /dev/null http://me:hunter2@a.allowed.test/$i http://evil.test/
	python3 -u -c 'import urllib.request as u; u.urlopen("http://b.allowed.test/").read()'
	dig +short +time=3 +tries=1 @8.8.8.8 dug.test; dig +short +tcp +time=3 +tries=1 dug.test
	echo x | socat -t1 - UDP:151.101.1.69:$i 2>/dev/null
done`, flags...)
				for _, want := range []struct {
					says, program string
					of            func(*egress.Record) bool
				}{
					{"a request", "curl", func(r *egress.Record) bool { return r.Kind == egress.KindRequest && r.Dst.Host == "a.allowed.test" }},
					{"the end of one", "curl", func(r *egress.Record) bool {
						return r.Kind == egress.KindClose && r.Dst != nil && r.Dst.Host == "a.allowed.test"
					}},
					{"a denied request", "curl", func(r *egress.Record) bool { return r.Kind == egress.KindRequest && r.Dst.Host == "evil.test" }},
					{"a script's request", "python3", func(r *egress.Record) bool { return r.Kind == egress.KindRequest && r.Dst.Host == "b.allowed.test" }},
					{"a question", "dig", func(r *egress.Record) bool { return r.DNS != nil && r.DNS.Name == "dug.test" }},
					{"a datagram", "socat", func(r *egress.Record) bool { return len(flags) == 0 && r.Dst != nil && r.Dst.Host == evilIPv4 }},
				} {
					var all, found int
					for i := range r.records {
						rec := &r.records[i]
						if !want.of(rec) {
							continue
						}
						all++
						if p := rec.Process; p != nil && p.Exe != "" {
							found++
							if !strings.Contains(p.Exe, "/"+want.program) || p.PID <= 1 {
								t.Errorf("%s is recorded as one of %+v", want.says, p)
							}
							if text := strings.Join(p.Argv, " "); strings.Contains(text, "hunter2") {
								t.Errorf("%s is recorded with %q", want.says, text)
							}
						}
					}
					if all > 0 && found == 0 || all == 0 && (want.program != "socat" || len(flags) == 0) {
						t.Errorf("%s: %d records, %d with the program", want.says, all, found)
					}
				}
			})
		}
	}
}
