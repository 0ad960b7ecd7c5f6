package rego_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

const typical = `package egress
allow contains {"rule": "model-api"} if host.matches(input.destination.host, "api.anthropic.com")
deny contains {"rule": "no-plain"} if input.destination.port == 80
`

func loadWith(b *testing.B, cached int, sources ...rego.Source) *rego.Evaluator {
	b.Helper()
	e, err := rego.Load(sources, rego.Options{Cached: cached})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

func measure(b *testing.B, e *rego.Evaluator, r policy.Request, want policy.Verdict) {
	b.Helper()
	ctx := context.Background()
	if d, err := e.Evaluate(ctx, &r); err != nil || d.Verdict != want {
		b.Fatalf("%+v, %v", d, err)
	}
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		start := time.Now()
		if _, err := e.Evaluate(ctx, &r); err != nil {
			b.Fatal(err)
		}
		if took = append(took, time.Since(start)); len(took) == cap(took) {
			took = took[:0]
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

func BenchmarkEvaluate(b *testing.B) {
	for _, row := range []struct {
		name    string
		text    string
		request policy.Request
		want    policy.Verdict
	}{
		{"host", typical, to(b, "api.anthropic.com:443"), policy.Allow},
		{"literal", "package egress\nallow contains {\"rule\": \"r\"} if input.destination.host == \"api.anthropic.com\"", to(b, "api.anthropic.com:443"), policy.Allow},
		{"ahead", gitHub, to(b, "api.github.com:443"), policy.Inspect},
		{"request", gitHub, sends(b, "api.github.com:443", "GET", "/repos/acme/x"), policy.Allow},
	} {
		source := rego.Source{Name: "egress.rego", Text: []byte(row.text)}
		b.Run(row.name+"/cold", func(b *testing.B) { measure(b, loadWith(b, -1, source), row.request, row.want) })
		b.Run(row.name+"/cached", func(b *testing.B) { measure(b, loadWith(b, 0, source), row.request, row.want) })
	}
}

// BenchmarkLists compares the ways to write down many hosts, and many paths. Cold,
// every request is evaluated; cached, none but the first. What stands for a tunnel of
// which the request is still to come looks ahead.
func BenchmarkLists(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		data, literals := listOf(n)
		list := rego.Source{Name: "list.json", Text: data}
		any := rego.Source{Name: "any.rego", Text: []byte("package egress\nallow contains {\"rule\": \"list\"} if host.any(input.destination.host, data.hosts)")}
		paths := rego.Source{Name: "paths.rego", Text: []byte("package egress\nallow contains {\"rule\": \"list\"} if path.any(input.http.path, data.paths)")}
		ask := func(name string, r policy.Request, want policy.Verdict, sources ...rego.Source) {
			b.Run(fmt.Sprintf("%s/%d/cold", name, n), func(b *testing.B) { measure(b, loadWith(b, -1, sources...), r, want) })
			b.Run(fmt.Sprintf("%s/%d/cached", name, n), func(b *testing.B) { measure(b, loadWith(b, 0, sources...), r, want) })
		}
		host := to(b, "h7.example.com:443")
		ask("any", host, policy.Allow, any, list)
		if n <= 10_000 { // more rules take longer to load than to measure
			ask("rules", host, policy.Allow, rego.Source{Name: "rules.rego", Text: literals})
		}
		ask("paths", sends(b, "h7.example.com:443", "GET", "/r/h7/x"), policy.Allow, paths, list)
		if n <= 10_000 { // more may take longer than the deadline
			ask("paths-ahead", host, policy.Inspect, paths, list)
		}
	}
}

// BenchmarkParallel asks from all processors at once, for as many sandboxes, without a
// cache: what turns and copies cost together.
func BenchmarkParallel(b *testing.B) {
	for name, r := range map[string]policy.Request{"ahead": to(b, "api.github.com:443"), "request": sends(b, "api.github.com:443", "GET", "/repos/acme/x")} {
		b.Run(name, func(b *testing.B) {
			e := loadWith(b, -1, rego.Source{Name: "egress.rego", Text: []byte(gitHub)})
			var sandboxes atomic.Int32
			b.RunParallel(func(pb *testing.PB) {
				r := r
				r.Sandbox.Name = fmt.Sprint(sandboxes.Add(1))
				for pb.Next() {
					if _, err := e.Evaluate(context.Background(), &r); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func listOf(n int) (data, literals []byte) {
	var hosts, paths, rules strings.Builder
	rules.WriteString("package egress\n")
	for i := range n {
		fmt.Fprintf(&hosts, "\"h%d.example.com\",", i)
		fmt.Fprintf(&paths, "\"/r/h%d/**\",", i)
		fmt.Fprintf(&rules, "allow contains {\"rule\": \"h%d\"} if input.destination.host == \"h%d.example.com\"\n", i, i)
	}
	return fmt.Appendf(nil, `{"hosts": [%s "h7.example.com"], "paths": [%s "/x/**"]}`, &hosts, &paths), []byte(rules.String())
}

func BenchmarkLoad(b *testing.B) {
	_, literals := listOf(1000)
	for name, text := range map[string]string{"typical": typical, "github": gitHub, "rules-1000": string(literals)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
