package file

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// Presets with parameters are templates of rule files.
//
//go:embed presets/with/*.tmpl
var presetTemplates embed.FS

// A presetParameter is one of the lists that a preset can be given.
type presetParameter struct {
	required bool
	words    []string                     // the only values; nil for others
	parse    func(string) (string, error) // of other values
}

var presetParameters = map[string]map[string]presetParameter{
	"github": gitParameters(2, map[string]presetParameter{"pulls": level, "issues": level, "releases": level, "actions": level, "graphql": level}),
	"gitlab": gitParameters(8, map[string]presetParameter{"projects": {parse: parseProjectNumber}, "merge_requests": level, "issues": level}),

	"anthropic":  modelParameters(nil),
	"openai":     modelParameters(map[string]presetParameter{"organizations": {parse: parseOrganization}}),
	"gemini-cli": modelParameters(map[string]presetParameter{"domains": {parse: parseDomain}}),
}

// modelKeys are those of a [policy.ModelRule], and parameters of presets.
var modelKeys = []string{"hosted_tools", "urls", "files"}

func modelParameters(others map[string]presetParameter) map[string]presetParameter {
	all := map[string]presetParameter{}
	for _, key := range modelKeys {
		all[key] = presetParameter{words: []string{"deny"}}
	}
	maps.Copy(all, others)
	return all
}

func parseOrganization(text string) (string, error) {
	if text == "" || len(text) > 64 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return "", fmt.Errorf("%q is not the id of an organization; write it like org-example", text)
	}
	return text, nil
}

func parseDomain(text string) (string, error) {
	p, err := policy.ParsePattern(text)
	if err != nil || !p.OneHost() || p.String() != p.Host() || strings.Trim(text, "0123456789.") == "" {
		return "", fmt.Errorf("%q is not the name of a domain; write it like example.com", text)
	}
	return p.Host(), nil
}

// level is a parameter for a part of an API. Each level allows the same reading requests.
var level = presetParameter{words: []string{"read", "write"}}

// gitParameters are those of a [policy.GitRule], with others. A repository has at most so many parts.
func gitParameters(parts int, others map[string]presetParameter) map[string]presetParameter {
	all := maps.Clone(others)
	all["repos"] = presetParameter{required: true, parse: func(text string) (string, error) {
		repo, err := policy.ParseGitRepo(text)
		if err == nil && strings.Count(repo, "/") >= parts {
			err = fmt.Errorf("%q has more than %d parts; write it like acme/app", text, parts)
		}
		return repo, err
	}}
	for _, name := range []string{"push", "create", "delete"} {
		all[name] = presetParameter{parse: policy.ParseGitRef}
	}
	all["options"] = presetParameter{parse: parsePushOption}
	all["lfs"] = presetParameter{words: []string{"true"}}
	return all
}

func parseProjectNumber(text string) (string, error) {
	if text == "" || len(text) > 15 || strings.Trim(text, "0123456789") != "" {
		return "", fmt.Errorf("%q is not the number of a project; its page shows it", text)
	}
	return text, nil
}

func parsePushOption(text string) (string, error) {
	if text == "" || len(text) > 256 || !printableASCII(text) {
		return "", fmt.Errorf("%q is no push option of printable ASCII characters", text)
	}
	return text, nil
}

// PresetWith returns the rule file that a preset with parameters stands for: plain lines, to read or to paste.
func PresetWith(name string, parameters map[string][]string) ([]byte, error) {
	known, ok := presetParameters[name]
	if !ok {
		return nil, fmt.Errorf("the preset %q has no parameters; %s have some", printable(name), strings.Join(slices.Sorted(maps.Keys(presetParameters)), ", "))
	}
	for _, parameter := range slices.Sorted(maps.Keys(known)) {
		if known[parameter].required && len(parameters[parameter]) == 0 {
			return nil, fmt.Errorf("the preset %s needs %s; add \"%s: [acme/app]\" or the like", name, parameter, parameter)
		}
	}
	values := map[string][]string{}
	for _, parameter := range slices.Sorted(maps.Keys(parameters)) {
		p, ok := known[parameter]
		if !ok {
			return nil, fmt.Errorf("the preset %s has no parameter %q; %s", name, printable(parameter), didYouMean(parameter, slices.Sorted(maps.Keys(known))))
		}
		for _, text := range parameters[parameter] {
			value, err := p.value(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", parameter, err)
			}
			values[parameter] = append(values[parameter], value)
		}
	}
	if slices.Contains(values["graphql"], "write") && len(writtenGroups(values)) == 0 {
		return nil, errors.New("graphql: write changes nothing by itself; add pulls: write or issues: write, or write graphql: read")
	}
	return expandTemplate(name, values)
}

// writtenGroups are the parts of GitHub's API that have mutations, and may be written.
func writtenGroups(values map[string][]string) (groups []string) {
	for _, group := range []string{"pulls", "issues"} {
		if slices.Contains(values[group], "write") {
			groups = append(groups, group)
		}
	}
	return groups
}

func (p *presetParameter) value(text string) (string, error) {
	switch {
	case p.words != nil && !slices.Contains(p.words, text):
		return "", fmt.Errorf("%q is none of %s", printable(text), strings.Join(p.words, ", "))
	case p.words != nil:
		return text, nil
	case strings.Contains(text, "$"): // a policy file reads variables after it
		return "", errors.New("a value with $ cannot stand in a preset; write the rule in full")
	}
	return p.parse(text)
}

