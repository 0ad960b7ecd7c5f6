package signals_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A world5 is a fifth one: agents, pipelines, a bot, a release job, notebooks and a service,
// by what is known of such traffic. It was written before the code of the ranking was read by
// who wrote it; that there were four worlds, and what the manual says of them, was known.
type world5 struct {
	*trace
	agents, ci                  []*box
	bot, release, data, service *box
}

func newWorld5(seed uint64) *world5 {
	t := &trace{Rand: rand.New(rand.NewPCG(seed, 0xf1f7)), fourth: true, names: map[string]string{}}
	t.processes, t.verdicts = newTrace(seed).processes, newTrace(seed).verdicts
	t.start = time.Date(2026, 9, 7+t.IntN(7), 0, 0, 0, 0, time.UTC)
	t.days = 2 + t.IntN(3)
	w := &world5{trace: t}
	for i, llm := range []string{"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com"} {
		b := &box{name: fmt.Sprintf("agent-%d", i+1), captured: t.chance(0.7), llm: llm, night: t.between(0.02, 0.3)}
		if t.chance(0.6) {
			b.inspects = []string{"api.github.com", "github.com", "registry.npmjs.org", "pypi.org", llm}
		}
		w.agents = append(w.agents, b)
	}
	for _, name := range []string{"ci-linux", "ci-e2e"} {
		b := &box{name: name, captured: t.chance(0.5), night: t.between(0.1, 0.5)}
		if t.chance(0.4) {
			b.inspects = []string{"github.com", "registry.npmjs.org", "pypi.org", "proxy.golang.org"}
		}
		w.ci = append(w.ci, b)
	}
	w.bot = &box{name: "renovate", captured: t.chance(0.5), night: 1, inspects: []string{"api.github.com"}}
	w.release = &box{name: "release", captured: t.chance(0.5), night: 0.1}
	w.data = &box{name: "notebooks", captured: t.chance(0.7), night: t.between(0.05, 0.6)}
	w.service = &box{name: "service", captured: t.chance(0.5), night: 1, inspects: []string{"status.acme.dev"}}
	return w
}

// about is lognormal: most of what programs send is near the median, some far above.
func (t *trace) about(median, wide, most float64) int64 {
	return int64(min(most, median*math.Exp(t.NormFloat64()*wide)))
}

func (w *world5) ordinary(n int) {
	w.clocks(n / 5)
	w.daily()
	w.once()
	for len(w.out) < n {
		switch x := w.Float64(); {
		case x < 0.34:
			w.talk(pick(w.trace, w.agents...))
		case x < 0.60:
			w.pipeline(pick(w.trace, w.ci...))
		case x < 0.66:
			w.updates()
		case x < 0.70:
			w.pushImage()
		case x < 0.78:
			w.notebook()
		case x < 0.88:
			w.pages(pick(w.trace, w.agents[0], w.agents[1], w.ci[1]))
		default:
			w.mistakes(pick(w.trace, append(w.agents, w.ci[0], w.data, w.service)...))
		}
	}
}

// talk is a session of an agent. Where it is not looked into, a connection carries several
// turns, each of which sends everything before it.
func (w *world5) talk(b *box) {
	program := map[string]string{"api.anthropic.com": "claude", "api.openai.com": "codex"}[b.llm]
	if program == "" {
		program = "gemini"
	}
	at, context, inspected := w.when(b), w.between(60e3, 130e3), len(b.inspects) > 0
	for turns := 8 + w.IntN(90); turns > 0; {
		kept, up, down, began := 1, int64(0), int64(0), at
		if !inspected {
			kept = 1 + w.IntN(8)
		}
		for range kept {
			context += float64(w.about(6e3, 1.3, 300e3))
			if w.chance(0.015) {
				context += w.between(200e3, 3e6) // a picture
			}
			if context > 900e3 {
				context = w.between(60e3, 140e3)
			}
			up, down, turns = up+int64(context), down+w.bytes(2e3, 80e3), turns-1
			at = at.Add(w.seconds(3, 60))
		}
		w.call(b, program, b.llm, "POST", "/v1/messages", began, at.Sub(began), up, down)
		w.tool(b, program, at)
	}
}

