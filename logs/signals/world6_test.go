package signals_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/egressd/egressd/record"
)

// A plain world is a sixth one, and not one but several: how somebody would fill a log who wants a hundred
// thousand ordinary records and has an hour. Each was written before who wrote it had read the code of the
// ranking; the five worlds before it were known, and what the manual says of them.
type plain struct {
	name     string
	boxes    int
	programs string        // none, one, by host, any
	hosts    string        // named, numbered below one domain, sites
	popular  string        // equal, zipf
	sizes    string        // of flows: see sizeOf
	times    string        // poisson, nights, even
	span     time.Duration // of the log
	form     string        // of records: see record
	took     float64       // median of durations in seconds; 0 where none is recorded
}

var plains = []plain{
	{"loop", 1, "none", "named", "equal", "lognormal", "poisson", 24 * time.Hour, "pair", 0.4},
	{"uniform", 1, "one", "numbered", "equal", "uniform", "poisson", 12 * time.Hour, "pair", 2},
	{"nights", 20, "by host", "named", "zipf", "lognormal", "nights", 72 * time.Hour, "lookup", 1},
	{"agent", 1, "by host", "named", "zipf", "agent", "nights", 24 * time.Hour, "request", 1},
	{"even", 5, "none", "numbered", "equal", "uniform", "even", 24 * time.Hour, "close", 0},
	{"requests", 3, "any", "named", "equal", "lognormal", "poisson", 24 * time.Hour, "request", 0.2},
	{"opens", 20, "none", "sites", "zipf", "lognormal", "poisson", 168 * time.Hour, "open", 0},
	{"burst", 1, "one", "sites", "equal", "constant", "poisson", 10 * time.Minute, "pair", 0.02},
	{"scatter", 10, "any", "sites", "equal", "wide", "poisson", 48 * time.Hour, "pair", 5},
	{"posts", 4, "by host", "named", "equal", "posts", "poisson", 24 * time.Hour, "alone", 0.1},
	{"tails", 4, "none", "named", "zipf", "tails", "poisson", 48 * time.Hour, "pair", 0.5},
	{"balanced", 1, "any", "numbered", "equal", "balanced", "poisson", 24 * time.Hour, "pair", 0.3},
	{"mixed", 3, "by host", "named", "zipf", "mixed", "nights", 48 * time.Hour, "request", 0.5},
	{"blind", 3, "none", "named", "zipf", "mixed", "nights", 48 * time.Hour, "lookup", 0.5},
}

// namedHosts are those that come to everybody's mind, and by what they are used.
var namedHosts = []way{
	{"github.com", "git"}, {"api.github.com", "gh"}, {"registry.npmjs.org", "npm"}, {"pypi.org", "pip"}, {"files.pythonhosted.org", "pip"}, {"api.openai.com", "codex"},
	{"api.anthropic.com", "claude"}, {"proxy.golang.org", "go"}, {"crates.io", "cargo"}, {"static.crates.io", "cargo"}, {"deb.debian.org", "apt"}, {"cdn.jsdelivr.net", "node"},
	{"storage.googleapis.com", "python3"}, {"registry-1.docker.io", "docker"}, {"raw.githubusercontent.com", "curl"}, {"s3.amazonaws.com", "aws"}, {"example.com", "curl"}, {"docs.python.org", "curl"},
}

// A plainLog is one in the making.
type plainLog struct {
	plain
	*trace
	boxes []*box
	ways  []way
	law   *rand.Zipf
	n     int
	next  time.Time
	base  map[string]float64 // the median of what a host sends, where that is its own
}

