package signals

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// fetches has a program of a sandbox fetch n times in five days, and now and then say something.
func fetches(w *workshop, sandbox, program, host string, n int) {
	for i := range n {
		up := w.around(900, 0.5)
		down := w.around(40_000, 1)
		if i%12 == 0 {
			up, down = w.around(7000, 0.8), 4500
		}
		w.decision(time.Duration(w.Int64N(int64(5*day))), program, host, up, down).Sandbox = sandbox
	}
}

// turns are requests of growing sizes, in an order.
func turns(order func(i int) int) func(*workshop) {
	return func(w *workshop) {
		fetches(w, "work", "curl", "api.example.org", 3000)
		for i := range 300 {
			w.decision(2*day+time.Duration(i)*80*time.Second, "curl", "api.example.org", 9500+int64(70*order(i)), 4500)
		}
	}
}

// TestGroundsOfATrain has flows of one size among what is ordinary, at one time or all the time, and wants what is
// judged to be said.
func TestGroundsOfATrain(t *testing.T) {
	checkGrounds(t, []grounded{
		{"many of one size, at one time", func(w *workshop) {
			fetches(w, "work", "curl", "api.example.org", 3000)
			for i := range 300 {
				w.decision(2*day+time.Duration(i)*80*time.Second, "curl", "api.example.org", w.around(13_000, 0.2), 4500)
			}
		}, "curl", "example.org", 50, 95, []string{"more of this size than at other times, within", "what else it does there is to fetch"}},
		{"the same where others do as well", func(w *workshop) {
			for _, sandbox := range []string{"work", "other"} {
				fetches(w, sandbox, "curl", "api.example.org", 3000)
				for i := range 1000 {
					w.decision(time.Duration(i)*7*time.Minute, "curl", "api.example.org", w.around(13_000, 0.2), 4500).Sandbox = sandbox
				}
			}
		}, "curl", "example.org", 0, 12, nil},
		{"all through the log, where others do not", func(w *workshop) {
			for _, sandbox := range []string{"work", "other", "third"} {
				fetches(w, sandbox, "curl", "api.example.org", 3000)
			}
			for i := range 1000 {
				w.decision(time.Duration(i)*7*time.Minute, "curl", "api.example.org", w.around(13_000, 0.2), 4500)
			}
		}, "curl", "example.org", 5, 60, []string{"other sandboxes do not by this program", "but all through the log"}},
		{"another program there, that only sends", func(w *workshop) {
			fetches(w, "other", "curl", "api.example.org", 3000)
			fetches(w, "work", "node", "api.example.org", 300)
			for i := range 1000 {
				w.decision(time.Duration(i)*7*time.Minute, "node", "api.example.org", w.around(13_000, 0.6), 4500)
			}
		}, "node", "example.org", 10, 60, []string{"others with this destination"}},
		{"a conversation, which grows with each turn", turns(func(i int) int { return i }), "curl", "example.org", 0, 40, nil},
		{"the same sizes in another order", turns(func(i int) int { return i * 151 % 300 }), "curl", "example.org", 50, 95, []string{"more of this size than at other times, within"}},
		{"a kilobyte at a time", func(w *workshop) {
			fetches(w, "work", "", "api.example.org", 3000)
			for i := range 3000 {
				w.decision(2*day+time.Duration(i)*10*time.Second, "", "api.example.org", 1000, 300)
			}
		}, "", "example.org", 50, 95, []string{"more of this size than at other times, within 9h"}},
	})
}

// TestGroundsOfConversationsAndDeployments has a socket in which one side says more than the other, and a deployment of what a pipeline built.
func TestGroundsOfConversationsAndDeployments(t *testing.T) {
	sockets := func(down int64) func(*workshop) {
		return func(w *workshop) {
			fetches(w, "work", "claude", "api.example.org", 2000)
			for i := range 30 {
				w.decision(time.Duration(i)*3*time.Hour, "claude", "events.example.net", 9000, 200_000).Sandbox = []string{"other", "third"}[i%2]
			}
			w.decision(4*day, "claude", "events.example.net", 100_000, down)
		}
	}
	deployed := func(pipeline string) func(*workshop) {
		return func(w *workshop) {
			fetches(w, "work", "otelcol", "metrics.example.org", 2000)
			for i := range 20 {
				at, size := 2*day+time.Duration(i)*2*time.Hour, w.around(4_000_000, 0.5)
				w.decision(at, "curl", "artifacts.example.net", size, 300).Sandbox = pipeline
				w.decision(at+time.Hour/2, "curl", "artifacts.example.net", 400, size)
				w.decision(at+time.Hour, "docker", "registry.example.com", size, 300)
			}
		}
	}
	checkGrounds(t, []grounded{
		{"a socket in which the program says more", sockets(30_000), "claude", "example.net", 0, 28, []string{"others with this destination mostly fetch"}},
		{"a socket in which only the program says something", sockets(500), "claude", "example.net", 35, 95, []string{"others with this destination mostly fetch"}},
		{"a deployment", deployed("ci"), "docker", "example.com", 0, 14, nil},
	})
}