// tool is what an agent runs between two turns.
func (w *world5) tool(b *box, program string, at time.Time) {
	switch x := w.Float64(); {
	case x < 0.04:
		w.packages(b, at)
	case x < 0.10:
		w.repository(b, at)
	case x < 0.16:
		w.hub(b, at)
	case x < 0.24:
		w.call(b, program, pick(w.trace, "docs.python.org", "pkg.go.dev", "doc.rust-lang.org", "docs.github.com", "www.npmjs.com", "raw.githubusercontent.com"), "GET", "/", at, w.seconds(0.2, 5), w.about(900, 0.5, 9e3), w.about(60e3, 1.4, 9e6))
	case x < 0.40: // telemetry, in batches
		host := w.always("events of "+b.name, func() string {
			return pick(w.trace, "statsig.anthropic.com", "o447951.ingest.sentry.io", "api.mixpanel.com", "browser-intake-datadoghq.com")
		})
		w.call(b, program, host, "POST", "/v1/rgstr", at, w.seconds(0.1, 1), w.about(4e3, 1.2, 400e3), 150)
	case x < 0.42: // a server of tools, over a web socket
		w.tunnel(b, program, w.always("mcp of "+b.name, func() string { return pick(w.trace, "mcp.linear.app", "mcp.notion.com", "mcp.sentry.dev") }), at, w.seconds(60, 9000), w.about(30e3, 1.2, 2e6), w.about(150e3, 1.3, 20e6))
	}
}

// repository is git by https or ssh, whose sizes have a long tail.
func (w *world5) repository(b *box, at time.Time) {
	over := w.always("git of "+b.name, func() string { return pick(w.trace, "https", "https", "ssh") })
	repo := "/acme/" + pick(w.trace, "web", "core", "infra", "docs") + ".git"
	service, up, down := "/git-upload-pack", w.about(3e3, 1, 200e3), w.about(300e3, 2.2, 900e6)
	if w.chance(0.35) {
		service, up, down = "/git-receive-pack", w.about(12e3, 1.9, 95e6), 900
	}
	switch {
	case over == "ssh":
		w.ssh(b, at, up, down)
	case len(b.inspects) > 0:
		w.call(b, "git", "github.com", "GET", repo+"/info/refs", at, w.seconds(0.1, 1), 0, w.about(9e3, 1, 300e3))
		w.call(b, "git", "github.com", "POST", repo+service, at.Add(time.Second), w.seconds(0.5, 60), up, down)
	default:
		w.tunnel(b, "git", "github.com", at, w.seconds(1, 60), up, down)
	}
}

func (w *world5) ssh(b *box, at time.Time, up, down int64) {
	w.tunnel(b, "ssh", "github.com", at, w.seconds(1, 60), up+3000, down)
	for _, r := range w.out[len(w.out)-2:] {
		r.Dst.Port, r.TLS = 22, nil
	}
}

// hub is the interface of the code host: mostly reading, some of it pull requests and comments.
func (w *world5) hub(b *box, at time.Time) {
	for range 1 + w.IntN(10) {
		at = at.Add(w.seconds(0.3, 9))
		path := "/repos/acme/" + pick(w.trace, "web", "core", "infra")
		switch w.IntN(6) {
		case 0:
			w.call(b, "gh", "api.github.com", "POST", fmt.Sprintf("%s/issues/%d/comments", path, w.IntN(900)), at, w.seconds(0.2, 1), w.about(1500, 1, 64e3), 6000)
		case 1:
			w.call(b, "gh", "api.github.com", "POST", pick(w.trace, path+"/pulls", "/graphql", "/graphql"), at, w.seconds(0.2, 1), w.about(2e3, 0.9, 64e3), w.about(5e3, 1, 90e3))
		default:
			w.call(b, "gh", "api.github.com", "GET", path+pick(w.trace, "/pulls", "/actions/runs", "/contents/go.mod"), at, w.seconds(0.1, 1), 0, w.about(20e3, 1, 900e3))
		}
	}
}