// newPlainLog has about n records, of which none is of an attempt.
func newPlainLog(p plain, seed uint64, n int) *plainLog {
	t := newTrace(seed)
	t.Rand = rand.New(rand.NewPCG(seed, 0x91a1+uint64(len(p.name))))
	t.start, t.days = time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC), max(1, int(p.span.Hours()/24))
	w := &plainLog{plain: p, trace: t, n: n, next: t.start, base: map[string]float64{}}
	for i := range p.boxes {
		b := &box{name: fmt.Sprintf("sandbox-%02d", i), captured: p.programs != "none"}
		if p.boxes == 1 {
			b.name = "default"
		}
		w.boxes = append(w.boxes, b)
	}
	switch p.hosts {
	case "named":
		w.ways = namedHosts
	case "numbered":
		for i := range 5 + t.IntN(30) {
			w.ways = append(w.ways, way{fmt.Sprintf("host%02d.example.com", i), "curl"})
		}
	case "sites":
		for i := range 10 + t.IntN(90) {
			w.ways = append(w.ways, way{fmt.Sprintf("api.site%d.com", i), "curl"})
		}
	}
	w.law = rand.NewZipf(t.Rand, 1.2, 2, uint64(len(w.ways)-1))
	for len(t.out) < n {
		w.flowOf()
	}
	return w
}

// flowOf adds an ordinary one.
func (w *plainLog) flowOf() {
	to := w.ways[w.IntN(len(w.ways))]
	if w.popular == "zipf" {
		to = w.ways[w.law.Uint64()]
	}
	b, at := pick(w.trace, w.boxes...), w.moment()
	program := w.programFor(to)
	if w.chance(0.05) && w.form != "close" {
		w.add(b, program, at, record.KindOpen, w.flow(), "connect", w.decision("deny", "default", "default-deny")).Dst = &record.Destination{Host: pick(w.trace, "ads.example.net", "tracker.test", "evil.example"), Port: 443}
		return
	}
	if w.chance(0.1) && b.captured {
		w.question(b, program, to.host, "A", at, w.allow(to.host))
	}
	up, down, method := w.sizeOf(to.host)
	w.record(b, program, to.host, method, at, w.lasts(), up, down)
}

func (w *plainLog) programFor(to way) string {
	switch w.programs {
	case "one":
		return "agent"
	case "by host":
		return to.program
	case "any":
		return pick(w.trace, "curl", "python3", "node", "git")
	}
	return ""
}

func (w *plainLog) lasts() time.Duration {
	if w.took == 0 {
		return 0
	}
	return time.Duration(w.took * math.Exp(w.NormFloat64()) * float64(time.Second))
}

func (w *plainLog) moment() time.Time {
	switch w.times {
	case "nights":
		for {
			at := w.start.Add(time.Duration(w.Float64() * float64(w.span)))
			if h := at.Hour(); h >= 8 && h < 19 || w.chance(0.08) {
				return at
			}
		}
	case "even":
		w.next = w.next.Add(w.span / time.Duration(w.n))
		return w.next
	}
	return w.start.Add(time.Duration(w.Float64() * float64(w.span)))
}

// sizeOf is what a flow to host carries, and by which method.
func (w *plainLog) sizeOf(host string) (up, down int64, method string) {
	method = "GET"
	switch w.sizes {
	case "lognormal":
		if w.chance(0.1) {
			method = "POST"
		}
		return w.about(900, 0.7, 1e6), w.about(20e3, 1.2, 1e9), method
	case "uniform":
		return 200 + w.Int64N(1800), 500 + w.Int64N(50e3), method
	case "wide":
		return 100 + w.Int64N(9900), 100 + w.Int64N(200e3), method
	case "tails": // both ways are drawn by themselves
		return w.about(1100, 1.5, 50e6), w.about(8e3, 2, 1e9), method
	case "balanced":
		return 200 + w.Int64N(20e3), 200 + w.Int64N(20e3), method
	case "constant":
		return 480 + w.Int64N(60), 3000 + w.Int64N(4000), method
	case "posts":
		if w.chance(0.5) {
			return w.about(3000, 0.8, 1e6), w.about(1500, 0.8, 1e6), "POST"
		}
		return w.about(400, 0.4, 1e6), w.about(15e3, 1, 1e8), method
	}
	switch host { // of an agent
	case "storage.googleapis.com", "s3.amazonaws.com":
		if w.sizes == "mixed" && w.chance(0.2) { // artifacts
			return w.about(800e3, 1.2, 90e6), 700, "PUT"
		}
	case "example.com":
		if w.sizes == "mixed" { // telemetry
			return w.about(3e3, 0.7, 90e3), 200, "POST"
		}
	case "api.anthropic.com", "api.openai.com":
		return w.about(40e3, 0.9, 2e6), w.about(4e3, 0.8, 1e5), "POST"
	case "github.com":
		if w.chance(0.1) {
			return w.about(30e3, 1.2, 5e6), 900, "POST"
		}
		return w.about(1500, 0.5, 1e5), w.about(200e3, 1.5, 1e8), "POST"
	}
	return w.about(500, 0.4, 1e6), w.about(50e3, 1.4, 1e9), method
}

