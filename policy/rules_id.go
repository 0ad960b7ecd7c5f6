package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// An identity is what a policy is called wherever the same rules hold. The copies of a policy share it.
type identity struct {
	parts *Parts
	once  sync.Once
	rules string
}

// RulesID identifies the rules that p was assembled from, by 32 hexadecimal digits. Two machines with the same rules have the same
// ID. It covers the rules as they were read, the Rego, the bundles, the grants and what tests no request; not the
// order of a list, comments, reasons, ids, file names, listeners and the tests of the file. It is empty for a policy that [New] made.
func (p *Policy) RulesID() string {
	if p == nil || p.identity == nil {
		return ""
	}
	id := p.identity
	id.once.Do(func() { id.rules = id.parts.rulesID() })
	return id.rules
}

// Revision returns the revisions of the bundles of p, in the order of the policy and with a space between them. It is empty if no
// bundle has a revision.
func (p *Policy) Revision() string {
	if p == nil || p.parts == nil {
		return ""
	}
	return strings.Join(p.parts.Revisions, " ")
}

// rulesID hashes the parts. Each stands in a line of JSON, so that no two lists of parts have the same text.
func (b *Parts) rulesID() string {
	all := sha256.New()
	line := func(parts ...any) {
		text, err := json.Marshal(parts)
		if err != nil { // no part is a channel or a function
			text = fmt.Appendf(nil, "%q", err)
		}
		all.Write(append(text, '\n'))
	}
	line(compilerVersion, len(b.Observe) > 0, patternTexts(b.Never))
	for _, text := range observationTexts(b.Observe) {
		line("observe", text)
	}
	b.Lists.identify(line, "own")
	if b.Organisation != nil {
		b.Organisation.identify(line, "organisation")
	}
	for _, name := range sortedNames(b.Sandboxes) {
		s := &b.Sandboxes[slices.IndexFunc(b.Sandboxes, func(s SandboxLists) bool { return s.Name == name })]
		line("sandbox", s.Name, s.Narrowed, ruleTexts(s.Allow), ruleTexts(s.Deny), ruleTexts(s.AlsoAllow))
	}
	for _, name := range slices.Sorted(maps.Keys(b.Projects)) {
		one := b.Projects[name]
		line("project", name, one.Opens)
		one.Lists.identify(line, "project")
	}
	var grants []string
	for i := range b.Grants {
		g := &b.Grants[i]
		grants = append(grants, fmt.Sprintf("%s %q %q %t", g.Effect, g.String(), g.Sandbox, g.OverDeny))
	}
	slices.Sort(grants)
	line("grants", grants)
	code := make([]string, len(b.Code))
	for i, text := range b.Code {
		code[i] = string(text)
	}
	slices.Sort(code)
	line("code", code)
	return hex.EncodeToString(all.Sum(nil)[:16])
}

func sortedNames(sandboxes []SandboxLists) (names []string) {
	for i := range sandboxes {
		names = append(names, sandboxes[i].Name)
	}
	slices.Sort(names)
	return names
}

// identify writes the lists.
func (l *Lists) identify(line func(parts ...any), whose string) {
	line(whose, l.Layer, l.Default == Allow, l.ECH, l.Ceiled)
	for _, list := range []struct {
		name  string
		rules []Rule
	}{{"allow", l.Allow}, {"deny", l.Deny}, {"ask", l.Ask}, {"unsafe_allow", l.UnsafeAllow}, {"presets", l.Presets}, {"ceiling", l.Ceiling}} {
		line(list.name, ruleTexts(list.rules))
	}
	for i := range l.HostLists {
		line("hosts", l.HostLists[i].Effect, l.HostLists[i].Hosts.identity())
	}
}

// identity hashes the patterns of a list, without the lines in which they stand.
func (l *HostList) identity() string {
	lines := strings.Split(strings.ReplaceAll(string(l.text), "\r", "\n"), "\n")
	slices.Sort(lines)
	sum := sha256.New()
	for _, text := range slices.Compact(lines) {
		_, _ = io.WriteString(sum, text+"\n") // a hash returns no error
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ruleTexts returns what rules mean, sorted: their order and their names make no difference.
func ruleTexts(rules []Rule) []string {
	all := make([]string, len(rules))
	for i := range rules {
		all[i] = rules[i].meaning()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// meaning returns all fields of r that decide something.
func (r *Rule) meaning() string {
	paths := make([]string, len(r.Paths))
	for i, p := range r.Paths {
		paths[i] = p.text
	}
	methods := slices.Clone(r.Methods)
	slices.Sort(methods)
	slices.Sort(paths)
	text, err := json.Marshal([]any{r.Pattern.String(), methods, paths, r.PathsFold, r.Headers, r.Query, r.QueryOnly, r.JSON, r.Git, r.LFS, r.MCP, r.Model, r.GraphQL, r.MaxBytesUp, r.AnyProtocol, r.ECH, r.Upgrade, r.Inject, r.Credential, r.Set})
	if err != nil {
		return err.Error() // no field is a channel or a function
	}
	return string(text)
}

func patternTexts(all []Pattern) []string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	slices.Sort(texts)
	return texts
}