func (w *world5) packages(b *box, at time.Time) {
	kind := pick(w.trace, [2]string{"npm", "registry.npmjs.org"}, [2]string{"pip", "files.pythonhosted.org"}, [2]string{"go", "proxy.golang.org"}, [2]string{"apt", "deb.debian.org"})
	n := 3 + w.IntN(60)
	if kind[0] == "pip" {
		w.fetch(b, "pip", "pypi.org", at, n)
	}
	if kind[0] == "apt" {
		for range n {
			w.request(b, "http", kind[1], "GET", "/debian/pool/main/"+w.word()+".deb", at.Add(w.seconds(0.1, 20)), w.seconds(0.01, 2), 0, w.about(90e3, 1.6, 90e6))
		}
		return
	}
	w.fetch(b, kind[0], kind[1], at, n)
	if kind[0] == "npm" && w.chance(0.2) { // what scripts of packages fetch by themselves
		w.tunnel(b, "node", pick(w.trace, "github.com", "release-assets.githubusercontent.com", "playwright.azureedge.net", "cdn.playwright.dev"), at, w.seconds(1, 40), w.bytes(800, 4e3), w.about(40e6, 0.8, 400e6))
	}
}

// pipeline is a run of continuous integration, with a cache that is fetched and sometimes kept.
func (w *world5) pipeline(b *box) {
	at := w.when(b)
	store := fmt.Sprintf("productionresultssa%d.blob.core.windows.net", w.IntN(20))
	w.tunnel(b, "node", "results-receiver.actions.githubusercontent.com", at, w.seconds(0.2, 1), w.bytes(1500, 9e3), 2000)
	w.repository(b, at)
	w.tunnel(b, "node", store, at.Add(5*time.Second), w.seconds(0.5, 20), w.bytes(900, 3e3), w.about(40e6, 1, 400e6))
	for range 1 + w.IntN(3) {
		at = at.Add(w.seconds(5, 60))
		w.packages(b, at)
	}
	at = at.Add(w.seconds(60, 900))
	if w.chance(0.3) { // blocks of a cache, or artifacts
		for left := w.about(9e6, 1.6, 110e6); left > 0; left -= 32 << 20 {
			w.tunnel(b, "node", store, at.Add(w.seconds(0.1, 4)), w.seconds(0.5, 9), min(left, 32<<20), 900)
		}
	}
	if w.chance(0.3) {
		w.tunnel(b, "node", pick(w.trace, "ingest.codecov.io", "app.circleci.com", "sonarcloud.io"), at, w.seconds(0.5, 5), w.about(90e3, 1.3, 5e6), 2000)
	}
	if w.chance(0.25) {
		w.hub(b, at)
	}
}

// updates is the bot: it asks every registry for what is new, and opens pull requests.
func (w *world5) updates() {
	at := w.when(w.bot).Truncate(time.Hour).Add(w.seconds(1, 90))
	for range 10 + w.IntN(60) {
		at = at.Add(w.seconds(0.1, 3))
		w.call(w.bot, "node", pick(w.trace, "registry.npmjs.org", "pypi.org", "proxy.golang.org", "index.docker.io", "api.github.com", "hub.docker.com"), "GET", "/"+w.word(), at, w.seconds(0.1, 1), 0, w.about(40e3, 1.5, 9e6))
	}
	w.hub(w.bot, at)
	if w.chance(0.3) {
		w.tunnel(w.bot, "git", "github.com", at, w.seconds(1, 9), w.about(5e3, 0.7, 200e3), 4000)
	}
}

// pushImage pulls a base and pushes layers of what was built on it.
func (w *world5) pushImage() {
	b, at := w.release, w.when(w.release)
	registry := w.always("registry", func() string {
		return pick(w.trace, "ghcr.io", "123456789012.dkr.ecr.eu-west-1.amazonaws.com", "europe-docker.pkg.dev", "registry-1.docker.io")
	})
	for range 1 + w.IntN(6) {
		w.tunnel(b, "buildkitd", pick(w.trace, "production.cloudflare.docker.com", "registry-1.docker.io", "pkg-containers.githubusercontent.com"), at, w.seconds(0.5, 40), w.bytes(1e3, 5e3), w.about(20e6, 1.4, 900e6))
	}
	for range 2 + w.IntN(7) {
		at = at.Add(w.seconds(0.5, 20))
		w.tunnel(b, "buildkitd", registry, at, w.seconds(0.5, 90), w.about(4e6, 1.9, 600e6), 3000)
	}
	if w.chance(0.5) {
		w.tunnel(b, "cosign", "rekor.sigstore.dev", at, w.seconds(0.5, 3), w.bytes(4e3, 15e3), 9000)
	}
}