// expandTemplate fills values in, each in quotes.
func expandTemplate(name string, values map[string][]string) ([]byte, error) {
	t, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"join": func(all []string) string { return strings.Join(all, ", ") },
		"has":  slices.Contains[[]string],
		"git":  gitMapping,
		"list": quotedList,
		"changes": func(values map[string][]string) []string {
			return policy.GraphQLMutationsOf(writtenGroups(values)...)
		},
		"reads": policy.GraphQLReads,
		"date":  func() string { return policy.GraphQLDate },

		"model":     modelMapping,
		"modelDate": func() string { return policy.ModelListDate },
		"set": func(name string, values []string) string {
			if len(values) == 0 {
				return ""
			}
			return ", set: {" + name + ": " + quoted(strings.Join(values, ",")) + "}"
		},
		"paths": func(names []string, forms ...string) string {
			var all []string
			for _, form := range forms {
				if !strings.Contains(form, "%s") {
					all = append(all, form)
					continue
				}
				for _, name := range names {
					all = append(all, fmt.Sprintf(form, name))
				}
			}
			return quotedList(all)
		},
	}).ParseFS(presetTemplates, "presets/with/"+name+".tmpl")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, values)
	return out.Bytes(), err
}

// gitMapping writes the value of the key git.
func gitMapping(values map[string][]string) string {
	var keys []string
	for _, key := range []string{"repos", "push", "create", "delete", "options"} {
		if len(values[key]) > 0 {
			keys = append(keys, key+": "+quotedList(values[key]))
		}
	}
	if len(values["lfs"]) > 0 {
		keys = append(keys, "lfs: true")
	}
	return "{" + strings.Join(keys, ", ") + "}"
}

// modelMapping writes the key model with its value, or nothing.
func modelMapping(values map[string][]string) string {
	var keys []string
	for _, key := range modelKeys {
		if len(values[key]) > 0 {
			keys = append(keys, key+": deny")
		}
	}
	if len(keys) == 0 {
		return ""
	}
	return ", model: {" + strings.Join(keys, ", ") + "}"
}

// quotedList writes a list of YAML.
func quotedList(all []string) string {
	texts := make([]string, len(all))
	for i, text := range all {
		texts[i] = quoted(text)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// quoted writes a string of YAML, in which JSON's strings are strings, too.
func quoted(text string) string {
	b, _ := json.Marshal(text) // a string always marshals
	return string(b)
}

// ParsePresetParameters reads parameters as commands take them: "repos=acme/app", "push=refs/heads/a/*,refs/heads/b".
func ParsePresetParameters(words []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, word := range words {
		name, values, ok := strings.Cut(word, "=")
		if !ok || values == "" {
			return nil, fmt.Errorf("%q is no parameter; write it like repos=acme/app", printable(word))
		}
		all[name] = append(all[name], strings.Split(values, ",")...)
	}
	return all, nil
}

// presetWith reads an entry of presets with parameters. Its lines count as if they stood under allow.
func (r *reader) presetWith(n *yaml.Node, what string) {
	if len(n.Content) != 2 || n.Content[0].Kind != yaml.ScalarNode {
		r.fail(n, "%s has several keys; write one preset in each entry: - github: {repos: [acme/app]}", what)
		return
	}
	name := n.Content[0].Value
	if _, known := presetParameters[name]; !known {
		_, err := PresetWith(name, nil)
		r.fail(n, "%s: %v", what, err)
		return
	}
	parameters := map[string][]string{}
	read := fields{}
	for parameter := range presetParameters[name] {
		read[parameter] = func(n *yaml.Node) {
			if n.Kind == yaml.ScalarNode {
				n = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}, Line: n.Line, Column: n.Column}
			}
			for _, item := range r.condition(n, what+"."+parameter) {
				if text, ok := r.presetValue(item, what+"."+parameter); ok {
					parameters[parameter] = append(parameters[parameter], text)
				}
			}
		}
	}
	before := len(r.problems)
	r.mapping(n.Content[1], what+"."+name, read)
	if len(r.problems) > before {
		return
	}
	text, err := PresetWith(name, parameters)
	if err != nil {
		r.fail(n, "%s: %v", what, err)
		return
	}
	lines, err := Parse("preset "+name, text)
	if err != nil {
		r.fail(n, "%s: %v", what, err)
		return
	}
	r.texts = append(r.texts, text)
	r.addLines(n, name, lines.Allow)
}

// addPresetLines adds the lines of presets with parameters to those of the file.
func (r *reader) addPresetLines(f *File) {
	for name := range r.expanded {
		if slices.Contains(f.Presets, name) {
			r.failAt(r.places["preset "+name], "the preset %q stands with parameters too, and opens all of its hosts without; keep one", name)
		}
	}
	f.Allow, f.expansions = append(f.Allow, r.lines...), r.texts
}

// presetValue reads a value, which may be a plain number, or true.
func (r *reader) presetValue(n *yaml.Node, what string) (string, bool) {
	if n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!bool") {
		return n.Value, true
	}
	return r.text(n, what)
}

// addLines keeps the lines of a preset for [File].Allow. Those of a second one of the name have a number in their ids.
func (r *reader) addLines(n *yaml.Node, name string, lines []policy.Rule) {
	r.expanded[name]++
	for _, rule := range lines {
		if times := r.expanded[name]; times > 1 {
			rule.ID = fmt.Sprintf("%s-%d%s", name, times, strings.TrimPrefix(rule.ID, name))
		}
		if at, taken := r.ids[rule.ID]; taken {
			r.fail(n, "the preset has a rule %q, and so has the file in line %d; choose another id there", rule.ID, at.Line)
			continue
		}
		rule.At, r.ids[rule.ID] = placeOf(n), placeOf(n)
		r.lines = append(r.lines, rule)
	}
}
