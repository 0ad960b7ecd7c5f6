package policy

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// A learnedView is what suggest tells a script.
type learnedView struct {
	Allow    string   `json:"allow"`
	Count    int64    `json:"count"`
	Reached  int64    `json:"reached"`
	Up       int64    `json:"up"`
	Down     int64    `json:"down"`
	Programs []string `json:"programs,omitempty"`
	Preset   string   `json:"preset,omitempty"` // that allows it, too
	Warning  string   `json:"warning,omitempty"`
	Flow     string   `json:"flow"`

	Rules     []string   `json:"rules"` // lines of the list allow
	Domain    string     `json:"domain"`
	Sandboxes []string   `json:"sandboxes,omitempty"`
	Logs      int        `json:"logs"` // in how many of several logs it is
	First     *time.Time `json:"first,omitempty"`
	Last      *time.Time `json:"last,omitempty"`
}

func viewOfLearned(l *logs.LearnedDestination, preset string) learnedView {
	warnings := l.Warnings()
	if text := telemetry(l); text != "" {
		warnings = append(warnings, text)
	}
	v := learnedView{
		Allow: l.Pattern.String(), Domain: l.Domain(), Count: l.Count, Reached: l.Reached, Up: l.Up, Down: l.Down, Logs: l.Logs,
		Programs: l.Programs, Sandboxes: l.Sandboxes, Preset: preset, Warning: strings.Join(warnings, "; "), Flow: l.Flow,
	}
	if !l.First.IsZero() {
		v.First, v.Last = &l.First, &l.Last
	}
	for _, o := range l.Openings() {
		v.Rules = append(v.Rules, file.LineText(o))
	}
	return v
}

// heads say what the lines are from.
var heads = map[logs.Lesson]string{
	logs.Observed:       "# Hosts used during --learn or mode: observe that no rule allows yet.",
	logs.DeniedRequests: "# Denied because no rule allows it, the most tried first. A program under attack tries, too.",
	logs.Allowed:        "# What the rules allowed.",
}

// print writes part of a policy file. A host that was never reached, or that was sent a canary, becomes a comment.
func (s *suggestion) print(w io.Writer) error {
	var rules, tests strings.Builder
	for _, c := range s.floods {
		fmt.Fprintf(&rules, "  # careful: %s\n", printable.Text(c.Text()))
	}
	for i, l := range s.all {
		if i == 0 || s.all[i-1].Domain() != l.Domain() {
			rules.WriteString(s.domainLines(i))
		}
		view, mark := viewOfLearned(l, s.presets[l]), "  "
		note := fmt.Sprintf("%s, %s up, %s down", quantity.Plural(int(l.Count), "request"), quantity.Bytes(l.Up), quantity.Bytes(l.Down))
		if s.of == logs.DeniedRequests {
			note = "denied " + quantity.Plural(int(l.Count), "time")
		}
		if len(l.Programs) > 0 {
			note += ", by " + printable.Text(strings.Join(l.Programs, ", "))
		}
		if s.isDraft(l) {
			mark = "  # "
		}
		if l.Reached == 0 && s.of != logs.DeniedRequests {
			note += "; never reached"
		}
		if view.Warning != "" {
			fmt.Fprintf(&rules, "  # careful: %s\n", printable.Text(view.Warning))
		}
		for j, o := range l.Openings() {
			fmt.Fprintf(&rules, "%s- %s", mark, view.Rules[j])
			if j == 0 {
				fmt.Fprintf(&rules, " # %s", note)
			}
			rules.WriteByte('\n')
			if mark == "  " {
				fmt.Fprintf(&tests, "  - %s\n", file.TestText(testOf("allow", o)))
			}
		}
	}
	for _, test := range s.denies {
		fmt.Fprintf(&tests, "  - %s\n", file.TestText(test))
	}
	text := heads[s.of] + " Delete lines that you cannot explain.\n" + presetLines(s.all, s.presets) + "allow:\n" + rules.String()
	if tests.Len() > 0 {
		text += "tests:\n" + tests.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

// manyHosts is the number of hosts below a domain for which a comment mentions a wildcard.
const manyHosts = 4

// domainLines returns comments about a domain with several destinations. The first of them is s.all[from]. With manyHosts
// hosts, a comment mentions the wildcard for the domain, unless other people may have hosts there.
func (s *suggestion) domainLines(from int) string {
	domain, requests := s.all[from].Domain(), int64(0)
	ports := map[uint16]int{}
	n := 0
	for _, l := range s.all[from:] {
		if l.Domain() != domain {
			break
		}
		n, requests = n+1, requests+l.Count
		if to, err := policy.ParseDestination(l.Pattern.String()); err == nil && to.Host != domain && !s.isDraft(l) {
			ports[to.Port]++
		}
	}
	if n < 2 {
		return ""
	}
	text := fmt.Sprintf("  # %s: %s, %s\n", printable.Text(domain), quantity.Plural(n, "line"), quantity.Plural(int(requests), "request"))
	if policy.Rented(domain) {
		return text
	}
	for _, port := range []uint16{443, 80} {
		if wild := fmt.Sprintf("*.%s:%d", domain, port); ports[port] >= manyHosts && !slices.ContainsFunc(s.all[from:from+n], func(l *logs.LearnedDestination) bool { return l.Pattern.Sharing() != "" }) {
			text += fmt.Sprintf("  # %q would be one line for %d of them, and opens every other host below\n", wild, ports[port])
		}
	}
	return text
}
