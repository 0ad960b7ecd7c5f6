package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestRunRecordsPrograms has several programs ask for names, connect and send
// datagrams. A program that is gone by then, or that is looked for for too long, is
// left out, so that each has many chances; a wrong one is never recorded.
func TestRunRecordsPrograms(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--redirect"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				wants := recordedPrograms(len(flags) == 0)
				for range 5 {
					r := runAs(t, d, user, `for i in 1 2 3 4 5; do
	curl -sS -m9 -o /dev/null http://me:hunter2@a.allowed.test/$i http://evil.test/
	python3 -u -c 'import urllib.request as u; u.urlopen("http://b.allowed.test/").read()'
	dig +short +time=3 +tries=1 @8.8.8.8 dug.test; dig +short +tcp +time=3 +tries=1 dug.test
	echo x | socat -t1 - UDP:151.101.1.69:$i 2>/dev/null
done`, flags...)
					if missing := wants.look(t, r.records); missing == "" {
						return
					}
				}
				t.Errorf("never recorded with its program: %s", wants.look(t, nil))
			})
		}
	}
}

// A programWant is a kind of record and the program that it has to name.
type programWant struct {
	says, program string
	of            func(*record.Record) bool
	found         bool
}

type programWants []programWant

func recordedPrograms(datagrams bool) programWants {
	to := func(kind record.Kind, host string) func(*record.Record) bool {
		return func(r *record.Record) bool { return r.Kind == kind && r.Dst != nil && r.Dst.Host == host }
	}
	all := programWants{
		{says: "a request", program: "curl", of: to(record.KindRequest, "a.allowed.test")},
		{says: "the end of one", program: "curl", of: to(record.KindClose, "a.allowed.test")},
		{says: "a denied request", program: "curl", of: to(record.KindRequest, "evil.test")},
		{says: "a script's request", program: "python3", of: to(record.KindRequest, "b.allowed.test")},
		{says: "a question", program: "dig", of: func(r *record.Record) bool { return r.DNS != nil && r.DNS.Name == "dug.test" }},
	}
	if datagrams {
		all = append(all, programWant{says: "a datagram", program: "socat", of: func(r *record.Record) bool { return r.Dst != nil && r.Dst.Host == world.EvilIPv4 }})
	}
	return all
}

// look notes which programs records name, and returns what is still missing.
func (ws programWants) look(t *testing.T, records []record.Record) string {
	t.Helper()
	var missing []string
	for i := range ws {
		w := &ws[i]
		for j := range records {
			if rec := &records[j]; w.of(rec) && rec.Process != nil && rec.Process.Exe != "" {
				w.found = true
				w.check(t, rec.Process)
			}
		}
		if !w.found {
			missing = append(missing, w.says)
		}
	}
	return strings.Join(missing, ", ")
}

func (w *programWant) check(t *testing.T, p *record.Process) {
	t.Helper()
	if !strings.Contains(p.Exe, "/"+w.program) || p.PID <= 1 {
		t.Errorf("%s is recorded as one of %+v", w.says, p)
	}
	if text := strings.Join(p.Argv, " "); strings.Contains(text, "hunter2") {
		t.Errorf("%s is recorded with %q", w.says, text)
	}
}
