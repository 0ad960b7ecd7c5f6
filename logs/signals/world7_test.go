package signals_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// A world7 is four days of a small company: three agents, two pipelines, a deployment, a backup and notebooks. Requests are
// seen, and heads are as long as those of the programs that send them.
type world7 struct {
	*trace
	agents, ci               []*box
	deploy, backup, notebook *box
	built                    []artifact // newest last
}

// An artifact lies in the store that pipelines and deployments share.
type artifact struct {
	at   time.Time
	path string
	size int64
}

const (
	artifacts = "artifacts.acme.dev"
	datasets  = "huggingface.co"
	mcpServer = "mcp.linear.app"
	telemetry = "otlp.acme.dev"
)

func newWorld7(seed uint64) *world7 {
	t := newTrace(seed)
	t.Rand = rand.New(rand.NewPCG(seed, 0x7007))
	t.start, t.days = time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC), 4 // a Monday
	box7 := func(name string, night float64) *box { return &box{name: name, captured: true, night: night} }
	w := &world7{trace: t, deploy: box7("deploy", 0.02), backup: box7("backup", 1), notebook: box7("notebooks", 0.1)}
	w.agents = []*box{box7("agent-ana", 0.03), box7("agent-bo", 0.05), box7("agent-cy", 0.03)}
	w.ci = []*box{box7("ci-web", 0.1), box7("ci-api", 0.2)}
	return w
}

// scene7 has about n records of which none is of an attempt.
func scene7(seed uint64, n int) (*scene, *world7) {
	w := newWorld7(seed)
	w.ordinary(n)
	return &scene{trace: w.trace, decisions: decided(w.finish())}, w
}

// heads are the bytes of a request's head without its path and query, by program: its line and its fields.
var heads = map[string]int64{"npm": 410, "pip": 330, "git": 300, "go": 150, "curl": 95, "claude": 640, "node": 280, "python3": 190, "restic": 420, "otelcol": 240, "chrome": 780, "docker": 360}

// ask is a request. Its head grows by its path and its query, and by fields of its own.
func (w *world7) ask(b *box, program, host, method, path string, at time.Time, took time.Duration, fields, query, body, down int64) (begin, end *record.Record) {
	head := heads[program]
	if head == 0 {
		head = 250
	}
	head += int64(len(path)+len(host)) + query + fields + w.Int64N(24)
	flow, d, dst := w.flow(), w.allow(host), &record.Destination{Host: host, Port: 443}
	if w.chance(0.15) {
		w.resolve(b, program, host, at.Add(-3*time.Millisecond), d)
	}
	begin = w.add(b, program, at, record.KindRequest, flow, b.via(), d)
	begin.Dst, begin.HTTP = dst, &record.HTTP{Method: method, Path: path, QueryBytes: query}
	end = w.add(b, program, at.Add(took), record.KindClose, flow, b.via(), d)
	end.Dst, end.HTTP = dst, &record.HTTP{Method: method, Path: path, QueryBytes: query, Status: 200}
	end.TLS = &record.TLS{SNI: host, Inspected: true}
	end.Bytes, end.Duration, end.Outcome = &record.Bytes{Up: head + body, Down: down + w.bytes(180, 500)}, took.Milliseconds(), "closed"
	return begin, end
}

func (w *world7) get(b *box, program, host, path string, at time.Time, down int64) {
	w.ask(b, program, host, "GET", path, at, w.seconds(0.04, 1.5), 0, 0, 0, down)
}

func (w *world7) post(b *box, program, host, path string, at time.Time, up, down int64) {
	w.ask(b, program, host, "POST", path, at, w.seconds(0.1, 4), 0, 0, up, down)
}

func (w *world7) ordinary(n int) {
	w.timers()
	for day := range w.days {
		w.backups(w.start.Add(time.Duration(day) * 24 * time.Hour))
	}
	for len(w.out) < n {
		switch x := w.Float64(); {
		case x < 0.34:
			w.session(pick(w.trace, w.agents...))
		case x < 0.60:
			w.pipeline(pick(w.trace, w.ci...))
		case x < 0.64:
			w.deployment()
		case x < 0.72:
			w.experiment()
		case x < 0.86:
			w.reading(pick(w.trace, append(w.agents, w.notebook)...))
		default:
			w.refusals(pick(w.trace, append(w.agents, w.ci[0], w.notebook)...))
		}
	}
}

