package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// conditions adds the keys that narrow a rule to some requests.
func (r *reader) conditions(what string, rule *policy.Rule, effect policy.Verdict, known fields) fields {
	known["methods"] = r.methods(what+".methods", rule)
	known["paths"] = r.paths(what+".paths", rule)
	known["paths_fold"] = r.yes(what+".paths_fold", &rule.PathsFold)
	known["headers"] = r.fieldRules(what+".headers", &rule.Headers, policy.CheckHeaderName)
	known["query"] = r.fieldRules(what+".query", &rule.Query, checkParameter)
	known["query_only"] = r.yes(what+".query_only", &rule.QueryOnly)
	known["json"] = r.json(what+".json", &rule.JSON)
	known["mcp"] = r.mcp(what+".mcp", &rule.MCP, effect)
	known["model"] = r.model(what+".model", &rule.Model, effect)
	known["graphql"] = r.graphql(what+".graphql", &rule.GraphQL, effect)
	known["git"] = r.git(what+".git", &rule.Git, effect)
	known["lfs"] = r.lfs(what+".lfs", &rule.LFS, effect)
	return known
}

// git reads what git may fetch and push.
func (r *reader) git(what string, into **policy.GitRule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s says what may be fetched, and stands in allow alone; to refuse a repository, write its paths and paths_fold: true", what)
			return
		}
		var rule policy.GitRule
		each := func(key string, into *[]string, as func(string) (string, error)) func(*yaml.Node) {
			return func(n *yaml.Node) {
				for _, item := range r.condition(n, what+"."+key) {
					if text, ok := parse(r, item, what+"."+key, as); ok {
						*into = append(*into, text)
					}
				}
			}
		}
		r.mapping(n, what, fields{
			"repos":   each("repos", &rule.Repos, policy.ParseGitRepo),
			"push":    each("push", &rule.Push, policy.ParseGitRef),
			"create":  each("create", &rule.Create, policy.ParseGitRef),
			"delete":  each("delete", &rule.Delete, policy.ParseGitRef),
			"options": func(n *yaml.Node) { rule.Options = r.values(what+".options", n) },
			"lfs":     r.yes(what+".lfs", &rule.LFS),
		})
		switch {
		case n.Kind != yaml.MappingNode:
		case !hasKey(n, "repos"):
			r.fail(n, "%s has no repos; add \"repos: [acme/app]\" or the like", what)
		case hasKey(n, "options") && !hasKey(n, "push") && !hasKey(n, "create") && !hasKey(n, "delete"):
			r.fail(n, "%s.options are of a push, and none is allowed; add \"push: [refs/heads/agent/*]\" or the like", what)
		}
		*into = &rule
	}
}

// lfs reads whose answers about large files name what may pass.
func (r *reader) lfs(what string, into **policy.LFSRule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s says which large files may pass, and stands in allow alone", what)
			return
		}
		var rule policy.LFSRule
		r.mapping(n, what, fields{
			"server": func(n *yaml.Node) { rule.Server, _ = parse(r, n, what+".server", policy.ParseLFSServer) },
			"repos": func(n *yaml.Node) {
				for _, item := range r.condition(n, what+".repos") {
					if repo, ok := parse(r, item, what+".repos", policy.ParseGitRepo); ok {
						rule.Repos = append(rule.Repos, repo)
					}
				}
			},
		})
		if n.Kind == yaml.MappingNode && (!hasKey(n, "server") || !hasKey(n, "repos")) {
			r.fail(n, "%s needs server and repos; write it like {server: github.com, repos: [acme/app]}", what)
		}
		*into = &rule
	}
}

