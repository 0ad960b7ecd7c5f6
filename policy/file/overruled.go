package file

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Overruled says what the file allows and a ceiling keeps shut in p, the policy of all layers, and which tests of the file p
// does not keep. These are warnings: each file is judged by itself, and whoever writes one need not know the others. above
// names the organisation's file; it is empty where there is none, and the ceiling is the file's own. sandbox is whose
// project the file is, or empty. Lines of files under allow_file are not looked at.
func (f *File) Overruled(ctx context.Context, p *policy.Policy, above, sandbox string) []policy.Problem {
	w := warnings{file: f}
	o := overruling{policy: p, who: policy.Sandbox{Name: sandbox}, above: above}
	for _, rule := range slices.Concat(f.Allow, f.UnsafeAllow) {
		if text := o.text(ctx, &rule); text != "" {
			w.say(rule.At, "%s allows %s, and %s", rule.ID, rule.Pattern, text)
		}
	}
	w.presets(ctx, &o)
	for i := range f.Tests {
		if at, green := f.RunTest(ctx, p, i); !green {
			_, why, _ := strings.Cut(at.Message, "failed: ")
			why, _, _ = strings.Cut(why, "; correct")
			w.say(f.Tests[i].at, "the test %q holds for this file alone, and not with %s: %s", f.Tests[i].Text, cmp.Or(above, "its ceiling"), why)
		}
	}
	return w.said
}

// presets warns of each preset of which hosts are shut, all in one sentence.
func (w *warnings) presets(ctx context.Context, o *overruling) {
	presets, err := parsePresets(w.file.Presets)
	if err != nil { // a file with such a preset is not read
		return
	}
	for _, preset := range presets {
		var shut []string
		for i := range preset.Allow {
			if o.text(ctx, &preset.Allow[i]) != "" {
				shut = append(shut, preset.Allow[i].Pattern.String())
			}
		}
		if len(shut) == 0 {
			continue
		}
		hosts := firstOf(shut)
		if len(shut) == len(preset.Allow) {
			hosts = "all of it (" + hosts + ")"
		}
		w.say(w.file.places[preset.name], "%s: %s keeps shut, in whole or in part, %s; %s", preset.name, o.whose(), hosts, o.advice())
	}
}

// shutShown is how many hosts of a preset a warning names.
const shutShown = 4

// firstOf lists the first of several hosts, and how many more there are.
func firstOf(hosts []string) string {
	if more := len(hosts) - shutShown; more > 1 {
		return strings.Join(hosts[:shutShown], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(hosts, ", ")
}

// An overruling is the policy of all layers, as it bounds one file.
type overruling struct {
	policy *policy.Policy
	who    policy.Sandbox
	above  string
}

// text says what is shut of a rule, or nothing.
func (o *overruling) text(ctx context.Context, rule *policy.Rule) string {
	for _, opening := range openingsOf(rule) {
		at, d, overruled := o.policy.OverruledBy(ctx, opening, o.who, o.above != "")
		switch {
		case !overruled:
		case d.Verdict == policy.Inspect:
			return fmt.Sprintf("%s lets %s pass only if %s; %s", o.whose(), at, strings.Join(d.AllowedIf, ", or if "), o.advice())
		case opening.Conditional():
			return fmt.Sprintf("%s keeps %s %s shut (rule %s); %s", o.whose(), cmp.Or(opening.Method, "GET"), at+opening.Path, d.Rule, o.advice())
		default:
			return fmt.Sprintf("%s keeps %s shut (rule %s); %s", o.whose(), at, d.Rule, o.advice())
		}
	}
	return ""
}

func (o *overruling) whose() string { return cmp.Or(o.above, "the ceiling of this file") }

func (o *overruling) advice() string {
	if o.above == "" {
		return "write it under ceiling too, or remove it"
	}
	return "ask who keeps that file, or remove it here"
}

// openingsOf returns what a rule opens, for each of its methods and paths. It returns nothing for a rule that asks for more
// than these: no opening has that.
func openingsOf(rule *policy.Rule) (all []policy.Opening) {
	if rule.ReadsFurther() {
		return nil
	}
	methods, paths := rule.Methods, []string{""}
	if len(methods) == 0 {
		methods = []string{""}
	}
	if len(rule.Paths) > 0 {
		paths = nil
	}
	for _, path := range rule.Paths {
		paths = append(paths, path.String())
	}
	for _, method := range methods {
		for _, path := range paths {
			all = append(all, policy.Opening{Pattern: rule.Pattern, Method: method, Path: path})
		}
	}
	return all
}