// notebook computes: models and data come, runs are reported while they go on, results are put away.
func (w *world5) notebook() {
	b, at := w.data, w.when(w.data)
	bucket := w.always("bucket", func() string { return "acme-" + w.word() + ".s3.eu-west-1.amazonaws.com" })
	switch w.IntN(4) {
	case 0:
		w.tunnel(b, "python3", "huggingface.co", at, w.seconds(0.5, 5), w.bytes(1e3, 6e3), w.bytes(9e3, 900e3))
		w.tunnel(b, "python3", pick(w.trace, "cdn-lfs-us-1.hf.co", "cas-bridge.xethub.hf.co"), at, w.seconds(9, 600), 4000, w.about(600e6, 1.2, 20e9))
	case 1: // numbers of a training
		for range 20 + w.IntN(120) {
			at = at.Add(w.seconds(12, 18))
			w.tunnel(b, "python3", "api.wandb.ai", at, w.seconds(0.2, 1), w.about(7e3, 0.7, 300e3), 1500)
		}
	case 2:
		for range 1 + w.IntN(12) {
			at = at.Add(w.seconds(1, 90))
			w.tunnel(b, "python3", bucket, at, w.seconds(0.5, 60), w.about(2e6, 1.7, 300e6), 1500)
		}
	default:
		for range 2 + w.IntN(20) {
			at = at.Add(w.seconds(1, 90))
			w.tunnel(b, "python3", pick(w.trace, "bigquery.googleapis.com", bucket), at, w.seconds(0.5, 30), w.about(3e3, 1, 90e3), w.about(2e6, 1.8, 900e6))
		}
	}
}

// pages are what a browser opens: names with hashes in them, checks of certificates, what is not allowed.
func (w *world5) pages(b *box) {
	at := w.when(b)
	for range 3 + w.IntN(20) {
		at = at.Add(w.seconds(0.3, 20))
		host := pick(w.trace, w.contentHost(), w.letters(hexDigits, 16)+".cloudfront.net", "ocsp.digicert.com", "r11.o.lencr.org", "c.pki.goog", "www."+w.word()+".com", w.word()+"-"+w.letters(hexDigits, 9)+"-acme.vercel.app",
			"e"+fmt.Sprint(w.IntN(99999))+".dscx.akamaiedge.net", w.letters(base32, 26)+".appsync-api.eu-west-1.amazonaws.com", "fonts.gstatic.com", "cdn.jsdelivr.net")
		if w.chance(0.35) {
			w.denied(b, "chrome", pick(w.trace, host, w.letters(hexDigits, 32)+".safeframe.googlesyndication.com", "www.googletagmanager.com", w.letters(hexDigits, 12)+".collect.igodigital.com", "bat.bing.com"), 443, at, 1+w.IntN(3))
			continue
		}
		w.tunnel(b, "chrome", host, at, w.seconds(0.1, 60), w.about(2500, 0.8, 200e3), w.about(90e3, 1.6, 30e6))
	}
	if w.chance(0.3) { // a browser at its start looks whether every name is answered
		for range 3 {
			w.question(b, "chrome", w.letters("abcdefghijklmnopqrstuvwxyz", 7+w.IntN(9)), "A", at, w.decision("deny", "default", "default-deny"))
		}
	}
}

// mistakes are refused, again and again.
func (w *world5) mistakes(b *box) {
	at, deny := w.when(b), w.decision("deny", "default", "default-deny")
	switch w.IntN(6) {
	case 0: // an index that is not allowed
		for range 1 + w.IntN(6) {
			w.denied(b, "pip", pick(w.trace, "pypi.acme-internal.com", "download.pytorch.org", "wheels.vllm.ai"), 443, at, 1+w.IntN(5))
			at = at.Add(w.seconds(1, 20))
		}
	case 1:
		w.denied(b, "python3", pick(w.trace, "169.254.169.254", "metadata.google.internal", "10.0.0.12"), 80, at, 1+w.IntN(3))
	case 2: // suffixes of a search list
		for _, suffix := range []string{".svc.cluster.local", ".cluster.local", ".acme-internal.com"} {
			w.question(b, "node", pick(w.trace, "redis", "postgres", "queue", "api", "github.com", "registry.npmjs.org")+".default"+suffix, pick(w.trace, "A", "AAAA"), at, deny)
		}
	case 3:
		for range 1 + w.IntN(30) {
			w.denied(b, "node", w.always("blocked telemetry", func() string { return pick(w.trace, "telemetry.nextjs.org", "api.segment.io", "stats.wp.com") }), 443, at, 1+w.IntN(2))
			at = at.Add(w.seconds(1, 300))
		}
	case 4:
		w.denied(b, "ssh", pick(w.trace, "gitlab.com", "bitbucket.org"), 22, at, 1+w.IntN(3))
	case 5:
		w.question(b, "mail", w.letters(hexDigits, 32)+".zen.dq.spamhaus.net", "A", at, deny)
		w.question(b, "python3", w.reverse(), "PTR", at, w.decision("deny", "dns", "dns-type-denied"))
	}
}