// TestOneSenderIsNotWhatIsUsual has one of three others send a thousand times as much of one size as the rest.
func TestOneSenderIsNotWhatIsUsual(t *testing.T) {
	var p pool
	var own sizes
	for i := range 4 {
		l := &lane{uploads: &traffic{}}
		for j := range 50 {
			l.uploads.of.add(1000 << (j % 6))
		}
		if i == 3 {
			for range 5000 {
				l.uploads.of.add(5000)
			}
		}
		if p.add(string(rune('a'+i)), l); i == 0 {
			own = l.uploads.of
			p.senders[0].of = &own
		}
	}
	peers := p.peers(&own)
	if n := peers.count(); n < 140 || n > 160 {
		t.Errorf("three others of 50 are %d", n)
	}
}

// TestWhatHasNoHandshake counts the little that goes up where nothing else can have.
func TestWhatHasNoHandshake(t *testing.T) {
	for _, x := range []struct {
		method   string
		tls      *record.TLS
		up, down int64
		sends    bool
	}{
		{"", nil, 700, 300, true},
		{"", nil, 400, 100, false},
		{"", nil, 700, 3000, false},
		{"", &record.TLS{SNI: "example.org"}, 1500, 300, false},
		{"", &record.TLS{SNI: "example.org"}, 2100, 300, true},
		{"POST", nil, 700, 300, true},
		{"GET", nil, 1700, 300, false},
	} {
		r := &record.Record{TLS: x.tls, Bytes: &record.Bytes{Up: x.up, Down: x.down}}
		if x.method != "" {
			r.HTTP = &record.HTTP{Method: x.method}
		}
		if loadOf(r).sends() != x.sends {
			t.Errorf("%s of %d up and %d down, TLS %v: sending is not %v", x.method, x.up, x.down, x.tls, x.sends)
		}
	}
}

func TestSizesOfATrain(t *testing.T) {
	for _, c := range []struct {
		train train
		want  string
	}{
		{train{from: 1, till: 2}, "to"},
		{train{from: 12, till: trainBands - 1}, "and more"},
	} {
		if got := c.train.sizes(); !strings.Contains(got, c.want) {
			t.Errorf("%d to %d: %q", c.train.from, c.train.till, got)
		}
	}
}

// TestTimelineIntoAnEmptyOne merges many flows of one slot, as where room is made for others.
func TestTimelineIntoAnEmptyOne(t *testing.T) {
	var from, into timeline
	for range 200 {
		from.add(start.Unix())
	}
	if into.merge(&from); into.of == nil {
		t.Fatalf("%d of 200 are left", len(into.early))
	}
	n := 0
	for _, c := range into.of {
		n += int(c)
	}
	if n != 200 {
		t.Errorf("%d of 200 are left", n)
	}
}

// TestTimelineKeepsAll adds times in any order, in two parts, and wants none lost and each about where it was.
func TestTimelineKeepsAll(t *testing.T) {
	w := lone(7)
	at := start.Unix()
	var whole, left, right timeline
	early := 0
	for i := range 2000 {
		x := at + w.Int64N(9*86400)
		if i == 1500 {
			x = at - 86400 // a clock that was set back
		}
		if x < at+86400 {
			early++
		}
		whole.add(x)
		if i%3 == 0 {
			left.add(x)
		} else {
			right.add(x)
		}
	}
	left.merge(&right)
	for name, l := range map[string]*timeline{"whole": &whole, "merged": &left} {
		n, before := 0, 0
		for i, c := range l.of {
			n += int(c)
			if (l.base+int64(i))<<l.scale <= at+86400 {
				before += int(c)
			}
		}
		if n != 2000 || before < early || before > 2*early {
			t.Errorf("%s: of 2000 there are %d, of %d of the first day %d", name, n, early, before)
		}
	}
	in := right.in(&whole)
	if n := sumOf(in[:]); n != 1333 {
		t.Errorf("of 1333, %.0f are there", n)
	}
}

// TestTailOfOthers has one in twelve of what others send be far out: that is usual for others, and in what is
// judged it may be what it is judged for.
func TestTailOfOthers(t *testing.T) {
	var s sizes
	for i := range 240 {
		s.add(4000)
		if i%12 == 0 {
			s.add(4e6)
		}
	}
	if others, own := s.usual(true), s.usual(false); others.spread < 3*own.spread {
		t.Errorf("the spread is %.1f among others and %.1f by itself", others.spread, own.spread)
	}
}