// timers are telemetry and a look for updates.
func (w *world7) timers() {
	end := w.start.Add(time.Duration(w.days) * 24 * time.Hour)
	for _, b := range append(w.ci, w.deploy, w.backup) {
		for at := w.start.Add(w.seconds(10, 900)); at.Before(end); at = at.Add(w.seconds(1100, 1300)) {
			w.post(b, "otelcol", telemetry, "/v1/metrics", at, w.about(3500, 0.4, 40e3), 30)
		}
	}
	for _, b := range w.agents {
		for at := w.when(b); at.Before(end); at = at.Add(w.seconds(5*3600, 9*3600)) {
			w.get(b, "claude", "storage.googleapis.com", "/claude-code-dist/stable", at, 20)
		}
	}
}

// backups is one night's: what changed, in packs of one size.
func (w *world7) backups(day time.Time) {
	at := day.Add(2*time.Hour + w.seconds(60, 900))
	w.get(w.backup, "restic", "acme-backup.s3.eu-central-1.amazonaws.com", "/config", at, 155)
	for range 14 + w.IntN(8) {
		at = at.Add(w.seconds(2, 9))
		w.ask(w.backup, "restic", "acme-backup.s3.eu-central-1.amazonaws.com", "PUT", "/data/"+w.letters(hexDigits, 2)+"/"+w.letters(hexDigits, 64), at, w.seconds(1, 8), 0, 0, 16<<20+w.Int64N(1<<20), 0)
	}
}

// session is one of an agent, which sends all that was said with each turn.
func (w *world7) session(b *box) {
	at, context := w.when(b), w.between(18e3, 70e3)
	for range 6 + w.IntN(40) {
		at, context = at.Add(w.seconds(4, 80)), context+float64(w.about(5e3, 1.1, 200e3))
		if context > 700e3 {
			context = w.between(40e3, 90e3)
		}
		w.post(b, "claude", "api.anthropic.com", "/v1/messages", at, int64(context), w.bytes(2e3, 50e3))
		switch x := w.Float64(); {
		case x < 0.12:
			w.post(b, "claude", "statsig.anthropic.com", "/v1/rgstr", at, w.about(3e3, 0.9, 90e3), 60)
		case x < 0.18:
			w.post(b, "claude", mcpServer, "/mcp", at, w.about(420, 0.5, 3e3), w.about(3e3, 1, 90e3))
		case x < 0.24:
			w.git(b, at)
		case x < 0.27:
			w.install(b, at)
		}
	}
	if w.chance(0.3) { // a stream of events beside it
		w.socket(b, "claude", at, w.seconds(1800, 9000))
	}
}

// socket is a WebSocket: little goes out, and more comes in.
func (w *world7) socket(b *box, program string, at time.Time, took time.Duration) *record.Record {
	_, end := w.ask(b, program, "events.linear.app", "GET", "/graphql/ws", at, took, 160, 0, w.about(15e3, 0.8, 200e3), w.about(120e3, 0.9, 5e6))
	end.HTTP.Status = 101
	return end
}

func (w *world7) git(b *box, at time.Time) {
	repo := "/acme/" + pick(w.trace, "web", "api", "infra") + ".git"
	w.ask(b, "git", "github.com", "GET", repo+"/info/refs", at, w.seconds(0.1, 1), 0, 23, 0, w.about(9e3, 0.6, 90e3))
	if w.chance(0.35) {
		w.post(b, "git", "github.com", repo+"/git-receive-pack", at.Add(time.Second), w.about(14e3, 1.3, 8e6), 700)
		return
	}
	w.post(b, "git", "github.com", repo+"/git-upload-pack", at.Add(time.Second), w.about(1500, 0.7, 60e3), w.about(200e3, 1.8, 300e6))
}

var packages7 = []string{"react", "lodash", "vite", "zod", "esbuild", "typescript", "express", "pino", "undici", "ws", "chalk", "semver", "axios", "eslint"}