// daily is what is made by night and put away.
func (w *world5) daily() {
	for day := range w.days {
		at := w.start.Add(time.Duration(day*24+3)*time.Hour + w.seconds(1, 900))
		w.tunnel(w.release, "restic", w.always("backup", func() string { return "acme-backup-" + w.word() + ".s3.eu-west-1.amazonaws.com" }), at, w.seconds(60, 1800), w.about(60e6, 0.7, 900e6), 90e3)
		w.tunnel(w.ci[0], "aws", "acme-docs-site.s3.eu-west-1.amazonaws.com", at.Add(time.Hour), w.seconds(5, 60), w.about(9e6, 0.5, 90e6), 9e3)
	}
}

// once is what somebody wanted, and does not do every day.
func (w *world5) once() {
	for range 1 + w.IntN(3) {
		a, c := pick(w.trace, w.agents...), w.ci[0]
		switch w.IntN(6) {
		case 0:
			w.tunnel(w.release, "gh", "uploads.github.com", w.when(w.release), w.seconds(5, 60), w.about(30e6, 1, 400e6), 3000)
		case 1:
			w.call(c, "npm", "registry.npmjs.org", "PUT", "/@acme%2fui", w.when(c), w.seconds(1, 9), w.about(900e3, 1, 20e6), 500)
		case 2:
			w.tunnel(a, "node", "api.vercel.com", w.when(a), w.seconds(5, 60), w.about(4e6, 1, 60e6), 9e3)
		case 3:
			w.tunnel(w.data, "python3", "huggingface.co", w.when(w.data), w.seconds(20, 300), w.about(90e6, 1.5, 2e9), 9e3)
		case 4:
			w.tunnel(a, "git-lfs", "lfs.github.com", w.when(a), w.seconds(5, 60), w.about(20e6, 1, 200e6), 5e3)
		case 5:
			w.tunnel(w.release, "twine", "upload.pypi.org", w.when(w.release), w.seconds(1, 9), w.about(300e3, 1, 20e6), 3e3)
		}
	}
}

// clocks is what beats: at most n records of it.
func (w *world5) clocks(n int) {
	end := w.start.Add(time.Duration(w.days) * 24 * time.Hour)
	every := max(30*time.Second, end.Sub(w.start)/time.Duration(n/18)).Round(time.Second)
	for at := w.start.Add(w.seconds(1, 30)); at.Before(end); at = at.Add(every) {
		w.request(w.service, "probe", "status.acme.dev", "GET", "/health", at, w.seconds(0.01, 0.1), 0, 15)
		w.tunnel(w.service, "agent", "trace.agent.datadoghq.com", at.Add(time.Second), w.seconds(0.1, 1), w.about(12e3, 0.6, 300e3), 300)
		w.tunnel(w.ci[0], "Runner.Listener", "broker.actions.githubusercontent.com", at.Add(w.seconds(1, 3)), 50*time.Second, w.bytes(1200, 1500), w.bytes(600, 900))
		if w.chance(0.15) {
			w.tunnel(w.service, "vector", "o447951.ingest.sentry.io", at.Add(w.seconds(1, 20)), w.seconds(0.1, 1), w.about(9e3, 1, 500e3), 250)
		}
		if w.chance(0.1) {
			w.tunnel(w.data, "NetworkManager", "connectivity-check.ubuntu.com", at, w.seconds(0.05, 0.2), 90, 200)
		}
		if w.chance(0.03) {
			w.tunnel(pick(w.trace, w.agents...), "node", "wss-primary.slack.com", at, w.seconds(600, 28800), w.about(90e3, 1, 3e6), w.about(900e3, 1, 30e6))
		}
	}
}