// mcp reads which messages of the Model Context Protocol may pass.
func (r *reader) mcp(what string, into **policy.MCPRule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s says what may be called, and stands in allow alone; list the tools that may be called there, and no others", what)
			return
		}
		var rule policy.MCPRule
		names := func(key string, into *[]string) func(*yaml.Node) {
			return func(n *yaml.Node) { *into = r.textsAmong(what+"."+key, r.items(n, what+"."+key)) }
		}
		r.mapping(n, what, fields{
			"tools": names("tools", &rule.Tools), "resources": names("resources", &rule.Resources), "prompts": names("prompts", &rule.Prompts),
			"versions": names("versions", &rule.Versions), "methods": func(n *yaml.Node) {
				names("methods", &rule.Methods)(n)
				for _, method := range rule.Methods {
					if err := policy.CheckMCPMethod(method); err != nil {
						r.fail(n, "%s.methods: %v", what, err)
					}
				}
			},
		})
		*into = &rule
	}
}

// graphql reads which requests of GraphQL may pass.
func (r *reader) graphql(what string, into **policy.GraphQLRule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s says what may be asked for, and stands in allow alone; list the fields that may be asked for there, and no others", what)
			return
		}
		var rule policy.GraphQLRule
		names := func(key string, into *[]string) func(*yaml.Node) {
			return func(n *yaml.Node) {
				for _, item := range r.condition(n, what+"."+key) {
					text, ok := r.text(item, what+"."+key)
					if err := policy.CheckGraphQLName(text); ok && err != nil {
						r.fail(item, "%s.%s: %v", what, key, err)
					}
					*into = append(*into, text)
				}
			}
		}
		r.mapping(n, what, fields{
			"query": func(n *yaml.Node) {
				if rule.AnyQuery = n.Kind == yaml.ScalarNode && n.Value == "any"; !rule.AnyQuery {
					names("query", &rule.Query)(n)
				}
			},
			"mutation": names("mutation", &rule.Mutation),
			"repos": func(n *yaml.Node) {
				for _, item := range r.condition(n, what+".repos") {
					if repo, ok := parse(r, item, what+".repos", policy.ParseGitRepo); ok {
						rule.Repos = append(rule.Repos, repo)
					}
				}
			},
		})
		switch known := policy.GraphQLMutations(); {
		case n.Kind != yaml.MappingNode:
		case len(rule.Repos) > 0 && len(rule.Mutation) == 0:
			r.fail(n, "%s.repos limits mutations, and there is none; add \"mutation: [addComment]\" or the like", what)
		case !rule.AnyQuery && len(rule.Query)+len(rule.Mutation) == 0:
			r.fail(n, "%s lists nothing; add \"query: any\" or \"mutation: [addComment]\" or the like", what)
		case len(rule.Repos) > 0:
			for _, name := range rule.Mutation {
				if !slices.Contains(known, name) {
					r.fail(n, "%s: egressd does not know what the mutation %s names by id, so repos cannot limit it; %s", what, name, didYouMean(name, known))
				}
			}
		}
		*into = &rule
	}
}

// model reads what the provider of a model may do.
func (r *reader) model(what string, into **policy.ModelRule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s says which requests to a model may pass, and stands in allow alone", what)
			return
		}
		var rule policy.ModelRule
		known := fields{}
		for key, denied := range map[string]*bool{"hosted_tools": &rule.DenyHostedTools, "urls": &rule.DenyURLs, "files": &rule.DenyFiles} {
			known[key] = func(n *yaml.Node) {
				var verdict string
				word(r, what+"."+key, &verdict, "allow", "deny")(n)
				*denied = verdict == "deny"
			}
		}
		r.mapping(n, what, known)
		*into = &rule
	}
}

// furtherKeys returns the keys of a rule that narrow it by more than methods and paths.
func furtherKeys(r *policy.Rule) (keys []string) {
	for _, key := range []struct {
		name string
		set  bool
	}{{"headers", len(r.Headers) > 0}, {"query", len(r.Query) > 0}, {"query_only", r.QueryOnly}, {"json", len(r.JSON) > 0}, {"mcp", r.MCP != nil}, {"model", r.Model != nil}, {"graphql", r.GraphQL != nil}, {"git", r.Git != nil}, {"lfs", r.LFS != nil}} {
		if key.set {
			keys = append(keys, key.name)
		}
	}
	return keys
}

