package signals_test

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/record"
)

// A team is the sandboxes of a trace.
type team struct {
	agents, jobs             []*box
	builder, service, tester *box
}

func (t *trace) team() *team {
	var w team
	for _, name := range []string{"agent-a", "agent-b", "refactor"} {
		b := &box{name: name, captured: t.chance(0.75), night: t.between(0.01, 0.15)}
		b.llm = t.host([]string{"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "bedrock-runtime.us-east-1.amazonaws.com"},
			[]string{"api.mistral.ai", "openrouter.ai", "api.groq.com", "acme-models.openai.azure.com", "aiplatform.googleapis.com"})
		if t.chance(0.5) {
			b.inspects = []string{"api.github.com", "registry.npmjs.org", "pypi.org", b.llm}
		}
		w.agents = append(w.agents, b)
	}
	for _, name := range []string{"ci-unit", "ci-matrix"} {
		b := &box{name: name, captured: t.chance(0.3), night: t.between(0.05, 0.4)}
		if t.chance(0.5) {
			b.inspects = []string{"registry.npmjs.org", "pypi.org", "index.crates.io", "proxy.golang.org", "files.pythonhosted.org"}
		}
		w.jobs = append(w.jobs, b)
	}
	w.builder = &box{name: "images", captured: t.chance(0.5), night: 0.3}
	w.service = &box{name: "staging", captured: t.chance(0.5), night: 1, inspects: []string{"health.acme-internal.com"}}
	w.tester = &box{name: "e2e-tests", captured: true, night: 0.1}
	return &w
}

// ordinary fills the trace with about n records of which none is of an attempt.
func (t *trace) ordinary(w *team, n int) {
	t.beacons(w, n/5)
	t.oneOffs(w)
	t.nightly(w)
	for len(t.out) < n {
		switch x := t.Float64(); {
		case x < 0.32:
			t.session(pick(t, w.agents...))
		case x < 0.57:
			t.job(pick(t, w.jobs...))
		case x < 0.65:
			t.images(w.builder)
		case x < 0.75:
			t.browser(w.tester)
		case x < 0.85:
			t.noise(pick(t, append(w.agents, w.jobs[0], w.service, w.tester)...))
		default:
			t.previews(w.tester)
		}
	}
}

// session is one of an agent: calls of a model with all that was said before, and the tools it runs.
func (t *trace) session(b *box) {
	at, context := t.when(b), t.between(15e3, 80e3)
	program := "claude"
	if b.llm == "api.openai.com" {
		program = "codex"
	}
	path := pick(t, "/v1/messages", "/v1/responses", "/v1beta/models/pro:streamGenerateContent")
	for range 10 + t.IntN(110) {
		at = at.Add(t.seconds(3, 90))
		if context += t.between(500, 30e3); context > 700e3 {
			context = t.between(40e3, 90e3) // it was compacted
		}
		t.call(b, program, b.llm, "POST", path, at, t.seconds(2, 70), int64(context), t.bytes(2e3, 60e3))
		switch x := t.Float64(); {
		case x < 0.03:
			t.install(b, at)
		case x < 0.08:
			t.git(b, at)
		case x < 0.14:
			t.github(b, at)
		case x < 0.25:
			t.browse(b, at)
		case x < 0.32:
			t.telemetry(b, program, at)
		}
	}
}

func (t *trace) telemetry(b *box, program string, at time.Time) {
	host := t.always("telemetry of "+b.name, func() string {
		return t.host([]string{"statsig.anthropic.com", "o" + t.letters("123456789", 6) + ".ingest.us.sentry.io", "http-intake.logs.us5.datadoghq.com", "events.launchdarkly.com"},
			[]string{"app.posthog.com", "api2.amplitude.com", "api.segment.io", "in.logs.betterstack.com"})
	})
	if t.always("telemetry allowed in "+b.name, func() string { return pick(t, "yes", "no") }) == "yes" {
		t.call(b, program, host, "POST", "/v1/log", at, t.seconds(0.1, 2), t.bytes(800, 40e3), 100)
		return
	}
	for range 1 + t.IntN(4) { // it tries again, later each time
		t.denied(b, program, host, 443, at, 1+t.IntN(3))
		at = at.Add(t.seconds(1, 20))
	}
}

func (t *trace) git(b *box, at time.Time) {
	host := t.always("forge of "+b.name, func() string { return pick(t, "github.com", "github.com", "gitlab.com") })
	switch x := t.Float64(); {
	case x < 0.75: // clone or fetch
		t.tunnel(b, "git", host, at, t.seconds(1, 60), t.bytes(2e3, 60e3), t.bytes(5e3, 200e6))
	case x < 0.97: // push
		t.tunnel(b, "git", host, at, t.seconds(1, 20), t.bytes(4e3, 2e6), t.bytes(3e3, 9e3))
	default: // of assets
		t.tunnel(b, "git", host, at, t.seconds(10, 60), t.bytes(5e6, 50e6), t.bytes(3e3, 9e3))
	}
}

func (t *trace) github(b *box, at time.Time) {
	for range 1 + t.IntN(8) {
		at = at.Add(t.seconds(0.2, 8))
		if t.chance(0.7) {
			path := fmt.Sprintf("/repos/acme/%s/%s", t.word(), pick(t, "pulls", "issues", "actions/runs", "commits", "contents/README.md"))
			t.call(b, "gh", "api.github.com", "GET", path, at, t.seconds(0.1, 1), 0, t.bytes(1e3, 90e3))
			continue
		}
		path := pick(t, "/graphql", fmt.Sprintf("/repos/acme/%s/issues/%d/comments", t.word(), t.IntN(900)), "/repos/acme/web/pulls")
		t.call(b, "gh", "api.github.com", "POST", path, at, t.seconds(0.1, 1), t.bytes(300, 12e3), t.bytes(500, 20e3))
	}
}

// browse reads documentation, some of which is not allowed.
func (t *trace) browse(b *box, at time.Time) {
	program := pick(t, "claude", "curl", "python3")
	for range 1 + t.IntN(5) {
		at = at.Add(t.seconds(0.5, 20))
		host := t.host([]string{"docs.python.org", "docs.rs", "pkg.go.dev", "developer.mozilla.org", "en.wikipedia.org", "nodejs.org", "react.dev", "stackoverflow.com", "raw.githubusercontent.com"},
			[]string{"docs.djangoproject.com", "learn.microsoft.com", "guides.rubyonrails.org", "kubernetes.io", "docs.oracle.com", "arxiv.org", "news.ycombinator.com", "unpkg.com"})
		if t.chance(0.3) {
			host = pick(t, "www.", "blog.", "docs.", "") + t.word() + pick(t, ".com", ".dev", ".io", ".org")
			if t.chance(0.6) {
				t.denied(b, program, host, 443, at, 1+t.IntN(2))
				continue
			}
		}
		t.tunnel(b, program, host, at, t.seconds(0.2, 8), t.bytes(400, 4e3), t.bytes(8e3, 2e6))
		if t.chance(0.2) {
			t.tunnel(b, program, t.contentHost(), at, t.seconds(0.2, 8), t.bytes(400, 4e3), t.bytes(8e3, 5e6))
		}
	}
}

// install is one of packages: many paths of few hosts where requests are seen, else some tunnels.
func (t *trace) install(b *box, at time.Time) {
	switch t.IntN(5) {
	case 0:
		t.fetch(b, "npm", "registry.npmjs.org", at, 20+t.IntN(200))
	case 1:
		t.fetch(b, "pip", "pypi.org", at, 5+t.IntN(40))
		t.fetch(b, "pip", "files.pythonhosted.org", at, 5+t.IntN(40))
	case 2:
		t.fetch(b, "cargo", "index.crates.io", at, 20+t.IntN(150))
		t.fetch(b, "cargo", "static.crates.io", at, 5+t.IntN(100))
	case 3:
		t.fetch(b, "go", "proxy.golang.org", at, 10+t.IntN(120))
		t.fetch(b, "go", "sum.golang.org", at, 5+t.IntN(30))
	case 4:
		host := pick(t, "deb.debian.org", "archive.ubuntu.com", "security.ubuntu.com")
		for range 5 + t.IntN(60) {
			at = at.Add(t.seconds(0.01, 1))
			t.request(b, "http", host, "GET", fmt.Sprintf("/debian/pool/main/%s/%s_%d.deb", t.word(), t.word(), t.IntN(99)), at, t.seconds(0.01, 3), 0, t.bytes(5e3, 60e6))
		}
	}
}

func (t *trace) fetch(b *box, program, host string, at time.Time, packages int) {
	for _, seen := range b.inspects {
		if seen != host {
			continue
		}
		for range packages {
			at = at.Add(t.seconds(0.01, 0.5))
			t.request(b, program, host, "GET", fmt.Sprintf("/%s/-/%s-%d.%d.tgz", t.word(), t.letters(hexDigits, 6), t.IntN(20), t.IntN(99)), at, t.seconds(0.02, 2), 0, t.bytes(1e3, 3e6))
		}
		if program == "npm" {
			t.request(b, program, host, "POST", "/-/npm/v1/security/advisories/bulk", at, t.seconds(0.2, 2), t.bytes(2e3, 40e3), t.bytes(500, 30e3))
		}
		return
	}
	for range 1 + packages/12 {
		each := float64(min(packages, 12))
		t.tunnel(b, program, host, at.Add(t.seconds(0.01, 4)), t.seconds(0.5, 30), int64(each*t.between(150, 900)), int64(each*t.between(2e3, 2e6)))
	}
}

// job is one of continuous integration: a clone, installs, tests, and artifacts that go up.
func (t *trace) job(b *box) {
	at := t.when(b)
	for range 1 + t.IntN(6) { // of a matrix
		began := at.Add(t.seconds(0.5, 30))
		t.tunnel(b, "git", "github.com", began, t.seconds(1, 30), t.bytes(2e3, 9e3), t.bytes(1e6, 90e6))
		t.install(b, began.Add(t.seconds(5, 40)))
		end := began.Add(t.seconds(60, 900))
		switch t.IntN(5) {
		case 0:
			t.tunnel(b, "upload-artifact", t.host([]string{fmt.Sprintf("productionresultssa%d.blob.core.windows.net", t.IntN(20))}, []string{"acme.jfrog.io", "results-receiver.actions.githubusercontent.com"}), end, t.seconds(1, 30), t.bytes(50e3, 90e6), 2000)
		case 1:
			for range 1 + t.IntN(12) { // of parts
				t.tunnel(b, "aws", t.host([]string{"acme-build-artifacts.s3.eu-central-1.amazonaws.com"}, []string{"gitlab-artifacts-prod.s3.us-west-2.amazonaws.com"}), end, t.seconds(1, 20), t.bytes(5e6, 9e6), 2000)
			}
		case 2:
			t.tunnel(b, "codecov", "ingest.codecov.io", end, t.seconds(0.5, 3), t.bytes(3e3, 20e3), 2000)
			t.tunnel(b, "codecov", t.host([]string{"storage.googleapis.com"}, []string{"acme-coverage.s3.amazonaws.com"}), end.Add(time.Second), t.seconds(0.5, 3), t.bytes(100e3, 4e6), 1000)
		case 3:
			t.noise(b)
		}
	}
}

// images pulls them, and now and then pushes one.
func (t *trace) images(b *box) {
	at := t.when(b)
	t.tunnel(b, "dockerd", "auth.docker.io", at, t.seconds(0.2, 1), 2000, 6000)
	t.tunnel(b, "dockerd", "registry-1.docker.io", at.Add(time.Second), t.seconds(1, 5), t.bytes(4e3, 20e3), t.bytes(10e3, 90e3))
	for range 2 + t.IntN(12) {
		at = at.Add(t.seconds(0.1, 3))
		host := pick(t, "production.cloudflare.docker.com", "pkg-containers.githubusercontent.com", t.contentHost())
		t.tunnel(b, "dockerd", host, at, t.seconds(0.5, 60), t.bytes(1e3, 5e3), t.bytes(1e6, 400e6))
	}
	if t.chance(0.15) {
		for range 2 + t.IntN(6) {
			at = at.Add(t.seconds(1, 20))
			t.tunnel(b, "dockerd", "ghcr.io", at, t.seconds(1, 60), t.bytes(30e3, 120e6), 4000)
		}
	}
	if t.chance(0.1) {
		t.tunnel(b, "python3", "huggingface.co", at, t.seconds(1, 9), 9000, t.bytes(1e4, 1e6))
		t.tunnel(b, "python3", "cdn-lfs.huggingface.co", at, t.seconds(20, 900), 4000, t.bytes(50e6, 9e9))
	}
}

// browser is a test that drives one: whatever pages embed is denied, under ever new names.
func (t *trace) browser(b *box) {
	at := t.when(b)
	for range 5 + t.IntN(30) {
		at = at.Add(t.seconds(0.2, 10))
		t.tunnel(b, "chrome", pick(t, "app.acme.dev", "login.acme.dev", "static.acme.dev"), at, t.seconds(0.2, 60), t.bytes(2e3, 60e3), t.bytes(10e3, 4e6))
		for range t.IntN(6) {
			host := pick(t, "securepubads.g.doubleclick.net", "www.google-analytics.com", "connect.facebook.net", "static.hotjar.com", "cdn.segment.com", "px.ads.linkedin.com",
				t.letters(hexDigits, 8)+".metrics."+t.always("pixel", func() string { return t.word() + "-pixel.com" }), "s"+fmt.Sprint(t.IntN(40))+".adnxs.com", t.word()+".demdex.net")
			t.denied(b, "chrome", host, 443, at.Add(t.seconds(0.01, 2)), 1+t.IntN(3))
		}
		if t.chance(0.4) {
			t.question(b, "chrome", pick(t, "app.acme.dev", "static.acme.dev", "www.gstatic.com"), "HTTPS", at, t.decision("deny", "dns", "dns-type-denied"))
		}
	}
}

// previews are visits of deployments that each have a name of their own below an allowed wildcard.
func (t *trace) previews(b *box) {
	host := fmt.Sprintf("%s-git-%s-%s.preview.%s", t.word(), t.word(), t.letters("abcdefghijklmnopqrstuvwxyz0123456789", 9), t.host([]string{"acme-deploys.app"}, []string{"review.acme-apps.io"}))
	at := t.when(b)
	for range 3 + t.IntN(15) {
		at = at.Add(t.seconds(0.1, 20))
		t.tunnel(b, "chrome", host, at, t.seconds(0.1, 30), t.bytes(1e3, 30e3), t.bytes(5e3, 3e6))
	}
}

// noise is what fails, and nobody looks at.
func (t *trace) noise(b *box) {
	at, deny, kind := t.when(b), t.decision("deny", "default", "default-deny"), t.decision("deny", "dns", "dns-type-denied")
	switch t.IntN(6) {
	case 0: // search domains
		for range 1 + t.IntN(4) {
			t.question(b, "python3", pick(t, "github.com", "postgres", "redis", "api.acme.dev", t.word())+".corp.acme-internal.com", "A", at, deny)
		}
	case 1:
		for range 1 + t.IntN(10) {
			t.question(b, pick(t, "ss", "ssh", "python3"), t.reverse(), "PTR", at.Add(t.seconds(0.01, 5)), kind)
		}
	case 2:
		t.question(b, "apt", "_http._tcp."+pick(t, "deb.debian.org", "archive.ubuntu.com"), "SRV", at, kind)
	case 3: // a service that is not there, tried again and again
		t.denied(b, "python3", pick(t, "db.staging.acme-internal.com", "kafka-"+fmt.Sprint(t.IntN(3))+".acme-internal.com"), 5432, at, 1+t.IntN(60))
	case 4: // telemetry of a vendor, whose hosts change
		for range 1 + t.IntN(6) {
			host := t.letters("abcdefghijklmnopqrstuvwxyz0123456789", 7) + "." + pick(t, "eu", "us") + "." + t.always("collector", func() string { return t.word() + "-collect.net" })
			t.denied(b, "agentd", host, 443, at.Add(t.seconds(0.1, 40)), 1+t.IntN(4))
		}
	case 5:
		t.question(b, "python3", t.word()+pick(t, ".con", ".local", ".lan", ".example"), "A", at, deny)
	}
}

// nightly is the build at two in the morning, artifacts and all.
func (t *trace) nightly(w *team) {
	for day := range t.days {
		b, at := w.jobs[1], t.start.Add(time.Duration(day*24+2)*time.Hour).Add(t.seconds(1, 600))
		for range 4 {
			t.tunnel(b, "git", "github.com", at, t.seconds(1, 30), 4000, t.bytes(1e6, 90e6))
			t.install(b, at.Add(30*time.Second))
			t.tunnel(b, "aws", t.host([]string{"acme-nightly.s3.eu-central-1.amazonaws.com"}, []string{"acmenightly.blob.core.windows.net"}), at.Add(t.seconds(600, 3000)), t.seconds(2, 60), t.bytes(20e6, 300e6), 3000)
		}
	}
}

// oneOffs are uploads that happen once and are what somebody wanted.
func (t *trace) oneOffs(w *team) {
	for range 3 + t.IntN(4) {
		a, j := pick(t, w.agents...), pick(t, w.jobs...)
		switch t.IntN(6) {
		case 0:
			t.call(j, "npm", "registry.npmjs.org", "PUT", "/@acme%2fweb", t.when(j), t.seconds(1, 9), t.bytes(50e3, 3e6), 500)
		case 1:
			t.tunnel(j, "gh", "uploads.github.com", t.when(j), t.seconds(2, 60), t.bytes(1e6, 90e6), 2000)
		case 2:
			t.tunnel(a, "vercel", "api.vercel.com", t.when(a), t.seconds(2, 60), t.bytes(500e3, 20e6), 9000)
		case 3:
			t.tunnel(a, "git-lfs", "github-cloud.s3.amazonaws.com", t.when(a), t.seconds(2, 60), t.bytes(1e6, 120e6), 2000)
		case 4:
			t.tunnel(w.builder, "python3", "huggingface.co", t.when(w.builder), t.seconds(20, 300), t.bytes(5e6, 400e6), 9000)
		case 5:
			t.tunnel(j, "twine", "upload.pypi.org", t.when(j), t.seconds(1, 9), t.bytes(20e3, 4e6), 2000)
		}
	}
}

// beacons are what beats day and night: at most n records of it.
func (t *trace) beacons(w *team, n int) {
	end := t.start.Add(time.Duration(t.days) * 24 * time.Hour)
	every := max(time.Minute, end.Sub(t.start)/time.Duration(n/16)).Round(5 * time.Second)
	s, hook := w.service, "wss-primary.slack.com"
	for at := t.start.Add(t.seconds(1, 60)); at.Before(end); at = at.Add(every) {
		t.request(s, "probe", "health.acme-internal.com", "GET", "/healthz", at, t.seconds(0.005, 0.05), 0, 20)
		t.tunnel(s, "datadog-agent", t.host([]string{"7-52-0-app.agent.datadoghq.com"}, []string{"ingest.signalfx.com"}), at.Add(3*time.Second), t.seconds(0.1, 0.4), t.bytes(2e3, 9e3), 300)
		t.tunnel(s, "otelcol", t.host([]string{"otlp.eu01.nr-data.net"}, []string{"api.honeycomb.io"}), at.Add(t.seconds(5, 7)), t.seconds(0.1, 0.4), t.bytes(8e3, 12e3), 200)
		if t.chance(0.05) {
			t.denied(s, "snapd", "api.snapcraft.io", 443, at.Add(9*time.Second), 1)
		}
		if t.chance(0.004) {
			t.tunnel(pick(t, w.agents...), "node", hook, at, t.seconds(3600, 28800), t.bytes(20e3, 900e3), t.bytes(100e3, 9e6))
		}
	}
	start := t.add(s, "", t.start, record.KindStart, "", "", nil)
	start.Sandbox, start.Note = "", "started"
}