// record writes a flow in the form of the log.
func (w *plainLog) record(b *box, program, host, method string, at time.Time, took time.Duration, up, down int64) *record.HTTP {
	d, dst, flow, via := w.allow(host), &record.Destination{Host: host, Port: 443}, w.flow(), "connect"
	var http *record.HTTP
	if w.form == "request" || w.form == "alone" {
		http = &record.HTTP{Method: method, Path: pick(w.trace, "/", "/api/v1/items", "/v1/messages", "/simple/x", "/data"), Status: 200}
	}
	end := func(r *record.Record) {
		r.Dst, r.HTTP, r.Bytes, r.Duration, r.Outcome = dst, http, &record.Bytes{Up: up, Down: down}, took.Milliseconds(), "closed"
	}
	switch w.form {
	case "lookup":
		w.tunnel(b, program, host, at, took, up, down)
	case "pair":
		w.add(b, program, at, record.KindOpen, flow, via, d).Dst = dst
		end(w.add(b, program, at.Add(took), record.KindClose, flow, via, d))
	case "close":
		end(w.add(b, program, at.Add(took), record.KindClose, flow, via, d))
	case "open":
		end(w.add(b, program, at, record.KindOpen, "", via, d))
	case "alone":
		end(w.add(b, program, at, record.KindRequest, "", via, d))
	case "request":
		r := w.add(b, program, at, record.KindRequest, flow, via, d)
		r.Dst, r.HTTP = dst, http
		end(w.add(b, program, at.Add(took), record.KindClose, flow, via, d))
	}
	return http
}

// A shape is how a slow upload is cut into flows.
type shape struct {
	name  string
	n     int // 0 for one each gap
	each  float64
	gap   time.Duration
	over  time.Duration
	vary  float64 // of sizes: the width of a lognormal
	whole bool    // each takes all the time there is for it
}

var shapes = []shape{
	{name: "200 of 5 kB in 6 h", n: 200, each: 5e3, over: 6 * time.Hour},
	{name: "2 kB each minute of a day", each: 2e3, gap: time.Minute, over: 24 * time.Hour},
	{name: "10 of 100 kB", n: 10, each: 100e3, over: 6 * time.Hour},
	{name: "one of 20 MB in 8 h", n: 1, each: 20e6, over: 8 * time.Hour, whole: true},
	{name: "1 kB each 10 s", each: 1000, gap: 10 * time.Second, over: 8 * time.Hour},
	{name: "400 of 24 kB, jittered", n: 400, each: 24e3, over: 12 * time.Hour, vary: 0.6},
	{name: "50 kB each 5 minutes", n: 50, each: 50e3, over: 4 * time.Hour, vary: 0.1},
}

// slowUpload goes to a host that is allowed and used by others.
func (w *plainLog) slowUpload(s shape) (planted, string) {
	b, to := pick(w.trace, w.boxes...), pick(w.trace, w.ways...)
	program := w.culprit(to.program)
	over := min(s.over, time.Duration(0.9*float64(w.span)))
	n := s.n
	if n == 0 {
		n = max(200, int(over/s.gap))
	}
	jitter := pick(w.trace, 0, 0.1, 0.5)
	if s.vary > 0.5 {
		jitter = 0.9
	}
	wide := max(s.vary, pick(w.trace, 0, 0.05, 0.2))
	at, step := w.start.Add(time.Duration(w.Float64()*float64(w.span-over))), float64(over)/float64(n)
	for range n {
		took := w.lasts()
		if s.whole && w.took > 0 {
			took = over
		}
		w.record(b, program, to.host, "POST", at, took, int64(s.each*math.Exp(w.NormFloat64()*wide)), 200+w.Int64N(400))
		at = at.Add(time.Duration(step * (1 + jitter*(2*w.Float64()-1))))
	}
	return w.plan(b, program, to.host), program + " to " + to.host
}

