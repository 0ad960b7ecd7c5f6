package run

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// adds reports whether the run opens more than its policy file, which it then does not need.
func (o *Options) adds() bool { return len(o.Allow)+len(o.Presets) > 0 }

// allowed parses the patterns of --allow, and checks the names of presets.
func (o *Options) allowed() ([]policy.Pattern, error) {
	for _, name := range o.Presets {
		if _, err := file.PresetText(name); err != nil {
			return nil, hint.Misused(fmt.Errorf("--preset: %w", err), "egressd run --preset npm -- COMMAND; the names: "+strings.Join(file.Presets(), ", "))
		}
	}
	if len(o.Allow) == 0 {
		return nil, nil
	}
	return edit.Patterns(o.Allow, "allow", func(hosts string) string { return "egressd run --allow " + hosts + " -- COMMAND" })
}

// add adds the rules of --allow and --preset to those of the file. A sandbox with a list of its own gets the rules
// of --allow, too.
func (r *runner) add(c *config.Config) {
	f := c.File
	for _, name := range r.options.Presets {
		if !slices.Contains(f.Presets, name) {
			f.Presets = append(f.Presets, name)
			c.Added = append(c.Added, "--preset "+name)
		}
	}
	for _, p := range r.allowed {
		rule := policy.Rule{Pattern: p, ID: "--allow " + p.String(), Reason: "the person who started the program allowed it"}
		f.Allow = append(f.Allow, rule)
		c.Added = append(c.Added, rule.ID)
		for i := range f.Sandboxes {
			if s := &f.Sandboxes[i]; s.Name == r.name && s.Narrowed {
				s.Allow = append(s.Allow, rule)
			}
		}
	}
}

// warnOfRefused names what --allow does not open, since another rule is stricter.
func (r *runner) warnOfRefused(ctx context.Context, p *policy.Policy) {
	for _, pattern := range r.allowed {
		if reach := p.Reach(ctx, policy.Opening{Pattern: pattern}, policy.Sandbox{Name: r.name}); reach.Refused > 0 {
			fmt.Fprintf(r.talk, "egressd: warning: --allow %s: %s stays denied by rule %s: %s\n", shell.Pattern(pattern.String()), reach.Shut, reach.Why.Rule, printable.Text(reach.Why.Reason))
		}
	}
}
