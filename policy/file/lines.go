package file

import (
	"bytes"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A Line is one rule where it is written.
type Line struct {
	ID      string // also in records; all lines of a preset share one
	Layer   policy.Layer
	Sandbox string // whose list it stands in; empty for the lists of all
	Preset  string // which it stands in; empty for the file itself
	Effect  policy.Verdict
	Pattern policy.Pattern
	Words   string         // what it asks of a request: "method is GET or HEAD"; empty for nothing
	Place   policy.Problem // where; its message is the line as it is written
}

// Lines returns every rule of the file and of its presets: the lists at the top,
// those of the sandboxes, then the presets. The error is about a preset.
func (f *File) Lines() (all []Line, err error) {
	all = f.linesOf(all, Line{Layer: f.kind.layer(), Effect: policy.Allow}, f.Allow)
	all = f.linesOf(all, Line{Layer: f.kind.layer(), Effect: policy.Deny}, f.Deny)
	all = f.linesOf(all, Line{Layer: f.kind.layer(), Effect: policy.Ask}, f.Ask)
	all = f.linesOf(all, Line{Layer: f.kind.layer(), Effect: policy.Allow}, f.UnsafeAllow)
	for _, s := range f.Sandboxes {
		all = f.linesOf(all, Line{Layer: policy.PerSandbox, Sandbox: s.Name, Effect: policy.Allow}, s.Allow)
		all = f.linesOf(all, Line{Layer: policy.PerSandbox, Sandbox: s.Name, Effect: policy.Deny}, s.Deny)
		all = f.linesOf(all, Line{Layer: f.kind.layer(), Sandbox: s.Name, Effect: policy.Allow}, s.AlsoAllow)
	}
	presets, err := parsePresets(f.Presets)
	if err != nil {
		return nil, err
	}
	for _, preset := range presets {
		all = preset.linesOf(all, Line{Layer: f.kind.layer(), Preset: strings.TrimPrefix(preset.name, "preset "), Effect: policy.Allow}, preset.Allow)
	}
	return all, nil
}

// linesOf appends the rules of a list, as like says what they have in common.
func (f *File) linesOf(all []Line, like Line, list []policy.Rule) []Line {
	if len(list) == 0 {
		return all
	}
	lines := bytes.Split(f.text, []byte("\n"))
	for i := range list {
		r := &list[i]
		like.ID, like.Pattern, like.Words = r.ID, r.Pattern, r.Conditions()
		like.Place = policy.Problem{File: f.name, Line: r.At.Line, Column: r.At.Column}
		if at := r.At.Line - 1; at >= 0 && at < len(lines) {
			like.Place.Message = strings.TrimSpace(string(lines[at]))
		}
		all = append(all, like)
	}
	return all
}