func (w *world7) install(b *box, at time.Time) {
	switch w.IntN(3) {
	case 0:
		for range 4 + w.IntN(14) {
			name, at := pick(w.trace, packages7...), at.Add(w.seconds(0.01, 3))
			w.get(b, "npm", "registry.npmjs.org", "/"+name, at, w.about(60e3, 1.1, 4e6))
			w.get(b, "npm", "registry.npmjs.org", fmt.Sprintf("/%s/-/%s-%d.%d.%d.tgz", name, name, w.IntN(9), w.IntN(20), w.IntN(9)), at, w.about(90e3, 1.4, 9e6))
		}
		if w.chance(0.5) {
			w.post(b, "npm", "registry.npmjs.org", "/-/npm/v1/security/advisories/bulk", at.Add(4*time.Second), w.about(7e3, 0.5, 40e3), 300)
		}
	case 1:
		for range 3 + w.IntN(9) {
			name := pick(w.trace, "numpy", "requests", "attrs", "pandas", "rich", "httpx", "pydantic")
			w.get(b, "pip", "pypi.org", "/simple/"+name+"/", at, w.about(30e3, 1, 2e6))
			h := w.always("wheel of "+name+fmt.Sprint(w.IntN(5)), func() string { return w.letters(hexDigits, 64) })
			w.get(b, "pip", "files.pythonhosted.org", "/packages/"+h[:2]+"/"+h[2:4]+"/"+h[4:]+"/"+name+".whl", at, w.about(500e3, 1.4, 60e6))
		}
	default:
		for range 3 + w.IntN(12) {
			w.get(b, "go", "proxy.golang.org", fmt.Sprintf("/golang.org/x/%s/@v/v0.%d.0.zip", pick(w.trace, "net", "sys", "text", "crypto", "tools"), w.IntN(40)), at.Add(w.seconds(0.01, 2)), w.about(300e3, 1.3, 9e6))
		}
	}
}

// pipeline builds, and leaves an artifact for who deploys.
func (w *world7) pipeline(b *box) {
	at := w.when(b)
	w.git(b, at)
	w.install(b, at.Add(w.seconds(3, 20)))
	end := at.Add(w.seconds(60, 500))
	if w.chance(0.6) {
		a := artifact{end, fmt.Sprintf("/%s/%s.tar.zst", b.name, w.letters(hexDigits, 40)), w.about(4e6, 0.5, 40e6)}
		w.ask(b, "curl", artifacts, "PUT", a.path, a.at, w.seconds(1, 9), 0, 0, a.size, 40)
		w.built = append(w.built, a)
	}
	if w.chance(0.4) {
		w.post(b, "curl", "ingest.codecov.io", "/upload/v4", end, w.about(150e3, 0.5, 3e6), 300)
	}
}

// deployment fetches what a pipeline built and pushes it: an ordinary relay.
func (w *world7) deployment() {
	if len(w.built) == 0 {
		return
	}
	a := w.built[w.IntN(len(w.built))]
	at := a.at.Add(w.seconds(120, 2400))
	w.get(w.deploy, "curl", artifacts, a.path, at, a.size)
	size := a.size
	if w.chance(0.5) { // packed anew
		size = int64(float64(size) * w.between(1, 1.2))
	}
	w.ask(w.deploy, "docker", "registry.fly.io", "PUT", "/v2/acme/blobs/uploads/"+w.letters(hexDigits, 32), at.Add(w.seconds(5, 60)), w.seconds(2, 20), 0, 80, size, 0)
}

// experiment fetches data, and now and then commits results.
func (w *world7) experiment() {
	at := w.when(w.notebook)
	for range 2 + w.IntN(6) {
		at = at.Add(w.seconds(2, 90))
		w.get(w.notebook, "python3", datasets, fmt.Sprintf("/datasets/acme/corpus/resolve/main/part-%03d.parquet", w.IntN(60)), at, w.about(20e6, 0.9, 400e6))
	}
	if w.chance(0.25) {
		w.post(w.notebook, "python3", datasets, "/api/datasets/acme/results/commit/main", at.Add(w.seconds(600, 3000)), w.about(200e3, 1, 5e6), 400)
	}
	w.post(w.notebook, "python3", "api.wandb.ai", "/graphql", at, w.about(2500, 0.6, 60e3), 500)
}

// reading is a browser's or an agent's: long fields from cookies, and searches.
func (w *world7) reading(b *box) {
	at, program := w.when(b), pick(w.trace, "chrome", "claude")
	for range 3 + w.IntN(9) {
		host := pick(w.trace, "docs.python.org", "developer.mozilla.org", "stackoverflow.com", "pkg.go.dev", "react.dev", "en.wikipedia.org")
		cookie := w.always("cookie of "+b.name+host, func() string { return w.letters(hexDigits, 40+w.IntN(700)) })
		fields, query := int64(0), int64(0)
		if program == "chrome" {
			fields = int64(len(cookie))
		}
		if w.chance(0.25) {
			query = w.about(28, 0.7, 300)
		}
		w.ask(b, program, host, "GET", "/"+w.word()+"/"+w.word()+".html", at, w.seconds(0.1, 1), fields, query, 0, w.about(40e3, 1, 3e6))
		at = at.Add(w.seconds(3, 120))
	}
}

