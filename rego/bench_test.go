package rego_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

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
	for b.Loop() {
		if _, err := e.Evaluate(ctx, &r); err != nil {
			b.Fatal(err)
		}
	}
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

// BenchmarkLists compares the ways to write down many hosts.
func BenchmarkLists(b *testing.B) {
	request := to(b, "h7.example.com:443")
	for _, n := range []int{10, 1000, 100_000} {
		data, literals := listOf(n)
		any := rego.Source{Name: "any.rego", Text: []byte("package egress\nallow contains {\"rule\": \"list\"} if host.any(input.destination.host, data.hosts)")}
		b.Run(fmt.Sprintf("any/%d", n), func(b *testing.B) {
			measure(b, loadWith(b, -1, any, rego.Source{Name: "hosts.json", Text: data}), request, policy.Allow)
		})
		if n > 1000 {
			continue // loading 100,000 rules takes longer than measuring them
		}
		b.Run(fmt.Sprintf("rules/%d", n), func(b *testing.B) {
			measure(b, loadWith(b, -1, rego.Source{Name: "rules.rego", Text: literals}), request, policy.Allow)
		})
	}
}

func listOf(n int) (data, literals []byte) {
	var list, rules strings.Builder
	list.WriteString(`{"hosts": ["h7.example.com"`)
	rules.WriteString("package egress\n")
	for i := range n {
		fmt.Fprintf(&list, ", \"h%d.example.com\"", i)
		fmt.Fprintf(&rules, "allow contains {\"rule\": \"h%d\"} if input.destination.host == \"h%d.example.com\"\n", i, i)
	}
	list.WriteString("]}")
	return []byte(list.String()), []byte(rules.String())
}
