package logs

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// madeLines are n lines of about two kilobytes, each hundredth with texts of its own.
type madeLines struct{ at, n int }

func (m *madeLines) Take([]byte) (b audit.Block, err error) {
	if m.at == m.n {
		return b, io.EOF
	}
	b.Seq = int64(m.at)
	for range 100 {
		b.Rest = m.appendNext(b.Rest)
	}
	return b, nil
}

func (m *madeLines) appendNext(b []byte) []byte {
	m.at++
	return fmt.Appendf(b, `{"v":1,"seq":%d,"time":"2026-11-20T09:50:00.000000Z","kind":"open","flow":"F%d","sandbox":"s%d","via":"connect","dst":{"host":"h%d.test","port":443},`+
		`"process":{"pid":1,"exe":"/bin/p%d"},"decision":{"action":"%s","rule":"learn","layer":"user"},"shadow":{"action":"deny","rule":"r%d","class":"c%d","policy":"p"},"note":%q}`+"\n",
		m.at-1, m.at, m.at/100, m.at/100, m.at/100, []string{"allow", "deny", "ask"}[m.at%3], m.at/100, m.at/100, strings.Repeat("n", 1600))
}

// TestWhatIsCountedKeepsNothingOfTheLog has counters of all kinds take in 14 MB of
// log. A single text that is part of what was lent keeps a quarter of a megabyte.
func TestWhatIsCountedKeepsNothingOfTheLog(t *testing.T) {
	const lines, most = 8_000, 4 << 20
	for name, counter := range map[string]func() (func(*record.Record), any){
		"overview": func() (func(*record.Record), any) { o := new(Overview); return o.Add, o },
		"learned":  func() (func(*record.Record), any) { l := new(Learned); return l.Add, l },
		"rankings": func() (func(*record.Record), any) {
			all := make([]Ranking, len(FieldNames))
			return func(r *record.Record) {
				for i, field := range FieldNames {
					all[i].Add(Field(field)(r), r.Times(), r)
				}
			}, all
		},
	} {
		before := heap()
		add, kept := counter()
		if err := ScanDecisions(&madeLines{n: lines}, &Filter{}, OutcomeOpen, func(r *record.Record) {
			if r.Decision.Action == "allow" {
				r.Outcome = "closed"
			}
			add(r)
		}); err != nil {
			t.Fatal(err)
		}
		if grown := heap() - before; grown > most {
			t.Errorf("%s: %d MB are kept of %d lines", name, grown>>20, lines)
		}
		runtime.KeepAlive(kept)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