func (w *world7) refusals(b *box) {
	at := w.when(b)
	for range 1 + w.IntN(3) {
		w.denied(b, pick(w.trace, "claude", "node", "npm"), pick(w.trace, "telemetry.nextjs.org", "o447951.ingest.sentry.io", "www.google-analytics.com", "registry.yarnpkg.com", w.word()+".dev"), 443, at, 1+w.IntN(3))
		at = at.Add(w.seconds(1, 400))
	}
}

// work is the n-th of count moments that are spread over b's working hours of the days from day.
func (w *world7) work(day, n, count int) time.Time {
	days := w.days - day
	each := (count + days - 1) / days
	part := (float64(n%each) + w.Float64()) / float64(each)
	return w.start.Add(time.Duration(day+n/each)*24*time.Hour + time.Duration((8.3+9.5*part)*float64(time.Hour)))
}

type theft7 struct {
	name  string
	plant func(*world7) planted
}

// thefts7 are what can be planted in a world7. Each is of one kind; how much and by whom is drawn.
var thefts7 = []theft7{
	{"names that carry data", func(w *world7) planted {
		b, domain, at := pick(w.trace, w.agents...), w.badDomain(), w.when(w.agents[0])
		for range 500 + w.IntN(500) {
			w.question(b, "python3", w.letters(base32, 40+w.IntN(15))+"."+domain, "A", at, w.decision("deny", "default", "default-deny"))
			at = at.Add(w.seconds(0.2, 20))
		}
		return w.plan(b, "python3", domain)
	}},
	{"names of digits", func(w *world7) planted {
		b, domain := pick(w.trace, w.agents...), w.badDomain()
		for i := range 700 {
			w.question(b, "node", w.letters("0123456789", 10+w.IntN(4))+"."+domain, "A", w.work(1, i, 700), w.allow("*."+domain))
		}
		return w.plan(b, "node", domain)
	}},
	{"digits in paths", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 1500 {
			w.get(b, "claude", "stackoverflow.com", "/questions/"+w.letters("0123456789", 60+w.IntN(20)), w.work(0, i, 1500), w.bytes(3e3, 9e3))
		}
		return w.plan(b, "claude", "stackoverflow.com")
	}},
	{"drip in paths", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 900 {
			w.get(b, "claude", "en.wikipedia.org", "/wiki/"+w.letters(base32+"ABCDEFGHIJKLMNOPQRSTUVWXYZ", 70+w.IntN(60)), w.work(0, i, 900), w.bytes(3e3, 20e3))
		}
		return w.plan(b, "claude", "en.wikipedia.org")
	}},
	{"drip in queries", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 800 {
			w.ask(b, "claude", "pkg.go.dev", "GET", "/search", w.work(0, i, 800), w.seconds(0.1, 1), 0, 300+w.Int64N(500), 0, w.about(30e3, 0.5, 200e3))
		}
		return w.plan(b, "claude", "pkg.go.dev")
	}},
	{"long fields", func(w *world7) planted {
		b, at := pick(w.trace, w.agents...), w.when(w.agents[0])
		for range 260 {
			w.ask(b, "curl", "docs.python.org", "GET", "/3/", at, w.seconds(0.1, 1), 3500+w.Int64N(3500), 0, 0, w.about(9e3, 0.5, 90e3))
			at = at.Add(w.seconds(3, 90))
		}
		return w.plan(b, "curl", "docs.python.org")
	}},
	{"many small fields", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 1700 {
			w.ask(b, "npm", "registry.npmjs.org", "GET", "/"+pick(w.trace, packages7...), w.work(0, i, 1700), w.seconds(0.05, 1), 600+w.Int64N(300), 0, 0, w.about(60e3, 1.1, 4e6))
		}
		return w.plan(b, "npm", "registry.npmjs.org")
	}},
	{"a big upload to an allowed host", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		w.ask(b, "python3", datasets, "PUT", "/api/datasets/tmp-"+w.word()+"/upload", w.when(b), w.seconds(20, 90), 0, 0, w.bytes(20e6, 80e6), 200)
		return w.plan(b, "python3", datasets)
	}},
	{"a big upload to a new host", func(w *world7) planted {
		b, host := pick(w.trace, w.agents...), "files."+w.badDomain()
		w.ask(b, "curl", host, "PUT", "/in", w.when(b).Add(24*time.Hour), w.seconds(5, 60), 0, 0, w.bytes(8e6, 30e6), 20)
		return w.plan(b, "curl", host)
	}},
	{"a beacon", func(w *world7) planted {
		b, host := pick(w.trace, w.agents...), w.word()+".pages.dev"
		for at := w.start.Add(30*time.Hour + w.seconds(60, 7200)); at.Before(w.start.Add(70 * time.Hour)); at = at.Add(w.seconds(230, 370)) {
			w.post(b, "python3", host, "/t", at, w.bytes(400, 900), 40)
		}
		return w.plan(b, "python3", host)
	}},
	{"a relay's second leg", func(w *world7) planted { // by who has sent nothing to that host before
		from, to := pick(w.trace, w.agents...), pick(w.trace, w.ci...)
		for i := range 9 {
			at, size, path := w.work(1, i, 9), w.bytes(120e3, 400e3), "/tmp/"+w.letters(hexDigits, 40)
			w.ask(from, "curl", artifacts, "PUT", path, at, w.seconds(1, 5), 0, 0, size, 40)
			at = at.Add(w.seconds(600, 4000))
			w.get(to, "curl", artifacts, path, at, size)
			w.post(to, "curl", "ingest.codecov.io", "/upload/v4", at.Add(w.seconds(20, 300)), size, 300)
		}
		return w.plan(to, "curl", "ingest.codecov.io")
	}},
	{"at night", func(w *world7) planted {
		b, at := pick(w.trace, w.agents...), w.start.Add(51*time.Hour+w.seconds(60, 3000))
		for range 6 {
			w.post(b, "git", "github.com", "/acme/web.git/git-receive-pack", at, w.bytes(0.5e6, 2e6), 700)
			at = at.Add(w.seconds(20, 400))
		}
		return w.plan(b, "git", "github.com")
	}},
	{"a program of its own", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 40 {
			w.post(b, "rclone", "statsig.anthropic.com", "/v1/rgstr", w.work(0, i, 40), w.bytes(20e3, 90e3), 60)
		}
		return w.plan(b, "rclone", "statsig.anthropic.com")
	}},
	{"a name like a known one", func(w *world7) planted {
		b, host := pick(w.trace, w.agents...), pick(w.trace, "registry.npmjs-cdn.org", "registry.npnjs.org", "pypi-mirror.org", "files.pythonhosled.org", "api.githud.com", "api.antrhopic.com")
		for i := range 40 {
			w.post(b, "node", host, "/v1/batch", w.work(0, i, 40), w.bytes(15e3, 60e3), 200)
		}
		return w.plan(b, "node", host)
	}},
	{"a dead drop", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 45 {
			at := w.work(1, i, 45)
			w.post(b, "python3", datasets, "/api/datasets/acme/results/commit/main", at, w.bytes(48e3, 256e3), 400)
			if w.chance(0.3) {
				w.get(b, "python3", datasets, "/datasets/acme/corpus/resolve/main/part-001.parquet", at, w.about(5e6, 1, 80e6))
			}
		}
		return w.plan(b, "python3", datasets)
	}},
	{"a trickle in a WebSocket", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		end := w.socket(b, "claude", w.start.Add(32*time.Hour), w.seconds(8*3600, 11*3600))
		end.Bytes = &record.Bytes{Up: w.bytes(600e3, 2e6), Down: w.bytes(20e3, 60e3)}
		return w.plan(b, "claude", "events.linear.app")
	}},
	{"arguments of a tool", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		for i := range 350 {
			w.post(b, "claude", mcpServer, "/mcp", w.work(2, i, 350), w.bytes(2500, 6000), w.bytes(200, 700))
		}
		return w.plan(b, "claude", mcpServer)
	}},
	{"a push of a new branch", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		begin, end := w.ask(b, "git", "github.com", "POST", "/acme/web.git/git-receive-pack", w.when(b), w.seconds(5, 60), 0, 0, w.bytes(20e6, 60e6), 700)
		begin.Git = &record.Git{Repo: "acme/web", Op: "push", Refs: []string{strings.Repeat("0", 40) + " " + w.letters(hexDigits, 40) + " refs/heads/wip-" + w.word()}}
		end.Git = begin.Git
		return w.plan(b, "git", "github.com")
	}},
	{"a gist", func(w *world7) planted {
		b := pick(w.trace, w.agents...)
		w.post(b, "claude", "api.github.com", "/gists", w.when(b), w.bytes(40e3, 400e3), 4000)
		return w.plan(b, "claude", "api.github.com/gists")
	}},
}

// mean7 is the mean of places for a person, where absence counts as place 99.
func mean7(places []int) (sum float64) {
	for _, p := range places {
		if p == 0 {
			p = 99
		}
		sum += float64(p)
	}
	return math.Round(10*sum/float64(len(places))) / 10
}