// fieldRules reads a mapping of names to lists of values.
func (r *reader) fieldRules(what string, into *[]policy.FieldRule, check func(name string) error) func(*yaml.Node) {
	return func(n *yaml.Node) {
		switch {
		case n.Kind != yaml.MappingNode:
			r.fail(n, "%s is %s; write a mapping of names to values, as in {name: [value]}", what, kindOf(n))
			return
		case len(n.Content) == 0:
			r.fail(n, "%s is empty; name some, or leave the key out for any", what)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, at := n.Content[i], fmt.Sprintf("%s.%s", what, printable(n.Content[i].Value))
			if err := check(key.Value); err != nil {
				r.fail(key, "%s: %v", what, err)
				continue
			}
			if slices.ContainsFunc(*into, func(f policy.FieldRule) bool { return f.Name == key.Value }) {
				r.fail(key, "%s stands a second time; keep one", at)
				continue
			}
			*into = append(*into, policy.FieldRule{Name: key.Value, Values: r.values(at, n.Content[i+1])})
		}
		slices.SortFunc(*into, func(a, b policy.FieldRule) int { return strings.Compare(a.Name, b.Name) })
	}
}

// json reads a mapping of JSON Pointers to lists of values.
func (r *reader) json(what string, into *[]policy.JSONRule) func(*yaml.Node) {
	return func(n *yaml.Node) {
		switch {
		case n.Kind != yaml.MappingNode:
			r.fail(n, "%s is %s; write a mapping of JSON Pointers to values, as in {/model: [claude-*]}", what, kindOf(n))
			return
		case len(n.Content) == 0:
			r.fail(n, "%s is empty; name some values, or leave the key out for any body", what)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, at := n.Content[i], fmt.Sprintf("%s.%s", what, printable(n.Content[i].Value))
			if err := policy.CheckJSONPointer(key.Value); err != nil {
				r.fail(key, "%s: %v", what, err)
				continue
			}
			if slices.ContainsFunc(*into, func(f policy.JSONRule) bool { return f.Pointer == key.Value }) {
				r.fail(key, "%s stands a second time; keep one", at)
				continue
			}
			*into = append(*into, policy.JSONRule{Pointer: key.Value, Values: r.jsonValues(at, n.Content[i+1])})
		}
		slices.SortFunc(*into, func(a, b policy.JSONRule) int { return strings.Compare(a.Pointer, b.Pointer) })
	}
}

// jsonValues reads a list of texts, in which "*" stands for any run of bytes, and of numbers, booleans and null.
func (r *reader) jsonValues(what string, n *yaml.Node) (all []policy.JSONValue) {
	for _, item := range r.condition(n, what) {
		literal := item.Kind == yaml.ScalarNode && slices.Contains([]string{"!!int", "!!bool", "!!null", "!!float"}, item.ShortTag())
		v := policy.JSONValue{Text: item.Value, Literal: literal}
		switch {
		case literal && policy.CheckJSONLiteral(item.Value) != nil:
			r.fail(item, "%s: %v", what, policy.CheckJSONLiteral(item.Value))
			continue
		case !literal:
			texts := r.textsAmong(what, []*yaml.Node{item})
			if len(texts) == 0 {
				continue
			}
			v.Text = texts[0]
		}
		all = append(all, v)
	}
	return all
}

// values reads a list of texts, in which "*" stands for any run of bytes.
func (r *reader) values(what string, n *yaml.Node) []string {
	return r.textsAmong(what, r.condition(n, what))
}

// textsAmong reads the values of items.
func (r *reader) textsAmong(what string, items []*yaml.Node) (all []string) {
	for _, item := range items {
		switch text, ok := r.text(item, what); {
		case !ok:
		case len(text) > 1024 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
			r.fail(item, "%s: a value is longer than 1024 bytes or has control characters; write what is compared", what)
		default:
			all = append(all, text)
		}
	}
	return all
}

// checkParameter returns an error for a name that no parameter of a query has once it is decoded.
func checkParameter(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of a parameter is empty; write one")
	case len(name) > 256 || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fmt.Errorf("%q is no name of a parameter; write it as it is once it is decoded", printable(name))
	}
	return nil
}