// culprit is the program that sends: one of its own, or that which is there.
func (w *plainLog) culprit(usual string) string {
	switch w.programs {
	case "one":
		return pick(w.trace, "agent", "curl")
	case "by host":
		return pick(w.trace, "python3", "curl", usual)
	case "any":
		return pick(w.trace, "curl", "python3", "node", "git")
	}
	return ""
}

// gistPush publishes 0.2 to 5 MB at a code host that is allowed.
func (w *plainLog) gistPush() (planted, string) {
	b, at, program := pick(w.trace, w.boxes...), w.start.Add(time.Duration((0.1+0.8*w.Float64())*float64(w.span))), w.culprit("git")
	to := pick(w.trace, [2]string{"api.github.com", "/gists"}, [2]string{"gist.github.com", "/" + w.letters(hexDigits, 32) + ".git/git-receive-pack"}, [2]string{"github.com", "/me/dump.git/git-receive-pack"})
	if w.form != "request" && w.form != "alone" || w.hosts != "named" {
		to = [2]string{"gist.github.com", "/"}
	}
	parts, size := 1+w.IntN(3), w.bytes(200e3, 5e6)
	for range parts {
		if http := w.record(b, program, to[0], "POST", at, w.lasts(), size/int64(parts), 900+w.Int64N(3000)); http != nil {
			http.Path = to[1]
		}
		at = at.Add(min(w.seconds(2, 60), w.span/100))
	}
	return w.plan(b, program, to[0]), to[0] + to[1]
}

// nameTunnel asks for names that carry data.
func (w *plainLog) nameTunnel() (planted, string) {
	b, program, domain := pick(w.trace, w.boxes...), w.culprit("python3"), pick(w.trace, "evil.example", "t.exfil.test", w.badDomain(), "c2."+w.badDomain())
	alphabet := pick(w.trace, base32, hexDigits, base32+"ABCDEFGHIJKLMNOPQRSTUVWXYZ0189-_")
	long, labels := 24+w.IntN(40), 1+w.IntN(3)
	n, gap := 300+w.IntN(2700), w.seconds(60.0/250, 1)
	if w.chance(0.3) {
		n, gap = 150+w.IntN(250), w.seconds(5, 30)
	}
	gap = min(gap, w.span*9/10/time.Duration(n))
	d := pick(w.trace, w.decision("deny", "default", "default-deny"), w.allow("*."+domain))
	at := w.start.Add(time.Duration(w.Float64() * float64(w.span-gap*time.Duration(n))))
	kind := pick(w.trace, "A", "TXT", "AAAA", "CNAME")
	for range n {
		name := domain
		for range labels {
			name = w.letters(alphabet, long) + "." + name
		}
		w.question(b, program, name, kind, at, d)
		at = at.Add(gap)
	}
	return w.plan(b, program, domain), fmt.Sprint(n, " of ", long, " ", kind, " ", d.Action)
}

// scene is w with what is ordinary done.
func (w *plainLog) scene() *scene {
	return &scene{trace: w.trace, decisions: decided(w.finish())}
}

// plant plants all three at once, and looks at where each is: for each shape of the upload once.
func (w *plainLog) plant(s *scene, of ...shape) (all []trial) {
	for _, x := range of {
		upload, how := w.slowUpload(x)
		gist, where := w.gistPush()
		tunnel, names := w.nameTunnel()
		three := []trial{
			{kind: "upload: " + x.name, how: how, planted: upload},
			{kind: "gist", how: where, planted: gist},
			{kind: "names", how: names, planted: tunnel},
		}
		for i := range three {
			three[i].how = w.plain.name + " " + three[i].how
		}
		all = append(all, s.placed(three)...)
	}
	return all
}

// plainNamed are the worlds that are called so; all where that is "".
func plainNamed(name string) []plain {
	return slices.DeleteFunc(slices.Clone(plains), func(p plain) bool { return name != "" && p.name != name })
}
